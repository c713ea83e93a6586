# SPDX-License-Identifier: Apache-2.0
"""plot.py RESULTS.json STEM: STEM-steps.svg (a decode step against entries, for every policy),
STEM-bytes.svg (all that such a cache holds) and STEM-bandwidth.svg (what is read over what could be)."""
import math
import sys
from html import escape

import goals  # which says where what is shared lies
import measured
import table

COLOURS = ("#1b6ca8", "#d1495b", "#3c8d40", "#8e5ea2", "#e08e0b", "#4d4d4d", "#00868b", "#b5651d",
           "#6b8e23", "#c71585", "#5f7fbf")
WIDTH, HEIGHT = 760, 420
LEFT, TOP, RIGHT, BOTTOM = 70, 40, 190, 50


def logarithmic(values, pixels):
    """A function from a positive value to a position in `pixels` = (first, last), and round ticks."""
    low, high = math.log10(min(values)), math.log10(max(values))
    low, high = math.floor(low * 3) / 3, math.ceil(high * 3 + 1e-9) / 3
    scale = (pixels[1] - pixels[0]) / max(high - low, 1e-9)
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)
             if low - 1e-9 <= math.log10(m * 10.0**e) <= high + 1e-9]
    return lambda value: pixels[0] + (math.log10(value) - low) * scale, ticks


def short(value):
    for limit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= limit and value % limit == 0:
            return f"{value // limit:.0f}{letter}"
    return f"{value:g}"


def text(x, y, words, anchor="middle", colour="#333", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {more}>'
            f"{escape(words)}</text>")


def frame(title, body):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", more='font-size="15"'), *body, "</svg>", ""])


def axes(at_x, ticks_x, at_y, ticks_y, label_x, label_y):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = []
    for tick in ticks_x:
        lines.append(text(at_x(tick), bottom + 18, short(tick)))
    for tick in ticks_y:
        lines.append(f'<line x1="{LEFT}" x2="{right}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}" '
                     'stroke="#ddd"/>')
        lines.append(text(LEFT - 6, at_y(tick) + 4, short(tick), "end"))
    lines.append(text((LEFT + right) / 2, HEIGHT - 10, label_x))
    lines.append(text(16, (TOP + bottom) / 2, label_y,
                      more=f'transform="rotate(-90 16 {(TOP + bottom) / 2})"'))
    return lines


def lines_of(title, label_x, label_y, series):
    """series: {name: [(x, y)]}, both axes logarithmic."""
    points = [point for of_one in series.values() for point in of_one]
    at_x, _ = logarithmic([x for x, _ in points], (LEFT + 10, WIDTH - RIGHT - 10))
    at_y, ticks_y = logarithmic([y for _, y in points], (HEIGHT - BOTTOM, TOP))
    body = axes(at_x, sorted({x for x, _ in points}), at_y, ticks_y, label_x, label_y)
    for index, (name, of_one) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in sorted(of_one))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}"/>'
                 for x, y in of_one]
        y = TOP + 16 * index + 8
        body.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 8}" width="10" height="10" '
                    f'fill="{colour}"/>')
        body.append(text(WIDTH - RIGHT + 30, y + 1, name, "start"))
    return frame(title, body)


def small_steps(report):
    """The policies' steps with one thread at the small shape: what has several numbers of entries."""
    chosen = [r for r in report["steps"] if r["threads"] == 1]
    if not chosen:
        return []
    heads = chosen[0]["q_heads"]
    return [r for r in chosen if r["q_heads"] == heads]


def step_us(result):
    return goals.median(result["samples_us"], "extend")


def by_policy(results, value):
    series = {}
    for result in results:
        series.setdefault(result["policy"], []).append((result["entries"], value(result)))
    return series


def bars(title, groups):
    """groups: [(label, fraction)]; a line at 1."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - 20
    most = max(1.1, *(fraction for _, fraction in groups))
    step = (right - LEFT) / len(groups)

    def at(fraction):
        return bottom - (bottom - TOP) * fraction / most
    body = []
    for tick in (0, 0.25, 0.5, 0.75, 1.0):
        body.append(f'<line x1="{LEFT}" x2="{right}" y1="{at(tick):.1f}" y2="{at(tick):.1f}" '
                    f'stroke="{"#333" if tick == 1 else "#ddd"}"/>')
        body.append(text(LEFT - 6, at(tick) + 4, f"{tick:g}", "end"))
    for index, (label, fraction) in enumerate(groups):
        x = LEFT + index * step
        body.append(f'<rect x="{x + step * 0.15:.1f}" y="{at(fraction):.1f}" '
                    f'width="{step * 0.7:.1f}" height="{bottom - at(fraction):.1f}" '
                    f'fill="{COLOURS[0]}"/>')
        body.append(text(x + step / 2, at(fraction) - 4, f"{fraction:.2f}", more='font-size="9"'))
        for row, word in enumerate(label.split(" ")):
            body.append(text(x + step / 2, bottom + 12 + 10 * row, word, more='font-size="8"'))
    return frame(title, body)


def drawings(report):
    """{name: SVG} of what was measured."""
    found, steps = {}, small_steps(report)
    if steps:
        shape = f"{steps[0]['q_heads']}/{steps[0]['kv_heads']}/{steps[0]['head_dim']}"
        found["steps"] = lines_of(f"A decode step of one layer ({shape}, {steps[0]['element']})",
                                  "entries", "microseconds", by_policy(steps, step_us))
        found["bytes"] = lines_of(f"All bytes of one layer's cache ({shape}, {steps[0]['element']})",
                                  "entries", "KiB",
                                  by_policy(steps, lambda r: goals.total(r["bytes"]) / 1024))
    fractions = [(r["case"].replace(f" {r['entries']}", ""),
                  goals.ratio(r["samples_us"], "probe", "ours"))
                 for r in report["attention"] if r["level"] == "memory"]
    if fractions:
        found["bandwidth"] = bars("Bytes of K and V over what the same threads read, 32k entries",
                                  fractions)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        made = drawings(table.load(sys.argv[1]))
    except (measured.Malformed, KeyError, TypeError) as problem:
        sys.exit(f"plot.py: {type(problem).__name__}: {problem}")
    for kind, svg in made.items():
        with open(f"{sys.argv[2]}-{kind}.svg", "w", encoding="utf-8") as file:
            file.write(svg)
        print(f"{sys.argv[2]}-{kind}.svg")
