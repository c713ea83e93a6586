# SPDX-License-Identifier: Apache-2.0
"""Numbers and tables as Markdown."""


def text(value, digits=3):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"


def fixed(value):
    return "-" if value is None else f"{value:.2f}"


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def rows(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---:|" * (len(head) - 1))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def skips(results):
    """Who was not measured, why, and in which of the cases."""
    skipped = {}
    for result in results:
        for name, why in result.get("skipped", {}).items():
            skipped.setdefault((name, why), []).append(result["case"])
    if skipped:
        print("Skipped:\n")
        for (name, why), cases in skipped.items():
            where = "everywhere" if len(cases) == len(results) else "; ".join(cases)
            print(f"- {name}: {why} ({where})")
        print()


def failures(title, results):
    """Cases without a result, and the reason."""
    if results:
        print(f"## {title}\n")
        for one in results:
            print(f"- {one.get('section', '?')} {one['case']}: {one.get('reason', '?')}")
        print()


NAMED = 5  # cases where a goal is missed


def farthest(missed):
    """[(case, goal)] with the worst first: the largest where small is good, the smallest where large
    is."""
    return sorted(missed, key=lambda each: -abs(each[1]["value"] - each[1]["limit"]))


def verdicts(found):
    """[(section, case, goal)] as one row per goal: met, missed and where, worst first."""
    kinds = {}
    for _, case, one in found:
        kinds.setdefault((one["goal"], one["limit"]), []).append((case, one))
    lines = []
    for (name, limit), each in kinds.items():
        judged = [(case, one) for case, one in each if one["met"] is not None]
        missed = [(case, one) for case, one in judged if not one["met"]]
        verdict = "not measured" if not judged else (
            f"MISSED in {len(missed)} of {len(judged)}" if missed else f"met in all {len(judged)}")
        worst = "; ".join(f"{case}: {fixed(one['value'])}" for case, one in farthest(missed)[:NAMED])
        if len(missed) > NAMED:
            worst += f"; and {len(missed) - NAMED} more"
        lines.append([name, text(limit), verdict, worst or "-"])
    if lines:
        rows(["goal", "limit", "verdict", "where missed"], lines)
    else:
        print("Nothing was measured that has a goal.\n")
