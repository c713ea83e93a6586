# SPDX-License-Identifier: Apache-2.0
"""table.py on made-up numbers."""
import json
import sys

from support import (PEERS, TableTest, agreement, attention, decode, main, overhead, prompt, report,
                     run, step, stream)


class Table(TableTest):
    def table(self, content):
        path = self.write("r.json", content if isinstance(content, str) else json.dumps(content))
        return run(sys.executable, "-B", f"{PEERS}/table.py", path)

    def test_says_where_and_how(self):
        text = self.markdown(report())
        for wanted in ("2020-02-29", "A Processor, 2 cores", "L2 1024KiB", "-O3 -march=native",
                       "torch 2.9", "openvino-genai not installed", "load average: 0.1",
                       "`sh bench/peers/run.sh --quick`", "Nothing was measured that has a goal"):
            self.assertIn(wanted, text)
        self.assertEqual(text.count("Not measured."), 6)

    def test_attention(self):
        row = self.row(self.markdown(report(attention=[attention()])), "a")
        self.assertEqual(row, ["a", "3", "0.95", "1.05", "1.02", "4.00", "4.10", "1.50", "0.15", "0.30",
                               "100", "98", "3.16", "12", "293", "10", "20"])

    def test_other_sections(self):
        text = self.markdown(report(steps=[step()], overheads=[overhead()], streaming=[stream()],
                                    prompts=[prompt()]))
        self.assertIn("| h2o 512 | 32 | 3.0 % | 4.0 % | 110 | 3 | 1 | 100 | 3 | 1 | 512 | 10 |", text)
        self.assertIn("| full 512 | 0.02 | 8.0 % | 100 | 108 | 2 |", text)
        self.assertIn("| h2o 512 | 100 | 105 | 1.05 | 10 | 10 |", text)
        self.assertIn("| p | 0.70 | 3.00 | 0.014 | 0.02 | 0.1 | 10 |", text)

    def test_engines(self):
        text = self.markdown(report(engine=[decode(), agreement()]))
        rows = [line for line in text.splitlines() if line.startswith("| decode at 7900 |")]
        self.assertEqual(rows, [
            "| decode at 7900 | 10000 | - | 20000 | 5263 | 5000 | 8333 | 11111 |",
            "| decode at 7900 | 2 | - | - | - | - | - | - |"])
        self.assertIn("| openvino_evicting | 50.0 % |", text)

    def test_who_runs_another_model_and_who_was_not_checked(self):
        def lines(errors, wrong):
            verified = {"case": "the same model", "kind": "verified", "errors": errors, "wrong": wrong,
                        "skipped": {}, "samples_us": {}}
            return [line for line in self.markdown(report(engine=[verified])).splitlines()
                    if line.startswith(("Likelihood", "NOT"))]

        self.assertEqual(lines({"one": 0.001, "other": 0.5, "failing": None}, ["other"]), [
            "Likelihood of a text, relative to ours: one off by 0.001; other off by 0.5.",
            "NOT the same model, by that: other. Their speed is of what they make of the file.",
            "NOT checked, as they failed at that text: failing."])
        self.assertEqual(lines({"failing": None}, []),
                         ["NOT checked, as they failed at that text: failing."])
        self.assertEqual(lines({"one": 0.001}, []),
                         ["Likelihood of a text, relative to ours: one off by 0.001."])

    def test_missed_goals_are_named(self):
        text = self.markdown(report(attention=[attention("good"), attention("slow", probe=60.0)]))
        self.assertEqual(self.row(text, "bandwidth over what is read"),
                         ["bandwidth over what is read", "0.9", "MISSED in 1 of 2", "slow: 0.60"])
        self.assertIn("met in all 2", text)

    def test_of_many_misses_the_worst_are_named(self):
        slow = [attention(f"c{i}", probe=80.0 - i) for i in range(7)]
        row = self.row(self.markdown(report(attention=slow)), "bandwidth over what is read")
        self.assertEqual(row[2:], ["MISSED in 7 of 7", "c6: 0.74; c5: 0.75; c4: 0.76; c3: 0.77; "
                                                       "c2: 0.78; and 2 more"])

    def test_who_is_not_there(self):
        alone = attention(sdpa=None, sdpa_bias=None, products=None)
        alone["peer_bytes"] = None
        alone["skipped"] = {"PyTorch": "not installed (No module named 'torch')"}
        text = self.markdown(report(attention=[alone], notes={"engine": "no model"}))
        self.assertIn("- PyTorch: not installed (No module named 'torch') (everywhere)", text)
        self.assertEqual(self.row(text, "a")[5:8], ["-", "-", "-"])
        self.assertIn("Not measured: no model.", text)
        self.assertIn("not measured", self.row(text, "two products, softmax and group sum over ours"))

    def test_disturbed_cases_are_said(self):
        text = self.markdown(report(attention=[{**attention("busy"), "others": 0.5},
                                               {**attention("idle"), "others": 0.05}]))
        self.assertIn("during: busy (0.50).", text)

    def test_failures_are_said(self):
        text = self.markdown(report(failed=[{"section": "attention", "case": "x",
                                             "reason": "Wrong: sdpa: off by 1"}]))
        self.assertIn("- attention x: Wrong: sdpa: off by 1", text)

    def test_malformed_is_refused(self):
        self.refused("{", "expected JSON")
        self.refused("[]", "\"format\": 1")
        without = report()
        del without["device"]
        self.refused(without, "\"device\" is missing")
        self.refused(report(steps={}), "expected a list")
        self.refused(report(steps=[{}]), "without a case")
        for samples in (None, {"ours": []}, {"ours": [-1.0]}, {"ours": [1], "plain": [1, 2]},
                        {"ours": ["1"]}):
            self.refused(report(attention=[{**attention(), "samples_us": samples}]), "samples_us")
        self.refused(report(attention=[{"case": "a", "samples_us": {}}]), "level")


if __name__ == "__main__":
    main()
