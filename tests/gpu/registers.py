# SPDX-License-Identifier: Apache-2.0
"""registers.py NVCC SOURCE_DIR [--update]: registers and spills of the kernels in registers.cu.

Compiles them for every architecture with -Xptxas -v and compares with registers.txt: a kernel may use
fewer registers and spill less than the table says, not more; attention may not spill at all. The host
must take a kernel's arguments to be as large as the kernel does: a compiler that lays a struct out in
two ways would have it read garbage.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ARCHITECTURES = ("80", "90", "100")
# The one of whose constant bank ptxas says how large it is, and what is there before the arguments.
SAYS_ARGUMENTS, ARGUMENTS_AT = "80", 352
HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "registers.txt"


def parse(report):
    """From what ptxas says of itself: {(architecture, kernel): (registers, bytes spilled)}, and
    {kernel: bytes of constants}."""
    found, constants = {}, {}
    kernel = None
    spilled = 0
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)'", line):
            kernel = (match[2], match[1])
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif (match := re.search(r"Used (\d+) registers", line)) and kernel:
            found[kernel] = (int(match[1]), spilled)
            if bank := re.search(r"(\d+) bytes cmem\[0\]", line):
                constants[kernel[1]] = int(bank[1])
            kernel, spilled = None, 0
    return found, constants


def short(demangled):
    """The body's name and arguments, without namespaces."""
    if match := re.search(r"run_body<(.*) ?>\(", demangled):
        demangled = match[1]
    return re.sub(r"tersekv::(cuda::)?", "", demangled).replace(" ", "")


def demangle(names):
    out = subprocess.run(["c++filt", "-t", *names], capture_output=True, text=True, check=True)
    return dict(zip(names, out.stdout.splitlines()))


def read_table(text):
    rows = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            architecture, registers, spilled, kernel = line.split()
            rows[architecture, kernel] = (int(registers), int(spilled))
    return rows


def problems(found, table):
    for key in sorted(found.keys() | table.keys()):
        architecture, kernel = key
        name = f"sm_{architecture} {kernel}"
        if key not in found:
            yield f"{name}: in the table, not compiled"
        elif key not in table:
            yield f"{name}: compiled, not in the table"
        elif any(now > then for now, then in zip(found[key], table[key])):
            yield f"{name}: (registers, bytes spilled) {found[key]}, the table allows {table[key]}"
        if "Attention" in kernel and found.get(key, (0, 0))[1] > 0:
            yield f"{name}: attention spills {found[key][1]} bytes"


def argument_problems(of_host, constants):
    """Of {kernel: bytes of its first argument}, as the host says, and what the kernels read."""
    for kernel in sorted(of_host.keys() | constants.keys()):
        if kernel not in of_host or kernel not in constants:
            yield f"{kernel}: the size of its arguments is not known"
            continue
        # An int and a pointer follow.
        expected = (of_host[kernel] + 4 + 7) // 8 * 8 + 8
        got = constants[kernel] - ARGUMENTS_AT
        if got != expected:
            yield f"{kernel}: reads {got} bytes of arguments, the host passes {expected}"


def output(*command):
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    return run.stdout + run.stderr


def report(nvcc, source, architecture):
    """What ptxas says of the kernels, compiled for one architecture, and there what the host says."""
    says = architecture == SAYS_ARGUMENTS
    with tempfile.TemporaryDirectory() as scratch:
        ptxas = output(nvcc, "-std=c++20", "-Xptxas", "-v", f"-I{source}/include",
                       f"-I{source}/kernels", f"-arch=sm_{architecture}",
                       *([] if says else ["-cubin"]), str(HERE / "registers.cu"),
                       "-o", f"{scratch}/registers")
        return ptxas, output(f"{scratch}/registers") if says else ""


def compiled(nvcc, source):
    with ThreadPoolExecutor(max_workers=2) as pool:
        reports = list(pool.map(lambda a: report(nvcc, source, a), ARCHITECTURES))
    found, constants = parse("\n".join(ptxas for ptxas, _ in reports))
    host = [line.split() for _, said in reports for line in said.splitlines()]
    names = demangle(sorted({kernel for _, kernel in found} | {kernel for _, kernel in host}))
    is_ours = {kernel: "run_body" in names[kernel] for _, kernel in found}
    return ({(a, short(names[kernel])): numbers for (a, kernel), numbers in found.items()
             if is_ours[kernel]},
            {short(names[kernel]): int(size) for size, kernel in host},
            {short(names[kernel]): size for kernel, size in constants.items() if is_ours[kernel]})


if __name__ == "__main__":
    kernels, of_host, constants = compiled(sys.argv[1], sys.argv[2])
    if "--update" in sys.argv:
        lines = ["# architecture, registers, bytes spilled (stores and loads), kernel: registers.py"]
        lines += [f"{a} {r} {s} {k}" for (a, k), (r, s) in sorted(kernels.items())]
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wrong = list(problems(kernels, read_table(TABLE.read_text(encoding="utf-8"))))
    wrong += argument_problems(of_host, constants)
    print("\n".join(wrong) or f"{len(kernels)} kernels are within the table, and the arguments of "
          f"{len(of_host)} as large as the host's")
    sys.exit(bool(wrong))
