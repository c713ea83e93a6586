# SPDX-License-Identifier: Apache-2.0
"""Times the CUDA cache and writes RESULTS.json; `run.sh` calls it, `table.py` reads what it writes.

    python3 bench/gpu/measure.py --library build/.../libtersekv_gpu_bench.so --out RESULTS.json
"""
import argparse
import datetime
import json
import signal
import sys
import time

import shapes


class Bench:
    """What every measurement needs: the library, a clock, the device, and how long it may take."""

    def __init__(self, torch, library_path, rehearse, seconds_of_case):
        import clock
        import native
        self.torch, self.rehearse, self.seconds_of_case = torch, rehearse, seconds_of_case
        self.library = native.Library(library_path)
        # Calls in a sample, and samples of a contestant, at least.
        self.least_calls, self.least_rounds = (1, 2) if rehearse else (4, 8)
        if rehearse:
            self.device, self.l2_bytes = torch.device("cpu"), shapes.REHEARSAL_L2
            self.clock = clock.HostClock()
            return
        if not torch.cuda.is_available():
            raise SystemExit("measure.py: PyTorch sees no GPU")
        self.device = torch.device("cuda", 0)
        self.l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.clock = clock.CudaClock(torch, self.library)

    def free_bytes(self):
        if self.rehearse:
            return 1 << 30
        self.torch.cuda.empty_cache()
        return self.torch.cuda.mem_get_info()[0]

    def about(self):
        if self.rehearse:
            return {"name": "the host", "l2_bytes": self.l2_bytes}
        found = self.torch.cuda.get_device_properties(0)
        return {"name": found.name, "capability": f"{found.major}.{found.minor}",
                "multiprocessors": found.multi_processor_count, "l2_bytes": self.l2_bytes,
                "memory_bytes": found.total_memory}


def version_of(module):
    try:
        return __import__(module).__version__
    except Exception:  # not installed, or broken
        return None


def sections(arguments):
    """[(section, name of the case, function of a bench)], the most telling first."""
    import attention
    import steps
    if arguments.rehearse:
        cases, few = shapes.rehearsal_attention(), []
        policies = shapes.rehearsal_steps(shapes.POLICIES)
        graphs = shapes.rehearsal_steps(("h2o",))
        long_case, of_budget = shapes.StepCase("full", 400, 1, 4, 2, 64, "half"), ("h2o", "keepkv")
    else:
        cases = shapes.attention_cases(arguments.quick)
        few, cases = cases[12:], cases[:12]
        policies, graphs = shapes.step_cases(arguments.quick), shapes.graph_cases(arguments.quick)
        long_case = shapes.StepCase("full", shapes.LONG_CONTEXT, 8)
        of_budget = shapes.budget_policies(arguments.quick)
    work = [("attention", c.name, lambda b, c=c: attention.measure(b, c)) for c in cases]
    work += [("steps", c.name, lambda b, c=c: steps.measure_policy(b, c)) for c in policies]
    for policy in of_budget:
        name = f"{policy} {long_case.context} x {long_case.batch}"
        work.append(("budgets", name,
                     lambda b, p=policy: steps.measure_budgets(b, p, long_case)))
        work.append(("batches", name,
                     lambda b, p=policy: steps.measure_batches(b, p, long_case)))
    work += [("graphs", c.name, lambda b, c=c: steps.measure_graph(b, c)) for c in graphs]
    work += [("attention", c.name, lambda b, c=c: attention.measure(b, c)) for c in few]
    return [w for w in work if arguments.only in (None, w[0])]


def run(bench, work, seconds, report):
    """Every case until the time is up. One that fails does not stop the others."""
    end = time.monotonic() + seconds
    for section, name, measure in work:
        if time.monotonic() > end:
            report["left_out"].append({"section": section, "case": name, "reason": "no time"})
            continue
        start = time.monotonic()
        try:
            bench.free_bytes()  # what PyTorch keeps of the case before is free again
            report[section].append(measure(bench))
            verdict = "ok"
        except (MemoryError, bench.torch.cuda.OutOfMemoryError) as error:
            report["left_out"].append({"section": section, "case": name, "reason": str(error)})
            verdict = "left out"
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if "out of device memory" in message:
                report["left_out"].append({"section": section, "case": name, "reason": message})
                verdict = "left out"
            else:
                report["failed"].append({"section": section, "case": name, "reason": message})
                verdict = "FAILED " + message
        print(f"{section} {name}: {verdict}, {time.monotonic() - start:.1f} s", file=sys.stderr,
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="the built library")
    parser.add_argument("--out", help="where the JSON goes")
    parser.add_argument("--seconds", type=float, default=200, help="start no case after these")
    parser.add_argument("--seconds-of-case", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--only", choices=("attention", "steps", "graphs", "budgets", "batches"))
    parser.add_argument("--rehearse", action="store_true",
                        help="tiny cases on the host, for the tests")
    parser.add_argument("--list", action="store_true", help="name the cases, measure nothing")
    parser.add_argument("--driver", default=None, help="version, for the record")
    parser.add_argument("--command", default=None, help="what was run, for the record")
    arguments = parser.parse_args()
    work = sections(arguments)
    if arguments.list:
        for section, name, _ in work:
            print(section, name)
        return 0
    if arguments.library is None or arguments.out is None:
        parser.error("--library and --out are needed")
    import torch
    bench = Bench(torch, arguments.library, arguments.rehearse, arguments.seconds_of_case)
    report = {"format": 1, "date": datetime.date.today().isoformat(),
              "command": arguments.command or " ".join(sys.argv), "quick": arguments.quick,
              "rehearsal": arguments.rehearse, "device": bench.about(),
              "versions": {"driver": arguments.driver, "cuda": torch.version.cuda,
                           "torch": torch.__version__, "flashinfer": version_of("flashinfer")},
              "attention": [], "steps": [], "graphs": [], "budgets": [], "batches": [],
              "left_out": [], "failed": []}
    torch.manual_seed(1)
    # Stopped by `timeout`: as an exception, so that what has been measured is kept.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(bench, work, arguments.seconds, report)
    finally:  # what there is, also when stopped
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
