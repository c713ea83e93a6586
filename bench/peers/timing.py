# SPDX-License-Identifier: Apache-2.0
"""Times contestants in turns. A contestant is a function of a number of calls that returns the
seconds they took."""
import math
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from turns import alternating  # noqa: E402

# After a call others' threads spin for a while, waiting for the next one; on as many cores as there
# are threads, who comes next would pay for that.
REST = 0.01
MOST_CALLS = 10000  # of a sample: a part of a call may seem to take no time


def timed(function):
    """A contestant out of a function of nothing."""
    def run(calls):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return time.perf_counter() - start
    return run


def calls_for(contestant, seconds, multiple=1):
    """Calls that take about so long: whole rounds of `multiple`."""
    contestant(multiple)
    one = max(contestant(multiple) / multiple, 1e-9)
    return multiple * max(1, math.ceil(min(seconds / one, MOST_CALLS) / multiple))


def compare(contestants, seconds, copies=1, least=7, most=41, sample=0.004, rest=REST, uncounted=1):
    """{name: [microseconds per call, one per round]}: all in every round, in alternating order, until
    the time is up. `uncounted` calls go before each sample, at least one, so that its threads are awake."""
    calls = {name: calls_for(run, sample, copies) for name, run in contestants.items()}
    samples = {name: [] for name in contestants}
    end = time.monotonic() + seconds
    for index in range(most):
        if index >= least and time.monotonic() > end:
            break
        for name in alternating(contestants, index):
            time.sleep(rest)
            contestants[name](uncounted)
            samples[name].append(1e6 * contestants[name](calls[name]) / calls[name])
    return samples
