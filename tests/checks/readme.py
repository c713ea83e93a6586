# SPDX-License-Identifier: Apache-2.0
"""readme.py ROOT COMPILER: README's first screen is true, and its other snippets compile.

- the first ```cpp block is examples/quickstart.cpp without its licence line, compiles, and prints
  exactly the ```text block that follows it
- every further ```cpp block compiles as the body of a function, after tests/checks/snippets.hpp
- the ```cuda block is examples/cuda_quickstart.cu without its licence line, which nvcc compiles where
  CUDA is built
- files that README links exist
"""
import pathlib
import re
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wno-unused-variable",
         "-Wno-unused-but-set-variable", "-Werror"]


def compile_text(root, compiler, text, arguments):
    command = [compiler, *FLAGS, f"-I{root}/include", "-x", "c++", "-", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def program_problems(root, compiler, program, expected):
    source = (root / "examples/quickstart.cpp").read_text(encoding="utf-8")
    if source.split("\n", 1)[1].strip() != program.strip():
        yield "README.md: the first program is not examples/quickstart.cpp"
    with tempfile.TemporaryDirectory() as folder:
        binary = folder + "/program"
        done = compile_text(root, compiler, program, ["-O2", "-o", binary])
        if done.returncode:
            yield "README.md: the first program does not compile:\n" + done.stderr
            return
        done = subprocess.run([binary], capture_output=True, text=True)
    if done.returncode or done.stdout.strip() != expected.strip():
        yield (f"README.md: the first program (exit status {done.returncode}) prints\n{done.stdout}"
               f"and README shows\n{expected}")


def problems(root, compiler):
    root = pathlib.Path(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    if [language for language, _ in blocks[:2]] != ["cpp", "text"]:
        yield "README.md: must open with a ```cpp program followed by its output in ```text"
        return
    yield from program_problems(root, compiler, blocks[0][1], blocks[1][1])
    for language, text in blocks:
        if language != "cuda":
            continue
        source = (root / "examples/cuda_quickstart.cu").read_text(encoding="utf-8")
        if source.split("\n", 1)[1].strip() != text.strip():
            yield "README.md: the CUDA program is not examples/cuda_quickstart.cu"
    prelude = root / "tests/checks/snippets.hpp"
    for language, text in blocks[2:]:
        if language != "cpp":
            continue
        includes = "".join(re.findall(r"^#include.*\n", text, re.MULTILINE))
        body = re.sub(r"^#include.*\n", "", text, flags=re.MULTILINE)
        unit = (f'{includes}#include "{prelude}"\n'
                f"void snippet(Host& host) {{\nTERSEKV_SNIPPET_NAMES(host)\n{{\n{body}}}\n}}\n")
        done = compile_text(root, compiler, unit, ["-fsyntax-only"])
        if done.returncode:
            yield f"README.md: this does not compile:\n{text}{done.stderr}"
    prose = re.sub(r"^```.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        if not (root / link).exists():
            yield f"README.md: links {link}, which does not exist"


if __name__ == "__main__":
    found = list(problems(sys.argv[1], sys.argv[2]))
    print("\n".join(found) or "README is true")
    sys.exit(bool(found))
