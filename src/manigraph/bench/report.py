"""Tables and the plot of docs/speed.md and docs/scaling.md, from a file of results.

`python -m manigraph.bench.report RESULTS DOC...` puts each table between its marks in the documents, and the
plot of the growth beside them.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manigraph.reports.pages import fill, markdown_table

Figures = Sequence[Mapping[str, Any]]
LOOP_TARGET = 1.05


def _verdict(reached: bool | None) -> str:
    return {True: "reached", False: "**missed**", None: ""}[reached]


def ratio_table(figures: Figures) -> str:
    """One line for each ratio, with its interval and target."""
    return markdown_table(
        ["what", "by", "where", "ratio", "95 %", "target", ""],
        (
            [
                f["what"],
                f["versus"],
                f["setting"],
                f"{f['ratio']:.3g}" if f["ratio"] >= 10 else f"{f['ratio']:.3f}",
                f"{f['low']:.3g} to {f['high']:.3g}",
                f["target"],
                _verdict(f["reached"]),
            ]
            for f in figures
        ),
    )


def growth_table(figures: Figures) -> str:
    """Time and memory of graph and prototype losses as classes grow in number."""
    names = ("classes", "prototypes", "milliseconds", "extra_mib")
    return markdown_table(
        ["classes", "prototypes", "ms", "extra MiB"],
        ([f"{f[name]:,.0f}" for name in names] for f in figures),
    )


def peak_table(figures: Figures) -> str:
    """Share of what the machine can multiply."""
    return markdown_table(
        ["step of Π-VAT", "10⁹ a second", "of at most", "share"],
        (
            [
                f["setting"],
                f"{f['step_gigaflops']:.0f}",
                f"{f['peak_gigaflops']:.0f}",
                f"{100 * f['share']:.0f} %",
            ]
            for f in figures
        ),
    )


def attention_table(figures: Figures) -> str:
    """What attention to the prototypes of a few classes loses and saves."""
    return markdown_table(
        ["classes considered", "attention to the own class", "left out", "error", "time, by all"],
        (
            [
                str(f["classes_considered"]),
                f"{100 * f['own_class_weight']:.1f} %",
                f"{100 * f['lost_weight']:.2f} %",
                f"{100 * f['error']:.2f} %",
                f"{f['time_ratio']:.2f}",
            ]
            for f in figures
        ),
    )


def loop_table(figures: Figures) -> str:
    """The whole loop by the bare passes; the target is 1.05."""
    return markdown_table(
        ["method", "where", "loop / passes", "95 %", "target", "", "data, ms", "update, ms", "step, ms"],
        (
            [
                f["algorithm"],
                f["setting"],
                f"{f['ratio']:.3f}",
                f"{f['low']:.3g} to {f['high']:.3g}",
                f"≤ {LOOP_TARGET}",
                _verdict(f["ratio"] <= LOOP_TARGET),
                f"{f['data_milliseconds']:.1f}",
                f"{f['optimizer_milliseconds']:.1f}",
                f"{f['milliseconds']:,.0f}",
            ]
            for f in figures
        ),
    )


def profile_table(figures: Figures) -> str:
    """Shares of the time of a step, a column for each setting and method."""
    columns = list(dict.fromkeys((f["setting"], f["algorithm"]) for f in figures))
    share = {(f["setting"], f["algorithm"], f["kind"]): f["share"] for f in figures}
    return markdown_table(
        ["", *(f"{algorithm}, {setting}" for setting, algorithm in columns)],
        (
            [kind, *(f"{100 * share[(*column, kind)]:.1f} %" for column in columns)]
            for kind in dict.fromkeys(f["kind"] for f in figures)
        ),
    )


TABLES = {
    "profile": profile_table,
    "loop": loop_table,
    "growth": growth_table,
    "peak": peak_table,
    "attention": attention_table,
}


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Section to its table, for the sections that have one."""
    found = {}
    for section, figures in results.items():
        if section in TABLES:
            found[section] = TABLES[section](figures)
        elif isinstance(figures, list) and figures and {"ratio", "low", "high"} <= set(figures[0]):
            found[section] = ratio_table(figures)
    return found


# The plot

WIDTH, HEIGHT, LEFT, TOP = 640, 300, 70, 20
COLOURS = {"milliseconds": "#0072b2", "extra_mib": "#d55e00"}
TITLES = {"milliseconds": "time, ms", "extra_mib": "extra memory, MiB"}


def growth_plot(figures: Figures) -> str:
    """Time and memory against the number of classes, both axes logarithmic, as SVG."""
    inner_width, inner_height = WIDTH - LEFT - 150, HEIGHT - TOP - 50
    decades_x = (1, 3)
    highest = max(math.log10(max(f[name], 1)) for f in figures for name in COLOURS)
    decades_y = (0, math.ceil(highest))

    def x(classes: float) -> float:
        return LEFT + inner_width * (math.log10(classes) - decades_x[0]) / (decades_x[1] - decades_x[0])

    def y(value: float) -> float:
        share = (math.log10(max(value, 1)) - decades_y[0]) / (decades_y[1] - decades_y[0])
        return TOP + inner_height * (1 - share)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13" aria-label="Time and memory by the number of classes">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for decade in range(decades_y[0], decades_y[1] + 1):
        height = y(10**decade)
        parts.append(
            f'<path d="M{LEFT} {height:.1f}h{inner_width}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{10**decade:,}</text>'
        )
    bottom = TOP + inner_height
    for f in figures:
        parts.append(
            f'<text x="{x(f["classes"]):.1f}" y="{bottom + 20}" text-anchor="middle">{f["classes"]:,}</text>'
        )
    parts.append(
        f'<text x="{LEFT + inner_width / 2}" y="{bottom + 42}" text-anchor="middle">'
        "classes (20 prototypes each)</text>"
    )
    for name, colour in COLOURS.items():
        points = [(x(f["classes"]), y(f[name])) for f in figures]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in points]
        a, b = points[-1]
        parts.append(f'<text x="{a + 8:.1f}" y="{b + 4:.1f}" fill="{colour}">{TITLES[name]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(results: Path, documents: Sequence[Path]) -> None:
    """Rewrite the documents, and the plot beside the first of them."""
    figures = json.loads(results.read_text(encoding="utf-8"))
    for document in documents:
        document.write_text(fill(document.read_text(encoding="utf-8"), tables(figures)), encoding="utf-8")
    if "growth" in figures:
        plot = documents[0].with_name("growth.svg")
        plot.write_text(growth_plot(figures["growth"]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
