# SPDX-License-Identifier: Apache-2.0
"""measure.py from end to end on the host, where PyTorch is installed; and what it does about
wrong results."""
import json
import sys
import unittest

from support import FolderTest, GPU, main, rehearsal, run

try:
    import torch
except ImportError:
    torch = None
import attention
import measure
import native
import shapes


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Rehearsal(FolderTest):
    def measure(self, *words):
        done = run(sys.executable, "-B", f"{GPU}/measure.py", "--library", rehearsal(), "--rehearse",
                   "--out", self.path("r.json"), "--seconds-of-case", "0", *words)
        with open(self.path("r.json"), encoding="utf-8") as file:
            return done, json.load(file)

    def test_every_section(self):
        done, report = self.measure("--seconds", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report["failed"] + report["left_out"], [])
        self.assertEqual(len(report["attention"]), len(shapes.rehearsal_attention()))
        for result in report["attention"]:
            self.assertLessEqual({"ours", "ours_plain", "ours_rows", "probe", "sdpa"},
                                 set(result["samples_us"]))
            self.assertIn("flashinfer", {**result["samples_us"], **result["skipped"]})
        self.assertEqual([r["policy"] for r in report["steps"]], list(shapes.POLICIES))
        for section in ("graphs", "budgets", "batches"):
            self.assertTrue(report[section])
        table = run(sys.executable, "-B", f"{GPU}/table.py", self.path("r.json"))
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("A REHEARSAL", table.stdout)

    def test_no_time(self):
        done, report = self.measure("--seconds", "-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report["attention"], [])
        self.assertEqual({one["reason"] for one in report["left_out"]}, {"no time"})


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Wrong(unittest.TestCase):
    """A check that would let anything pass would let wrong kernels be timed."""

    def setUp(self):
        self.bench = measure.Bench(torch, rehearsal(), True, 0)
        self.case = shapes.Case(4, 2, 64, "half", 64, 1)

    def check(self, spoil):
        with native.AttentionSet(self.bench.library, self.case, 1, 1, None) as caches:
            data = attention.Data(torch, self.case, 1, caches, self.bench.device)
            spoil(data, caches)
            return attention.check(torch, self.bench.clock, self.case, caches, data, {})

    def test_right_results_pass(self):
        self.assertLess(max(self.check(lambda data, caches: None).values()), 3e-3)

    def test_other_values(self):
        with self.assertRaises(attention.Wrong):
            self.check(lambda data, caches: data.v[0].mul_(1.05))

    def test_other_weights(self):
        with self.assertRaisesRegex(attention.Wrong, "ours"):
            self.check(lambda data, caches: data.weights[0].fill_(1.0))

    def test_an_output_that_is_not_written(self):
        def spoil(_, caches):
            caches.run = lambda *_: None
        with self.assertRaisesRegex(attention.Wrong, "inf"):
            self.check(spoil)

    def test_a_failed_case_does_not_stop_the_others(self):
        def bad(_):
            raise attention.Wrong("ours: far off")
        report = {"attention": [], "left_out": [], "failed": []}
        measure.run(self.bench, [("attention", "bad", bad), ("attention", "good", lambda _: 1)],
                    10, report)
        self.assertEqual(report["attention"], [1])
        self.assertIn("far off", report["failed"][0]["reason"])


class List(unittest.TestCase):
    def test_needs_no_library(self):
        done = run(sys.executable, "-B", f"{GPU}/measure.py", "--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({line.split()[0] for line in done.stdout.splitlines()},
                         {"attention", "steps", "graphs", "budgets", "batches"})
        only = run(sys.executable, "-B", f"{GPU}/measure.py", "--list", "--only", "graphs")
        self.assertEqual({line.split()[0] for line in only.stdout.splitlines()}, {"graphs"})

    def test_needs_library_and_out(self):
        done = run(sys.executable, "-B", f"{GPU}/measure.py")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--library", done.stderr)


if __name__ == "__main__":
    main()
