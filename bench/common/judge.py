# SPDX-License-Identifier: Apache-2.0
"""Ratios between contestants that ran in turns, and goals."""
import statistics


def ratio(samples, above, below):
    """The median of above / below over the rounds; None where one did not take part."""
    if not samples.get(above) or not samples.get(below):
        return None
    return statistics.median(a / b for a, b in zip(samples[above], samples[below]))


def median(samples, name):
    return statistics.median(samples[name]) if samples.get(name) else None


def goal(text, value, limit, at_least):
    """A figure and the limit it is meant to keep; `met` is None where there is no figure."""
    met = None if value is None else (value >= limit if at_least else value <= limit)
    return {"goal": text, "value": value, "limit": limit, "met": met}
