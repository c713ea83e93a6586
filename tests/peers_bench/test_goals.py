# SPDX-License-Identifier: Apache-2.0
"""Goals on made-up numbers: what is missed must be said to be, and what was not measured not to be
met."""
import unittest

from support import (agreement, attention, decode, main, overhead, prompt, report, step, stream)
import goals


class Goals(unittest.TestCase):
    def judged(self, **sections):
        """{goal: met} of a report with these results."""
        whole = {section: [] for section in goals.OF_SECTION}
        whole.update(sections)
        return {one["goal"]: one["met"] for _, _, one in goals.all_goals(report(**whole))}

    def missed(self, **sections):
        return [name for name, met in self.judged(**sections).items() if met is False]

    def test_all_met(self):
        verdicts = self.judged(
            attention=[attention(), attention(level="L2", probe=60.0, peak=80.0),
                       attention(heads=(32, 32))],
            steps=[step()], overheads=[overhead()], streaming=[stream()], prompts=[prompt()],
            engine=[decode(ours_keepkv=50.0), decode(100, llama_cpp=85.0), agreement(),
                    {**decode(1000, llama_cpp=101.0, llama_cpp_flash=120.0), "kind": "prompt"}])
        self.assertEqual([name for name, met in verdicts.items() if met is not True], [])
        self.assertEqual(len(verdicts), 20)

    def test_each_can_be_missed(self):
        for sections, name in (
                ({"attention": [attention(probe=89.0)]}, "bandwidth over what is read"),
                ({"attention": [attention(level="L3", probe=60.0, peak=66.0)]},
                 "time over the roofline, in caches"),
                ({"attention": [{**attention(level="L3", probe=60.0, peak=66.0), "fits": False}]},
                 "time over the roofline, of more than the last level"),
                ({"attention": [attention(heads=(8, 8), sdpa=99.0)]},
                 "SDPA over ours, a KV head per query head"),
                ({"attention": [attention(sdpa=299.0)]},
                 "SDPA over ours, grouped, float16 and bfloat16"),
                ({"attention": [attention(products=99.0)]},
                 "two products, softmax and group sum over ours"),
                ({"attention": [attention(similarity=18.0)]},
                 "KeepKV's similarity over attention, 4 query heads a KV head"),
                ({"attention": [attention(heads=(8, 8), similarity=56.0)]},
                 "KeepKV's similarity over attention, 1 query heads a KV head"),
                ({"attention": [attention(plain=95.0)]},
                 "with log-weights and rows over without"),
                ({"steps": [step(compress=2.1)]}, "a policy's step over attention, by the verbs"),
                ({"steps": [step(within=5.1)]}, "a policy's step over attention, within extend"),
                ({"overheads": [overhead(extend=110.1)]}, "extend over attention alone, less 1"),
                ({"streaming": [stream(last=110.1)]},
                 "step at the end of a stream over at its start"),
                ({"streaming": [stream(held={"keys": 10241})]},
                 "bytes at the end of a stream over at its start"),
                ({"prompts": [prompt(ours=117.0)]},
                 "a prompt's operations per second over Eigen's product"),
                ({"engine": [decode(100, llama_cpp=79.0)]},
                 "engine, short context: llama.cpp over ours"),
                ({"engine": [decode(ours=106.0)]}, "engine, long context: llama.cpp over ours"),
                ({"engine": [decode(openvino_evicting=79.0)]},
                 "engine, a tenth kept: OpenVINO evicting over ours"),
                ({"engine": [agreement(0.4, 0.5)]},
                 "engine, a tenth kept: agreement ahead of OpenVINO's"),
                ({"engine": [{**decode(llama_cpp=99.0), "kind": "prompt"}]},
                 "engine, prompts: llama.cpp over ours")):
            with self.subTest(name):
                self.assertEqual(self.missed(**sections), [name])
        self.assertIn("engine, a tenth kept: llama.cpp's full cache over ours",
                      self.missed(engine=[decode(ours_keepkv=60.0)]))

    def test_the_faster_llama_counts(self):
        self.assertEqual(goals.best_llama(decode()["samples_us"]), "llama_cpp")
        flash = decode(llama_cpp_flash=150.0)
        self.assertEqual(goals.best_llama(flash["samples_us"]), "llama_cpp_flash")
        self.assertEqual(self.missed(engine=[flash]),
                         ["engine, long context: llama.cpp over ours",
                          "engine, a tenth kept: llama.cpp's full cache over ours"])

    def test_without_the_others_nothing_is_met_or_missed(self):
        alone = attention(sdpa=None, sdpa_bias=None, products=None)
        verdicts = self.judged(attention=[alone],
                               engine=[decode(llama_cpp=None, llama_cpp_flash=None)])
        for name in ("SDPA over ours, grouped, float16 and bfloat16",
                     "two products, softmax and group sum over ours",
                     "engine, long context: llama.cpp over ours"):
            self.assertIsNone(verdicts[name])
        self.assertIs(verdicts["bandwidth over what is read"], True)

    def test_float_has_no_goal_against_grouped_sdpa(self):
        self.assertEqual(self.missed(attention=[attention(element="float32", sdpa=10.0)]), [])

    def test_round_by_round(self):
        # A slow machine in one round changes nothing, nor does one contestant that is.
        samples = {"ours": [10.0, 30.0, 90.0], "probe": [8.0, 24.0, 9.0], "peak": [5.0, 15.0, 45.0]}
        self.assertEqual(goals.roof(samples), 1.25)


if __name__ == "__main__":
    main()
