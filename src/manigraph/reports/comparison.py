"""Everything the page of several runs shows, as plain values."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from manigraph.reports.facts import RunFacts
from manigraph.reports.run_report import curves_of
from manigraph.significance import SIGNIFICANT, paired_test

SERIES = (
    "#3f90da",
    "#e76300",
    "#832db6",
    "#a96b59",
    "#bd1f01",
    "#94a4a2",
    "#b9ac70",
    "#717581",
    "#ffa90e",
    "#5aa9ad",
)
"""Colours of methods, in the order in which they come."""

Group = dict[tuple[str, int], list[RunFacts]]
"""Runs of one data set by method and number of labels."""


def comparison_page(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """What the template of several runs is given."""
    titles = _titles(runs)
    methods = list(dict.fromkeys(titles.values()))
    colours = {method: SERIES[number % len(SERIES)] for number, method in enumerate(methods)}
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    part = "test" if any(run.final_error("test") for run in runs) else "validation"
    tables = [
        _table(dataset, [run for run in runs if run.dataset == dataset], titles, part) for dataset in datasets
    ]
    shown = [table for table in tables if table["rows"]]
    lines = [line for table in shown for line in _by_labels(table, colours, several=len(shown) > 1)]
    labels = sorted({labels for table in shown for labels in table["labels"]})
    return {
        "kind": "comparison",
        "title": f"{len(runs)} runs on {', '.join(datasets)}",
        "name": f"{len(runs)} runs",
        "part": part,
        "runs": [_row(run, titles[id(run)], part) for run in runs],
        "unfinished": [run.name for run in runs if run.final_error(part) is None],
        "tables": shown,
        "figures": {
            "classes": [],
            "colours": [],
            "by_labels": lines if len(labels) > 1 else [],
            "label_ticks": labels,
            "overlaid": _overlaid(runs, titles, colours),
        },
    }


def _titles(runs: Sequence[RunFacts]) -> dict[int, str]:
    """What rows are called: runs of a method that differ in more than seed and labels are several rows."""
    seen: dict[str, list[str]] = {}
    titles = {}
    for run in runs:
        settings, variants = _settings(run), seen.setdefault(run.algorithm, [])
        if settings not in variants:
            variants.append(settings)
        number = variants.index(settings)
        titles[id(run)] = run.algorithm if number == 0 else f"{run.algorithm}, settings {number + 1}"
    return titles


def _settings(run: RunFacts) -> str:
    """All that decides a run but its seed and its labels."""
    left_out = ("labels", "split")
    data = {name: value for name, value in run.config.get("data", {}).items() if name not in left_out}
    return json.dumps({**run.config, "seed": None, "data": data}, sort_keys=True)


def _row(run: RunFacts, method: str, part: str) -> dict[str, Any]:
    error = run.final_error(part)
    return {
        "name": run.name,
        "method": method,
        "dataset": run.dataset,
        "labels": run.num_labelled,
        "seed": run.seed,
        "error": None if error is None else error.error,
        "low": None if error is None else error.interval.low,
        "high": None if error is None else error.interval.high,
        "state": run.state,
    }


def _table(dataset: str, runs: Sequence[RunFacts], titles: dict[int, str], part: str) -> dict[str, Any]:
    groups: Group = {}
    for run in runs:
        if run.final_error(part) is not None and run.num_labelled is not None:
            group = groups.setdefault((titles[id(run)], run.num_labelled), [])
            if all((run.seed, run.split_digest) != (other.seed, other.split_digest) for other in group):
                group.append(run)  # the same run again is no other seed
    methods = list(dict.fromkeys(method for method, _ in groups))
    labels = sorted({number for _, number in groups})
    remarks: list[str] = []
    best = {number: _best(groups, methods, number, part, remarks) for number in labels}
    rows = []
    for method in methods:
        cells = [_cell(groups.get((method, number), []), part) for number in labels]
        for cell, number in zip(cells, labels, strict=True):
            if cell is not None:
                cell["is_best"] = best[number] == method
        rows.append({"method": method, "cells": cells})
    return {"dataset": dataset, "part": part, "labels": labels, "rows": rows, "remarks": remarks}


def _cell(runs: Sequence[RunFacts], part: str) -> dict[str, Any] | None:
    errors = [error.error for run in runs if (error := run.final_error(part)) is not None]
    if not errors:
        return None
    return {"mean": statistics.fmean(errors), "deviation": statistics.pstdev(errors), "seeds": len(errors)}


def _best(groups: Group, methods: Sequence[str], labels: int, part: str, remarks: list[str]) -> str | None:
    """The method with the lowest mean error, if it differs from the next by more than chance would."""
    means = sorted(
        (cell["mean"], method)
        for method in methods
        if (cell := _cell(groups.get((method, labels), []), part)) is not None
    )
    if len(means) < 2:
        return None
    first, second = means[0][1], means[1][1]
    differences = _differences(groups[first, labels], groups[second, labels], part)
    test = paired_test(differences) if differences else None
    if test is not None and test.is_significant and test.mean < 0:
        return first
    if test is not None and test.size > 1 and test.p is None:
        remarks.append(f"With {labels:,} labels, {first} and {second} differ by the same in every seed.")
    elif test is None or test.p is None:
        remarks.append(
            f"With {labels:,} labels, {first} and {second} share too few seeds and splits for a test."
        )
    else:
        remarks.append(
            f"With {labels:,} labels, {first} is not significantly below {second} "
            f"(p = {test.p:.2g}, not under {SIGNIFICANT:g})."
        )
    return None


def _differences(ours: Sequence[RunFacts], theirs: Sequence[RunFacts], part: str) -> list[float]:
    """Of errors of runs that share seed and split."""
    by_split = {(run.seed, run.split_digest): run for run in theirs}
    found = []
    for run in ours:
        other = by_split.get((run.seed, run.split_digest))
        mine, its = run.final_error(part), None if other is None else other.final_error(part)
        if mine is not None and its is not None:
            found.append(mine.error - its.error)
    return found


def _by_labels(table: dict[str, Any], colours: dict[str, str], *, several: bool) -> list[dict[str, Any]]:
    lines = []
    for row in table["rows"]:
        cells = [(labels, cell) for labels, cell in zip(table["labels"], row["cells"], strict=True) if cell]
        lines.append(
            {
                "name": f"{row['method']}, {table['dataset']}" if several else row["method"],
                "x": [labels for labels, _ in cells],
                "y": [cell["mean"] for _, cell in cells],
                "spread": [cell["deviation"] for _, cell in cells],
                "colour": colours[row["method"]],
            }
        )
    return lines


def _overlaid(
    runs: Sequence[RunFacts], titles: dict[int, str], colours: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    errors, loss = [], []
    for run in runs:
        curves, look = curves_of(run), {"colour": colours[titles[id(run)]], "opacity": 0.75}
        on_the_way = next((line for line in curves["errors"].values() if len(line["steps"]) > 1), None)
        if on_the_way is not None:
            errors.append({"name": run.name, "x": on_the_way["steps"], "y": on_the_way["values"], **look})
        if curves["steps"]:
            loss.append({"name": run.name, "x": curves["steps"], "y": curves["loss"], **look})
    return {"errors": errors, "loss": loss}
