#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the benchmarks with the flags of preset release, runs them all, and writes
# bench/results/<date>-cpu.json and .md. About five minutes on an idle machine.
#     sh bench/run.sh [Google Benchmark options, e.g. --benchmark_filter=^policy]
set -eu
cd "$(dirname "$0")/.."
. cmake/deps.sh
tersekv_require build bench

# In a folder of its own: needs neither the tests' libraries nor the examples'.
cmake --preset release -B build/bench -DTERSEKV_BUILD_TESTS=OFF -DTERSEKV_BUILD_EXAMPLES=OFF
cmake --build build/bench --target tersekv-bench -j "$(nproc)"

results=bench/results/$(date +%F)-cpu
mkdir -p bench/results
set -- build/bench/bench/tersekv-bench --benchmark_min_time=0.05 --benchmark_repetitions=3 \
  --benchmark_report_aggregates_only=true "$@"
"$@" --benchmark_out_format=json --benchmark_out="$results.json"
python3 bench/table.py "$results.json" "$*" >"$results.md"
echo "$results.md"
