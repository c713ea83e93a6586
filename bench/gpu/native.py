# SPDX-License-Identifier: Apache-2.0
"""The C functions of api.h, with exceptions for status codes."""
import ctypes
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from c_library import CLibrary, I, INT, NativeError, P, S, U  # noqa: E402, F401

BIAS, LOGITS, ROWS = 1, 2, 4

_SIGNATURES = {
    "error": (S, ()),
    "spin": (INT, (I, P)),
    "attention_create": (P, (S, I, I, I, I, I, P, U, P)),
    "attention_destroy": (None, (P,)),
    "attention_run": (INT, (P, I, P, P, INT, P)),
    "attention_probe": (INT, (P, I, I, P)),
    "attention_probe_sum": (I, (P, I, P)),
    "attention_export": (INT, (P, I, P, P, P, I, P)),
    "attention_scores": (INT, (P, INT, I, I, P, I, P)),
    "attention_bytes": (I, (P, INT)),
    "policy_create": (P, (S, S, I, I, I, I, I, I, I, P)),
    "policy_destroy": (None, (P,)),
    "policy_fill": (INT, (P, I, U, P)),
    "policy_refresh": (INT, (P, U, P)),
    "policy_attend": (INT, (P, I, P)),
    "policy_steps": (INT, (P, I, I, P)),
    "policy_steps_apart": (INT, (P, I, I, P, P)),
    "policy_synchronize": (INT, (P, P)),
    "policy_length": (I, (P, I, I, I)),
    "policy_bytes": (I, (P, INT)),
    "policies": (S, ()),
}


class Library(CLibrary):
    def __init__(self, path):
        super().__init__(path, "tersekv_bench_", _SIGNATURES)

    def spin(self, turns, stream):
        self.checked("spin", turns, stream)

    def policies(self):
        return self._policies().decode().split()


class _Set:
    """Owns a set; to be closed, as its memory is the device's."""
    kind = ""

    def __init__(self, library, handle, stream):
        self.library, self.handle, self.stream = library, handle, stream

    def call(self, name, *arguments):
        return self.library.checked(f"{self.kind}_{name}", self.handle, *arguments)

    def close(self):
        if self.handle:
            getattr(self.library, f"_{self.kind}_destroy")(self.handle)
            self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class AttentionSet(_Set):
    kind = "attention"

    def __init__(self, library, case, copies, seed, stream):
        lengths = case.lengths()
        array = (I * len(lengths))(*lengths)
        handle = library.checked("attention_create", case.dtype.encode(), copies, case.batch,
                                 case.q_heads, case.kv_heads, case.head_dim, array, seed, stream)
        super().__init__(library, handle, stream)

    def run(self, copy, q, out, mode):
        """q and out: addresses."""
        self.call("run", copy, q, out, mode, self.stream)

    def probe(self, copy, blocks_per_multiprocessor):
        self.call("probe", copy, blocks_per_multiprocessor, self.stream)

    def probe_sum(self, copy):
        return self.call("probe_sum", copy, self.stream)

    def export(self, copy, k, v, weights, padded):
        self.call("export", copy, k, v, weights, padded, self.stream)

    def scores(self, what, head, member, count):
        to = (ctypes.c_float * count)()
        self.call("scores", what, head, member, to, count, self.stream)
        return list(to)

    def bytes(self, what):
        return self.call("bytes", what)


class PolicySet(_Set):
    kind = "policy"

    def __init__(self, library, case, copies, budget, room, stream):
        handle = library.checked("policy_create", case.policy.encode(), case.dtype.encode(), copies,
                                 case.batch, case.q_heads, case.kv_heads, case.head_dim, budget,
                                 room, stream)
        super().__init__(library, handle, stream)

    def fill(self, tokens, seed):
        self.call("fill", tokens, seed, self.stream)

    def refresh(self, seed):
        self.call("refresh", seed, self.stream)

    def attend(self, copy):
        self.call("attend", copy, self.stream)

    def steps(self, first, count):
        self.call("steps", first, count, self.stream)

    def steps_apart(self, first, count, policies):
        """`policies`: their stream."""
        self.call("steps_apart", first, count, self.stream, policies)

    def synchronize(self):
        self.call("synchronize", self.stream)

    def length(self, copy, sequence, kv_head):
        return self.call("length", copy, sequence, kv_head)

    def bytes(self, what):
        return self.call("bytes", what)
