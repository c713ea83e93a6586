# SPDX-License-Identifier: Apache-2.0
"""What `measure.py` of a benchmark wrote, read and checked."""
import json


class Malformed(Exception):
    pass


def load(path, fields, timed, listed, zeros=False):
    """The report, which has `fields`, and lists of results by case: `timed` ones have samples of
    every contestant (with `zeros`: none at all, or times of 0, are fine), `listed` ones need not."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        raise Malformed(f"{path}: expected JSON, got {error}") from error
    if not isinstance(report, dict) or report.get("format") != 1:
        raise Malformed(f"{path}: expected an object with \"format\": 1")
    for name in fields:
        if name not in report:
            raise Malformed(f"{path}: \"{name}\" is missing")
    for section in (*timed, *listed):
        report.setdefault(section, [])
        if not isinstance(report[section], list):
            raise Malformed(f"{path}: \"{section}\": expected a list")
        for result in report[section]:
            if not isinstance(result, dict) or "case" not in result:
                raise Malformed(f"{path}: \"{section}\": a result without a case")
            if section in timed and not good_samples(result.get("samples_us"), zeros):
                raise Malformed(f"{path}: {result['case']}: samples_us: expected positive numbers, "
                                "as many for each contestant")
    return report


def good_samples(samples, zeros):
    if not isinstance(samples, dict) or (not samples and not zeros):
        return False
    for of_one in samples.values():
        if not isinstance(of_one, list) or not of_one:
            return False
        if not all(isinstance(us, (int, float)) and (us > 0 or (zeros and us == 0))
                   for us in of_one):
            return False
    return len({len(of_one) for of_one in samples.values()}) <= 1
