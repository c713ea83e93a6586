#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SOURCE_DIR SCRATCH_DIR
# Builds attention.cpp for aarch64, as every such processor has it and with products of bytes, and runs
# it under qemu. 77: no compiler, or no qemu.
set -eu
source=$1 scratch=$2
compiler=aarch64-linux-gnu-g++
for tool in $compiler qemu-aarch64; do
  command -v $tool >/dev/null 2>&1 || { echo "$tool is needed (apt: g++-aarch64-linux-gnu qemu-user)"; exit 77; }
done
mkdir -p "$scratch"
for flags in "-O1" "-O1 -march=armv8.2-a+dotprod+i8mm -ffast-math"; do
  echo "$flags"
  # shellcheck disable=SC2086 # a list of flags
  $compiler $flags -std=c++20 -static -Wall -Wextra -Wshadow -Wpedantic -Werror -I"$source/include" \
    "$source/tests/portable/attention.cpp" -o "$scratch/attention"
  qemu-aarch64 "$scratch/attention"
done
