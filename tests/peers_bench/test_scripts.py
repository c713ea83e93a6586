# SPDX-License-Identifier: Apache-2.0
"""run.sh's options, and the whole of measure.py without the others."""
import json
import os
import sys
import unittest

from support import FolderTest, PEERS, main, rehearsal, run
import cases
import measure


class Options(FolderTest):
    def run_sh(self, *words):
        return run("sh", f"{PEERS}/run.sh", *words)

    def test_dry_run(self):
        done = self.run_sh("--dry-run", "--quick", "--out", self.folder, "--venv", self.path("v"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for wanted in ("pip install torch", "llama-cpp-python", "openvino-genai", "tersekv_peers",
                       "--quick", f"--out {self.folder}/", "TERSEKV_NATIVE=ON"):
            self.assertIn(wanted, done.stdout)
        self.assertEqual(os.listdir(self.folder), [])

    def test_peers_can_be_left_out(self):
        done = self.run_sh("--dry-run", "--peers", "none", "--venv", self.path("v"))
        self.assertNotIn("pip install", done.stdout)
        done = self.run_sh("--dry-run", "--peers", "openvino", "--venv", self.path("v"))
        self.assertIn("openvino-genai", done.stdout)
        self.assertNotIn("pip install torch", done.stdout)

    def test_a_folder_that_is_no_virtual_environment_stays(self):
        with open(self.path("letters"), "w", encoding="utf-8") as file:
            file.write("dear")
        done = self.run_sh("--dry-run", "--venv", self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no virtual environment", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["letters"])

    def test_bad_options_are_refused(self):
        for words in (["--nonsense"], ["--out"], ["--peers"]):
            done = self.run_sh(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage:", done.stderr)

    def test_help(self):
        done = self.run_sh("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--quick", done.stdout)


class Measure(FolderTest):
    def measure(self, *words):
        return run(sys.executable, "-B", f"{PEERS}/measure.py", "--library", rehearsal(), "--out",
                   self.path("r.json"), "--rehearse", "--peers", "", *words)

    def read(self):
        with open(self.path("r.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_all_sections(self):
        done = self.measure()
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.read()
        self.assertEqual(found["failed"], [])
        for section, count in (("attention", 8), ("steps", 12), ("overheads", 12),
                               ("streaming", 1), ("prompts", 4), ("engine", 0)):
            self.assertEqual(len(found[section]), count, section)
        for path, arguments in (("table.py", []), ("plot.py", [self.path("p")])):
            done = run(sys.executable, "-B", f"{PEERS}/{path}", self.path("r.json"), *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out by --peers", run(
            sys.executable, "-B", f"{PEERS}/table.py", self.path("r.json")).stdout)

    def test_sections_measured_before_stay(self):
        self.assertEqual(self.measure("--only", "prompts").returncode, 0)
        before = self.read()["prompts"]
        self.assertEqual(self.measure("--only", "streaming").returncode, 0)
        self.assertEqual(self.read()["prompts"], before)
        self.assertEqual(len(self.read()["streaming"]), 1)

    def test_single_cases_are_replaced(self):
        self.assertEqual(self.measure("--only", "prompts").returncode, 0)
        before = self.read()["prompts"]
        self.assertEqual(self.measure("--only", "prompts", "--case", "bfloat16 100 x2").returncode, 0)
        after = self.read()["prompts"]
        self.assertEqual([r["case"] for r in after], [r["case"] for r in before])
        self.assertEqual([a == b for a, b in zip(after, before)], [True, True, True, False])

    def test_what_fails_now_no_longer_counts(self):
        report = {"prompts": [{"case": "a"}, {"case": "b"}], "failed": []}

        def fail():
            raise RuntimeError("no")
        failed = measure.run([("prompts", "a", fail), ("prompts", "c", lambda: {"case": "c"})], report,
                             lambda: None, 1, {"revision": "r"})
        self.assertEqual(failed, 1)
        self.assertEqual([each["case"] for each in report["prompts"]], ["b", "c"])
        self.assertEqual(report["prompts"][1]["revision"], "r")
        self.assertEqual(report["failed"][0]["case"], "a")

    def test_nor_does_what_else_was_measured_with_it(self):
        results = [{"case": "decode at 7"}, {"case": "prompt of 7"}, {"case": "decode at 8"}]
        report = {"engine": [], "failed": []}

        def fail():
            raise RuntimeError("no")
        for work in ([("engine", "context 7", lambda: results[:2]), ("engine", "context 8", lambda: results[2])],
                     [("engine", "context 7", fail)]):
            measure.run(work, report, lambda: None, 1, {"revision": "r"})
        self.assertEqual([each["case"] for each in report["engine"]], ["decode at 8"])

    def test_results_say_of_which_revision_they_are(self):
        self.assertEqual(self.measure("--only", "prompts").returncode, 0)
        found = self.read()
        self.assertEqual({r["revision"] for r in found["prompts"]}, {found["device"]["versions"]["TerseKV"]})
        found["prompts"][0]["revision"] = "another"
        with open(self.path("r.json"), "w", encoding="utf-8") as file:
            json.dump(found, file)
        table = run(sys.executable, "-B", f"{PEERS}/table.py", self.path("r.json")).stdout
        self.assertRegex(table, "measured at: another: prompts; ")

    def test_bad_sections_are_refused(self):
        done = self.measure("--only", "nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected some of", done.stderr)


class Machine(FolderTest):
    def test_the_last_level_is_the_largest_cache(self):
        for index, size in (("index0", "32K"), ("index3", "491520K"), ("index2", "nonsense")):
            os.mkdir(self.path(index))
            with open(self.path(f"{index}/size"), "w", encoding="ascii") as file:
                file.write(size + "\n")
        with open(self.path("uevent"), "w", encoding="ascii"):  # no folder, as there is one beside them
            pass
        self.assertEqual(measure.last_level_cache(self.folder), 480 << 20)
        self.assertEqual(measure.last_level_cache(self.path("nowhere")), 32 << 20)

    def test_what_is_to_come_from_memory_is_several_times_that(self):
        plan, gib = cases.FULL, 1 << 30
        for case in cases.attention_cases(plan, ("float32", "int8"), (1,)):
            copies, fewer = cases.copies_beyond(plan, case, 480 << 20, 24 * gib)
            self.assertIsNone(fewer)
            if plan.levels[case.entries] == "memory":
                self.assertGreaterEqual(copies * case.kv_bytes(), 4 * (480 << 20))
                few, why = cases.copies_beyond(plan, case, 480 << 20, 4 * gib)
                self.assertLessEqual(few * case.kv_bytes(), max(gib // 2, case.kv_bytes()))
                self.assertRegex(why, f"memory for {few} of {copies} copies")
            else:
                self.assertEqual(copies, 1)


if __name__ == "__main__":
    main()
