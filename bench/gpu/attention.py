# SPDX-License-Identifier: Apache-2.0
"""Decode attention against itself without its extras, against a plain read, and against others."""
import math

import native
import rivals
import shapes
from clock import compare

FULL = native.BIAS | native.LOGITS
MODES = {"ours": FULL, "ours_plain": 0, "ours_bias": native.BIAS, "ours_rows": FULL | native.ROWS}
TOLERANCE = {"bfloat16": 1.5e-2, "half": 3e-3}  # of ||out - reference|| / ||reference||
PROBE_BLOCKS = (2, 4, 8)  # per multiprocessor; the fastest counts


class Wrong(Exception):
    """A result that does not agree with the reference: nothing of the case is timed."""


class Data:
    """Queries and padded keys, values and weights of every copy."""

    def __init__(self, torch, case, copies, caches, device):
        dtype = getattr(torch, {"half": "float16"}.get(case.dtype, case.dtype))
        padded = max(case.lengths())
        heads = (case.batch, case.kv_heads, padded)
        new = lambda *size: torch.empty(size, dtype=dtype, device=device)
        self.q, self.out, self.k, self.v, self.weights = [], [], [], [], []
        for copy in range(copies):
            self.q.append(torch.randn(case.batch, case.q_heads, case.head_dim, dtype=torch.float32,
                                      device=device).to(dtype))
            self.out.append(torch.full_like(self.q[-1], math.nan))
            self.k.append(new(*heads, case.head_dim))
            self.v.append(new(*heads, case.head_dim))
            self.weights.append(torch.empty(heads, dtype=torch.float32, device=device))
            caches.export(copy, self.k[-1].data_ptr(), self.v[-1].data_ptr(),
                          self.weights[-1].data_ptr(), padded)


def relative_error(torch, out, expected):
    error = ((out.float() - expected).norm() / expected.norm()).item()
    return error if math.isfinite(error) else math.inf


def check(torch, clock, case, caches, data, others):
    """Largest relative error of everything that is timed; raises Wrong."""
    worst = {}
    sequences = sorted({0, case.batch // 2, case.batch - 1})
    for copy in sorted({0, len(data.q) - 1}):
        outputs = {}
        for name, mode in MODES.items():
            data.out[copy].fill_(math.nan)
            caches.run(copy, data.q[copy].data_ptr(), data.out[copy].data_ptr(), mode)
            clock.synchronize()
            outputs[name] = (data.out[copy].clone(), bool(mode & native.BIAS))
        if case.mix == "uniform":  # padding is not masked for others: their times, not results
            for name, call in others.items():
                outputs[name] = (call(copy), name == "sdpa_bias")
        for sequence in sequences:
            expected = {b: rivals.reference(torch, case, data, copy, sequence, b)
                        for b in (False, True)}
            for name, (out, biased) in outputs.items():
                error = relative_error(torch, out[sequence], expected[biased][0])
                worst[name] = max(worst.get(name, 0.0), error)
            if copy == 0 and sequence == 0:
                worst["logits"], worst["rows"] = check_scores(torch, clock, case, caches, data,
                                                              expected[True][1])
        del outputs
    for name, error in worst.items():
        # SDPA's own bias is rounded to 16 bits.
        allowed = TOLERANCE[case.dtype] * (4 if name == "sdpa_bias" else 1)
        if not error <= allowed:
            raise Wrong(f"{name}: expected a relative error of at most {allowed}, got {error:.3g}")
    return worst


def check_scores(torch, clock, case, caches, data, logits):
    """Of sequence 0's last head: logits of its last query head, and attention over the group."""
    head = case.kv_heads - 1
    length = case.lengths()[head]
    caches.run(0, data.q[0].data_ptr(), data.out[0].data_ptr(), MODES["ours_rows"])
    clock.synchronize()
    expected = logits[head, :, :length].cpu()
    got = torch.tensor(caches.scores(0, head, expected.shape[0] - 1, length))
    rows = torch.tensor(caches.scores(1, head, 0, length))
    return (relative_error(torch, got, expected[-1]),
            relative_error(torch, rows, torch.softmax(expected, dim=-1).sum(dim=0)))


def contestants_of(torch, clock, case, caches, data, skipped, notes):
    """{name: function of a copy}, ours first; who cannot take part is in `skipped`."""
    ours = {name: (lambda copy, mode=mode: caches.run(copy, data.q[copy].data_ptr(),
                                                      data.out[copy].data_ptr(), mode))
            for name, mode in MODES.items()}
    others = {}

    def attempt(name, make):
        try:
            others[name] = make()
        except rivals.Skipped as reason:
            skipped[name] = str(reason)

    def sdpa():
        notes["sdpa_backend"], call = rivals.fastest_sdpa(torch, clock, case, data)
        return call
    attempt("sdpa", sdpa)
    attempt("sdpa_bias", lambda: rivals.sdpa_with_bias(torch, case, data))
    attempt("flashinfer", lambda: rivals.flashinfer(torch, case, data))
    skipped["flashinfer_bias"] = (rivals.LOG_WEIGHT_HOOK if "flashinfer" in others
                                  else skipped["flashinfer"])
    return ours, others


def fastest_probe(clock, caches):
    def time_of(blocks):
        contestant = clock.prepare(lambda: caches.probe(0, blocks), 1, graph=False)
        return min(clock.sample({"x": contestant}, ["x"])["x"] for _ in range(5))
    return min(PROBE_BLOCKS, key=time_of)


def measure(bench, case):
    """A result for the JSON. Raises Wrong, native.NativeError, shapes' refusals."""
    torch, clock = bench.torch, bench.clock
    copies, fewer = shapes.fitting_copies(case, bench.l2_bytes, bench.free_bytes())
    if copies == 0:
        raise MemoryError(fewer)
    result = {"case": case.name, "q_heads": case.q_heads, "kv_heads": case.kv_heads,
              "head_dim": case.head_dim, "dtype": case.dtype, "context": case.context,
              "batch": case.batch, "mix": case.mix, "copies": copies,
              "kv_bytes": case.kv_bytes(), "padded_bytes": case.padded_bytes()}
    skipped, notes = {}, {}
    with native.AttentionSet(bench.library, case, copies, 17, clock.handle) as caches:
        result["probe_bytes"] = caches.bytes(1)
        data = Data(torch, case, copies, caches, bench.device)
        ours, others = contestants_of(torch, clock, case, caches, data, skipped, notes)
        result["errors"] = check(torch, clock, case, caches, data, others)
        blocks = fastest_probe(clock, caches)
        calls = {**ours, "probe": lambda copy: caches.probe(copy, blocks), **others}
        rounds = -(-bench.least_calls // copies)
        timed = {}
        for name, call in calls.items():
            def once(call=call):
                for _ in range(rounds):
                    for copy in range(copies):
                        call(copy)
            try:
                timed[name] = clock.prepare(once, rounds * copies)
            except Exception as error:
                if name in ours or name == "probe":
                    raise
                skipped[name] = f"cannot be captured in a graph: {str(error)[:100]}"
                others.pop(name)
        result["samples_us"] = compare(clock, timed, bench.seconds_of_case, least=bench.least_rounds)
        timed.clear()
    if fewer is not None:
        notes["copies"] = fewer
    notes["probe_blocks"] = blocks
    return {**result, "skipped": skipped, "notes": notes}
