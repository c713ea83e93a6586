# SPDX-License-Identifier: Apache-2.0
"""What the tests of the GPU benchmarks share. Run one with plain python3; it ends with 4 where all it
has was skipped."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GPU = os.path.join(ROOT, "bench", "gpu")
sys.path.insert(0, GPU)


def run(*words, env=None, cwd=None):
    """The finished process, with its output as text. `env` is added to this one's."""
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False,
                          env={**os.environ, **(env or {})})


def rehearsal():
    """The path of the library on the host, or a skip."""
    path = os.environ.get("TERSEKV_REHEARSAL")
    if not path:
        raise unittest.SkipTest("TERSEKV_REHEARSAL does not name the library on the host")
    return path


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)


class TableTest(FolderTest):
    """What is asked of a table.py: `table(content, ...)`, of a subclass, is its finished process."""

    def markdown(self, *content):
        done = self.table(*content)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Every table is one: as many cells in each row.
        for block in re.findall(r"(?:^\|.*\n)+", done.stdout, re.M):
            self.assertEqual(len({line.count("|") for line in block.splitlines()}), 1, block)
        return done.stdout

    def row(self, text, start):
        rows = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
        self.assertEqual(len(rows), 1, text)
        return [cell.strip() for cell in rows[0].strip("|").split("|")]

    def refused(self, content, why):
        done = self.table(content)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(why, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)


def main():
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == 0 and not result.skipped:
        sys.exit("no tests")
    # A class that is skipped as a whole stands among the skipped, but none of its tests was begun.
    begun = [test for test, _ in result.skipped if isinstance(test, unittest.TestCase)]
    sys.exit(4 if len(begun) == result.testsRun else 0)
