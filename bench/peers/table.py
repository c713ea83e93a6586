# SPDX-License-Identifier: Apache-2.0
"""table.py RESULTS.json: what measure.py wrote as Markdown on stdout. Ends with 1, and says why, for
what is no such file."""
import contextlib
import io
import sys

import goals  # which says where what is shared lies
import markdown_tables
import measured
from markdown_tables import fixed, percent, rows, text

SECTIONS = tuple(goals.OF_SECTION)
DISTURBED = 0.1  # cores that others keep busy


def load(path):
    # Observe and compress of who does neither take no time.
    return measured.load(path, ("date", "command", "device"), SECTIONS, ("failed",), zeros=True)


def rate(bytes_moved, us):
    return None if not us else bytes_moved / us / 1000


def kib(held):
    """Of everything that a cache holds."""
    return text(goals.total(held) / 1024)


def attention(results):
    print("## Decode attention\n")
    print("`ours`: with log-weights and group-reduced attention per entry, as a policy may want; "
          "`plain`: without both. Of read: the time the same threads take to read as many bytes, over "
          "ours. Roof: our time over the larger of that and the operations at the peak. Others: their "
          "time over ours, above 1 is slower; int8 is bfloat16 there. Bytes: K and V; all that the "
          "cache holds; PyTorch's K, V and log-weights. Similarity: one pass over the keys, as KeepKV looks "
          "for the most similar one, within a step, right after each head's attention, over `ours`; keys "
          "alone: one pass after the other.\n")
    head = ["q/KV heads/dim, type, entries x threads", "copies", "of read", "roof", "ours / plain",
            "SDPA", "SDPA with bias", "products, softmax, sum", "similarity", "keys alone", "ours us",
            "plain us", "read GB/s", "peak GFLOP/s", "K, V KiB", "all KiB", "PyTorch KiB"]
    for level in ("memory", "L3", "L2"):
        chosen = [r for r in results if r["level"] == level]
        if chosen:
            print(f"### {chosen[0]['entries']} entries\n")
            rows(head, [attention_row(r) for r in chosen])
    markdown_tables.skips(results)


def attention_row(result):
    samples = result["samples_us"]
    peer_bytes = result.get("peer_bytes")
    return [result["case"], str(result["copies"]), fixed(goals.ratio(samples, "probe", "ours")),
            fixed(goals.roof(samples))] + [
                fixed(goals.ratio(samples, above, below)) for above, below in
                (("ours", "plain"), ("sdpa", "ours"), ("sdpa_bias", "ours"), ("products", "ours"),
                 ("similarity", "ours"), ("keys", "ours"))
            ] + [text(goals.median(samples, "ours")), text(goals.median(samples, "plain")),
                 text(rate(result["kv_bytes"], goals.median(samples, "probe"))),
                 text(rate(result["flops"], goals.median(samples, "peak"))),
                 text(result["kv_bytes"] / 1024), kib(result["bytes"]),
                 text(None if peer_bytes is None else peer_bytes / 1024)]


def disturbed(report):
    """Cases during which others took part of the machine."""
    found = [(result["case"], result["others"]) for section in SECTIONS for result in report[section]
             if result.get("others", 0) >= DISTURBED]
    if found:
        print(f"Others kept at least {DISTURBED} cores busy, in spite of attempts, during: " +
              "; ".join(f"{case} ({fixed(others)})" for case, others in found) + ".\n")


def steps(results):
    print("## A policy's step\n")
    print("One token a layer, as many layers as an engine goes through (`copies`). Shares: observe and "
          "compress over the attention of `attend`, timed within `extend`, where each head's follow its "
          "attention, and called as verbs, for all heads one after the other. Bytes: all that a "
          "layer's cache holds.\n")
    rows(["policy, q/KV heads/dim, type, entries x threads", "copies", "share in extend",
          "share by verbs", "extend us", "of it policy us", "append us", "attend us", "observe us",
          "compress us", "entries", "all KiB"],
         [[r["case"], str(r["copies"]), percent(goals.share_in_extend(r["samples_us"])),
           percent(goals.share_by_verbs(r["samples_us"]))] +
          [text(goals.median(r["samples_us"], v)) for v in ("extend", "policy", "append", "attend",
                                                            "observe", "compress")] +
          [str(r["length"]), kib(r["bytes"])] for r in results])


def overheads(results):
    print("## Beside attention\n")
    print("A cache that stays in the innermost levels. `extend` of one token is append, attention, and "
          "the policy's part; attention alone ran right before it on the same cache.\n")
    rows(["policy, q/KV heads/dim, type, entries x threads", "append / attention",
          "extend beyond attention", "attention us", "extend us", "append us"],
         [[r["case"], fixed(goals.ratio(r["samples_us"], "append", "attend_in_step")),
           percent(goals.overhead(r["samples_us"]))] +
          [text(goals.median(r["samples_us"], n)) for n in ("attend", "extend", "append")]
          for r in results])


def streaming(results):
    print("## A fixed budget over a long stream\n")
    print("Microseconds of a step by `extend` after so many tokens: clones from along the way, stepped "
          "in turns. Bytes: all that the cache holds, at the start and at the end.\n")
    marks = results[0]["marks"]
    rows(["policy, q/KV heads/dim, type, budget x threads"] + [str(m) for m in marks] +
         ["last / first", "KiB at first", "KiB at last"],
         [[r["case"]] + [text(goals.median(r["samples_us"], str(m))) for m in r["marks"]] +
          [fixed(goals.ratio(r["samples_us"], str(r["marks"][-1]), str(r["marks"][0])))] +
          [kib(r["bytes_at"][str(r["marks"][at])]) for at in (0, -1)] for r in results])


def prompts(results):
    print("## Chunks of prompts\n")
    print("Causal attention of 512 queries, the last of which sees all entries. Product: Eigen's of "
          "square matrices of floats. SDPA: with the mask that this needs.\n")
    rows(["q/KV heads/dim, type, entries x threads", "over product", "SDPA / ours", "ours GFLOP/s",
          "product GFLOP/s", "ours ms", "all KiB"],
         [[r["case"], fixed(goals.of_product(r)), fixed(goals.ratio(r["samples_us"], "sdpa", "ours")),
           text(rate(r["flops"], goals.median(r["samples_us"], "ours"))),
           text(rate(r["product_flops"], goals.median(r["samples_us"], "product"))),
           text((goals.median(r["samples_us"], "ours") or 0) / 1000), kib(r["bytes"])]
          for r in results])
    markdown_tables.skips(results)


ENGINES = ("ours", "ours_h2o", "ours_keepkv", "llama_cpp", "llama_cpp_flash", "openvino",
           "openvino_evicting")


def engine(results):
    print("## Engines\n")
    print("SmolLM2-135M, the same GGUF, two threads. Tokens per second; ours with K and V in half "
          "precision, as llama.cpp's; OpenVINO's default is 8 bits. `ours_...` and `openvino_evicting` "
          "keep a tenth of the context.\n")
    for kind, title in (("decode", "Decoding"), ("prompt", "Prompts")):
        chosen = [r for r in results if r["kind"] == kind]
        if chosen:
            print(f"### {title}\n")
            rows(["context"] + list(ENGINES),
                 [[r["case"]] + [text(per_second(r["samples_us"], n)) for n in ENGINES]
                  for r in chosen])
    decoded = [r for r in results if r["kind"] == "decode"]
    if decoded:
        print("### Bytes\n")
        print("MiB of all layers' caches after decoding; llama.cpp's are allocated at once, for 8192 "
              "tokens.\n")
        rows(["context"] + list(ENGINES),
             [[r["case"]] + [text(r["bytes"][n] / 2**20 if n in r["bytes"] else None)
                             for n in ENGINES] for r in decoded])
    for result in results:
        if result["kind"] == "agreement":
            print("### Agreement\n")
            print(f"Leading words of the full cache's continuation that are the same with "
                  f"{result['budget']} entries, each engine with its own full cache, mean of "
                  f"{result['texts']} texts.\n")
            rows(["contestant", "same words"],
                 [[n, percent(share)] for n, share in result["agreement"].items()])
        if result["kind"] == "verified" and result["errors"]:
            print(likelihoods(result))
    markdown_tables.skips([r for r in results if r["kind"] in ("decode", "prompt")])


def likelihoods(result):
    """What the check that all run the same model came to."""
    checked = {name: error for name, error in result["errors"].items() if error is not None}
    unchecked = [name for name in result["errors"] if name not in checked]
    said = ""
    if checked:
        said += ("Likelihood of a text, relative to ours: "
                 + "; ".join(f"{name} off by {text(error)}" for name, error in checked.items()) + ".\n")
    if result["wrong"]:
        said += (f"\nNOT the same model, by that: {', '.join(result['wrong'])}. Their speed is of what they make "
                 "of the file.\n")
    if unchecked:
        said += f"\nNOT checked, as they failed at that text: {', '.join(unchecked)}.\n"
    return said


def per_second(samples, name):
    us = goals.median(samples, name)
    return None if us is None else 1e6 / us


def origins(report):
    """Where sections were not all measured at one revision: which were at which, and which are quick."""
    at = {}
    for section in SECTIONS:
        for result in report[section]:
            revision = str(result.get("revision")) + (", a few cases" if result.get("quick") else "")
            at.setdefault(revision, {})[section] = True
    if len(at) > 1:
        print("- measured at: " + "; ".join(f"{revision}: {', '.join(of)}" for revision, of in at.items()))


def main(path):
    report = load(path)
    device = report["device"]
    print(f"# Side by side on a processor, {report['date']}\n")
    print(f"- processor: {device.get('processor', '?')}, {device.get('cores', '?')} cores, "
          f"{device.get('caches') or 'caches unknown'}; {device.get('system', '?')}")
    print(f"- library: g++ {device.get('build', '?')}")
    print("- " + ", ".join(f"{name} {version or 'not installed'}"
                           for name, version in device.get("versions", {}).items()))
    print(f"- load average: {text(device.get('load_at_start'))} at the start, "
          f"{text(device.get('load_at_end'))} at the end")
    print(f"- command: `{report['command']}`")
    origins(report)
    if report.get("rehearsal"):
        print("- A REHEARSAL: the numbers mean nothing")
    print("\nMedians of samples taken in turns; ratios are medians of ratios within a round. How to read "
          "them: [bench/peers/README.md](../peers/README.md).\n")
    print("## Goals\n")
    markdown_tables.verdicts(goals.all_goals(report))
    disturbed(report)
    for section in (attention, steps, overheads, streaming, prompts, engine):
        if report[section.__name__]:
            section(report[section.__name__])
        else:
            why = report.get("notes", {}).get(section.__name__)
            print(f"## {section.__name__}\n\nNot measured{': ' + why if why else ''}.\n")
    markdown_tables.failures("Failed", report["failed"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    whole = io.StringIO()  # nothing at all rather than half of it
    try:
        with contextlib.redirect_stdout(whole):
            main(sys.argv[1])
    except (measured.Malformed, OSError, KeyError, TypeError) as problem:
        sys.exit(f"table.py: {type(problem).__name__}: {problem}")
    sys.stdout.write(whole.getvalue())
