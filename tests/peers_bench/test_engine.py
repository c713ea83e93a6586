# SPDX-License-Identifier: Apache-2.0
"""What whole engines are given to read, and how their answers are compared."""
import unittest

from support import main

import engine
from contestants import EngineError, Peer


class Passages(unittest.TestCase):
    def test_they_are_whole_apart_and_of_all_parts_of_the_text(self):
        text = " ".join(str(i) for i in range(60_000))
        found = engine.passages(text, 5)
        self.assertEqual(len(found), 5)
        starts = [text.index(passage) for passage in found]
        ends = [start + len(passage) for start, passage in zip(starts, found)]
        self.assertEqual(starts[0], 0)
        self.assertGreater(ends[-1], len(text) - 10)
        for passage, end, following in zip(found, ends, starts[1:] + [len(text)]):
            self.assertGreater(len(passage), engine.AGREEMENT_LENGTH - 10)
            self.assertLessEqual(end, following)
            self.assertIn(text[end:end + 1], (" ", ""))

    def test_one_is_the_beginning(self):
        text = "word " * engine.AGREEMENT_LENGTH
        self.assertTrue(text.startswith(engine.passages(text, 1)[0]))

    def test_a_text_that_is_too_short_is_refused(self):
        with self.assertRaisesRegex(EngineError, "2 passages"):
            engine.passages("word " * (engine.AGREEMENT_LENGTH // 5 + 1), 2)

    def test_words_in_common(self):
        self.assertEqual(engine.words_in_common("a b c d", "a b x d"), 0.5)


class Dying:
    """A contestant that fails at what it is asked second."""

    def __init__(self):
        self.asked, self.closed = 0, False

    def nll(self, *_):
        self.asked += 1
        if self.asked > 1:
            raise EngineError("the process has ended")
        return 3.0

    def close(self):
        self.closed = True


class Fields(unittest.TestCase):
    def test_who_fails_takes_no_more_part_and_the_others_go_on(self):
        one, other = Dying(), Dying()
        with engine.Field({"one": lambda: one, "other": lambda: other}) as field:
            self.assertEqual(field.ask("one", lambda each: each.nll()), 3.0)
            self.assertIsNone(field.ask("one", lambda each: each.nll()))
            self.assertEqual(list(field.running), ["other"])
            self.assertEqual(field.skipped, {"one": "the process has ended"})
            self.assertTrue(one.closed)
            self.assertEqual(field.ask("other", lambda each: each.nll()), 3.0)
        self.assertTrue(other.closed)

    def test_a_process_that_has_ended_is_an_answer_of_its_own(self):
        for length in (10, 600, 100_000):
            peer = Peer("peer_process.py")  # which is none by itself, and ends at once
            peer.process.wait(60)
            with self.assertRaises(EngineError):
                peer.ask(op="run", text="x" * length)
            peer.close()


if __name__ == "__main__":
    main()
