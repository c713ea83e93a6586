# SPDX-License-Identifier: Apache-2.0
"""A policy's part of a decode step, and what the verbs cost beside attention."""
import dataclasses
import time

import cases
import torch_peer
from attention import OURS_TOLERANCE

VERBS = ("append", "attend", "observe", "compress")
WARM_STEPS = 3


def filled(bench, case, copies):
    """Caches that hold `entries` and are at their budget."""
    budget = 0 if case.policy == "full" else case.entries
    # KVzap has a threshold in place of a budget: it leaves half.
    tokens = 2 * case.entries if case.policy == "kvzap" else case.entries
    return bench.library.caches(case.policy, case, copies, tokens, budget)


def rounds(bench, one_round, names):
    """{name: [microseconds per call]}; one_round() returns (seconds of each name, calls)."""
    samples = {name: [] for name in names}
    one_round()
    end = time.monotonic() + bench.plan.seconds
    while len(samples[names[0]]) < bench.plan.least or time.monotonic() < end:
        seconds, calls = one_round()
        for name, of_name in zip(names, seconds):
            samples[name].append(1e6 * of_name / calls)
    return samples


def described(case, copies, caches, samples, error):
    return {"case": case.policy_name, **dataclasses.asdict(case), "copies": copies,
            "kv_bytes": case.kv_bytes(), "length": caches.length(), "bytes": caches.bytes(),
            "errors": {"ours": error}, "samples_us": samples}


def measure_step(bench, case):
    """Every verb of a decode step, and `extend` with the policy's part of it, over as many layers as an
    engine would go through."""
    copies = cases.copies_of_engine(case)
    with filled(bench, case, copies) as caches:
        caches.steps(WARM_STEPS * copies)
        error = torch_peer.verify("ours", caches.difference(), OURS_TOLERANCE)
        calls = copies * max(1, 64 // copies)
        samples = rounds(bench, lambda: (caches.steps(calls) + caches.extends(calls), calls),
                         VERBS + ("extend", "policy"))
        return described(case, copies, caches, samples, error)


def measure_overhead(bench, case):
    """Attention alone and `extend` of one token, in turns on the same cache; and the verbs."""
    with filled(bench, case, 1) as caches:
        caches.pairs(WARM_STEPS)
        error = torch_peer.verify("ours", caches.difference(), OURS_TOLERANCE)
        calls = 64

        def one_round():
            append, attend_in_step, _, _ = caches.steps(calls)
            attend, extend = caches.pairs(calls)
            return (append, attend_in_step, attend, extend), calls
        samples = rounds(bench, one_round, ("append", "attend_in_step", "attend", "extend"))
        return described(case, 1, caches, samples, error)
