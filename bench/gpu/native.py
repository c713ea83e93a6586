# SPDX-License-Identifier: Apache-2.0
"""The C functions of api.h, with exceptions for status codes."""
import ctypes

BIAS, LOGITS, ROWS = 1, 2, 4

_P, _I, _U = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
_SIGNATURES = {
    "error": (ctypes.c_char_p, ()),
    "spin": (ctypes.c_int, (_I, _P)),
    "attention_create": (_P, (ctypes.c_char_p, _I, _I, _I, _I, _I, _P, _U, _P)),
    "attention_destroy": (None, (_P,)),
    "attention_run": (ctypes.c_int, (_P, _I, _P, _P, ctypes.c_int, _P)),
    "attention_probe": (ctypes.c_int, (_P, _I, _I, _P)),
    "attention_probe_sum": (_I, (_P, _I, _P)),
    "attention_export": (ctypes.c_int, (_P, _I, _P, _P, _P, _I, _P)),
    "attention_scores": (ctypes.c_int, (_P, ctypes.c_int, _I, _I, _P, _I, _P)),
    "attention_bytes": (_I, (_P, ctypes.c_int)),
    "policy_create": (_P, (ctypes.c_char_p, ctypes.c_char_p, _I, _I, _I, _I, _I, _I, _I, _P)),
    "policy_destroy": (None, (_P,)),
    "policy_fill": (ctypes.c_int, (_P, _I, _U, _P)),
    "policy_refresh": (ctypes.c_int, (_P, _U, _P)),
    "policy_attend": (ctypes.c_int, (_P, _I, _P)),
    "policy_steps": (ctypes.c_int, (_P, _I, _I, _P)),
    "policy_synchronize": (ctypes.c_int, (_P, _P)),
    "policy_length": (_I, (_P, _I, _I, _I)),
    "policy_bytes": (_I, (_P, ctypes.c_int)),
    "policies": (ctypes.c_char_p, ()),
}


class NativeError(RuntimeError):
    """What the library has to say of a call that failed."""


class Library:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, "tersekv_bench_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)

    def checked(self, name, *arguments):
        """Calls; raises where the result says that the call failed."""
        result = getattr(self, "_" + name)(*arguments)
        kind = _SIGNATURES[name][0]
        failed = not result if kind is _P else result < 0 if kind is _I else result != 0
        if failed:
            raise NativeError(f"{name}: {self._error().decode()}")
        return result

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
        array = (ctypes.c_int64 * len(lengths))(*lengths)
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

    def synchronize(self):
        self.call("synchronize", self.stream)

    def length(self, copy, sequence, kv_head):
        return self.call("length", copy, sequence, kv_head)

    def bytes(self, what):
        return self.call("bytes", what)
