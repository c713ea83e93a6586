#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test; ends with ctest's own summary and status.
#     sh tests/run.sh [ctest options, e.g. -R unit]
set -eu
cd "$(dirname "$0")/.."
. cmake/deps.sh
tersekv_require build tests

cmake --preset release -DTERSEKV_WERROR="${TERSEKV_WERROR:-OFF}" \
  -DTERSEKV_IN_FEW_FILES="${TERSEKV_IN_FEW_FILES:-OFF}"
cmake --build --preset release -j "$(nproc)"
exec ctest --preset release "$@"
