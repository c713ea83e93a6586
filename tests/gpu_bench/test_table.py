# SPDX-License-Identifier: Apache-2.0
"""table.py on made-up numbers."""
import json
import sys
import unittest

from support import GPU, TableTest, main, run
import goals


def attention(case="a", context=8192, batch=8, mix="uniform", **samples):
    times = {"ours": 100.0, "ours_plain": 98.0, "ours_rows": 110.0, "probe": 90.0, "sdpa": 150.0}
    times.update(samples)
    return {"case": case, "context": context, "batch": batch, "mix": mix, "copies": 3,
            "kv_bytes": 300_000_000, "probe_bytes": 301_000_000, "skipped": {}, "notes": {},
            "samples_us": {name: [us, us * 1.01, us * 0.99] for name, us in times.items()
                           if us is not None}}


def step(policy, attend, whole, apart):
    return {"case": f"{policy} 8192 x 8", "policy": policy, "copies": 2,
            "samples_us": {"attend": [attend] * 3, "step": [whole] * 3, "apart": [apart] * 3}}


def report(**sections):
    return {"format": 1, "date": "2020-02-29", "command": "sh bench/gpu/run.sh --quick",
            "device": {"name": "NVIDIA H200", "capability": "9.0", "l2_bytes": 50 << 20},
            "versions": {"driver": "570.1", "cuda": "13.0", "torch": "2.9", "flashinfer": None},
            **sections}


class Table(TableTest):
    def table(self, content, stages=None):
        path = self.write("r.json", content if isinstance(content, str) else json.dumps(content))
        more = [] if stages is None else [self.write("stages.txt", stages)]
        return run(sys.executable, "-B", f"{GPU}/table.py", path, *more)

    def test_says_where_and_how(self):
        text = self.markdown(report())
        for wanted in ("2020-02-29", "NVIDIA H200", "9.0", "L2 50 MiB", "570.1", "CUDA 13.0",
                       "PyTorch 2.9", "FlashInfer not there", "`sh bench/gpu/run.sh --quick`"):
            self.assertIn(wanted, text)

    def test_ratios_and_times(self):
        row = self.row(self.markdown(report(attention=[attention()])), "a")
        self.assertEqual(row, ["a", "3", "0.90", "1.02", "1.12", "-", "1.50", "-", "1.53", "100",
                               "3000", "3344", "150"])

    def test_all_goals_met(self):
        text = self.markdown(report(attention=[attention(), attention("r", mix="zipf")],
                                    steps=[step("h2o", 100, 104, 103), step("keepkv", 100, 119, 110)]))
        self.assertNotIn("MISSED", text)
        self.assertEqual(text.count("met in all"), 8)

    def test_missed_goals_are_named(self):
        text = self.markdown(report(
            attention=[attention("slow", probe=84.0), attention("good"),
                       attention("extras", ours_plain=94.0), attention("lost", sdpa=99.0),
                       attention("ragged", mix="few", probe=79.0)],
            steps=[step("h2o", 100, 106, 107), step("keepkv", 100, 121, 122)]))
        for goal, limit, cases, of in (
                ("bandwidth over the probe's", "0.85", "slow: 0.84", 4),
                ("ragged bandwidth over the probe's", "0.8", "ragged: 0.79", 1),
                ("with bias and scores over without", "1.05", "extras: 1.06", 5),
                ("best other over ours", "1", "lost: 0.99", 5),
                ("step beyond attention", "0.05", "h2o 8192 x 8: 0.06", 1),
                ("step beyond attention, policies apart", "0.05", "h2o 8192 x 8: 0.07", 1),
                ("KeepKV's step beyond attention", "0.2", "keepkv 8192 x 8: 0.21", 1),
                ("KeepKV's step beyond attention, policies apart", "0.2", "keepkv 8192 x 8: 0.22",
                 1)):
            self.assertEqual(self.row(text, goal), [goal, limit, f"MISSED in 1 of {of}", cases])

    def test_steps_with_policies_in_place_and_apart(self):
        row = self.row(self.markdown(report(steps=[step("h2o", 100, 106, 107)])), "h2o 8192 x 8")
        self.assertEqual(row, ["h2o 8192 x 8", "2", "6.0 %", "7.0 %", "106", "107", "100"])

    def test_bandwidth_has_a_goal_from_some_size_on(self):
        small = attention("small", context=4096, probe=10.0)
        thin = attention("thin", batch=1, probe=10.0)
        text = self.markdown(report(attention=[small, thin]))
        self.assertNotIn("bandwidth over", text)
        self.assertNotIn("MISSED", text)

    def test_the_fastest_other_counts(self):
        result = attention(flashinfer=80.0)
        self.assertEqual(goals.best_rival(result["samples_us"])[0], "flashinfer")
        self.assertIn("MISSED", self.markdown(report(attention=[result])))
        # With a bias SDPA computes something else than FlashInfer and SDPA without.
        self.assertNotIn("MISSED", self.markdown(report(attention=[attention(sdpa_bias=50.0)])))

    def test_skipped_contestant(self):
        result = attention(sdpa=None)
        result["skipped"] = {"sdpa": "no backend", "flashinfer": "not installed"}
        text = self.markdown(report(attention=[result, attention("b")]))
        self.assertIn("- sdpa: no backend (a)", text)
        self.assertEqual(self.row(text, "a")[6], "-")
        self.assertEqual(self.row(text, "b")[6], "1.50")
        self.assertIn("| best other over ours | 1 | met in all 1 |", text)
        alone = self.markdown(report(attention=[result]))
        self.assertIn("| best other over ours | 1 | not measured |", alone)
        self.assertIn("(everywhere)", alone)

    def test_missing_sections(self):
        text = self.markdown(report(steps=[step("h2o", 100, 104, 103)]))
        self.assertEqual(text.count("Not measured."), 4)
        self.assertIn("Nothing was measured that has a goal", self.markdown(report()))

    def test_fewer_copies_are_said(self):
        result = attention()
        result["notes"]["copies"] = "memory for 3 of 9 copies"
        text = self.markdown(report(attention=[result]))
        self.assertEqual(self.row(text, "a")[1], "3*")
        self.assertIn("- a: memory for 3 of 9 copies", text)

    def test_failed_and_left_out_are_said(self):
        text = self.markdown(report(
            failed=[{"section": "attention", "case": "x", "reason": "Wrong: ours"}],
            left_out=[{"section": "steps", "case": "y", "reason": "no time"}]))
        self.assertIn("- attention x: Wrong: ours", text)
        self.assertIn("- steps y: no time", text)

    def test_other_sections(self):
        text = self.markdown(report(
            graphs=[{"case": "g", "samples_us": {"graph": [50], "launches": [80]}}],
            budgets=[{"case": "b", "samples_us": {"full": [90], "at_5": [10], "at_10": [15]}}],
            batches=[{"case": "n", "bytes": 2e9,
                      "batches": {"full": 8, "at_5": 150, "at_10": 77}}]))
        self.assertEqual(self.row(text, "g"), ["g", "0.62", "50", "80"])
        self.assertEqual(self.row(text, "b"), ["b", "9.00", "6.00", "90", "10", "15"])
        self.assertEqual(self.row(text, "n"), ["n", "2", "8", "150", "77"])

    def test_stages(self):
        text = self.markdown(report(), "build ok 61\ntests FAILED(8) 12\n")
        self.assertEqual(self.row(text, "tests"), ["tests", "FAILED(8)", "12"])

    def test_another_card(self):
        other = report()
        other["device"]["name"] = "NVIDIA A100"
        self.assertIn("set for an H200; this is NVIDIA A100", self.markdown(other))
        self.assertNotIn("set for an", self.markdown(report()))

    def test_malformed_is_refused(self):
        self.refused("{", "expected JSON")
        self.refused("[]", "\"format\": 1")
        self.refused({**report(), "format": 2}, "\"format\": 1")
        without = report()
        del without["device"]
        self.refused(without, "\"device\" is missing")
        self.refused(report(attention={}), "expected a list")
        self.refused(report(attention=[{}]), "without a case")
        for samples in (None, {"ours": []}, {"ours": [0.0]}, {"ours": [1], "probe": [1, 2]},
                        {"ours": ["1"]}):
            self.refused(report(attention=[{**attention(), "samples_us": samples}]), "samples_us")
        self.refused(report(steps=[{"case": "s", "samples_us": {"step": [1]}}]), "policy")

    def test_a_file_that_is_not_there(self):
        done = run(sys.executable, "-B", f"{GPU}/table.py", self.path("none.json"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.json", done.stderr)


class Ratio(unittest.TestCase):
    def test_round_by_round(self):
        # A slow machine in one round changes nothing, nor does one contestant that is.
        samples = {"a": [10.0, 30.0, 90.0], "b": [20.0, 60.0, 21.0]}
        self.assertEqual(goals.ratio(samples, "a", "b"), 0.5)
        self.assertIsNone(goals.ratio(samples, "a", "c"))


if __name__ == "__main__":
    main()
