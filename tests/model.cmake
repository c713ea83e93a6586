# SPDX-License-Identifier: Apache-2.0
# Tells the tests where the model is (TERSEKV_MODEL), unless the caller has said so already.
if(NOT DEFINED ENV{TERSEKV_MODEL})
  if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(tersekv_model "$ENV{XDG_CACHE_HOME}")
  else()
    set(tersekv_model "$ENV{HOME}/.cache")
  endif()
  string(APPEND tersekv_model "/tersekv/SmolLM2-135M-Instruct.Q4_1.gguf")
  if(EXISTS "${tersekv_model}")
    set(ENV{TERSEKV_MODEL} "${tersekv_model}")
  endif()
endif()
