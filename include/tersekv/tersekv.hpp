// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cache and all policies. Readers of surrogate files (`tersekv/safetensors.hpp`) are apart.

#include "tersekv/copy_sequence.hpp"
#include "tersekv/kv_cache.hpp"
#include "tersekv/policies/full.hpp"
#include "tersekv/policies/h2o.hpp"
#include "tersekv/policies/keepkv.hpp"
#include "tersekv/policies/kvzap.hpp"
#include "tersekv/policies/morphkv.hpp"
#include "tersekv/policies/snapkv.hpp"
#include "tersekv/policies/streaming_llm.hpp"
#include "tersekv/policies/tova.hpp"
#include "tersekv/policies/weightedkv.hpp"
#include "tersekv/policies/zsmerge.hpp"
#include "tersekv/surrogate.hpp"
