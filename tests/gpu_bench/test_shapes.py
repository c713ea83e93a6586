# SPDX-License-Identifier: Apache-2.0
"""What is measured, and in which order, worked out without a GPU."""
import dataclasses
import unittest

from support import main
import clock
import goals
import shapes
import steps

CASE = shapes.Case(32, 8, 128, "bfloat16", 8192, 8)


class Lengths(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(CASE.lengths(), [8192] * 64)
        self.assertEqual(CASE.kv_bytes(), 64 * 8192 * 2 * 128 * 2)
        self.assertEqual(CASE.padded_bytes(), CASE.kv_bytes())

    def test_zipf(self):
        case = dataclasses.replace(CASE, mix="zipf")
        lengths = case.lengths()
        for first in range(0, 64, 8):  # every sequence has each rank once
            self.assertEqual(sorted(lengths[first:first + 8]),
                             sorted(8192 // rank for rank in range(1, 9)))
        self.assertNotEqual(lengths[:8], sorted(lengths[:8], reverse=True))
        self.assertEqual(lengths, case.lengths())  # the same each time
        self.assertEqual(case.padded_bytes(), CASE.kv_bytes())

    def test_few(self):
        lengths = dataclasses.replace(CASE, mix="few").lengths()
        self.assertEqual(lengths.count(8192), 64 // 5)
        self.assertEqual(lengths.count(shapes.RESIDUE), 64 - 64 // 5)

    def test_unknown_mix(self):
        with self.assertRaises(ValueError):
            dataclasses.replace(CASE, mix="other").lengths()


class Copies(unittest.TestCase):
    def test_pass_the_l2(self):
        for kv_bytes in (1 << 20, 4 << 20, 100 << 20, 1 << 32):
            copies = shapes.copies_for(kv_bytes, 50 << 20)
            self.assertGreaterEqual(copies * kv_bytes, 150 << 20)
            self.assertTrue(copies == 1 or (copies - 1) * kv_bytes < 150 << 20)

    def test_every_case_passes_a_large_l2(self):
        for case in shapes.attention_cases() + shapes.attention_cases(quick=True):
            self.assertGreaterEqual(shapes.copies_for(case.kv_bytes(), 126 << 20) *
                                    case.kv_bytes(), 378 << 20, case.name)

    def test_memory_forces_fewer(self):
        case = dataclasses.replace(CASE, context=1024, batch=1)
        wanted, why = shapes.fitting_copies(case, 50 << 20, 1 << 36)
        self.assertEqual((wanted, why), (shapes.copies_for(case.kv_bytes(), 50 << 20), None))
        fewer, why = shapes.fitting_copies(case, 50 << 20, 100 << 20)
        self.assertTrue(0 < fewer < wanted)
        self.assertIn(f"{fewer} of {wanted}", why)
        self.assertEqual(shapes.fitting_copies(case, 50 << 20, 1 << 20)[0], 0)


class Cases(unittest.TestCase):
    def test_grid_is_full_and_corners_are_there(self):
        cases = shapes.attention_cases()
        self.assertEqual(len(cases), len(set(cases)))
        main_grid = {(c.context, c.batch) for c in cases
                     if (c.q_heads, c.kv_heads, c.head_dim) == shapes.MAIN and
                     c.dtype == "bfloat16" and c.mix == "uniform"}
        self.assertEqual(main_grid, {(c, b) for c in shapes.CONTEXTS for b in shapes.BATCHES})
        for shape in shapes.OTHERS:
            for dtype in ("half", "bfloat16"):
                self.assertTrue(any((c.q_heads, c.kv_heads, c.head_dim) == shape and
                                    c.dtype == dtype for c in cases))
        self.assertEqual({c.mix for c in cases}, {"uniform", "zipf", "few"})
        self.assertLess(len(shapes.attention_cases(quick=True)), 10)

    def test_those_with_bandwidth_goals_come_first(self):
        for case in shapes.attention_cases()[:6]:
            self.assertTrue(case.context >= goals.BANDWIDTH_FROM[0])
            self.assertTrue(case.batch >= goals.BANDWIDTH_FROM[1])

    def test_every_policy_is_stepped(self):
        self.assertEqual([c.policy for c in shapes.step_cases()], list(shapes.POLICIES))


class Turns(unittest.TestCase):
    def test_order_alternates(self):
        names = ["a", "b", "c"]
        orders = [clock.alternating(names, index) for index in range(12)]
        for order in orders:
            self.assertEqual(sorted(order), names)
        for forward, backward in zip(orders[::2], orders[1::2]):
            self.assertEqual(forward, backward[::-1])
        for place in range(3):  # nobody is always first, or always after the same one
            self.assertEqual({order[place] for order in orders}, set(names))

    def test_rounds(self):
        ran = []
        host = clock.HostClock()
        contestants = {n: host.prepare(lambda n=n: ran.append(n), 1) for n in "ab"}
        ran.clear()
        samples = clock.compare(host, contestants, 0.0, least=5)
        self.assertEqual({n: len(s) for n, s in samples.items()}, {"a": 5, "b": 5})
        self.assertEqual(len(ran), 2 * 6)  # and the round that is thrown away


class FakeCuda:
    """What CudaClock uses of PyTorch, and of the library; notes what happens, a tick each."""

    def __init__(self):
        self.log, self.now, self.capturing = [], 0.0, False
        fake = self

        class Stream:
            cuda_stream = 7

            def synchronize(self):
                fake.log.append("wait")

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, _):
                fake.log.append("event")
                self.at = fake.now

            def elapsed_time(self, end):
                return end.at - self.at

        class CUDAGraph:
            def capture_begin(self, capture_error_mode):
                assert capture_error_mode == "thread_local" and not fake.capturing
                fake.capturing = True

            def capture_end(self):
                fake.capturing = False

            def replay(self):
                fake.log.append("replay")
                fake.now += 0.008
        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph
        self.cuda = self

    def set_stream(self, _):
        pass

    def spin(self, turns, stream):
        assert turns > 0 and stream == 7
        self.log.append("spin")


class Cuda(unittest.TestCase):
    def setUp(self):
        self.fake = FakeCuda()
        self.clock = clock.CudaClock(self.fake, self.fake)

    def test_graphs_are_queued_behind_a_spin(self):
        ran = []
        contestant = self.clock.prepare(lambda: ran.append(self.fake.capturing), 4)
        self.assertEqual((ran, contestant.how), ([False, True], "graph"))
        self.fake.log.clear()
        times = self.clock.sample({"a": contestant, "b": contestant}, ["b", "a"])
        self.assertEqual(self.fake.log, 2 * ["spin", "event", "replay", "event"] + ["wait"])
        self.assertEqual({name: round(us, 6) for name, us in times.items()}, {"a": 2.0, "b": 2.0})

    def test_launches_are_not(self):
        ran = []
        contestant = self.clock.prepare(lambda: ran.append(self.fake.capturing), 1, graph=False)
        self.fake.log.clear()
        self.clock.sample({"a": contestant}, ["a"], before=lambda: ran.append("before"), spin=False)
        self.assertEqual(ran, [False, "before", False])
        self.assertEqual(self.fake.log, ["event", "event", "wait", "wait"])

    def test_what_cannot_be_captured_leaves_no_capture_behind(self):
        def once():
            if self.fake.capturing:
                raise ValueError("no")
        with self.assertRaises(ValueError):
            self.clock.prepare(once, 1)
        self.assertFalse(self.fake.capturing)


class Batches(unittest.TestCase):
    def test_largest(self):
        for fixed, each, limit in ((0, 10, 105), (7, 10, 107), (7, 10, 106), (3, 1, 500)):
            def bytes_at(batch, fixed=fixed, each=each):
                return fixed + each * batch
            batch = steps.largest_batch(bytes_at, limit)
            self.assertTrue(bytes_at(batch) <= limit < bytes_at(batch + 1))

    def test_steps_of_whole_pages(self):
        def bytes_at(batch):
            return 100 * ((batch + 3) // 4) + batch
        batch = steps.largest_batch(bytes_at, 1000)
        self.assertTrue(bytes_at(batch) <= 1000 < bytes_at(batch + 1))

    def test_more_than_a_line(self):
        self.assertEqual(steps.largest_batch(lambda batch: batch * batch, 1000), 31)

    def test_none_fits(self):
        self.assertEqual(steps.largest_batch(lambda batch: 50 * batch, 49), 0)


if __name__ == "__main__":
    main()
