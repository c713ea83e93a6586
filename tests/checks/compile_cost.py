# SPDX-License-Identifier: Apache-2.0
"""What the library costs who includes it: the time and the memory to compile one policy, as multiples of
what Eigen's core alone takes, and the size of the README's program.

    compile_cost.py COMPILER SOURCE_DIR [EIGEN_DIR]

Each is compiled five times, in turn, and the shortest counts, in the compiler's own processor time. The
ratio still goes by who else uses the machine's caches, a fifth to either side for one and the same
library, so its limit is a wide one. Memory, where the compiler tells (g++), is the same each time, and has
a narrow one: it grows with what is included and instantiated. Without Eigen: 77."""

import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

MOST_TIMES_EIGEN = 5.0  # 3.7 when this was written
LEAST_TIMES_EIGEN = 1.0  # less would mean that nothing was compiled
MOST_MEMORY_OF_EIGEN = 1.55  # 1.46 when this was written
MOST_KIB = 150  # 103 when this was written

ONE_POLICY = """#include <tersekv/tersekv.hpp>
void step(const tersekv::CacheConfig& config, const tersekv::Chunk<float>& chunk) {
  tersekv::KVCache<tersekv::ZSMerge> cache(config);
  cache.extend(chunk);
}
"""
EIGEN = "#include <Eigen/Core>\nEigen::MatrixXf one(2, 2);\n"


def processor_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def compiler_memory(command):
    """What it allocates, in the unit that it tells, or None."""
    said = subprocess.run([*command, "-ftime-report"], check=True, capture_output=True, text=True,
                          env={**os.environ, "LC_ALL": "C"}).stderr
    total = re.search(r"^ *TOTAL .* (\d+)M$", said, re.MULTILINE)
    return int(total[1]) if total else None


def main():
    compiler, source = sys.argv[1], pathlib.Path(sys.argv[2])
    eigen = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else "/usr/include/eigen3")
    if not (eigen / "Eigen/Core").exists():
        print("Eigen is not there")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flags = ["-std=c++20", "-O2", f"-I{source / 'include'}", f"-I{eigen}"]
        seconds, memory, commands = {}, {}, {}
        for what, text in (("tersekv", ONE_POLICY), ("eigen", EIGEN)):
            program = folder / f"{what}.cpp"
            program.write_text(text)
            commands[what] = [compiler, *flags, "-c", program, "-o", folder / "out.o"]
            memory[what] = compiler_memory(commands[what])
        for _ in range(5):
            for what, command in commands.items():
                took = processor_seconds(command)
                seconds[what] = min(took, seconds.get(what, took))
        ratio = seconds["tersekv"] / seconds["eigen"]
        print(f"one policy: {seconds['tersekv']:.2f} s, Eigen alone: {seconds['eigen']:.2f} s, "
              f"{ratio:.2f} times")
        memory_ratio = None
        if all(memory.values()):
            memory_ratio = memory["tersekv"] / memory["eigen"]
            print(f"memory: {memory['tersekv']} and {memory['eigen']} MiB, {memory_ratio:.2f} times")
        program = folder / "program"
        subprocess.run([compiler, *flags, source / "examples/quickstart.cpp", "-s", "-o", program],
                       check=True)
        kib = os.path.getsize(program) / 1024
        print(f"examples/quickstart.cpp: {kib:.0f} KiB, stripped")
    if not LEAST_TIMES_EIGEN < ratio < MOST_TIMES_EIGEN:
        print(f"expected {LEAST_TIMES_EIGEN} to {MOST_TIMES_EIGEN} times Eigen")
        return 1
    if memory_ratio is not None and not 1 < memory_ratio < MOST_MEMORY_OF_EIGEN:
        print(f"expected 1 to {MOST_MEMORY_OF_EIGEN} times the memory")
        return 1
    if kib > MOST_KIB:
        print(f"expected at most {MOST_KIB} KiB")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
