# SPDX-License-Identifier: Apache-2.0
"""table.py RESULTS.json COMMAND: the medians of a run as Markdown on stdout."""
import json
import os
import sys

COLUMNS = {
    "read_bandwidth": ["GB/s", "label"],
    "products": ["GFLOP/s", "peak_GFLOP/s", "over_peak", "GB/s"],
    "attention": ["us_per_layer", "GB/s", "read_GB/s_at_this_size", "fraction_of_read_bandwidth",
                  "vs_full"],
    "policy": ["append_us", "attend_us", "observe_us", "compress_us", "policy_over_attend",
               "us_per_layer", "fraction_of_read_bandwidth", "vs_full"],
    "append": ["ns_per_token", "GB/s", "read_GB/s_at_this_size", "fraction_of_read_bandwidth",
               "vs_full"],
    "prefill": ["us_per_token", "GB/s", "read_GB/s_at_this_size", "fraction_of_read_bandwidth",
                "vs_full"],
}


def text(value):
    return value if isinstance(value, str) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def main(path, command):
    with open(path, encoding="utf-8") as file:
        results = json.load(file)
    context = results["context"]
    caches = ", ".join(f"L{c['level']} {c['size'] // 1024} KiB" for c in context["caches"]
                       if c["type"] != "Instruction")
    print(f"# Benchmarks, {context['date'][:10]}\n")
    print(f"- processor: {context['processor']}, {context['num_cpus']} cores, {caches}")
    print(f"- compiler: {context['compiler']}, flags: `{context['flags']}`")
    print(f"- command: `{command}`")
    start, end = context["load_avg"][0], os.getloadavg()[0]
    print(f"- load average: {text(start)} at the start, {text(end)} at the end\n")
    print("Medians; how to read them: [bench/README.md](../README.md).")
    medians = [b for b in results["benchmarks"] if b.get("aggregate_name", "median") == "median"]
    for family, columns in COLUMNS.items():
        rows = [b for b in medians if b["name"].startswith(family + "/")]
        if not rows:
            continue
        print(f"\n## {family}\n")
        print("| case | " + " | ".join(columns) + " |")
        print("|---|" + "---:|" * len(columns))
        for row in rows:
            case = row["run_name"].removeprefix(family + "/").removesuffix("/manual_time")
            print(f"| {case} | " + " | ".join(text(row.get(c, "")) for c in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
