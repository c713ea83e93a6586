# SPDX-License-Identifier: Apache-2.0
"""A fixed budget over a long stream: the cache as it was at several lengths, stepped in turns."""
from policies import WARM_STEPS, described
from timing import alternating
import torch_peer
from attention import OURS_TOLERANCE

ROUNDS, STEPS = 31, 128  # samples, steps in each


def measure(bench, case):
    """Clones from along the way, so that all lengths are timed in the same moments."""
    marks = bench.plan.marks
    kept, bytes_at = {}, {}
    caches = bench.library.caches(case.policy, case, 1, case.entries, case.entries)
    try:
        seen = case.entries
        for mark in marks:
            caches.stream(mark - seen)
            seen = mark
            bytes_at[mark] = caches.bytes()
            kept[mark] = caches.clone()
        error = torch_peer.verify("ours", caches.difference(), OURS_TOLERANCE)
        samples = {str(mark): [] for mark in marks}
        for index in range(ROUNDS if bench.plan.seconds else bench.plan.least):
            for mark in alternating(marks, index):
                kept[mark].stream(WARM_STEPS)
                samples[str(mark)].append(1e6 * sum(kept[mark].stream_seconds(STEPS)) / STEPS)
        return {**described(case, 1, caches, samples, error), "marks": list(marks),
                "bytes_at": {str(mark): of_mark for mark, of_mark in bytes_at.items()}}
    finally:
        caches.close()
        for clone in kept.values():
            clone.close()
