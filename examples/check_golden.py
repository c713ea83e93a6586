#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tersekv-llama against the reference perplexities and recalls in tests/data/golden.

A policy's evictions are chaotic (a rounding changes which of two nearly tied entries leaves), hence
the tolerances: 0.5 % for the full cache and 2 % for policies, 2 % and 4 % for recall. Besides, feeding
one token at a time must give what feeding many at once does, and half-precision storage what float
does.

Prints one line per row; the exit status is 1 when one of them is off, 2 when one could not be run.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/data/golden/perplexity.json"
TEXT = ROOT / "examples/data/kjv.txt"
BINARY = ROOT / "build/release/examples/tersekv-llama"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "tersekv/SmolLM2-135M-Instruct.Q4_1.gguf"

# The names in the reference file, as command lines.
POLICIES = {
    "Full": ["full"],
    "StreamingLLM": ["streaming_llm"],
    "H2O": ["h2o"],
    "TOVA": ["tova"],
    "WeightedKV": ["weightedkv"],
    "ZSMerge": ["zsmerge"],
    "ZSMerge B_r=0": ["zsmerge", "--set", "residual=0"],
    "MorphKV sum": ["morphkv"],
    "MorphKV max": ["morphkv", "--set", "fusion=max"],
}
QUICK = ("StreamingLLM", "ZSMerge", "MorphKV max")
RECALL_TOLERANCE = {"Full": 0.02}
PERPLEXITY_TOLERANCE = {"Full": 0.005}


class Row:
    """One run, and the figures it must show: (name in the output, value, relative tolerance)."""

    def __init__(self, title, arguments, expected):
        self.title, self.arguments, self.expected = title, arguments, expected


def perplexity_row(row):
    budget = ["--budget", str(row["budget"])] if row["budget"] else []
    tolerance = PERPLEXITY_TOLERANCE.get(row["policy"], 0.02)
    return Row(
        f"perplexity {row['policy']:14} at {row['offset']}, budget {row['budget'] or 'none'}",
        ["perplexity", "--offset", str(row["offset"]), "--context", str(row["context"]),
         "--from", "1024", "--policy", *POLICIES[row["policy"]], *budget],
        [("perplexity", row["perplexity_from_1024"], tolerance),
         ("perplexity_all", row["perplexity_all"], tolerance)])


def recall_row(row):
    budget = ["--budget", str(row["budget"])] if row["budget"] else []
    return Row(
        f"recall     {row['policy']:14} at {row['offset']}, budget {row['budget'] or 'none'}",
        ["recall", "--offset", str(row["offset"]), "--length", str(row["length"]),
         "--policy", *POLICIES[row["policy"]], *budget],
        [("perplexity", row["perplexity_second_copy"], RECALL_TOLERANCE.get(row["policy"], 0.04)),
         ("first_copy_perplexity", row["perplexity_first_copy"],
          PERPLEXITY_TOLERANCE.get(row["policy"], 0.02))])


def run(options, arguments):
    """The JSON object that one command prints."""
    command = [options.binary, *arguments, "--model", options.model, "--text", options.text,
               "--threads", "1", "--json"]
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except OSError as error:  # not built
        raise RuntimeError(error) from error
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    return json.loads(done.stdout)


def check_row(options, row):
    """(status, line): 0 right, 1 off, 2 not run."""
    try:
        output = run(options, row.arguments)
    except RuntimeError as error:
        return 2, f"ERROR {row.title}: {error}"
    return judge(row.title, [(name, output[name], *rest) for name, *rest in row.expected])


def judge(title, figures):
    texts, right = [], True
    for name, got, want, tolerance in figures:
        deviation = got / want - 1
        right = right and abs(deviation) <= tolerance
        texts.append(f"{name} {got:.4f}, expected {want:.4f} ({deviation:+.2%} of {tolerance:.2%})")
    return 0 if right else 1, f"{'ok   ' if right else 'OFF  '} {title}: {'; '.join(texts)}"


def check_same(options, title, arguments, variants, tolerance):
    """Two ways of running the same thing agree."""
    try:
        want, got = (run(options, arguments + variant)["perplexity"] for variant in variants)
    except RuntimeError as error:
        return 2, f"ERROR {title}: {error}"
    return judge(title, [("perplexity", got, want, tolerance)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", type=pathlib.Path, default=TEXT)
    parser.add_argument("--golden", type=pathlib.Path, default=GOLDEN)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("--only", default="", help="rows whose title contains this")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--all", action="store_true", help="every row (the default)")
    size.add_argument("--quick", action="store_true", help="a few rows that take little time")
    options = parser.parse_args()

    golden = json.loads(options.golden.read_text())
    rows = [perplexity_row(row) for row in golden["rows"]]
    recall = [recall_row(row) for row in golden["recall"]["rows"]]
    if options.quick:
        rows = [perplexity_row(row) for row in golden["rows"] if row["budget"] == 410
                and row["offset"] == 16384 and row["policy"] in QUICK]
        recall = [recall_row(row) for row in golden["recall"]["rows"]
                  if row["policy"] == "TOVA" and row["budget"] == 1500]
        if len(rows) != len(QUICK) or len(recall) != 1:
            print("the reference file lacks rows that --quick is to check")
            return 2

    jobs = {row.title: (check_row, row) for row in rows + recall}
    short = ["perplexity", "--offset", "16384", "--context", "384"]
    for policy in ["full", "zsmerge"] if options.quick else [
            "full", "streaming_llm", "h2o", "tova", "zsmerge", "weightedkv", "morphkv", "keepkv"]:
        arguments = short + ["--policy", policy] + (["--budget", "96"] if policy != "full" else [])
        # The two ways differ in rounding only, which may still decide between tied entries.
        jobs[f"one token at a time, {policy}"] = (
            check_same, arguments, [[], ["--chunk", "1"]], 1e-4 if policy == "full" else 5e-3)
    for kv_type, tolerance in {"f16": 0.002, "bf16": 0.002, "int8": 0.005}.items():
        jobs[f"{kv_type} storage, full"] = (
            check_same, ["perplexity", "--offset", "16384", "--context", "1024"],
            [[], ["--kv-type", kv_type]], tolerance)

    def work(item):
        title, (check, *arguments) = item
        if check is check_row:
            return check_row(options, *arguments)
        return check_same(options, title, *arguments)

    chosen = [item for item in jobs.items() if options.only in item[0]]
    worst = 0 if chosen else 2
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for status, line in pool.map(work, chosen):
            print(line, flush=True)
            worst = max(worst, status)
    print(f"{len(chosen)} rows checked" if worst == 0 else "not all rows agree")
    return worst


if __name__ == "__main__":
    sys.exit(main())
