# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' library on the host, against plain Python: what is timed on a GPU must be what
it is called, on the numbers that others are given."""
import array
import math
import os
import re
import unittest

from support import GPU, main, rehearsal
import native
import shapes

CASE = shapes.Case(4, 2, 64, "half", 100, 2, "zipf")  # 100, 64 (its least), ...


def halves(count):
    return array.array("H", bytes(2 * count))


def floats_of(words):
    return [half_to_float(word) for word in words]


def half_to_float(word):
    sign = -1.0 if word & 0x8000 else 1.0
    exponent, mantissa = word >> 10 & 31, word & 1023
    if exponent == 0:
        return sign * mantissa * 2.0**-24
    if exponent == 31:
        return math.nan
    return sign * (1024 + mantissa) * 2.0**(exponent - 25)


def float_to_half(x):
    """Of normal numbers, rounding down the magnitude."""
    if x == 0:
        return 0
    exponent = math.floor(math.log2(abs(x)))
    mantissa = int(abs(x) * 2.0**(10 - exponent)) - 1024
    return (0x8000 if x < 0 else 0) | (exponent + 15) << 10 | mantissa


def address(words):
    return words.buffer_info()[0]


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = native.Library(rehearsal())

    def attention_set(self, case=CASE, copies=2, seed=3):
        made = native.AttentionSet(self.library, case, copies, seed, None)
        self.addCleanup(made.close)
        return made

    def policy_set(self, policy, context=40, copies=2, room=None):
        case = shapes.StepCase(policy, context, 2, 2, 1, 64, "half")
        made = native.PolicySet(self.library, case, copies, context, room or context + 8, None)
        self.addCleanup(made.close)
        return made


class Attention(Library):
    def export(self, made, copy, case=CASE):
        heads, padded = case.batch * case.kv_heads, max(case.lengths())
        k, v = halves(heads * padded * case.head_dim), halves(heads * padded * case.head_dim)
        weights = array.array("f", bytes(4 * heads * padded))
        made.export(copy, address(k), address(v), address(weights), padded)
        return floats_of(k), floats_of(v), weights, padded

    def run_once(self, made, copy, mode, case=CASE):
        q = array.array("H", (float_to_half(math.sin(0.37 * i + 0.1))
                              for i in range(case.batch * case.q_heads * case.head_dim)))
        out = array.array("H", [0x7e00]) * len(q)  # NaN
        made.run(copy, address(q), address(out), mode)
        return floats_of(q), floats_of(out)

    def expected(self, numbers, q, q_head, sequence, biased, case=CASE):
        """(output, logits) of one query head."""
        k, v, weights, padded = numbers
        head = sequence * case.kv_heads + q_head // (case.q_heads // case.kv_heads)
        dim, n = case.head_dim, case.lengths()[head]
        row = q[(sequence * case.q_heads + q_head) * dim:][:dim]
        logits = []
        for i in range(n):
            at = (head * padded + i) * dim
            logit = sum(a * b for a, b in zip(row, k[at:at + dim])) / math.sqrt(dim)
            logits.append(logit + (math.log(weights[head * padded + i]) if biased else 0.0))
        top = max(logits)
        shares = [math.exp(logit - top) for logit in logits]
        total = sum(shares)
        out = [sum(s * v[(head * padded + i) * dim + j] for i, s in enumerate(shares)) / total
               for j in range(dim)]
        return out, logits, [s / total for s in shares]

    def assert_near(self, got, expected, relative):
        error = math.sqrt(sum((a - b)**2 for a, b in zip(got, expected)))
        norm = math.sqrt(sum(b * b for b in expected))
        self.assertEqual(len(got), len(expected))
        self.assertTrue(error <= relative * norm, f"{error / norm} > {relative}")  # NaN fails

    def test_agrees_with_a_plain_loop(self):
        made = self.attention_set()
        for copy in (0, 1):
            numbers = self.export(made, copy)
            for mode in (0, native.BIAS, native.BIAS | native.LOGITS,
                         native.BIAS | native.LOGITS | native.ROWS):
                q, out = self.run_once(made, copy, mode)
                for sequence, q_head in ((0, 0), (1, 3)):
                    want, _, _ = self.expected(numbers, q, q_head, sequence, mode & native.BIAS)
                    first = (sequence * CASE.q_heads + q_head) * CASE.head_dim
                    self.assert_near(out[first:first + CASE.head_dim], want, 3e-3)

    def test_bias_matters(self):
        made = self.attention_set()
        plain, biased = (self.run_once(made, 0, mode)[1] for mode in (0, native.BIAS))
        self.assertGreater(max(abs(a - b) for a, b in zip(plain, biased)), 0.01)

    def test_logits_and_attention_per_entry(self):
        made = self.attention_set()
        numbers = self.export(made, 0)
        q, _ = self.run_once(made, 0, native.BIAS | native.LOGITS | native.ROWS)
        head, sequence = 2, 1  # the first KV head of sequence 1
        count = CASE.lengths()[head]
        rows = [0.0] * count
        for member in (0, 1):
            _, logits, shares = self.expected(numbers, q, member, sequence, True)
            self.assert_near(made.scores(0, head, member, count), logits, 1e-5)
            rows = [a + b for a, b in zip(rows, shares)]
        self.assert_near(made.scores(1, head, 0, count), rows, 1e-4)

    def test_numbers_are_random_and_padding_is_zero(self):
        made = self.attention_set()
        k, v, weights, padded = self.export(made, 0)
        other = self.export(made, 1)
        self.assertNotEqual(k, other[0])  # copies differ
        dim = CASE.head_dim
        live = []
        for head, length in enumerate(CASE.lengths()):
            first = head * padded * dim
            live += k[first:first + length * dim] + v[first:first + length * dim]
            self.assertEqual(set(k[first + length * dim:first + padded * dim]) - {0.0}, set())
            self.assertEqual(set(weights[head * padded + length:(head + 1) * padded]) - {1.0},
                             set())
        self.assertLess(abs(sum(live) / len(live)), 0.02)
        self.assertLess(abs(sum(x * x for x in live) / len(live) - 1), 0.03)
        self.assertGreater(len(set(live)), 800)
        self.assertTrue(all(1 <= w <= 64 for w in weights))
        self.assertGreater(max(weights), 30)

    def test_bytes(self):
        made = self.attention_set()
        self.assertEqual(made.bytes(0), CASE.kv_bytes())
        pages = sum(-(-length // 64) for length in CASE.lengths())
        self.assertEqual(made.bytes(1), pages * 64 * CASE.bytes_of_entry())
        self.assertGreater(made.bytes(2), 2 * made.bytes(1))

    def test_probe_reads_every_key_and_value_once(self):
        for case in (CASE, shapes.Case(2, 1, 128, "half", 70, 1)):
            made = self.attention_set(case)
            for copy in (0, 1):
                heads, padded, dim = case.batch * case.kv_heads, max(case.lengths()), case.head_dim
                k, v = halves(heads * padded * dim), halves(heads * padded * dim)
                weights = array.array("f", bytes(4 * heads * padded))
                made.export(copy, address(k), address(v), address(weights), padded)
                # Two neighbours make a word: keys of two entries, two elements of a value.
                total = 0
                for at in range(len(k)):
                    total += k[at] << 16 * (at // dim % padded % 2)
                    total += v[at] << 16 * (at % dim % 2)
                self.assertEqual(made.probe_sum(copy), total % 2**32)
                for blocks in (1, 8):
                    made.probe(copy, blocks)

    def test_bad_arguments_are_refused(self):
        with self.assertRaisesRegex(native.NativeError, "float8"):
            self.attention_set(shapes.Case(4, 2, 64, "float8", 10, 1))
        for bad in ((4, 3, 64), (4, 2, 60)):
            with self.assertRaisesRegex(native.NativeError, "head_dim of 64, 128"):
                self.attention_set(shapes.Case(*bad, "half", 10, 1))
        made = self.attention_set()
        with self.assertRaises(native.NativeError):
            made.probe(2, 1)
        with self.assertRaisesRegex(native.NativeError, "padded"):
            made.export(0, None, None, None, 99)
        with self.assertRaisesRegex(native.NativeError, "no such head"):
            made.scores(0, 4, 0, 1)
        with self.assertRaisesRegex(native.NativeError, "null"):
            self.library.checked("attention_bytes", None, 0)


class Policies(Library):
    def test_names(self):
        self.assertEqual(sorted(self.library.policies()), sorted(shapes.POLICIES))
        with self.assertRaisesRegex(native.NativeError, "expected one of full h2o"):
            self.policy_set("none")

    def test_lengths(self):
        for policy in shapes.POLICIES:
            with self.subTest(policy):
                made = self.policy_set(policy)
                made.fill(40, 1)
                made.attend(1)
                made.steps(1, 2)  # copies 1, 0
                made.steps_apart(1, 1, None)
                made.synchronize()
                # Who grows does so with every step; SnapKV's first still belongs to the prompt.
                growth = {"full": 1, "kvzap": 1}.get(policy, 0)
                self.assertEqual(made.length(0, 1, 0), 40 + growth)
                self.assertEqual(made.length(1, 0, 0), 40 + 2 * growth + (policy == "snapkv"))
                self.assertGreater(made.bytes(0), 2 * 40 * 256)
                self.assertGreater(made.bytes(1), 0)

    def test_no_room_is_an_error(self):
        made = self.policy_set("full", context=64, room=64)
        made.fill(64, 1)
        with self.assertRaisesRegex(native.NativeError, "entries of a head"):
            made.steps(0, 1)

    def test_bad_index(self):
        made = self.policy_set("full")
        with self.assertRaises(native.NativeError):
            made.length(2, 0, 0)


class Header(unittest.TestCase):
    def test_python_knows_every_function(self):
        with open(os.path.join(GPU, "api.h"), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        declared = re.findall(r"\btersekv_bench_(\w+)\(([^)]*)\)", text)
        self.assertEqual({name: 0 if words == "void" else words.count(",") + 1
                          for name, words in declared},
                         {name: len(words) for name, (_, words) in native._SIGNATURES.items()})


if __name__ == "__main__":
    main()
