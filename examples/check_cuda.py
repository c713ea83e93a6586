#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tersekv-llama with its caches on the CPU and on a CUDA device: every policy, several kinds
of storage and ways of feeding must give the same perplexity, as far as rounding lets them.

Sums are added up in other orders on a device, and a rounding may decide which of two nearly tied
entries leaves; over a few hundred tokens that should stay within 0.1 %, or 1 % where pairs of keys
compete: in the first layer all pairs of one token at one distance tie. In bfloat16 the last bit of a
float decides now and then whether a key or value is rounded by 2^-9 up or down: two builds of the CPU's
caches, for AVX-512 and for any x86-64, differ by 0.05 % (standard deviation of six texts' perplexities
with ZSMerge, up to 0.08 %), so 0.3 % is allowed there. How many entries stay, leave
and are merged must be equal, except for the policy that has no budget.

Prints one line per row; the exit status is 1 when one of them is off, 2 when one could not be run,
and 77 with a line that says SKIP where the program or the machine has no CUDA, or there is no model.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "examples/data/kjv.txt"
BINARY = ROOT / "build/release/examples/tersekv-llama"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "tersekv/SmolLM2-135M-Instruct.Q4_1.gguf"
NO_CUDA = ("built without CUDA", "there is no CUDA device")
COUNTS = ["kept_entries", "seen_entries", "evictions", "merges"]
PAIRS_TOLERANCE, BFLOAT16_TOLERANCE = 1e-2, 3e-3
# Of the default model, for surrogates.
LAYERS, EMBEDDING, KV_HEADS = 30, 576, 3
# Policies with a budget; others stand in rows() by themselves.
BUDGETED = ["streaming_llm", "h2o", "tova", "zsmerge", "weightedkv", "morphkv", "keepkv"]


class NoCuda(Exception):
    pass


def random_surrogates():
    """Linear ones, as safetensors: scores around 0."""
    draw = random.Random(1)
    header, content = {}, b""
    for i in range(LAYERS):
        for name, shape, deviation in ((f"layers.{i}.weight", [KV_HEADS, EMBEDDING], 0.05),
                                       (f"layers.{i}.bias", [KV_HEADS], 1)):
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            data = struct.pack(f"<{count}f", *(draw.gauss(0, deviation) for _ in range(count)))
            header[name] = {"dtype": "F32", "shape": shape,
                            "data_offsets": [len(content), len(content) + len(data)]}
            content += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def rows(options, surrogate):
    """(title, arguments, tolerance, whether the counts must be equal)"""
    usual = options.tolerance
    prose = ["perplexity", "--offset", "16384", "--context", str(options.context)]
    budget = ["--budget", "25%"]
    kinds = {"f32": usual, "f16": usual, "bf16": max(usual, BFLOAT16_TOLERANCE)}
    for kind, tolerance in kinds.items():
        yield f"full, {kind}", [*prose, "--kv-type", kind], tolerance, True
    for policy in BUDGETED:
        yield policy, [*prose, "--policy", policy, *budget], usual, True
    yield ("keepkv, pairs", [*prose, "--policy", "keepkv", "--set", "selector=pair", *budget],
           PAIRS_TOLERANCE, True)
    for kind in ["f16", "bf16"]:
        yield (f"zsmerge, {kind}", [*prose, "--policy", "zsmerge", "--kv-type", kind, *budget],
               kinds[kind], True)
    yield ("h2o, one token at a time", [*prose, "--policy", "h2o", "--chunk", "1", *budget],
           usual, True)
    for policy in ["snapkv", "h2o", "keepkv"]:
        yield (f"{policy}, after a prompt",
               [*prose, "--policy", policy, "--prompt", str(options.context // 2), *budget],
               usual, True)
    yield ("kvzap", [*prose, "--policy", "kvzap", "--set", f"surrogate={surrogate}",
                     "--set", "threshold=0", "--set", "window=32"], usual, False)
    yield ("full, recall", ["recall", "--offset", "16384", "--length", str(options.context // 2)],
           usual, True)


def run(options, arguments, device):
    """The JSON object that one command prints."""
    command = [options.binary, *arguments, "--model", options.model, "--text", options.text,
               "--device", device, "--json"]
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except OSError as error:  # not built
        raise RuntimeError(error) from error
    if any(words in done.stderr for words in NO_CUDA):
        raise NoCuda(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    return json.loads(done.stdout)


def check(options, title, arguments, tolerance, same_counts):
    """(status, line): 0 right, 1 off, 2 not run."""
    try:  # the device first: where there is none, nothing else need be run
        got, want = run(options, arguments, "cuda"), run(options, arguments, "cpu")
    except RuntimeError as error:
        return 2, f"ERROR {title}: {error}"
    deviation = got["perplexity"] / want["perplexity"] - 1
    differing = [name for name in COUNTS if same_counts and got[name] != want[name]]
    right = abs(deviation) <= tolerance and not differing
    counts = "".join(f"; {name} {got[name]}, expected {want[name]}" for name in differing)
    return 0 if right else 1, (
        f"{'ok   ' if right else 'OFF  '} {title}: perplexity {got['perplexity']:.4f}, on the CPU "
        f"{want['perplexity']:.4f} ({deviation:+.3%} of {tolerance:.2%}){counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", type=pathlib.Path, default=TEXT)
    parser.add_argument("--context", type=int, default=512, help="tokens (%(default)s)")
    parser.add_argument("--tolerance", type=float, default=1e-3,
                        help="relative (%(default)s); pairs of keys, and bfloat16, have one of their own")
    parser.add_argument("--only", default="", help="rows whose title contains this")
    options = parser.parse_args()

    if not options.model.exists():
        print(f"SKIP: there is no model {options.model} (examples/run.sh fetches it)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        surrogate = pathlib.Path(folder, "surrogates.safetensors")
        surrogate.write_bytes(random_surrogates())
        return check_all(options, rows(options, surrogate))


def check_all(options, chosen):
    worst, checked = 0, 0
    for title, *row in chosen:
        if options.only not in title:
            continue
        try:
            status, line = check(options, title, *row)
        except NoCuda as reason:
            print(f"SKIP: {reason}")
            return 77
        print(line, flush=True)
        worst, checked = max(worst, status), checked + 1
    if checked == 0:
        print("no such row")
        return 2
    print(f"{checked} rows checked" if worst == 0 else "not all rows agree")
    return worst


if __name__ == "__main__":
    sys.exit(main())
