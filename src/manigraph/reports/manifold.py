"""The paper's qualitative figures, drawn from what `manigraph figures` computed: the map and the edges."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manigraph.reports.drawing import STYLE, class_colours, save

NAMED_CLASSES = 20
"""With more classes, their names would cover the figures."""

Array = npt.NDArray[np.float64]


def write_figures(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw `manifold` and, if there is a graph, `connectivity`, each as PNG and SVG."""
    figures = {"manifold": manifold_figure(data)}
    if data["adjacency"] is not None:
        figures["connectivity"] = connectivity_figure(data)
    written = []
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            save(figure, path)
            written.append(path)
    return written


def as_text(data: Mapping[str, Any]) -> str:
    """JSON with a line for each part."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in data.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def in_words(data: Mapping[str, Any]) -> str:
    """What the figures are of, and what they show in numbers."""
    summary = data["summary"]
    labels = "all" if data["labels"] is None else f"{data['labels']:,}"
    sentence = (
        f"{data['algorithm']} on {data['data']} with {labels} labels, seed {data['seed']}: error "
        f"{summary['error']:.2f} % of {summary['images']} {data['part']} images"
    )
    if data["nodes"] is None:
        return f"{sentence}. There is only the map: {data['without_graph']}."
    kind = data["nodes"]["kind"]
    sentence += (
        f", {summary['error_before']:.2f} % if the graph is left out. Images give {_share(summary, 'image')}"
    )
    if summary["prototype_own_class"] is not None:
        sentence += f"; {kind} among themselves {_share(summary, 'prototype')}"
    return f"{sentence}."


# The map


def manifold_figure(data: Mapping[str, Any]) -> Any:
    """Images as circles and prototypes as stars, by t-SNE, one colour for each class."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    nodes, summary = data["nodes"], data["summary"]
    sides = [("before", f"Features: {summary['error']:.1f} % error", "predicted")]
    if nodes is not None:
        sides = [
            ("before", f"Before the graph: {summary['error_before']:.1f} % error", "predicted_before"),
            ("after", f"After the graph: {summary['error']:.1f} % error", "predicted"),
        ]
    with rc_context(STYLE):
        figure = Figure(figsize=(3.5 * len(sides), 3.9), layout="constrained")
        for axes, (side, title, predicted) in zip(
            figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True
        ):
            _draw_map(axes, data, side, predicted)
            axes.set_title(title, fontsize=9)
        figure.legend(handles=_legend(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def _draw_map(axes: Any, data: Mapping[str, Any], side: str, predicted: str) -> None:
    from matplotlib.patheffects import withStroke

    images, nodes, names = data["images"], data["nodes"], data["class_names"]
    colours = np.array([_rgb(colour) for colour in class_colours(len(names))])
    places, classes = np.array(images[side]), np.array(images["class"])
    wrong = np.array(images[predicted]) != classes
    # Fewer points are larger ones.
    size = float(np.clip(9000 / len(places), 5, 22))
    part = "test" if data["part"] == "test" else "validation"
    for chosen, edge, label in ((~wrong, "none", f"{part} image"), (wrong, "black", "wrongly classified")):
        axes.scatter(
            *places[chosen].T,
            s=size,
            c=colours[classes[chosen]],
            edgecolors=edge,
            linewidths=0.7,
            alpha=0.75 if edge == "none" else 1.0,
            label=label,
            zorder=2 if edge == "none" else 3,
        )
    if nodes is not None:
        star_size = float(np.clip(6000 / len(nodes["class"]), 10, 60))
        axes.scatter(
            *np.array(nodes[side]).T,
            s=star_size,
            c=colours[np.array(nodes["class"])],
            marker="*",
            edgecolors="black",
            linewidths=0.45 if star_size > 10 else 0.15,
            label="prototype" if nodes["kind"] == "prototypes" else "labelled image as node",
            zorder=4,
        )
    if len(names) <= NAMED_CLASSES:
        for number, name in enumerate(names):
            if (classes == number).any():
                axes.annotate(
                    _short(name),
                    _densest(places[classes == number]),
                    ha="center",
                    va="center",
                    fontsize=9 if max(map(len, names)) <= 2 else 7,
                    fontweight="bold",
                    zorder=6,
                    path_effects=[withStroke(linewidth=2.2, foreground="white")],
                )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[:].set_color("0.75")


def _legend(axes: Any) -> list[Any]:
    """The kinds of marks, in no class's colour."""
    from copy import copy

    handles = [copy(handle) for handle in axes.get_legend_handles_labels()[0]]
    for handle in handles:
        handle.set_facecolor("0.65")
    return handles


def _rgb(colour: Any) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return red, green, blue


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"


def _densest(places: Array) -> tuple[float, float]:
    """The point of a class with the least total distance to the others: a mean could lie between clusters."""
    distances = np.linalg.norm(places[:, None] - places, axis=2).sum(axis=1)
    x, y = places[distances.argmin()]
    return float(x), float(y)


# The edges


def connectivity_figure(data: Mapping[str, Any]) -> Any:
    """Rows of the adjacency matrix, nodes sorted by class; the deeper, the stronger."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    adjacency, summary, nodes = data["adjacency"], data["summary"], data["nodes"]
    panels = []
    if adjacency["prototypes"] is not None:
        title = f"Among {nodes['kind']}\n{_share(summary, 'prototype')}"
        panels.append((np.array(adjacency["prototypes"]), nodes["class"], nodes["kind"], title))
    part = "test" if data["part"] == "test" else "validation"
    title = f"{part.capitalize()} images to {nodes['kind']}\n{_share(summary, 'image')}"
    rows = adjacency.get("image_class", data["images"]["class"])
    panels.append((np.array(adjacency["images"]), rows, f"{part} images", title))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels), 3.9), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (weights, row_classes, rows, title) in zip(all_axes, panels, strict=True):
            _draw_edges(axes, weights, row_classes, nodes["class"], data["class_names"])
            axes.set_title(title, fontsize=8)
            axes.set_ylabel(f"{rows}, by class")
            axes.set_xlabel(f"{nodes['kind']}, by class")
    return figure


def _share(summary: Mapping[str, Any], node: str) -> str:
    own, chance = summary[f"{node}_own_class"], summary[f"{node}_own_class_by_chance"]
    return f"{100 * own:.0f} % of their weight to their own class (by chance {100 * chance:.0f} %)"


def _draw_edges(
    axes: Any, weights: Array, row_classes: Sequence[int], column_classes: Sequence[int], names: Sequence[str]
) -> None:
    from matplotlib.colors import PowerNorm

    # By how many times an edge is stronger than if all were alike. If the strongest edges are those within
    # classes, the strongest tenth of them is equally deep.
    relative = weights * weights.shape[1]
    deepest = max(1.0, float(np.percentile(relative, 100 - 10 / len(names))))
    shown = axes.imshow(
        relative,
        cmap="Blues",
        norm=PowerNorm(0.5, 0, deepest),
        aspect="auto",
        extent=(0, weights.shape[1], weights.shape[0], 0),
    )
    colourbar = axes.figure.colorbar(shown, ax=axes, shrink=0.6, pad=0.02, extend="max")
    colourbar.set_label("weight, by that of equal edges")
    colourbar.outline.set_linewidth(0.5)
    for classes, axis, line in (
        (row_classes, axes.yaxis, axes.axhline),
        (column_classes, axes.xaxis, axes.axvline),
    ):
        ends = np.searchsorted(np.array(classes), np.arange(len(names) + 1))
        if len(names) <= NAMED_CLASSES:
            for end in ends[1:-1]:
                line(end, color="0.6", linewidth=0.35)
            axis.set_ticks((ends[:-1] + ends[1:]) / 2, [_short(name) for name in names])
        else:
            every = range(0, len(names), max(1, len(names) // 10))
            axis.set_ticks([ends[number] for number in every], [str(number) for number in every])
    axes.tick_params(length=0, labelsize=7)
    if max(map(len, names)) > 2 and len(names) <= NAMED_CLASSES:
        axes.tick_params(axis="x", labelrotation=90)
