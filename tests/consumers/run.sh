#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh WAY SOURCE_DIR BUILD_DIR SCRATCH_DIR CMAKE COMPILER GENERATOR
# Builds and runs the consumer tests/consumers/WAY in a scratch folder, from nothing.
set -eu
way=$1 source=$2 build=$3 scratch=$4 cmake=$5 compiler=$6 generator=$7
consumer=$source/tests/consumers/$way
rm -rf "$scratch"
mkdir -p "$scratch"

case $way in
  find_package)
    "$cmake" --install "$build" --prefix "$scratch/prefix"
    "$cmake" -S "$consumer" -B "$scratch/build" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_BUILD_TYPE=Release
    "$cmake" --build "$scratch/build"
    ;;
  add_subdirectory)
    "$cmake" -S "$consumer" -B "$scratch/build" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" \
      -DTERSEKV_SOURCE="$source" -DCMAKE_BUILD_TYPE=Release
    "$cmake" --build "$scratch/build"
    ;;
  plain_include)
    mkdir "$scratch/build"
    "$compiler" -std=c++20 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror \
      -I"$source/include" "$consumer/main.cpp" \
      "$consumer/other.cpp" -o "$scratch/build/consumer"
    ;;
  *) echo "no consumer '$way'" >&2; exit 2 ;;
esac
"$scratch/build/consumer"
