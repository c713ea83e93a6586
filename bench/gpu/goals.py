# SPDX-License-Identifier: Apache-2.0
"""What the CUDA cache is meant to reach on an H200, and whether results do. Ratios are taken round by
round, where all contestants ran right after one another, and their median counts."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))
from judge import goal, median, ratio  # noqa: E402

DEVICE = "H200"
BANDWIDTH, RAGGED_BANDWIDTH = 0.85, 0.80  # of the probe's
BANDWIDTH_FROM = (8192, 8)  # context, batch
EXTRAS = 1.05  # with bias and scores over without
RIVAL = 1.0  # the best other's time over ours
POLICY, SIMILARITY = 0.05, 0.20  # a step over its attention, less 1

RIVALS = ("flashinfer", "sdpa")  # those that compute the same: attention without a bias


def best_rival(samples):
    """(name, its time over ours without bias and scores), of the fastest; None without rivals."""
    found = [(median(samples, name), name) for name in RIVALS if samples.get(name)]
    if not found:
        return None
    name = min(found)[1]
    return name, ratio(samples, name, "ours_plain"), ratio(samples, name, "ours")


def of_attention(result):
    """The goals that a case of the section attention has."""
    samples = result["samples_us"]
    goals = []
    if result["mix"] != "uniform":
        goals.append(goal("ragged bandwidth over the probe's", ratio(samples, "probe", "ours"),
                          RAGGED_BANDWIDTH, True))
    elif result["context"] >= BANDWIDTH_FROM[0] and result["batch"] >= BANDWIDTH_FROM[1]:
        goals.append(goal("bandwidth over the probe's", ratio(samples, "probe", "ours"), BANDWIDTH,
                          True))
    goals.append(goal("with bias and scores over without", ratio(samples, "ours", "ours_plain"),
                      EXTRAS, False))
    rival = best_rival(samples)
    goals.append(goal("best other over ours", None if rival is None else rival[2], RIVAL, True))
    return goals


def of_step(result):
    similarity = result["policy"] == "keepkv"
    title = "KeepKV's step beyond attention" if similarity else "step beyond attention"
    goals = []
    for kind, where in (("step", ""), ("apart", ", policies apart")):
        over = ratio(result["samples_us"], kind, "attend")
        goals.append(goal(title + where, None if over is None else over - 1,
                          SIMILARITY if similarity else POLICY, False))
    return goals


def all_goals(report):
    """[(section, case, goal)] of everything measured."""
    found = [("attention", r["case"], g) for r in report["attention"] for g in of_attention(r)]
    return found + [("steps", r["case"], g) for r in report["steps"] for g in of_step(r)]
