"""The figures of a report for papers: PNG and SVG, drawn by matplotlib from the same numbers as the page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from manigraph.reports.drawing import STYLE, save
from manigraph.reports.facts import RunFacts
from manigraph.reports.manifold import connectivity_figure, manifold_figure
from manigraph.reports.run_report import curves_of

NAMED_CLASSES = 20
"""With more classes, their names would cover a figure."""

GALLERY_CLASSES = 20
"""A gallery for print shows so many classes at most, and of each the prototypes that are used most."""
GALLERY_COLUMNS = 20


def write_figures(facts: RunFacts, page: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what there is into `folder`, each figure as PNG and SVG; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in _drawings(facts, page).items():
        figure = draw()
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            save(figure, path)
            written.append(path)
    return written


def _drawings(facts: RunFacts, page: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    if page["has_map"]:
        data = _manifold_data(facts)
        found["manifold"] = lambda: manifold_figure(data)
        if data["adjacency"] is not None:
            found["connectivity"] = lambda: connectivity_figure(data)
    if page["gallery"] is not None and page["gallery"]["has_images"]:
        found["gallery"] = lambda: gallery_figure(facts, page["gallery"])
    if facts.metrics:
        found["curves"] = lambda: curves_figure(facts)
    if page["tables"] is not None:
        found["confusion"] = lambda: confusion_figure(page["tables"], facts.class_names)
        found["reliability"] = lambda: reliability_figure(page["tables"])
    return found


def _manifold_data(facts: RunFacts) -> dict[str, Any]:
    """What the figures of `manigraph figures` are drawn from, out of the run's analysis."""
    arrays, analysis = facts.arrays, facts.analysis
    images: dict[str, Any] = {
        "class": arrays["class"].tolist(),
        "predicted": arrays["logits"].argmax(axis=1).tolist(),
        "before": arrays["places_before"].tolist(),
    }
    data: dict[str, Any] = {
        "part": analysis["part"],
        "class_names": list(facts.class_names),
        "images": images,
        "nodes": None,
        "adjacency": None,
        "summary": analysis["summary"],
    }
    if "places_after" in arrays:
        images |= {
            "predicted_before": arrays["logits_before"].argmax(axis=1).tolist(),
            "after": arrays["places_after"].tolist(),
        }
        data["nodes"] = {
            "kind": analysis["nodes"],
            "class": arrays["node_class"].tolist(),
            "before": arrays["node_places_before"].tolist(),
            "after": arrays["node_places_after"].tolist(),
        }
        among = arrays.get("attention_among")
        data["adjacency"] = {
            "images": arrays["attention"].tolist(),
            "image_class": arrays["class"][arrays["attention_rows"]].tolist(),
            "prototypes": None if among is None else among.tolist(),
        }
    return data


def gallery_figure(facts: RunFacts, gallery: Mapping[str, Any]) -> Any:
    """A row for each class: its prototypes as the nearest image, the most used first."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    pictures = facts.arrays["gallery_thumbnails"]
    rows = gallery["classes"][:GALLERY_CLASSES]
    columns = min(GALLERY_COLUMNS, max(len(row["prototypes"]) for row in rows))
    with rc_context(STYLE):
        figure = Figure(figsize=(0.42 * columns + 1.1, 0.52 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), columns, squeeze=False)
        for row, line in zip(rows, axes, strict=True):
            by_use = sorted(row["prototypes"], key=lambda prototype: -prototype["usage"])
            for axis in line:
                axis.axis("off")
            for prototype, axis in zip(by_use, line, strict=False):
                node = row["number"] * len(row["prototypes"]) + prototype["number"] - 1
                picture = pictures[node, 0]
                shown = picture.transpose(1, 2, 0) if picture.shape[0] == 3 else picture[0]
                axis.imshow(shown, cmap=None if picture.shape[0] == 3 else "gray", vmin=0, vmax=255)
                axis.set_title(f"{prototype['usage']:.2g}", fontsize=5.5, pad=1)
            line[0].text(
                -0.25,
                0.5,
                _short(row["name"]),
                transform=line[0].transAxes,
                ha="right",
                va="center",
                fontsize=7.5,
            )
    return figure


def curves_figure(facts: RunFacts) -> Any:
    """Terms of the loss, error, rates and health, by step."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    curves = curves_of(facts)
    steps = curves["steps"]
    panels: list[tuple[str, dict[str, tuple[list[Any], list[Any]]]]] = [
        ("Loss and its terms", {"loss": (steps, curves["loss"])} | _lines(curves["terms"], steps)),
        ("Learning rate", _lines(curves["rate"], steps)),
        ("Momentum", _lines(curves["momentum"], steps)),
    ]
    if curves["errors"]:
        errors = {name: (line["steps"], line["values"]) for name, line in curves["errors"].items()}
        panels.insert(0, ("Error in per cent", errors))
    if curves["health"]:
        panels.append(("Signs of health", _lines(curves["health"], steps)))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.5 * min(2, len(panels)), 2.5 * -(-len(panels) // 2)), layout="constrained")
        axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).flat
        for axis, (title, lines) in zip(axes, panels, strict=False):
            for name, (x, y) in lines.items():
                values = np.array([np.nan if value is None else value for value in y], dtype=float)
                axis.plot(
                    x, values, label=name, linewidth=1.1, marker="o" if len(x) < 3 else None, markersize=3
                )
            axis.set_title(title, fontsize=8.5)
            axis.set_xlabel("step")
            if title.startswith("Loss"):
                axis.set_yscale("log")
            axis.legend(fontsize=6, frameon=False)
            axis.spines[["top", "right"]].set_visible(False)
        for axis in list(axes):
            axis.axis("off")
    return figure


def _lines(columns: Mapping[str, list[Any]], steps: list[Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    return {name: (steps, values) for name, values in columns.items()}


def confusion_figure(tables: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Shares of the images of a class (row) that are taken for which (column)."""
    from matplotlib import rc_context
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    counts = np.array(tables["counts"], dtype=float)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.8, 3.5), layout="constrained")
        axes = figure.subplots()
        shown = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
        if len(names) <= 12:
            for row, column in np.ndindex(*shares.shape):
                if counts[row, column]:
                    ink = "white" if shares[row, column] > 0.4 else "black"
                    text = f"{100 * shares[row, column]:.0f}"
                    axes.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
        if len(names) <= NAMED_CLASSES:
            ticks = [_short(name) for name in names]
            axes.set_xticks(range(len(names)), ticks, rotation=90 if max(map(len, names)) > 2 else 0)
            axes.set_yticks(range(len(names)), ticks)
        axes.tick_params(length=0, labelsize=7)
        axes.set_xlabel(f"taken for ({tables['part']} images, per cent of a class)")
        axes.set_ylabel("class")
        figure.colorbar(shown, ax=axes, shrink=0.7).outline.set_linewidth(0.5)
    return figure


def reliability_figure(tables: Mapping[str, Any]) -> Any:
    """Share of right answers by confidence; the diagonal is what it claims."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    bins = tables["reliability"]
    with rc_context(STYLE):
        figure = Figure(figsize=(3.2, 3.2), layout="constrained")
        axes = figure.subplots()
        for row in bins:
            axes.bar(
                row["low"],
                row["accuracy"],
                width=row["high"] - row["low"],
                align="edge",
                color="#3f90da",
                alpha=0.25 + 0.75 * (row["images"] / max(found["images"] for found in bins)) ** 0.5,
                edgecolor="white",
                linewidth=0.5,
            )
        axes.plot([0, 1], [0, 1], color="0.4", linewidth=0.8, linestyle="--")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_aspect("equal")
        axes.set_xlabel("confidence")
        axes.set_ylabel("share of right answers")
        axes.set_title(f"calibration error {tables['calibration_error']:.1f} %", fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
