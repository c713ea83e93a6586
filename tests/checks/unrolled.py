# SPDX-License-Identifier: Apache-2.0
"""That attention's blocks work in registers: left to itself, g++ loops over their rows and vectors at -O2,
and attention takes four times as long; it keeps sums, or what they are made of, in memory, where a
function that gets the array of them is inlined late; and the pointers of a loop in vector registers, where
several loops share a function.

    unrolled.py COMPILER SOURCE_DIR

Looks at the code for processors with AVX2 and with AVX-512, whatever processor it runs on. Elsewhere than
on x86: 77."""

import pathlib
import platform
import re
import subprocess
import sys

CACHES = """#include <tersekv/tersekv.hpp>
template <class T>
void step(tersekv::KVCache<tersekv::Full, T>& cache, const tersekv::Chunk<float>& chunk) {
  cache.extend(chunk);
}
template void step(tersekv::KVCache<tersekv::Full, float>&, const tersekv::Chunk<float>&);
template void step(tersekv::KVCache<tersekv::Full, tersekv::BFloat16>&, const tersekv::Chunk<float>&);
template void step(tersekv::KVCache<tersekv::Full, tersekv::Half>&, const tersekv::Chunk<float>&);
"""
# What is inlined late depends on the rest of a file: the second is the one that is measured.
PEERS = """#include "policies/full.cpp"
"""
COMPILED = [(CACHES, ["-O2", "-march=x86-64-v3"]),
            (PEERS, ["-O3", "-march=sapphirerapids", "-fopenmp", "-DNDEBUG"]),
            (PEERS, ["-O3", "-march=znver3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
                     "-mavx512vnni", "-mavx512bf16", "-fopenmp", "-DNDEBUG"])]
PRODUCT = re.compile(r"\s+vfmadd\w+ps\s.*%[yz]mm")
ON_STACK = re.compile(r"\s+v.*\(%r[sb]p\).*%[yz]mm|\s+v.*%[yz]mm.*\(%r[sb]p\)")
POINTER = re.compile(r"\s+vmovq\s+(%xmm\d+, ?%r|%r\w+, ?%xmm)")
LEAST_PRODUCTS = 8  # two rows by four vectors, what 16 registers hold sums for
LEAST_LOOPS = 3  # one for each type
MOST_ON_STACK = 4  # vectors in a loop
MOST_POINTERS = 2  # to and from vector registers, in a loop of products


def inner_loops(lines):
    """Of each function the lines between a label and a jump back to it, no other label between."""
    loops, function, labels = {}, None, {}
    for at, line in enumerate(lines):
        if match := re.match(r"([\w.$]+):", line):
            name = match[1]
            if not name.startswith(".L"):
                function, labels = name, {}
            labels[name] = at
        elif (match := re.match(r"\s+j\w+\s+(\.L\w+)", line)) and match[1] in labels:
            start = labels[match[1]]
            if not any(start < other for other in labels.values()):
                loops.setdefault(function, []).append(lines[start:at])
    return loops


def check(assembly):
    """What is wrong with it."""
    wrong = []
    for part in ("key", "value"):
        most, on_stack, pointers = [], 0, 0
        for name, loops in inner_loops(assembly.splitlines()).items():
            if not re.search(f"{part}_(tile|block)", name):
                continue
            products = [sum(bool(PRODUCT.match(line)) for line in loop) for loop in loops]
            most.append(max(products))
            for loop, count in zip(loops, products):
                if count >= LEAST_PRODUCTS:
                    on_stack = max(on_stack, sum(bool(ON_STACK.match(line)) for line in loop))
                if count > 0:
                    pointers = max(pointers, sum(bool(POINTER.match(line)) for line in loop))
        print(f"{part}s: products in the innermost loops of {len(most)} functions: {most}; "
              f"vectors on the stack: up to {on_stack}, pointers to and from vectors: up to {pointers}")
        if sum(n >= LEAST_PRODUCTS for n in most) < LEAST_LOOPS:
            wrong.append(f"{part}s: expected {LEAST_PRODUCTS} products or more in {LEAST_LOOPS} "
                         f"functions, got {most}")
        if on_stack > MOST_ON_STACK:
            wrong.append(f"{part}s: expected up to {MOST_ON_STACK} vectors on the stack in a loop, "
                         f"got {on_stack}")
        if pointers > MOST_POINTERS:
            wrong.append(f"{part}s: expected up to {MOST_POINTERS} pointers to and from vector registers in "
                         f"a loop, got {pointers}")
    return wrong


def main():
    if platform.machine() not in ("x86_64", "AMD64"):
        print("not an x86 processor's compiler")
        return 77
    compiler, source = sys.argv[1], pathlib.Path(sys.argv[2])
    status = 0
    for program, flags in COMPILED:
        print(*flags)
        command = [compiler, "-std=c++20", *flags, "-S", "-x", "c++", "-", "-o", "-",
                   f"-I{source / 'include'}", f"-I{source / 'bench' / 'peers'}"]
        assembly = subprocess.run(command, input=program, text=True, stdout=subprocess.PIPE,
                                  check=True).stdout
        for what in check(assembly):
            print(what)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
