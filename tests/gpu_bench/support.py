# SPDX-License-Identifier: Apache-2.0
"""What the tests of the GPU benchmarks share. Run one with plain python3; it ends with 4 where all it
has was skipped."""
import os
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
    """The path of the library over host threads, or a skip."""
    path = os.environ.get("TERSEKV_REHEARSAL")
    if not path:
        raise unittest.SkipTest("TERSEKV_REHEARSAL does not name the library of host threads")
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


def main():
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == 0:
        sys.exit("no tests")
    sys.exit(4 if len(result.skipped) == result.testsRun else 0)
