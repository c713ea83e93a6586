# SPDX-License-Identifier: Apache-2.0
"""Decode attention, one query of every head: ours with all that a policy may want, the same kernel
without, what the machine could do at best, and PyTorch."""
import dataclasses

import cases
import torch_peer
from timing import compare, timed

OURS_TOLERANCE = 2e-4  # against a double loop: of outputs that are averages of values of variance 1
# Calls before a sample of a case in caches. A third level that is no copy of the second keeps what it has
# seen leave that several times: on a Xeon with 480 MiB of it a cache of 64 MiB, after others' reads, is read
# at memory's pace twice and at the third level's from the fifth time on.
UNCOUNTED = 8


def measure(bench, case):
    copies, fewer = cases.copies_beyond(bench.plan, case, bench.last_level, bench.free_memory)
    in_caches = bench.plan.levels[case.entries] != "memory"
    library = bench.library
    with library.caches("weighted", case, copies) as ours, \
            library.caches("full", case, copies) as plain, \
            library.caches("similarity", case, copies) as step:
        ours.weigh(11)
        errors = {"ours": torch_peer.verify("ours", ours.difference(), OURS_TOLERANCE),
                  "plain": torch_peer.verify("plain", plain.difference(), OURS_TOLERANCE)}
        footprint = copies * case.kv_bytes()

        def probe(calls):
            # In caches as often as the others, so that it is there; from memory it would come nearer.
            reads = calls if in_caches else 1
            seconds = sum(library.read_seconds(footprint, case.threads) for _ in range(reads))
            return calls / reads * seconds / copies

        def peak(calls):
            return calls * case.flops() / library.peak(case.threads)

        def similarity(calls):
            # Within a step, where each head's pass follows its attention.
            return step.extends(calls)[1]
        contestants = {"ours": lambda calls: ours.attend(calls, True), "plain": plain.attend,
                       "similarity": similarity, "keys": plain.keys, "probe": probe, "peak": peak}
        skipped, peer_bytes = {} if fewer is None else {"copies": fewer}, None
        if bench.torch is None:
            skipped["PyTorch"] = bench.why_no_torch
        else:
            bench.torch.set_num_threads(case.threads)
            peer = torch_peer.Copies(bench.torch, ours, copies)
            errors.update(check(bench.torch, peer, ours))
            contestants.update({"sdpa": timed(peer.sdpa), "sdpa_bias": timed(peer.sdpa_bias),
                                "products": timed(peer.products)})
            peer_bytes = peer.bytes()
        samples = compare(contestants, bench.plan.seconds, copies, bench.plan.least,
                          uncounted=UNCOUNTED if in_caches else 1)
        return {"case": case.name, **dataclasses.asdict(case), "level": bench.plan.levels[case.entries],
                "fits": copies * case.kv_bytes() <= bench.last_level,
                "copies": copies, "kv_bytes": case.kv_bytes(), "flops": case.flops(),
                "bytes": ours.bytes(), "peer_bytes": peer_bytes, "errors": errors,
                "skipped": skipped, "samples_us": samples}


def check(torch, peer, ours):
    """Everybody's result against a reference in double, on the very numbers that will be timed."""
    tolerance = torch_peer.TOLERANCE[ours.case.element]
    out, rows = (torch.frombuffer(x, dtype=torch.float32) for x in ours.attention(True))
    plain_reference = peer.reference(False)
    reference = peer.reference(True)
    products = peer.products()
    # PyTorch gets int8's numbers rounded to bfloat16, and so does this reference.
    exact = 1e-4 if ours.case.element != "int8" else tolerance
    found = {"ours": (out, reference[0], exact), "ours rows": (rows, reference[1], exact),
             "sdpa": (peer.sdpa(), plain_reference[0], tolerance),
             "sdpa_bias": (peer.sdpa_bias(), reference[0], tolerance),
             "products": (products[0], reference[0], tolerance),
             "products rows": (products[1], reference[1], tolerance)}
    return {name: torch_peer.verify(name, torch_peer.far(torch, got, expected), limit)
            for name, (got, expected, limit) in found.items()}
