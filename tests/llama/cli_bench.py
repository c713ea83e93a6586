#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cli_bench.py BINARY: `tersekv-llama bench` from outside, on a tiny model."""

import sys
import unittest

import cli
import tiny_gguf

HEADS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
PARTS = ["projections", "attention", "policy", "rest"]


class Bench(cli.Case):
    def bench(self, *arguments):
        return ["bench", "--model", self.model, "--contexts", "40,100", "--tokens", 8, *arguments]

    def test_parts_add_up(self):
        for more in [[], ["--policy", "h2o", "--budget", "50%"], ["--threads", 1]]:
            output = self.json(*self.bench(*more))
            self.assertEqual([row["context"] for row in output["rows"]], [40, 100])
            for row in output["rows"]:
                for of, what in [("token", "decode"), ("prompt_token", "prompt")]:
                    parts = row[f"milliseconds_per_{of}"]
                    total, speed = sum(parts[part] for part in PARTS), row[f"{what}_tokens_per_second"]
                    self.assertAlmostEqual(total, parts["total"], delta=1e-6 * total)
                    self.assertAlmostEqual(1e3 / parts["total"], speed, delta=1e-6 * speed)
                    for part in PARTS:
                        self.assertGreater(parts[part], 0, part)

    def test_entries_and_bytes(self):
        full = self.json(*self.bench("--kv-type", "bf16"))
        for row in full["rows"]:
            self.assertEqual(row["budget"], None)
            self.assertEqual(row["kept_entries"], (row["context"] + 8) * HEADS)
            self.assertGreater(row["full_cache_bytes"], 0)
        half = self.json(*self.bench("--policy", "tova", "--budget", "50%", "--kv-type", "bf16"))
        self.assertEqual((half["policy"], half["kv_type"], half["tokens"]), ("tova", "bf16", 8))
        for row, other in zip(half["rows"], full["rows"]):
            self.assertEqual(row["budget"], row["context"] // 2)
            self.assertEqual(row["kept_entries"], row["budget"] * HEADS)
            self.assertEqual(row["full_cache_bytes"], other["full_cache_bytes"])

    def test_table(self):
        done = self.run_binary(*self.bench("--chunk", 16))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = done.stdout.decode().splitlines()
        head = next(i for i, line in enumerate(lines) if "projections" in line)
        for line, context in zip(lines[head + 1:], ["40", "100"]):
            cells = line.replace("=", " ").replace("+", " ").split()
            self.assertEqual(cells[:2], [context, "-"])
            total, *parts = map(float, cells[4:9])
            self.assertAlmostEqual(total, sum(parts), delta=0.003)  # rounded to 0.001

    def test_refusals(self):
        for flag, value in [("--contexts", "40,"), ("--contexts", "0"), ("--contexts", "1k"),
                            ("--contexts", "-5,40"), ("--tokens", "0"), ("--chunk", "0"),
                            ("--threads", "0")]:
            self.refused("bench", "--model", self.model, flag, value, saying=flag)
        self.refused(*self.bench("--policy", "h2o"), saying="needs a --budget")
        self.refused(*self.bench("--kv-type", "f64"), saying="f32, f16")
        self.refused(*self.bench("--device", "tpu"), saying="expected cpu or cuda")
        self.refused(*self.bench("--policy", "lru"), saying="no policy 'lru'")
        self.refused(*self.bench("--text", self.text), saying="unknown flag '--text'")
        self.refused("bench", saying="--model is needed")
        # A budget that is too small at one of the contexts is refused before any is run.
        self.refused(*self.bench("--policy", "weightedkv", "--budget", "8%"), saying="budget")


if __name__ == "__main__":
    cli.BINARY = sys.argv.pop(1)
    unittest.main(verbosity=1)
