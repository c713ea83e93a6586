# SPDX-License-Identifier: Apache-2.0
"""run.py ROOT COMPILER CASE.cpp: the case must not compile, and must say why.

A case is one file with
- at least one line `// expect: TEXT`: the compiler's messages must contain TEXT (white space and
  quotation marks aside); `|` separates alternatives where compilers word it differently
- perhaps a line `// misuse: FLAGS`: with these the misuse alone is compiled
- a correct variant under `#ifdef TERSEKV_FIXED`: with that macro the file must compile, so that it
  is the misuse and nothing else that fails
"""
import os
import re
import subprocess
import sys


def normalised(text):
    return re.sub(r"\s+", " ", re.sub("[‘’'`\"]", "", text))


def problems(root, compiler, case):
    with open(case, encoding="utf-8") as file:
        text = file.read()
    expected = re.findall(r"^// expect: (.+)$", text, re.MULTILINE)
    flags_of_misuse = " ".join(re.findall(r"^// misuse: (.+)$", text, re.MULTILINE)).split()
    if not expected:
        yield "no line '// expect: TEXT'"

    def compiled(*flags):
        command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/include", *flags, case]
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    done = compiled("-DTERSEKV_FIXED")
    if done.returncode:
        yield "the correct variant (-DTERSEKV_FIXED) does not compile:\n" + done.stderr
    done = compiled(*flags_of_misuse)
    if done.returncode == 0:
        yield "compiles, but must not"
        return
    messages = normalised(done.stderr)
    for text in expected:
        if not any(normalised(choice.strip()) in messages for choice in text.split("|")):
            yield f"the compiler's messages do not contain '{text}':\n{done.stderr}"


if __name__ == "__main__":
    found = list(problems(*sys.argv[1:4]))
    print("\n".join(f"{sys.argv[3]}: {problem}" for problem in found) or "refused, with its reason")
    sys.exit(bool(found))
