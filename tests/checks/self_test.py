# SPDX-License-Identifier: Apache-2.0
"""self_test.py COMPILER: the checks find what they are there to find (and leave good trees alone)."""
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "misuse")]
import catalogue  # noqa: E402
import readme  # noqa: E402
import run as misuse  # noqa: E402
import tree  # noqa: E402

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
PROGRAM = '#include <cstdio>\nint main() { std::puts("three"); }\n'
ROW = "| [`full.hpp`](include/tersekv/policies/full.hpp) | all |\n"
README = f"# x\n```cpp\n{PROGRAM}```\n```text\nthree\n```\n{ROW}```cpp\nint two = one + 1;\n```\n"
GOOD = {
    "README.md": README,
    "examples/quickstart.cpp": SPDX + PROGRAM,
    "include/tersekv/policies/full.hpp": SPDX + "#pragma once\n",
    "include/tersekv/tersekv.hpp": SPDX + '#pragma once\n#include "tersekv/policies/full.hpp"\n',
    "tests/checks/snippets.hpp": SPDX
    + "struct Host { int one = 1; };\n#define TERSEKV_SNIPPET_NAMES(h) auto& one = h.one;\n",
}
MISUSE = "// expect: no match\n#ifdef TERSEKV_FIXED\nint x = 1;\n#else\nint x = {bad};\n#endif\n"


def check(tool, expected, changes=None, *arguments):
    """Runs a tool on the good tree with changes; expected is in its findings, or None: no finding."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**GOOD, **(changes or {})}.items():
            file = pathlib.Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        found = "\n".join(tool.problems(root, *(a.replace("ROOT", root) for a in arguments)))
    if (found != "") if expected is None else (expected not in found):
        sys.exit(f"{tool.__name__}: expected {expected!r}, found {found!r}")


compiler = sys.argv[1]
check(tree, None)
check(tree, "must stay under 400", {"include/tersekv/a.hpp": SPDX + "\n" * 399})
check(tree, None, {"include/tersekv/a.hpp": SPDX + "\n" * 398})
check(tree, "must stay under 100", {"include/tersekv/scorers/a.hpp": SPDX + "int x;\n" * 100})
check(tree, None, {"include/tersekv/scorers/a.hpp": SPDX + "/// Documentation.\n" * 120})
check(tree, "must stay under 300", {"tests/test_a.cpp": SPDX + "\n" * 299})
check(tree, "must stay under 300", {"tests/gpu/test_a.cu": SPDX + "\n" * 299})
check(tree, "must stay under 400", {"kernels/tersekv/cuda/a.cuh": SPDX + "\n" * 399})
check(tree, "do not name the licence", {"src/a.cpp": "int a;\n"})
check(tree, "a.md:2: a path of one machine", {"a.md": "\nsee /ho" + "me/somebody/x\n"})

check(catalogue, None)
check(catalogue, "no row", {"include/tersekv/policies/tova.hpp": SPDX})
check(catalogue, "does not include policies/full.hpp", {"include/tersekv/tersekv.hpp": SPDX})
check(catalogue, "does not exist", {"README.md": README + ROW.replace("full", "gone")})
check(catalogue, "more than once", {"README.md": README + ROW})

check(readme, None, None, compiler)
check(readme, "is not examples/quickstart.cpp", {"examples/quickstart.cpp": SPDX}, compiler)
check(readme, "and README shows", {"README.md": README.replace("\nthree\n", "\nfour\n")}, compiler)
cuda = {"README.md": README + "```cuda\nint x;\n```\n", "examples/cuda_quickstart.cu": SPDX + "int x;\n"}
check(readme, None, cuda, compiler)
cuda["examples/cuda_quickstart.cu"] += "int y;\n"
check(readme, "is not examples/cuda_quickstart.cu", cuda, compiler)
check(readme, "does not compile", {"README.md": README.replace("one + 1", "zero + 1")}, compiler)
check(readme, "links gone.md", {"README.md": README + "[x](gone.md)\n"}, compiler)

for bad, expected in (("2", "must not"), ("nothing", "do not contain")):
    case = {"case.cpp": MISUSE.replace("{bad}", bad)}
    check(misuse, expected, case, compiler, "ROOT/case.cpp")
case = {"case.cpp": MISUSE.replace("no match", "nothing").replace("{bad}", "nothing")}
check(misuse, None, case, compiler, "ROOT/case.cpp")
case = {"case.cpp": case["case.cpp"].replace("x = 1", "x = wrong")}
check(misuse, "correct variant", case, compiler, "ROOT/case.cpp")
print("every check finds what it should")
