# SPDX-License-Identifier: Apache-2.0
"""That attention's blocks are unrolled at -O2, too: left to itself, g++ loops over their rows and vectors
there, keeps the sums in memory, and attention takes four times as long.

    unrolled.py COMPILER SOURCE_DIR

Looks at the code for processors with AVX2, whatever processor it runs on. Elsewhere than on x86: 77."""

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
FLAGS = ["-std=c++20", "-O2", "-march=x86-64-v3", "-S", "-x", "c++", "-", "-o", "-"]
PRODUCT = re.compile(r"\s+vfmadd\w+ps\s.*%ymm")
LEAST_PRODUCTS = 8  # two rows by four vectors, what 16 registers hold sums for
LEAST_LOOPS = 3  # one for each type


def most_products(lines):
    """Of each function the most products between a label and a jump back to it."""
    most, function, labels, products = {}, None, {}, 0
    for line in lines:
        if match := re.match(r"([\w.$]+):", line):
            name = match[1]
            if not name.startswith(".L"):
                function, labels = name, {}
            labels[name] = products
        elif PRODUCT.match(line):
            products += 1
        elif (match := re.match(r"\s+j\w+\s+(\.L\w+)", line)) and match[1] in labels:
            inside = [at for at in labels.values() if at > labels[match[1]]]
            if not inside:  # an innermost loop
                most[function] = max(most.get(function, 0), products - labels[match[1]])
    return most


def main():
    if platform.machine() not in ("x86_64", "AMD64"):
        print("not an x86 processor's compiler")
        return 77
    compiler, source = sys.argv[1], pathlib.Path(sys.argv[2])
    assembly = subprocess.run([compiler, *FLAGS, f"-I{source / 'include'}"], input=CACHES, text=True,
                              stdout=subprocess.PIPE, check=True).stdout
    most = most_products(assembly.splitlines())
    status = 0
    for part in ("key", "value"):
        found = [n for name, n in most.items() if re.search(f"{part}_(tile|block)", name)]
        whole = sum(n >= LEAST_PRODUCTS for n in found)
        print(f"{part}s: products in the innermost loops of {len(found)} functions: {found}")
        if whole < LEAST_LOOPS:
            print(f"expected {LEAST_PRODUCTS} or more in {LEAST_LOOPS} functions, got {whole}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
