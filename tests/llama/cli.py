#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cli.py BINARY: tersekv-llama from outside, on a tiny model: what it prints, what it refuses.

Whatever is wrong with the command line or a file: exit status 2, one line on the standard error,
nothing on the standard output.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import tiny_gguf

BINARY = None
FIELDS = ["policy", "budget", "context", "tokens", "nll", "perplexity", "kept_entries",
          "seen_entries", "cache_bytes", "full_cache_bytes", "evictions", "merges", "seconds",
          "tokens_per_second"]
HEADS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
TEXT = "In the beginning God created the heaven and the earth. " * 12


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.model_bytes = tiny_gguf.model_bytes()
        cls.model = cls.write("model.gguf", cls.model_bytes)
        cls.text = cls.write("text.txt", TEXT.encode())
        cls.base = ["--model", cls.model, "--text", cls.text]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def write(cls, name, data):
        (cls.path / name).write_bytes(data)
        return str(cls.path / name)

    def run_binary(self, *arguments):
        return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, timeout=120)

    def json(self, *arguments):
        done = self.run_binary(*arguments, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return json.loads(done.stdout)

    def refused(self, *arguments, saying=""):
        done = self.run_binary(*arguments)
        message = done.stderr.decode()
        self.assertEqual(done.returncode, 2, f"{arguments}: {message}")
        self.assertEqual(done.stdout, b"", arguments)
        self.assertRegex(message, r"\Atersekv-llama: [^\n]+\n\Z", arguments)
        self.assertIn(saying, message, arguments)


class Runs(Case):
    def test_help(self):
        for arguments in [["--help"], ["compare", "--help"], ["policies"]]:
            done = self.run_binary(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, b""), arguments)
            self.assertGreater(len(done.stdout), 200)

    def test_fields(self):
        for arguments in [["perplexity", *self.base, "--context", 64],
                          ["recall", *self.base, "--length", 40],
                          ["generate", "--model", self.model, "--prompt", "Let", "--max-tokens", 9]]:
            for policy in [["--policy", "full"], ["--policy", "tova", "--budget", "20"]]:
                output = self.json(*arguments, *policy)
                for field in FIELDS:
                    self.assertIn(field, output)
                self.assertEqual(output["policy"], policy[1])
                self.assertEqual(output["budget"], 20 if "tova" in policy else None)

    def test_budget_holds(self):
        for policy in ["streaming_llm", "h2o", "tova", "zsmerge", "weightedkv", "morphkv", "keepkv"]:
            for budget in ["40", "25%"]:
                output = self.json("perplexity", *self.base, "--context", 160, "--policy", policy,
                                   "--budget", budget)
                self.assertEqual(output["kept_entries"], 40 * HEADS, policy)
                self.assertEqual(output["seen_entries"], 160 * HEADS)
                self.assertEqual(output["evictions"] + output["merges"], 120 * HEADS)
                self.assertLess(output["cache_bytes"], output["full_cache_bytes"])

    def test_full_keeps_everything(self):
        output = self.json("perplexity", *self.base, "--context", 100, "--from", 30)
        self.assertEqual((output["kept_entries"], output["tokens"]), (100 * HEADS, 70))
        ratio = output["cache_bytes"] / output["full_cache_bytes"]
        self.assertAlmostEqual(ratio, 1, delta=0.02)

    def test_full_is_one_of_pages_of_the_same_size(self):
        output = self.json("perplexity", *self.base, "--context", 100, "--set", "page_size=4096")
        ratio = output["cache_bytes"] / output["full_cache_bytes"]
        self.assertAlmostEqual(ratio, 1, delta=0.02)

    def test_chats_begin_with_a_bos_where_the_model_wants_one(self):
        tokens = []
        for bos in (False, True):
            model = self.write("chat.gguf", tiny_gguf.model_bytes(chat=bos))
            tokens.append(self.json("generate", "--model", model, "--chat", "--prompt", "Let",
                                    "--max-tokens", 1)["prompt_tokens"])
        self.assertEqual(tokens[1], tokens[0] + 1)

    def test_deep_models_caches_lie_in_large_pages_all_of_which_count(self):
        layers, large = 70, 2 << 20
        model = self.write("deep.gguf", tiny_gguf.model_bytes(layers=layers))
        arguments = ["perplexity", "--model", model, "--text", self.base[-1], "--context", 400]
        full = self.json(*arguments)
        kept = self.json(*arguments, "--policy", "h2o", "--budget", 40)
        self.assertAlmostEqual(full["cache_bytes"] / full["full_cache_bytes"], 1, delta=0.02)
        heads = layers * tiny_gguf.KV_HEADS
        for output, entries, blocks in ((full, 400, 3), (kept, 40, 1)):
            self.assertEqual(output["kept_entries"], entries * heads)
            beside = output["cache_bytes"] - blocks * large  # tables, states and scratch
            self.assertGreater(beside, 0)
            self.assertLess(beside, large / 2)

    def test_the_cpu_is_the_default_device(self):
        arguments = ["perplexity", *self.base, "--context", 100, "--policy", "h2o", "--budget", 40]
        default, named = self.json(*arguments), self.json(*arguments, "--device", "cpu")
        for output in (default, named):
            for field in ("seconds", "tokens_per_second"):
                output.pop(field)
        self.assertEqual(default, named)

    def test_prompt_compresses_once(self):
        output = self.json("perplexity", *self.base, "--context", 160, "--prompt", 100, "--policy",
                           "snapkv", "--budget", 40)
        self.assertEqual(output["kept_entries"], (40 + 60) * HEADS)

    def test_surrogate(self):
        surrogate = self.write("surrogate.safetensors", tiny_gguf.surrogate_bytes())
        arguments = ["perplexity", *self.base, "--context", 200, "--policy", "kvzap", "--set",
                     f"surrogate={surrogate}", "--set", "window=30"]
        kept = [self.json(*arguments, "--set", f"threshold={threshold}")["kept_entries"]
                for threshold in (-1000, 0, 1000)]
        self.assertEqual((kept[0], kept[2]), (200 * HEADS, 30 * HEADS))
        self.assertTrue(kept[2] < kept[1] < kept[0], kept)
        done = self.run_binary("compare", *self.base, "--context", 120, "--budgets", "50", "--set",
                               f"surrogate={surrogate}", "--json", "-")
        output = json.loads(done.stdout)
        self.assertIn("kvzap", [row["policy"] for row in output["rows"]])
        self.assertFalse([note for note in output["notes"] if "kvzap" in note])

    def test_sampling(self):
        def text(*more):
            return self.json("generate", "--model", self.model, "--prompt", "Let", "--max-tokens",
                             12, *more)["text"]
        hot = ["--temperature", 2, "--top-p", 0.95, "--seed"]
        self.assertEqual(text(), text())
        self.assertEqual(text(*hot, 1), text(*hot, 1))
        self.assertNotEqual(text(*hot, 1), text(*hot, 2))
        self.assertEqual(text("--temperature", 1, "--top-p", 0), text())

    def test_streams_text(self):
        done = self.run_binary("generate", "--model", self.model, "--prompt", "Let", "--max-tokens", 5)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.endswith(b"\n"))

    def test_compare(self):
        figures, plot = self.path / "figures.json", self.path / "plot.svg"
        arguments = ["compare", *self.base, "--context", 160, "--budgets", "50%,40", "--svg", plot]
        done = self.run_binary(*arguments, "--json", figures)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(str(plot).encode(), done.stdout.splitlines()[-1])
        self.assertIn(b"kvzap is left out", done.stdout)
        rows = json.loads(figures.read_text())["rows"]
        self.assertEqual(len(rows), 1 + 8 * 2)
        for row in rows:
            for field in FIELDS + ["perplexity_ratio"]:
                self.assertIn(field, row)
            for field in FIELDS + ["first_copy_perplexity"]:
                self.assertIn(field, row["recall"])
        xml.etree.ElementTree.parse(plot)

        # One row is what the single commands measure, and neither workers nor threads change it.
        h2o = next(row for row in rows if row["policy"] == "h2o" and row["budget"] == 80)
        alone = self.json("perplexity", *self.base, "--context", 160, "--policy", "h2o", "--budget",
                          "50%", "--threads", 3)
        self.assertEqual(alone["perplexity"], h2o["perplexity"])
        recall = self.json("recall", *self.base, "--length", 80, "--policy", "h2o", "--budget",
                           "50%", "--threads", 1)
        self.assertEqual(recall["perplexity"], h2o["recall"]["perplexity"])
        done = self.run_binary(*arguments, "--json", "-", "--threads", 1)
        for row, other in zip(rows, json.loads(done.stdout)["rows"]):
            self.assertEqual(row["nll"], other["nll"])
            self.assertEqual(row["recall"]["nll"], other["recall"]["nll"])

    def test_budgets_too_small_are_left_out(self):
        done = self.run_binary("compare", *self.base, "--context", 120, "--budgets", "40,20",
                               "--policies", "morphkv", "--json", "-")
        output = json.loads(done.stdout)
        self.assertEqual([row["budget"] for row in output["rows"]], [None, 40])
        self.assertIn("morphkv at 20 is left out", output["notes"][0])

    def test_settings_go_to_those_that_have_them(self):
        done = self.run_binary("compare", *self.base, "--context", 120, "--budgets", "40",
                               "--policies", "morphkv,tova", "--set", "fusion=max", "--json", "-")
        settings = [row["settings"] for row in json.loads(done.stdout)["rows"]]
        self.assertEqual(settings, [{}, {"fusion": "max"}, {}])

    def test_every_default_can_be_set(self):
        for policy in self.json("policies")["policies"]:
            for parameter in policy["parameters"]:
                if parameter["default"]:
                    budget = ["--budget", "40"] if policy["needs_budget"] else []
                    setting = f"{parameter['name']}={parameter['default']}"
                    done = self.run_binary("perplexity", *self.base, "--context", 60, "--policy",
                                           policy["name"], *budget, "--set", setting)
                    if policy["needs_setting"]:
                        self.assertIn(b"needs a surrogate", done.stderr)
                    else:
                        self.assertEqual(done.returncode, 0, (setting, done.stderr))


class Refusals(Case):
    def test_command_line(self):
        self.refused(saying="a command is needed")
        self.refused("frobnicate", saying="no command 'frobnicate'")
        perplexity = ["perplexity", *self.base]
        self.refused("perplexity", "--text", self.text, saying="--model is needed")
        self.refused(*perplexity, "--frob", saying="unknown flag '--frob'")
        self.refused(*perplexity, "stray", saying="unexpected argument 'stray'")
        self.refused(*perplexity, "--context", saying="needs a value")
        self.refused(*perplexity, "--context", 9, "--context", 9, saying="given twice")
        self.refused(*perplexity, "--json=yes", saying="takes no value")
        self.refused("generate", "--model", self.model, saying="--prompt")
        self.refused("generate", "--model", self.model, "--prompt", "", saying="prompt is empty")
        for flag, value in [("--context", "0"), ("--context", "many"), ("--context", "1e3"),
                            ("--offset", "-1"), ("--chunk", "0"), ("--threads", "0"),
                            ("--from", "2048"), ("--prompt", "0"),
                            ("--context", "99999999999999999999")]:
            self.refused(*perplexity, flag, value, saying=flag)

    def test_policies_and_budgets(self):
        tova = ["perplexity", *self.base, "--context", 60, "--policy", "tova"]
        self.refused(*tova, saying="needs a --budget")
        for budget in ["0", "-3", "abc", "0%", "120%", "%", "", "1e300%", "nan%"]:
            self.refused(*tova, "--budget", budget, saying="budget is")
        budget = ["--budget", "20"]
        self.refused(*tova[:-1], "lru", *budget, saying="streaming_llm, h2o, tova")
        self.refused(*tova, *budget, "--set", "sinks=4", saying="group_reduce")
        self.refused(*tova, *budget, "--set", "sinks", saying="name=value")
        self.refused(*tova, *budget, "--kv-type", "f64", saying="f32, f16, bf16, int8")
        self.refused(*tova[:-1], "weightedkv", "--budget", 5)
        self.refused(*tova[:-1], "kvzap", saying="surrogate")
        for policy, setting in [("morphkv", "fusion=median"), ("keepkv", "decay=nan"),
                                ("keepkv", "decay=2"), ("zsmerge", "window=0"), ("h2o", "recent=x"),
                                ("h2o", "recent=-1"), ("streaming_llm", "sinks=20"),
                                ("tova", "page_size=17")]:
            self.refused(*tova[:-1], policy, *budget, "--set", setting)
        compare = ["compare", *self.base, "--context", 60]
        self.refused(*compare, "--budgets", "10%,,5%", saying="--budgets")
        self.refused(*compare, "--policies", "tova,lru", saying="no policy 'lru'")
        self.refused(*compare, "--policies", "tova", "--set", "fusion=max", saying="fusion")
        self.refused(*compare, "--policies", "weightedkv", "--budgets", "3")

    def test_devices(self):
        for command in [["perplexity", *self.base, "--context", 60],
                        ["recall", *self.base, "--length", 40],
                        ["compare", *self.base, "--context", 60, "--budgets", "40"],
                        ["generate", "--model", self.model, "--prompt", "Let"]]:
            self.refused(*command, "--device", "tpu", saying="expected cpu or cuda")
            # Built without CUDA, no device, or a device that this model's heads are too small for.
            self.refused(*command, "--device", "cuda", saying="device")
        done = self.run_binary("perplexity", *self.base, "--context", 60, "--device", "cuda")
        self.assertRegex(done.stderr.decode(),
                         r"built without CUDA \(cmake -DTERSEKV_BUILD_CUDA=ON\)|"
                         r"there is no CUDA device|head_dim, on a device: expected 64, 128, got 8")

    def test_texts(self):
        self.refused("perplexity", *self.base, "--context", 5000, saying="too short")
        self.refused("recall", *self.base, "--length", 5000, saying="too short")
        self.refused("compare", *self.base, "--offset", 5000, saying="too short")
        for text in ["/nonexistent", str(self.path)]:
            self.refused("perplexity", "--model", self.model, "--text", text, saying=text)

    def test_outputs(self):
        for flag in ["--json", "--svg"]:
            self.refused("compare", *self.base, flag, self.path / "no/such/folder/file",
                         saying="cannot be written")
            new = self.path / "new"
            self.refused("compare", "--model", self.model, "--text", "/nonexistent", flag, new)
            self.assertFalse(new.exists())

    def refused_or_runs(self, model, what):
        done = self.run_binary("perplexity", "--model", model, "--text", self.text, "--context", 8)
        self.assertIn(done.returncode, (0, 2), f"{what}: {done.stderr}")
        if done.returncode == 2:
            self.assertRegex(done.stderr.decode(), r"\Atersekv-llama: [^\n]+\n\Z", what)

    def test_models(self):
        self.refused("perplexity", "--model", "/nonexistent", "--text", self.text,
                     saying="/nonexistent")
        self.refused("perplexity", "--model", self.path, "--text", self.text)
        for name, data in [("empty", b""), ("text", TEXT.encode()), ("magic", b"GGUF")]:
            self.refused("perplexity", "--model", self.write(name, data), "--text", self.text)
        size = len(self.model_bytes)
        for cut in [*range(0, 4000, 97), size // 2, size - 1]:
            path = self.write("cut", self.model_bytes[:cut])
            self.refused("perplexity", "--model", path, "--text", self.text)

    def test_corrupted_models(self):
        draw = random.Random(3)
        metadata = self.model_bytes.index(b"blk.1.ffn_norm.weight") + 60
        for trial in range(150):
            data = bytearray(self.model_bytes)
            for _ in range(draw.choice((1, 1, 4))):
                data[draw.randrange(metadata)] = draw.randrange(256)
            self.refused_or_runs(self.write("corrupted", data), f"trial {trial}")

    def test_surrogates(self):
        arguments = ["perplexity", *self.base, "--context", 60, "--policy", "kvzap"]
        for name, data in [("short", tiny_gguf.surrogate_bytes(layers=1)), ("none", b""),
                           ("cut", tiny_gguf.surrogate_bytes()[:100])]:
            self.refused(*arguments, "--set", f"surrogate={self.write(name, data)}")
        self.refused(*arguments, "--set", "surrogate=/nonexistent", saying="/nonexistent")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=1)
