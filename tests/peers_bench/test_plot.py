# SPDX-License-Identifier: Apache-2.0
"""plot.py on made-up numbers."""
import json
import sys
import unittest
import xml.etree.ElementTree as xml

from support import FolderTest, PEERS, attention, main, report, run, step
import plot

SVG = "{http://www.w3.org/2000/svg}"


class Plot(FolderTest):
    def drawn(self, content):
        path = self.write("r.json", json.dumps(content))
        done = run(sys.executable, "-B", f"{PEERS}/plot.py", path, self.path("x"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line.rsplit("-", 1)[1]: xml.parse(line).getroot()
                for line in done.stdout.splitlines()}

    def test_every_policy_has_a_line(self):
        steps = [step(policy, entries) for policy in ("full", "h2o") for entries in (512, 4096)]
        drawn = self.drawn(report(steps=steps + [step("h2o", 512, threads=2)]))
        self.assertEqual(sorted(drawn), ["bytes.svg", "steps.svg"])
        for root in drawn.values():
            self.assertEqual(len(root.findall(f"{SVG}polyline")), 2)
            self.assertEqual(len(root.findall(f"{SVG}circle")), 4)
            words = [each.text for each in root.findall(f"{SVG}text")]
            for wanted in ("full", "h2o", "512", "4k", "entries"):
                self.assertIn(wanted, words)

    def test_bandwidth_has_a_bar_for_each_case_in_memory(self):
        drawn = self.drawn(report(attention=[attention("a"), attention("b", probe=50.0),
                                             attention("c", level="L2")]))
        self.assertEqual(list(drawn), ["bandwidth.svg"])
        bars = [each for each in drawn["bandwidth.svg"].findall(f"{SVG}rect")
                if each.get("y") is not None]
        self.assertEqual(len(bars), 2)
        heights = [float(each.get("height")) for each in bars]
        self.assertAlmostEqual(heights[1] / heights[0], 50 / 95, places=2)

    def test_all_points_lie_within(self):
        drawn = self.drawn(report(steps=[step("h2o", n, extend=n) for n in (512, 4096, 32768)]))
        for each in drawn["steps.svg"].findall(f"{SVG}circle"):
            self.assertTrue(plot.LEFT <= float(each.get("cx")) <= plot.WIDTH - plot.RIGHT)
            self.assertTrue(plot.TOP <= float(each.get("cy")) <= plot.HEIGHT - plot.BOTTOM)

    def test_nothing_measured_draws_nothing(self):
        self.assertEqual(self.drawn(report()), {})


if __name__ == "__main__":
    main()
