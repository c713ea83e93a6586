# SPDX-License-Identifier: Apache-2.0
"""In which order contestants take their turns."""


def alternating(names, index):
    """Forwards and backwards in turns, starting one further each time they are forwards."""
    names = list(names)
    shift = index // 2 % max(len(names), 1)
    names = names[shift:] + names[:shift]
    return names[::-1] if index % 2 else names
