# SPDX-License-Identifier: Apache-2.0
"""table.py RESULTS.json [STAGES.txt]: what measure.py wrote as Markdown on stdout. STAGES.txt has a
line per stage of run.sh: name, verdict, seconds. Ends with 1, and says why, for what is no such file.
"""
import contextlib
import io
import sys

import goals  # which says where what is shared lies
import markdown_tables
import measured
from markdown_tables import fixed, percent, rows, text

TIMED = ("attention", "steps", "graphs", "budgets")
LISTED = ("batches", "left_out", "failed")


def load(path):
    return measured.load(path, ("date", "command", "device", "versions"), TIMED, LISTED)


def of_case(result):
    """A case's ratios and times; `x` of another is our time times x."""
    samples = result["samples_us"]
    ours, probe = goals.median(samples, "ours"), goals.median(samples, "probe")
    rival = goals.best_rival(samples)
    copies = str(result["copies"]) + ("*" if "copies" in result.get("notes", {}) else "")
    return [
        result["case"], copies,
        fixed(goals.ratio(samples, "probe", "ours")),
        fixed(goals.ratio(samples, "ours", "ours_plain")),
        fixed(goals.ratio(samples, "ours_rows", "ours_plain")),
        fixed(goals.ratio(samples, "flashinfer", "ours")),
        fixed(goals.ratio(samples, "sdpa", "ours")),
        fixed(goals.ratio(samples, "sdpa_bias", "ours")),
        "-" if rival is None else f"{fixed(rival[1])}",
        text(ours), text(None if ours is None else result["kv_bytes"] / ours / 1000),
        text(None if probe is None else result.get("probe_bytes", result["kv_bytes"]) /
             probe / 1000),
        text(goals.median(samples, "sdpa")),
    ]


def attention(results):
    print("## Decode attention\n")
    print("`ours`: with log-weight bias and logits for a policy. Of probe: the probe's time over "
          "ours, per byte it reads. Others: their time over ours, above 1 is slower. `rows`: attention "
          "per entry worked out too. Times in microseconds, GB/s of live keys and values.\n")
    head = ["q/KV heads/dim, type, context x batch", "copies", "of probe", "ours / plain",
            "rows / plain", "FlashInfer", "SDPA", "SDPA with bias", "best other / plain",
            "ours us", "ours GB/s", "probe GB/s", "SDPA us"]
    for title, chosen in (("Equal lengths", [r for r in results if r["mix"] == "uniform"]),
                          ("Ragged lengths, others on padding to the longest, unmasked",
                           [r for r in results if r["mix"] != "uniform"])):
        if chosen:
            print(f"### {title}\n")
            rows(head, [of_case(r) for r in chosen])
    fewer = [f"- {r['case']}: {r['notes']['copies']}" for r in results
             if "copies" in r.get("notes", {})]
    if fewer:
        print("\\* fewer copies than it takes to pass the L2 three times:\n")
        print("\n".join(fewer) + "\n")
    markdown_tables.skips(results)


def steps(results):
    print("## A policy's step against its attention alone\n")
    print("A step appends a token to every sequence, attends, observes and compresses. Apart: with "
          "policies on a stream of their own, while the next copy appends and attends.\n")
    rows(["policy, entries x batch", "copies", "beyond attention", "beyond, apart", "step us",
          "apart us", "attention us"],
         [[r["case"], str(r["copies"])] + [percent(g["value"]) for g in goals.of_step(r)] +
          [text(goals.median(r["samples_us"], n)) for n in ("step", "apart", "attend")]
          for r in results])


def graphs(results):
    print("## A captured graph of the step against plain launches\n")
    rows(["policy, entries x batch", "graph / launches", "graph us", "launches us"],
         [[r["case"], fixed(goals.ratio(r["samples_us"], "graph", "launches")),
           text(goals.median(r["samples_us"], "graph")),
           text(goals.median(r["samples_us"], "launches"))] for r in results])


def budgets(results):
    print("## A step at a part of a long cache, at the same batch\n")
    print("Caches are filled to the part directly. The full cache's step over the policy's.\n")
    rows(["policy, context x batch", "full / at 5 %", "full / at 10 %", "full us", "at 5 % us",
          "at 10 % us"],
         [[r["case"]] + [fixed(goals.ratio(r["samples_us"], "full", n)) for n in ("at_5", "at_10")] +
          [text(goals.median(r["samples_us"], n)) for n in ("full", "at_5", "at_10")]
          for r in results])


def batches(results):
    print("## Sequences in the same bytes\n")
    print("The most sequences whose layers, statistics, page tables and shared workspace take no more "
          "than the full cache's. Not to be multiplied with the times above: at a larger batch a step "
          "takes longer.\n")
    rows(["policy, context", "GB", "full", "at 5 %", "at 10 %"],
         [[r["case"], text(r["bytes"] / 1e9)] +
          [str(r["batches"].get(n, "-")) for n in ("full", "at_5", "at_10")] for r in results])


def verdicts(report):
    """Goals met or missed, worst first."""
    print("## Goals\n")
    device = report["device"].get("name", "?")
    if goals.DEVICE not in device:
        print(f"They are set for an {goals.DEVICE}; this is {device}.\n")
    markdown_tables.verdicts(goals.all_goals(report))


def main(path, stages_path=None):
    report = load(path)
    device, versions = report["device"], report["versions"]
    print(f"# Benchmarks on a GPU, {report['date']}\n")
    print(f"- device: {device.get('name', '?')}, compute capability {device.get('capability', '?')}, "
          f"L2 {device.get('l2_bytes', 0) / 2**20:.0f} MiB")
    print(f"- driver {versions.get('driver') or '?'}, CUDA {versions.get('cuda') or '?'}, PyTorch "
          f"{versions.get('torch') or '?'}, FlashInfer {versions.get('flashinfer') or 'not there'}")
    print(f"- command: `{report['command']}`")
    if report.get("rehearsal"):
        print("- A REHEARSAL on the host: the numbers mean nothing")
    print("\nMedians of samples taken in turns; how to read them: "
          "[bench/gpu/README.md](../gpu/README.md).\n")
    if stages_path is not None:
        with open(stages_path, encoding="utf-8") as file:
            rows(["stage", "verdict", "seconds"],
                 [line.split() for line in file if len(line.split()) == 3])
    verdicts(report)
    for section in (attention, steps, budgets, batches, graphs):
        results = report[section.__name__]
        if results:
            section(results)
        else:
            print(f"## {section.__name__}\n\nNot measured.\n")
    markdown_tables.failures("Failed", report["failed"])
    markdown_tables.failures("Left out", report["left_out"])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    whole = io.StringIO()  # nothing at all rather than half of it
    try:
        with contextlib.redirect_stdout(whole):
            main(*sys.argv[1:])
    except (measured.Malformed, OSError, KeyError, TypeError) as problem:
        sys.exit(f"table.py: {type(problem).__name__}: {problem}")
    sys.stdout.write(whole.getvalue())
