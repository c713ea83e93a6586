# SPDX-License-Identifier: Apache-2.0
"""Whole decode steps: a policy's against its attention alone, as a graph and as launches, and at a
small part of a long cache; and how many sequences fit into the same bytes."""
import dataclasses
import itertools

import native
import shapes
from clock import compare

LAYERS = 32  # that share a workspace, where bytes are counted
ROUNDS = 60  # samples of a comparison, at most
WARM_STEPS = 3


class Steps:
    """A filled set, ready to be timed."""

    def __init__(self, bench, case, kinds=1, copies=None):
        """`kinds` of steps are timed, each as often."""
        self.bench, self.case = bench, case
        self.copies = copies or shapes.copies_for(case.kv_bytes(), bench.l2_bytes)
        self.rounds = -(-bench.least_calls // self.copies)
        # Room for one that grows with every step: prepared, checked and timed ones.
        self.growth = WARM_STEPS + kinds * (ROUNDS + 12) * self.rounds
        room = case.context + 1 + (self.growth if case.policy in shapes.UNBOUNDED else 0)
        self.set = native.PolicySet(bench.library, case, self.copies, case.context, room,
                                    bench.clock.handle)
        try:
            self.set.fill(case.context, 5)
            self.set.steps(0, WARM_STEPS * self.copies)
            self.set.synchronize()
            length = self.set.length(0, 0, 0)
            expected = case.context
            if not expected <= length <= expected + WARM_STEPS:
                raise native.NativeError(f"length: expected about {expected}, got {length}")
        except BaseException:
            self.set.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.set.close()

    def attend(self):
        for _ in range(self.rounds):
            for copy in range(self.copies):
                self.set.attend(copy)

    def step(self):
        self.set.steps(0, self.rounds * self.copies)

    def step_apart(self):
        self.set.steps_apart(0, self.rounds * self.copies, self.bench.clock.policies)

    @property
    def calls(self):
        return self.rounds * self.copies

    def end(self):
        """The lengths a run ended with; fails if a head found no page."""
        self.set.synchronize()
        return self.set.length(0, 0, 0)


def refresher(sets):
    """Other tokens before each sample, so that a replayed graph does not append the same ones."""
    seeds = itertools.count(100)

    def refresh():
        seed = next(seeds)
        for steps in sets:
            steps.set.refresh(seed)
    return refresh


def describe(case):
    return {"case": case.name, **dataclasses.asdict(case), "kv_bytes": case.kv_bytes()}


def measure_policy(bench, case):
    """Step and attention of the same cache. Layers take two workspaces in turns, so copies are even."""
    copies = shapes.copies_for(case.kv_bytes(), bench.l2_bytes)
    with Steps(bench, case, 2, copies + copies % 2) as steps:
        timed = {"attend": bench.clock.prepare(steps.attend, steps.calls),
                 "step": bench.clock.prepare(steps.step, steps.calls),
                 "apart": bench.clock.prepare(steps.step_apart, steps.calls)}
        samples = compare(bench.clock, timed, bench.seconds_of_case, refresher([steps]),
                          least=bench.least_rounds, most=ROUNDS)
        timed.clear()
        return {**describe(case), "copies": steps.copies, "length_at_end": steps.end(),
                "samples_us": samples}


def measure_graph(bench, case):
    """The same steps replayed from a graph and launched one by one, from C++, in this process."""
    with Steps(bench, case) as steps:
        timed = {"graph": bench.clock.prepare(steps.step, steps.calls),
                 "launches": bench.clock.prepare(steps.step, steps.calls, graph=False)}
        samples = compare(bench.clock, timed, bench.seconds_of_case, spin=False,
                          least=bench.least_rounds, most=ROUNDS // 2)
        timed.clear()
        return {**describe(case), "copies": steps.copies, "length_at_end": steps.end(),
                "samples_us": samples}


def measure_budgets(bench, policy, long_case):
    """Steps at 5 % and 10 % of a long cache and of the full one, in turns, at the same batch."""
    cases = {"full": dataclasses.replace(long_case, policy="full")}
    for keep in shapes.KEEP:
        cases[f"at_{round(100 * keep)}"] = dataclasses.replace(
            long_case, policy=policy, context=round(keep * long_case.context))
    sets = {}
    try:
        for name, case in cases.items():
            sets[name] = Steps(bench, case)
        timed = {name: bench.clock.prepare(steps.step, steps.calls)
                 for name, steps in sets.items()}
        samples = compare(bench.clock, timed, bench.seconds_of_case,
                          refresher(list(sets.values())), least=bench.least_rounds, most=ROUNDS)
        timed.clear()
        return {"case": f"{policy} {long_case.context} x {long_case.batch}", "policy": policy,
                "context": long_case.context, "batch": long_case.batch,
                "entries": {name: case.context for name, case in cases.items()},
                "copies": {name: steps.copies for name, steps in sets.items()},
                "length_at_end": {name: steps.end() for name, steps in sets.items()},
                "samples_us": samples}
    finally:
        for steps in sets.values():
            steps.set.close()


def bytes_of(bench, case):
    """Device memory of LAYERS layers of this cache with one workspace between them, exactly full."""
    room = case.context + 1
    with native.PolicySet(bench.library, case, 1, case.context, room, bench.clock.handle) as made:
        return LAYERS * made.bytes(0) + made.bytes(1)


def largest_batch(bytes_at, limit):
    """The largest batch whose bytes are at most `limit`; bytes_at(batch) grows about linearly."""
    if bytes_at(1) > limit:
        return 0
    slope = max((bytes_at(5) - bytes_at(1)) / 4, 1)
    batch = max(int((limit - bytes_at(1)) / slope) + 1, 1)
    while bytes_at(batch) > limit:
        batch -= 1
    while bytes_at(batch + 1) <= limit:
        batch += 1
    return batch


def measure_batches(bench, policy, long_case):
    """Sequences in the bytes that the full cache takes for `long_case.batch` of them."""
    limit = bytes_of(bench, dataclasses.replace(long_case, policy="full"))
    batches = {"full": long_case.batch}
    for keep in shapes.KEEP:
        case = dataclasses.replace(long_case, policy=policy,
                                   context=round(keep * long_case.context))
        batches[f"at_{round(100 * keep)}"] = largest_batch(
            lambda batch, case=case: bytes_of(bench, dataclasses.replace(case, batch=batch)), limit)
    return {"case": f"{policy} {long_case.context}", "policy": policy,
            "context": long_case.context, "bytes": limit, "layers": LAYERS, "batches": batches}
