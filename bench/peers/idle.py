# SPDX-License-Identifier: Apache-2.0
"""How much of the machine others took while something was measured."""
import os
import time


def busy_seconds():
    """Of all cores since the start of the machine, time stolen from it included; None where the system
    does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Watch:
    """From its making on; of this process alone, so not for what children do."""

    def __init__(self):
        self.start, self.busy, self.own = time.monotonic(), busy_seconds(), sum(os.times()[:2])

    def others(self):
        """Cores that others kept busy, on average."""
        busy = busy_seconds()
        if busy is None or self.busy is None:
            return 0.0
        own = sum(os.times()[:2]) - self.own
        return max(0.0, (busy - self.busy - own) / max(time.monotonic() - self.start, 1e-3))
