# SPDX-License-Identifier: Apache-2.0
"""The library that is timed, against plain Python: it must compute what it is said to."""
import math
import unittest

from support import main, rehearsal
import cases
import native

CASE = cases.Case(4, 2, 64, "float32", 70)


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = native.Library(rehearsal())

    def caches(self, policy="weighted", case=CASE, copies=2, **more):
        made = self.library.caches(policy, case, copies, **more)
        self.addCleanup(made.close)
        return made

    def expected(self, caches, copy, biased):
        """(out, rows) by loops over what the cache exports."""
        case, q = caches.case, caches.query()
        group, dim = case.q_heads // case.kv_heads, case.head_dim
        out, rows = [], []
        for h in range(case.kv_heads):
            k, v, weights = caches.export(copy, h)
            row = [0.0] * len(weights)
            for head in range(h * group, (h + 1) * group):
                logits = [sum(q[head * dim + j] * k[i * dim + j] for j in range(dim)) / math.sqrt(dim)
                          for i in range(len(weights))]
                if biased:
                    logits = [x + math.log(w) for x, w in zip(logits, weights)]
                shares = [math.exp(x) for x in logits]
                total = sum(shares)
                out += [sum(s * v[i * dim + j] for i, s in enumerate(shares)) / total
                        for j in range(dim)]
                row = [r + s / total for r, s in zip(row, shares)]
            rows += row
        return out, rows

    def assert_near(self, got, expected, limit):
        self.assertEqual(len(got), len(expected))
        error = math.sqrt(sum((a - b)**2 for a, b in zip(got, expected)))
        norm = math.sqrt(sum(b * b for b in expected))
        self.assertTrue(error <= limit * norm, f"{error / norm} > {limit}")  # NaN fails

    def test_attention_of_every_element(self):
        for element in self.library.elements():
            case = cases.Case(4, 2, 64, element, 70)
            # int8 is exported as the numbers that it holds, but a product rounds queries, too.
            limit = 1e-2 if element == "int8" else 1e-5
            with self.subTest(element):
                caches = self.caches(case=case)
                plain = caches.attention(False)[0]
                self.assert_near(plain, self.expected(caches, 0, False)[0], limit)
                caches.weigh(3)
                out, rows = caches.attention(True)
                expected = self.expected(caches, 0, True)
                self.assert_near(out, expected[0], limit)
                self.assert_near(rows, expected[1], limit)
                self.assertGreater(max(abs(a - b) for a, b in zip(out, plain)), 0.01)
                self.assertLess(caches.difference(1), 1e-2 if element == "int8" else 2e-4)

    def test_keys_are_every_key_times_the_first(self):
        for element in self.library.elements():
            with self.subTest(element):
                case = cases.Case(4, 2, 64, element, 70)
                caches = self.caches("full", case)
                expected = []
                for h in range(case.kv_heads):
                    k = caches.export(0, h)[0]
                    expected += [sum(k[j] * k[i * 64 + j] for j in range(64)) for i in range(70)]
                self.assert_near(caches.products(), expected, 1e-2 if element == "int8" else 1e-5)
                self.assertGreater(caches.keys(3), 0)

    def test_similarity_is_a_part_of_a_step(self):
        for element in self.library.elements():
            with self.subTest(element):
                extend, policy = self.caches("similarity", cases.Case(4, 2, 64, element, 4000)).extends(8)
                self.assertTrue(0.01 * extend < policy < extend, (policy, extend))

    def test_threads_change_nothing(self):
        one = self.caches().attention(True)
        two = self.caches(case=cases.Case(4, 2, 64, "float32", 70, 2)).attention(True)
        self.assertEqual([list(x) for x in one], [list(x) for x in two])

    def test_lengths_and_bytes(self):
        for element, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
            caches = self.caches(case=cases.Case(4, 2, 64, element, 70))
            self.assertEqual(caches.length(), 70)
            held = caches.bytes()
            self.assertEqual(held["keys"], 2 * 70 * 64 * size)
            self.assertEqual(held["keys"] + held["values"], caches.case.kv_bytes())
            self.assertEqual(held["weights"], 2 * 70 * 4)
            self.assertGreater(held["workspace"], 0)

    def test_steps_keep_to_the_budget(self):
        case = cases.Case(4, 2, 64, "bfloat16", 80, 1, "keepkv")
        caches = self.caches("keepkv", case, tokens=80, budget=80)
        seconds = caches.steps(40)
        self.assertEqual(caches.length(), 80)
        self.assertTrue(all(verb > 0 for verb in seconds))
        caches.stream(50)
        extend, policy = caches.extends(10)
        self.assertGreater(policy, 0)
        self.assertGreater(extend, policy)
        attend, extend = caches.pairs(10)
        self.assertEqual(caches.length(), 80)
        self.assertGreater(extend, 0)
        self.assertGreater(attend, 0)
        self.assertLess(caches.difference(0), 2e-4)

    def test_a_clone_goes_on_from_where_it_was(self):
        case = cases.Case(4, 2, 64, "bfloat16", 80, 1, "keepkv")
        caches = self.caches("keepkv", case, 1, tokens=80, budget=80)
        caches.stream(30)
        clone = caches.clone()
        self.addCleanup(clone.close)
        self.assertEqual(list(clone.export(0, 1)[0]), list(caches.export(0, 1)[0]))
        for one in (caches, clone):
            one.stream(20)
        self.assertEqual(list(clone.export(0, 1)[0]), list(caches.export(0, 1)[0]))

    def test_kvzap_keeps_about_its_budget(self):
        case = cases.Case(4, 2, 64, "bfloat16", 400, 1, "kvzap")
        caches = self.caches("kvzap", case, 1, tokens=800, budget=400)
        self.assertLess(abs(caches.length() - 400), 80)

    def test_full_starts_again_before_it_grows_long(self):
        caches = self.caches("full", CASE, 1)
        caches.stream(300)
        self.assertLess(caches.length(), 70 + 64 + 5)

    def test_a_prompts_attention_is_of_the_appended(self):
        caches = self.caches("full", CASE, 1)
        self.assertGreater(caches.prompt(16, 2), 0)
        self.assertEqual(caches.length(), 86)
        self.assertLess(caches.prompt_difference(), 2e-4)
        self.assertGreater(caches.prompt_difference(), 0)

    def test_the_machine(self):
        for threads in (1, 2):
            self.assertGreater(self.library.read_seconds(1 << 20, threads), 0)
            self.assertGreater(self.library.peak(threads), 1e8)

    def test_mistakes_have_a_message(self):
        for policy, case, wanted in (("nonsense", CASE, "policy: expected one of"),
                                     ("full", cases.Case(4, 2, 64, "int3", 9), "element: expected"),
                                     ("full", cases.Case(4, 3, 64, "float32", 9), "shape: expected")):
            with self.assertRaisesRegex(native.NativeError, wanted):
                self.caches(policy, case)
        with self.assertRaisesRegex(native.NativeError, "no weights"):
            self.caches("full").weigh(1)


if __name__ == "__main__":
    main()
