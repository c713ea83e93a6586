# SPDX-License-Identifier: Apache-2.0
"""What the tests of the benchmarks beside others share: made-up measurements, and what the tests of the
GPU benchmarks have."""
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "bench", "peers")

# By its path: it has this file's name, and puts the GPU's scripts where ours are to be found.
_spec = importlib.util.spec_from_file_location(
    "gpu_support", os.path.join(ROOT, "tests", "gpu_bench", "support.py"))
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
FolderTest, TableTest = _shared.FolderTest, _shared.TableTest
main, rehearsal, run = _shared.main, _shared.rehearsal, _shared.run
sys.path[:] = [PEERS] + [path for path in sys.path if path != _shared.GPU]

HELD = {"keys": 4096, "values": 4096, "weights": 512, "positions": 512, "statistics": 0,
        "slack": 1024, "bookkeeping": 0, "workspace": 0}  # 10 KiB


def three(times):
    return {name: [us, us * 1.02, us * 0.98] for name, us in times.items() if us is not None}


def attention(case="a", level="memory", heads=(32, 8), element="bfloat16", **times):
    """Of 1000 bytes and operations; all goals met."""
    us = {"ours": 100.0, "plain": 98.0, "probe": 95.0, "peak": 50.0, "sdpa": 400.0,
          "sdpa_bias": 410.0, "products": 150.0, "similarity": 15.0, "keys": 30.0, **times}
    return {"case": case, "level": level, "q_heads": heads[0], "kv_heads": heads[1], "head_dim": 128,
            "element": element, "entries": 32768, "threads": 1, "copies": 3, "kv_bytes": 300_000,
            "flops": 600_000, "bytes": HELD, "peer_bytes": 20480, "skipped": {},
            "samples_us": three(us)}


def step(policy="h2o", entries=512, observe=3.0, compress=1.0, threads=1, within=3.0, extend=110.0):
    return {"case": f"{policy} {entries}", "policy": policy, "entries": entries, "threads": threads,
            "q_heads": 9, "kv_heads": 3, "head_dim": 64, "element": "bfloat16", "copies": 32,
            "length": entries, "bytes": HELD,
            "samples_us": three({"append": 1.0, "attend": 100.0, "observe": observe,
                                 "compress": compress, "extend": extend, "policy": within})}


def overhead(policy="full", extend=108.0):
    return {"case": f"{policy} 512", "policy": policy, "bytes": HELD,
            "samples_us": three({"append": 2.0, "attend_in_step": 100.0, "attend": 100.0,
                                 "extend": extend})}


def stream(last=105.0, held=None):
    return {"case": "h2o 512", "marks": [1024, 4096],
            "bytes_at": {"1024": HELD, "4096": held or HELD},
            "samples_us": three({"1024": 100.0, "4096": last})}


def prompt(ours=100.0):
    """The product does 2000 operations in 100, and so ours 1400."""
    return {"case": "p", "flops": 1400, "product_flops": 2000, "bytes": HELD, "skipped": {},
            "samples_us": three({"ours": ours, "product": 100.0, "sdpa": 300.0})}


def decode(context=7900, **times):
    us = {"ours": 100.0, "ours_keepkv": 50.0, "llama_cpp": 190.0, "llama_cpp_flash": 200.0,
          "openvino": 120.0, "openvino_evicting": 90.0, **times}
    return {"case": f"decode at {context}", "kind": "decode", "context": context, "budget": 790,
            "bytes": {"ours": 2 << 20}, "skipped": {}, "samples_us": three(us)}


def agreement(ours=0.8, theirs=0.5):
    return {"case": "agreement", "kind": "agreement", "context": 7900, "budget": 790, "texts": 3,
            "agreement": {"ours_keepkv": ours, "openvino_evicting": theirs}, "skipped": {},
            "samples_us": {}}


def report(**sections):
    return {"format": 1, "date": "2020-02-29", "command": "sh bench/peers/run.sh --quick",
            "device": {"processor": "A Processor", "cores": 2, "caches": "L2 1024KiB",
                       "system": "Linux", "build": "12.2.0; -O3 -march=native",
                       "versions": {"torch": "2.9", "openvino-genai": None},
                       "load_at_start": 0.1, "load_at_end": 0.2},
            **sections}
