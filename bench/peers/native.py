# SPDX-License-Identifier: Apache-2.0
"""The C functions of api.h, with exceptions for what says that it failed."""
import ctypes
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from c_library import CLibrary, D, I, INT, NativeError, P, S, U  # noqa: E402, F401

BYTES_OF = ("keys", "values", "weights", "positions", "statistics", "slack", "bookkeeping",
            "workspace")

_SIGNATURES = {
    "error": (S, ()),
    "build": (S, ()),
    "policies": (S, ()),
    "elements": (S, ()),
    "read": (D, (I, INT)),
    "peak": (D, (INT,)),
    "product": (D, (I, INT)),
    "create": (P, (S, S, INT, I, I, I, I, I, I)),
    "clone": (P, (P,)),
    "destroy": (None, (P,)),
    "weigh": (INT, (P, U)),
    "length": (I, (P, I)),
    "bytes": (INT, (P, P)),
    "query": (INT, (P, P)),
    "export": (INT, (P, I, I, P, P, P)),
    "difference": (D, (P, I)),
    "attend": (D, (P, I, INT, P, P)),
    "keys": (D, (P, I, P)),
    "prompt": (D, (P, I, I)),
    "prompt_difference": (D, (P,)),
    "steps": (INT, (P, I, P)),
    "extends": (INT, (P, I, P)),
    "pairs": (INT, (P, I, P)),
    "stream": (INT, (P, I, P)),
}


def floats(count):
    return (ctypes.c_float * count)()


def doubles(count):
    return (ctypes.c_double * count)()


class Library(CLibrary):
    def __init__(self, path):
        super().__init__(path, "tersekv_peers_", _SIGNATURES)

    def build(self):
        return self._build().decode()

    def policies(self):
        return self._policies().decode().split()

    def elements(self):
        return self._elements().decode().split()

    def read_seconds(self, size, threads):
        return self.checked("read", size, threads)

    def peak(self, threads):
        return self.checked("peak", threads)

    def product_seconds(self, size, threads):
        """None where the library was built without Eigen."""
        seconds = self._product(size, threads)
        return None if seconds < 0 else seconds

    def caches(self, policy, case, copies, tokens=None, budget=0):
        """case: element, threads, q_heads, kv_heads, head_dim, entries."""
        handle = self.checked("create", policy.encode(), case.element.encode(), case.threads,
                              copies, case.q_heads, case.kv_heads, case.head_dim, budget,
                              tokens or case.entries)
        return Caches(self, handle, case)


class Caches:
    """Owns copies of one layer's cache; to be closed, as they may be large."""

    def __init__(self, library, handle, case):
        self.library, self.handle, self.case = library, handle, case

    def call(self, name, *arguments):
        return self.library.checked(name, self.handle, *arguments)

    def clone(self):
        return Caches(self.library, self.call("clone"), self.case)

    def close(self):
        if self.handle:
            self.library._destroy(self.handle)
            self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def weigh(self, seed):
        self.call("weigh", seed)

    def length(self, kv_head=0):
        return self.call("length", kv_head)

    def bytes(self):
        """Of one copy: {what: bytes}, all that it holds."""
        eight = (I * len(BYTES_OF))()
        self.call("bytes", eight)
        return dict(zip(BYTES_OF, eight))

    def query(self):
        q = floats(self.case.q_heads * self.case.head_dim)
        self.call("query", q)
        return q

    def export(self, copy, kv_head):
        """Keys, values and weights of a head, in storage order."""
        n, dim = self.length(kv_head), self.case.head_dim
        k, v, weights = floats(n * dim), floats(n * dim), floats(n)
        self.call("export", copy, kv_head, k, v, weights)
        return k, v, weights

    def difference(self, copy=0):
        return self.call("difference", copy)

    def attend(self, calls, with_rows=False):
        """Seconds."""
        return self.call("attend", calls, with_rows, None, None)

    def keys(self, calls):
        """Seconds."""
        return self.call("keys", calls, None)

    def products(self):
        """Of every key of the next copy with its head's first: [kv_heads, longest]."""
        longest = max(self.length(h) for h in range(self.case.kv_heads))
        products = floats(self.case.kv_heads * longest)
        self.call("keys", 1, products)
        return products

    def attention(self, with_rows):
        """(out, rows) of one call on the next copy; rows [kv_heads, longest]."""
        case = self.case
        longest = max(self.length(h) for h in range(case.kv_heads))
        out, rows = floats(case.q_heads * case.head_dim), floats(case.kv_heads * longest)
        self.call("attend", 1, with_rows, out, rows)
        return out, rows

    def prompt(self, queries, calls):
        return self.call("prompt", queries, calls)

    def prompt_difference(self):
        return self.call("prompt_difference")

    def steps(self, calls):
        """Seconds of [append, attend, observe, compress], all calls together."""
        seconds = doubles(4 * calls)
        self.call("steps", calls, seconds)
        return [sum(seconds[verb::4]) for verb in range(4)]

    def extends(self, calls):
        """Seconds of [extend, observe and compress within it on the thread with the most of them], all
        calls together."""
        seconds = doubles(2 * calls)
        self.call("extends", calls, seconds)
        return [sum(seconds[which::2]) for which in range(2)]

    def pairs(self, calls):
        """Seconds of [attention alone, extend], all calls together."""
        seconds = doubles(2 * calls)
        self.call("pairs", calls, seconds)
        return [sum(seconds[which::2]) for which in range(2)]

    def stream(self, calls):
        self.call("stream", calls, None)

    def stream_seconds(self, calls):
        seconds = doubles(calls)
        self.call("stream", calls, seconds)
        return list(seconds)
