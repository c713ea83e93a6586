#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the examples for a GPU without CMake, as somebody would who has the headers alone, and runs
# them. From the repository's root: sh bench/gpu/examples.sh NVCC CAPABILITY FOLDER
set -eu
nvcc=$1 architecture=sm_$2 folder=$3
compile() { "$nvcc" -std=c++20 -O3 -arch="$architecture" -I include -I kernels "$@"; }
compile -o "$folder/cuda_quickstart" examples/cuda_quickstart.cu &
libraries=$(dirname "$(dirname "$(command -v "$nvcc")")")/lib64
compile -o "$folder/cuda_decode" examples/cuda_decode/main.cu -lcublas -Xlinker -rpath="$libraries"
wait $!
"$folder/cuda_quickstart"
"$folder/cuda_decode" --layers 2 --context 2048 --batch 2 --steps 4
