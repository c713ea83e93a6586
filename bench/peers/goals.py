# SPDX-License-Identifier: Apache-2.0
"""What is meant to be reached beside others on one processor, and whether results do. Ratios are taken
round by round, where all contestants ran right after one another, and their median counts."""
import os
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from judge import goal, median, ratio  # noqa: E402

BANDWIDTH = 0.90  # of what the same threads read, from memory
ROOF = 1.5  # times the larger of reading and computing, in caches
SDPA_MHA, SDPA_GQA, PRODUCTS = 1.0, 3.0, 1.0
GQA_ELEMENTS = ("float16", "bfloat16")
SIMILARITY = 0.05  # of attention, beyond one query's half of it
EXTRAS = 1.05  # with log-weights and rows over without
POLICY = 0.05  # observe and compress over attention
OVERHEAD = 0.10  # of append and extend over attention
STREAM = 1.1  # the last length's step over the first's
PROMPT = 0.6  # of the product's operations per second
SHORT, LONG = 100, 7900  # contexts of the engines
ENGINE_SHORT, ENGINE_LONG, ENGINE_KEPT, ENGINE_EVICTING, ENGINE_PROMPT = 0.8, 1.8, 3.2, 1.6, 1.0
EVICTING = "ours_keepkv"  # one policy for all: it must be as fast, and keep as much


def roof(samples):
    """Our time over the larger of reading and computing."""
    if not all(samples.get(name) for name in ("ours", "probe", "peak")):
        return None
    return statistics.median(o / max(p, f) for o, p, f in
                             zip(samples["ours"], samples["probe"], samples["peak"]))


def of_attention(result):
    samples, found = result["samples_us"], []
    if result["level"] == "memory":
        found.append(goal("bandwidth over what is read", ratio(samples, "probe", "ours"), BANDWIDTH,
                          True))
    else:
        where = "in caches" if result.get("fits", True) else "of more than the last level"
        found.append(goal(f"time over the roofline, {where}", roof(samples), ROOF, False))
    grouped = result["q_heads"] != result["kv_heads"]
    sdpa = ratio(samples, "sdpa", "ours")
    if not grouped:
        found.append(goal("SDPA over ours, a KV head per query head", sdpa, SDPA_MHA, True))
    elif result["element"] in GQA_ELEMENTS:
        found.append(goal("SDPA over ours, grouped, float16 and bfloat16", sdpa, SDPA_GQA, True))
    found.append(goal("two products, softmax and group sum over ours",
                      ratio(samples, "products", "ours"), PRODUCTS, True))
    group = result["q_heads"] // result["kv_heads"]
    found.append(goal(f"KeepKV's similarity over attention, {group} query heads a KV head",
                      ratio(samples, "similarity", "ours"), 1 / (2 * group) + SIMILARITY, False))
    found.append(goal("with log-weights and rows over without", ratio(samples, "ours", "plain"),
                      EXTRAS, False))
    return found


def policy_share(samples, names):
    """Of `names`, together, in attention."""
    if not all(samples.get(name) for name in (*names, "attend")):
        return None
    parts = zip(*(samples[name] for name in names))
    return statistics.median(sum(part) / attend for part, attend in zip(parts, samples["attend"]))


def share_in_extend(samples):
    return policy_share(samples, ["policy"])


def share_by_verbs(samples):
    return policy_share(samples, ["observe", "compress"])


def of_step(result):
    samples = result["samples_us"]
    return [goal("a policy's step over attention, within extend", share_in_extend(samples), POLICY,
                 False),
            goal("a policy's step over attention, by the verbs", share_by_verbs(samples), POLICY, False)]


def overhead(samples):
    over = ratio(samples, "extend", "attend")
    return None if over is None else over - 1


def of_overhead(result):
    """A policy that does nothing: the others' own part has its goal above."""
    if result["policy"] != "full":
        return []
    return [goal("extend over attention alone, less 1", overhead(result["samples_us"]), OVERHEAD,
                 False)]


def total(held):
    return sum(held.values())


def of_streaming(result):
    first, last = (str(result["marks"][at]) for at in (0, -1))
    grown = total(result["bytes_at"][last]) / total(result["bytes_at"][first])
    return [goal("step at the end of a stream over at its start",
                 ratio(result["samples_us"], last, first), STREAM, False),
            goal("bytes at the end of a stream over at its start", grown, 1.0, False)]


def of_product(result):
    """Our operations per second over the product's."""
    times = ratio(result["samples_us"], "product", "ours")
    return None if times is None else times * result["flops"] / result["product_flops"]


def of_prompts(result):
    return [goal("a prompt's operations per second over Eigen's product", of_product(result), PROMPT,
                 True)]


def best_llama(samples):
    """The faster of flash attention off and on; None where neither took part."""
    found = [(median(samples, name), name) for name in ("llama_cpp", "llama_cpp_flash")
             if samples.get(name)]
    return min(found)[1] if found else None


def of_engine(result):
    samples = result["samples_us"]
    llama = best_llama(samples)

    def of_llama(ours):
        return None if llama is None else ratio(samples, llama, ours)
    if result["kind"] == "prompt":
        return [goal("engine, prompts: llama.cpp over ours", of_llama("ours"), ENGINE_PROMPT, True)]
    if result["kind"] == "agreement":
        ours, theirs = (result["agreement"].get(n) for n in (EVICTING, "openvino_evicting"))
        ahead = None if ours is None or theirs is None else ours - theirs
        return [goal("engine, a tenth kept: agreement ahead of OpenVINO's", ahead, 0.0, True)]
    if result["kind"] == "decode" and result["context"] == SHORT:
        return [goal("engine, short context: llama.cpp over ours", of_llama("ours"), ENGINE_SHORT,
                     True)]
    if result["kind"] == "decode" and result["context"] == LONG:
        return [goal("engine, long context: llama.cpp over ours", of_llama("ours"), ENGINE_LONG,
                     True),
                goal("engine, a tenth kept: llama.cpp's full cache over ours", of_llama(EVICTING),
                     ENGINE_KEPT, True),
                goal("engine, a tenth kept: OpenVINO evicting over ours",
                     ratio(samples, "openvino_evicting", EVICTING), ENGINE_EVICTING, True)]
    return []


OF_SECTION = {"attention": of_attention, "steps": of_step, "overheads": of_overhead,
              "streaming": of_streaming, "prompts": of_prompts, "engine": of_engine}


def all_goals(report):
    """[(section, case, goal)] of everything measured."""
    return [(section, result["case"], one) for section, judge in OF_SECTION.items()
            for result in report[section] for one in judge(result)]
