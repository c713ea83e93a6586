# SPDX-License-Identifier: Apache-2.0
"""tree.py ROOT: what holds for every file of the tree.

- a file says one thing: public headers, parts and tests stay under their number of lines
- sources and scripts name the licence
- nothing names a path that exists only on somebody's machine
"""
import os
import re
import sys

SOURCES = (".hpp", ".cpp", ".cuh", ".cu", ".py", ".sh", ".cmake")
SKIPPED_FOLDERS = {".git", "build", "results", "__pycache__", ".cache", "data"}
# Spelled so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}~*-])/(?:ro{2}t|hom[e]|wor[k]|User[s]|mn[t])/[\w.-]+")
PART = re.compile(r"include/tersekv/(scorers|selectors|mergers)/")


def line_limit(path):
    """Files must stay under this many lines; None: no limit."""
    if PART.match(path):
        return 100
    if path.startswith(("include/", "kernels/")):
        return 400
    if re.match(r"tests/.*\.(hpp|cpp|cuh|cu)$", path):
        return 300
    return None


def problems(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root).replace(os.sep, "/")
            try:
                with open(full, encoding="utf-8") as file:
                    text = file.read()
            except UnicodeDecodeError:
                yield f"{path}: not UTF-8 text"
                continue
            lines = text.count("\n")
            if PART.match(path):  # documentation is not what makes a part long
                lines = sum(1 for line in text.splitlines() if not re.match(r"\s*(//.*)?$", line))
            limit = line_limit(path)
            if limit and lines >= limit:
                yield f"{path}: {lines} lines, must stay under {limit}"
            is_source = path.endswith(SOURCES) or name == "CMakeLists.txt"
            if is_source and "SPDX-License-Identifier: Apache-2.0" not in text[:200]:
                yield f"{path}: the first lines do not name the licence"
            for match in MACHINE_PATH.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: a path of one machine: {match.group()}"


if __name__ == "__main__":
    found = list(problems(sys.argv[1]))
    print("\n".join(found) or "the tree is in order")
    sys.exit(bool(found))
