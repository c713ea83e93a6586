# SPDX-License-Identifier: Apache-2.0
"""Times contestants in turns: on a GPU with events around graph replays, on the host by its clock."""
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from turns import alternating  # noqa: E402

SPIN_TURNS = 20000  # long enough for the host to queue a sample, about a tenth of a millisecond


class Contestant:
    """Something timed: `replay()` queues `calls` calls; `how`: graph or launches."""

    def __init__(self, replay, calls, how, keep=None):
        self.replay, self.calls, self.how, self.keep = replay, calls, how, keep


class CudaClock:
    """All on one stream of its own, as graphs cannot be captured on the default one; `policies` is
    another, for steps that ask for it."""

    def __init__(self, torch, library):
        self.torch, self.library = torch, library
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.handle = self.stream.cuda_stream
        self.other = torch.cuda.Stream()
        self.policies = self.other.cuda_stream

    def synchronize(self):
        self.stream.synchronize()

    def prepare(self, once, calls, graph=True):
        """`once` queues `calls` calls. Where it cannot be captured it is launched each time."""
        once()  # what is loaded or tuned at first use
        self.synchronize()
        if not graph:
            return Contestant(once, calls, "launches")
        captured = self.torch.cuda.CUDAGraph()
        captured.capture_begin(capture_error_mode="thread_local")
        try:
            once()
        except BaseException:
            try:
                captured.capture_end()
            except RuntimeError:
                pass  # the capture was lost already
            self.synchronize()
            raise
        captured.capture_end()
        captured.replay()
        self.synchronize()
        return Contestant(captured.replay, calls, "graph", keep=captured)

    def sample(self, contestants, order, before=None, spin=True):
        """Microseconds per call of each, all queued before any is waited for."""
        events = {}
        for name in order:
            if before is not None:
                before()
            if spin:
                self.library.spin(SPIN_TURNS, self.handle)
            start = self.torch.cuda.Event(enable_timing=True)
            end = self.torch.cuda.Event(enable_timing=True)
            start.record(self.stream)
            contestants[name].replay()
            end.record(self.stream)
            events[name] = (start, end)
            if not spin:  # the host's own time is part of what is measured
                self.synchronize()
        self.synchronize()
        return {name: 1000 * start.elapsed_time(end) / contestants[name].calls
                for name, (start, end) in events.items()}


class HostClock:
    """For rehearsals."""
    handle = policies = None

    def synchronize(self):
        pass

    def prepare(self, once, calls, graph=True):
        del graph
        once()
        return Contestant(once, calls, "launches")

    def sample(self, contestants, order, before=None, spin=True):
        del spin
        times = {}
        for name in order:
            if before is not None:
                before()
            start = time.perf_counter()
            contestants[name].replay()
            times[name] = 1e6 * (time.perf_counter() - start) / contestants[name].calls
        return times


def compare(clock, contestants, seconds, before=None, spin=True, least=8, most=60):
    """{name: [microseconds per call, one per round]}; at least `least` rounds, and on until the time
    is up. A first round is thrown away."""
    samples = {name: [] for name in contestants}
    clock.sample(contestants, alternating(contestants, 0), before, spin)
    end = time.monotonic() + seconds
    for index in range(most):
        if index >= least and time.monotonic() > end:
            break
        for name, us in clock.sample(contestants, alternating(contestants, index), before,
                                     spin).items():
            samples[name].append(round(us, 4))
    return samples
