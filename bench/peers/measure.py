# SPDX-License-Identifier: Apache-2.0
"""Times TerseKV beside others and writes RESULTS.json; `run.sh` calls it, `table.py` reads what it
writes.

    python3 bench/peers/measure.py --library build/.../libtersekv_peers.so --out RESULTS.json
"""
import argparse
import contextlib
import datetime
import glob
import json
import os
import platform
import signal
import subprocess
import sys
import time

import attention
import cases
import engine
import idle
import native
import policies
import prompts
import streaming
import torch_peer

SECTIONS = ("attention", "steps", "overheads", "streaming", "prompts", "engine")
PEERS = ("torch", "llama.cpp", "openvino")
DISTURBED, ATTEMPTS = 0.1, 3  # cores that others keep busy; times a case is measured


class Bench:
    """What every measurement needs."""

    def __init__(self, arguments):
        self.plan = (cases.REHEARSAL if arguments.rehearse else
                     cases.QUICK if arguments.quick else cases.FULL)
        self.last_level = 1 << 18 if arguments.rehearse else last_level_cache()
        self.free_memory = free_memory()
        self.library = native.Library(arguments.library)
        self.torch, self.why_no_torch = None, "left out by --peers"
        if "torch" in arguments.peers:
            self.torch, self.why_no_torch = torch_peer.torch_or_none()
        if self.torch is not None:
            self.torch.manual_seed(1)


def last_level_cache(folder="/sys/devices/system/cpu/cpu0/cache"):
    """Bytes; 32 MiB where the system does not say."""
    found = [32 << 20]
    for size in glob.glob(f"{folder}/index*/size"):
        with contextlib.suppress(OSError, ValueError):
            with open(size, encoding="ascii") as file:
                found.append(int(file.read().strip().removesuffix("K")) << 10)
    return max(found)


def free_memory():
    """Bytes; 8 GiB where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    return 8 << 30


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def caches_of_processor():
    found = []
    folder = "/sys/devices/system/cpu/cpu0/cache"
    try:
        for index in sorted(os.listdir(folder)):
            if index.startswith("index"):
                level, kind, size = (open(f"{folder}/{index}/{name}", encoding="ascii").read().strip()
                                     for name in ("level", "type", "size"))
                if kind != "Instruction":
                    found.append(f"L{level} {size}iB")
    except OSError:
        pass
    return ", ".join(found)


def revision():
    """Of the tree that this file lies in; None outside of a repository."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                              text=True, check=True, cwd=os.path.dirname(os.path.abspath(__file__)))
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def about(bench, arguments):
    return {"processor": processor(), "cores": os.cpu_count(), "caches": caches_of_processor(),
            "system": platform.platform(), "build": bench.library.build(),
            "last_level_bytes": bench.last_level, "load_at_start": os.getloadavg()[0],
            "versions": {"TerseKV": revision(), **engine.versions()}, "threads": arguments.threads}


def work_of(bench, arguments):
    """[(section, name, function)]."""
    known, elements = bench.library.policies(), bench.library.elements()
    plan, threads = bench.plan, arguments.threads
    work = [("attention", c.name, lambda c=c: attention.measure(bench, c))
            for c in cases.attention_cases(plan, elements, threads)]
    work += [("steps", c.policy_name, lambda c=c: policies.measure_step(bench, c))
             for c in cases.policy_cases(plan, known, threads)]
    work += [("overheads", c.policy_name, lambda c=c: policies.measure_overhead(bench, c))
             for c in cases.overhead_cases(plan, known, elements, threads)]
    work += [("streaming", c.policy_name, lambda c=c: streaming.measure(bench, c))
             for c in cases.streaming_cases(plan, known)]
    work += [("prompts", c.name, lambda c=c: prompts.measure(bench, c))
             for c in cases.prompt_cases(plan, elements, threads)]
    if arguments.engine and arguments.model:
        work += engine.work(bench, arguments)
    return [w for w in work if w[0] in arguments.only and arguments.case in w[1]]


def undisturbed(measure, attempts):
    """What it returns when others take little of the machine: the least disturbed attempt counts and
    says how much it was."""
    best = None
    for _ in range(attempts):
        watch = idle.Watch()
        result = measure()
        result["others"] = watch.others()
        if best is None or result["others"] < best["others"]:
            best = result
        if best["others"] < DISTURBED:
            break
    return best


def keep(results, found, origin):
    """Puts results where those of the same case were, or at the end; `origin` says of what."""
    for result in found:
        result.update(origin)
        names = [each["case"] for each in results]
        if result["case"] in names:
            results[names.index(result["case"])] = result
        else:
            results.append(result)


def run(work, report, save, attempts, origin):
    """Every case; returns how many failed. One that does not stop the others, and what was measured of it
    earlier no longer counts. What there is is saved after each."""
    start, failed = time.monotonic(), 0
    for done, (section, name, measure) in enumerate(work, 1):
        begun = time.monotonic()
        try:
            if section == "engine":  # whose contestants are processes of their own
                found = measure()
            else:
                found = undisturbed(measure, attempts)
            keep(report[section], found if isinstance(found, list) else [found],
                 {**origin, "work": name})
            verdict = "ok"
        except Exception as error:  # whatever it is: the others go on
            reason = f"{type(error).__name__}: {error}"
            report["failed"].append({"section": section, "case": name, "reason": reason})
            report[section] = [each for each in report[section]
                               if each.get("work", each["case"]) != name]
            failed += 1
            verdict = "FAILED " + reason
        save()
        now = time.monotonic()
        left = (now - start) / done * (len(work) - done)
        print(f"[{done}/{len(work)}, about {left:.0f} s left] {section} {name}: {verdict}, "
              f"{now - begun:.1f} s", file=sys.stderr, flush=True)
    return failed


def words(text):
    return [word for word in text.replace(",", " ").split() if word]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="the built library")
    parser.add_argument("--out", required=True, help="where the JSON goes; sections not measured "
                        "now stay as they are there")
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--rehearse", action="store_true", help="tiny cases, for the tests")
    parser.add_argument("--only", type=words, default=list(SECTIONS), help="sections")
    parser.add_argument("--case", default="", help="only cases with this in their name; the others "
                        "stay as they are")
    parser.add_argument("--peers", type=words, default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--threads", type=lambda t: [int(n) for n in words(t)], default=[1, 2])
    parser.add_argument("--engine", help="the built tersekv-llama")
    parser.add_argument("--model", help="GGUF, for the engines")
    parser.add_argument("--text", help="prose, for the engines")
    parser.add_argument("--command", default=None, help="what was run, for the record")
    arguments = parser.parse_args()
    for given, known, name in ((arguments.only, SECTIONS, "--only"),
                               (arguments.peers, PEERS, "--peers")):
        for one in given:
            if one not in known:
                parser.error(f"{name}: expected some of {', '.join(known)}, got {one}")
    return arguments


def main():
    arguments = parse()
    bench = Bench(arguments)
    report = {"format": 1, "quick": arguments.quick, "failed": []}
    if os.path.exists(arguments.out):
        with open(arguments.out, encoding="utf-8") as file:
            report = json.load(file)
        report["failed"] = [f for f in report["failed"] if f["section"] not in arguments.only or
                            arguments.case not in f["case"]]
    report.update({section: [] for section in SECTIONS if section not in report or
                   section in arguments.only and not arguments.case})
    report["notes"] = {} if arguments.engine and arguments.model else {
        "engine": "no tersekv-llama, or no model: examples/run.sh fetches it"}
    report.update({"rehearsal": arguments.rehearse, "date": datetime.date.today().isoformat(),
                   "command": arguments.command or " ".join(sys.argv),
                   "device": about(bench, arguments)})
    # Stopped from outside: as an exception, so that what has been measured is kept.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def save():
        with open(arguments.out + ".part", "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
        os.replace(arguments.out + ".part", arguments.out)
    origin = {"revision": report["device"]["versions"]["TerseKV"], "quick": arguments.quick}
    failed = run(work_of(bench, arguments), report, save, 1 if arguments.rehearse else ATTEMPTS, origin)
    report["device"]["load_at_end"] = os.getloadavg()[0]
    save()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
