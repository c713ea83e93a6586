# SPDX-License-Identifier: Apache-2.0
"""catalogue.py ROOT: README's catalogue has exactly one row per header in policies/, and tersekv.hpp has all."""
import pathlib
import re
import sys


def problems(root):
    root = pathlib.Path(root)
    files = {path.name for path in (root / "include/tersekv/policies").glob("*.hpp")}
    if not files:
        yield "include/tersekv/policies holds no header: is ROOT right?"
    readme = (root / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\(include/tersekv/policies/([\w.]+)\).*\|\s*$", readme, re.MULTILINE)
    for name in sorted(files - set(rows)):
        yield f"README.md: the catalogue has no row that links include/tersekv/policies/{name}"
    everything = (root / "include/tersekv/tersekv.hpp").read_text(encoding="utf-8")
    for name in sorted(files):
        if f'#include "tersekv/policies/{name}"' not in everything:
            yield f"include/tersekv/tersekv.hpp: does not include policies/{name}"
    for name in sorted(set(rows) - files):
        yield f"README.md: the catalogue lists {name}, which does not exist"
    for name in sorted({name for name in rows if rows.count(name) > 1}):
        yield f"README.md: the catalogue lists {name} more than once"


if __name__ == "__main__":
    found = list(problems(sys.argv[1]))
    print("\n".join(found) or "the catalogue is complete")
    sys.exit(bool(found))
