"""Tables of docs/speed.md and docs/scaling.md: `python -m manigraph.bench.report RESULTS...` prints them."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = Sequence[Mapping[str, Any]]


def ratio_table(figures: Figures) -> str:
    """One line for each ratio, with its interval and target."""
    lines = ["| what | by | where | ratio | 95 % | target | |", "|---|---|---|---|---|---|---|"]
    for figure in figures:
        verdict = {True: "reached", False: "**missed**", None: ""}[figure["reached"]]
        cells = [
            figure["what"],
            figure["versus"],
            figure["setting"],
            f"{figure['ratio']:.3g}" if figure["ratio"] >= 10 else f"{figure['ratio']:.3f}",
            f"{figure['low']:.3g} to {figure['high']:.3g}",
            figure["target"],
            verdict,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def growth_table(figures: Figures) -> str:
    """Time and memory of graph and prototype losses as classes grow in number."""
    lines = ["| classes | prototypes | ms | extra MiB |", "|---|---|---|---|"]
    for f in figures:
        lines.append(
            f"| {f['classes']:,} | {f['prototypes']:,} | {f['milliseconds']:,.0f} | {f['extra_mib']:,.0f} |"
        )
    return "\n".join(lines)


def peak_table(figures: Figures) -> str:
    """Share of what the machine can multiply."""
    lines = ["| step of Π-VAT | 10⁹ a second | of at most | share |", "|---|---|---|---|"]
    for f in figures:
        lines.append(
            f"| {f['setting']} | {f['step_gigaflops']:.0f} | {f['peak_gigaflops']:.0f} | "
            f"{100 * f['share']:.0f} % |"
        )
    return "\n".join(lines)


def attention_table(figures: Figures) -> str:
    """What attention to the prototypes of a few classes loses and saves."""
    lines = [
        "| classes considered | attention to the own class | left out | error | time, by all |",
        "|---|---|---|---|---|",
    ]
    for f in figures:
        lines.append(
            f"| {f['classes_considered']} | {100 * f['own_class_weight']:.1f} % | "
            f"{100 * f['lost_weight']:.2f} % | {100 * f['error']:.2f} % | {f['time_ratio']:.2f} |"
        )
    return "\n".join(lines)


TABLES = {"growth": growth_table, "peak": peak_table, "attention": attention_table}


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Section to its table, for the sections that have one."""
    found = {}
    for section, figures in results.items():
        if section in TABLES:
            found[section] = TABLES[section](figures)
        elif isinstance(figures, list) and figures and {"ratio", "low", "high"} <= set(figures[0]):
            found[section] = ratio_table(figures)
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for section, table in tables(json.loads(Path(path).read_text(encoding="utf-8"))).items():
            print(f"{section}\n\n{table}\n")
