"""The picture of why a run takes an image for what it does, from what `manigraph explain` found out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manigraph.reports.drawing import STYLE, save
from manigraph.reports.words import percent, shown

Picture = npt.NDArray[np.uint8]

CLASSES = 5
"""So many are drawn, those with the largest probabilities and shares of attention."""

WIDTH, MARGIN = 8.2, 0.25
TOP = 1.75
"""Height of the image itself and of the bars beside it."""
STRIP = 0.55
"""Height of the attention over all prototypes."""
THUMBNAIL, CAPTION, GAP = 0.56, 0.14, 0.06
HEADER = 1.55
"""Width of what stands before a row of training images."""
BETWEEN = 0.22

INK, GREY, PALE = "#222222", "#767676", "#d9d9d9"
BLUE, RED = "#2f6fae", "#bd1f01"
LIGHT = {BLUE: "#9fb8d0", GREY: "#bdbdbd"}
"""For what does not stand for itself."""


def write_explanation(
    facts: Mapping[str, Any], picture: Picture | None, pictures: Mapping[int, Picture], path: Path
) -> None:
    """Draw a PNG."""
    save(explanation_figure(facts, picture, pictures), path)


class _Page:
    """A figure in inches from the upper left corner, filled downwards."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure
        self.width, self.height = figure.get_size_inches()

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        bottom = self.height - top - height
        axes = self.figure.add_axes(
            (left / self.width, bottom / self.height, width / self.width, height / self.height)
        )
        axes.tick_params(length=0, labelsize=7, labelcolor=GREY)
        return axes

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        style = {"va": "top", "color": INK, "fontsize": 8} | style
        # Names of classes and files are no formulas.
        self.figure.text(left / self.width, 1 - top / self.height, text, parse_math=False, **style)


def explanation_figure(
    facts: Mapping[str, Any], picture: Picture | None, pictures: Mapping[int, Picture]
) -> Any:
    """The image, what the run says of it, whom it listens to, and the training images that are near."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = _rows(facts)
    neighbours = max((len(found) for _, near in rows for found in near.values()), default=0)
    width = max(WIDTH, 2 * MARGIN + HEADER + 2 * neighbours * (THUMBNAIL + GAP) + BETWEEN)
    row_height = THUMBNAIL + CAPTION + 0.1
    strip = 0.0 if facts["graph"] is None else STRIP + 0.62
    below = 0.42 + len(rows) * row_height if rows else 0.3
    height = MARGIN + 0.62 + TOP + 0.3 + strip + below + MARGIN
    with rc_context(STYLE):
        page = _Page(Figure(figsize=(width, height)))
        _heading(page, facts)
        top = MARGIN + 0.62
        _image(page, picture, top)
        _classes(page, facts, top)
        top += TOP + 0.3
        if facts["graph"] is not None:
            _strip(page, facts, top)
            top += strip
        if rows:
            _training_images(page, rows, facts["predicted"]["class"], pictures, top, neighbours)
        else:
            words = f"Without training images: {facts['without_training_images']}"
            page.text(MARGIN, top, shown(words, 150), color=GREY, fontsize=7)
        return page.figure


def _heading(page: _Page, facts: Mapping[str, Any]) -> None:
    predicted, before = facts["predicted"], facts["predicted_without_graph"]
    title = f"{shown(predicted['class'], 40)}, {percent(predicted['probability'])}"
    page.text(MARGIN, MARGIN, title, fontsize=13, weight="bold")
    said = [shown(facts["image"]["name"], 50)]
    if facts["image"]["class"] is not None:
        said.append(f"in truth {shown(facts['image']['class'], 25)}")
    if before is not None:
        without = f"{shown(before['class'], 25)}, {percent(before['probability'])}"
        said.append(f"without the graph: {without}")
    else:
        said.append(facts["without_graph"])
    page.text(MARGIN, MARGIN + 0.3, "  ·  ".join(said), color=GREY)


def _image(page: _Page, picture: Picture | None, top: float) -> None:
    axes = page.axes(MARGIN, top, TOP, TOP)
    if picture is None:
        _draw_nothing(axes, "a vector")
    else:
        _draw_picture(axes, picture)


def _classes(page: _Page, facts: Mapping[str, Any], top: float) -> None:
    """Bars for the classes that matter; names once, at the left of the first panel."""
    keys = [("probability", "probability", BLUE)]
    if facts["graph"] is not None:
        keys.append(("probability_without_graph", "without the graph", GREY))
        keys.append(("attention", f"attention to {facts['graph']['nodes']}", BLUE))
    classes = facts["classes"]
    by_key = {key: [entry[key] for entry in classes] for key, _, _ in keys}
    order = sorted(range(len(classes)), key=lambda c: -classes[c]["probability"])
    # The most probable ones, and whoever is first by anything that is drawn.
    first = {values.index(max(values)) for values in by_key.values()}
    kept = [*first, *(c for c in order if c not in first)][:CLASSES]
    listed = [c for c in order if c in kept]
    others = len(classes) - len(listed)
    names = [shown(classes[c]["class"], 17) for c in listed]
    if others:
        names.append("the other" if others == 1 else f"{others} others")
    left = MARGIN + TOP + 1.5
    width = (page.width - MARGIN - left - 0.25 * (len(keys) - 1)) / len(keys)
    if len(keys) == 1:
        width = min(width, 2.2)
    bar_top = top + 0.25
    height = min(TOP - 0.25, 0.27 * len(names))
    for number, (key, title, colour) in enumerate(keys):
        values = [classes[c][key] for c in listed]
        if others:
            values.append(max(0.0, sum(by_key[key]) - sum(values)))
        axes = page.axes(left + number * (width + 0.25), bar_top, width, height)
        _bars(axes, values, [colour] * len(listed) + [LIGHT[colour]] * (len(values) - len(listed)))
        page.text(left + number * (width + 0.25), top, title, fontsize=8)
    for row, name in enumerate(names):
        page.text(
            left - 0.08,
            bar_top + height * (row + 0.5) / len(names),
            name,
            ha="right",
            va="center",
            color=GREY if others and row == len(names) - 1 else INK,
        )


def _bars(axes: Any, values: Sequence[float], colours: Sequence[str]) -> None:
    rows = range(len(values))
    axes.barh(rows, np.ones(len(values)), height=0.62, color="#f2f2f2")
    axes.barh(rows, values, height=0.62, color=colours)
    for row, value in zip(rows, values, strict=True):
        inside = value > 0.75
        axes.text(
            value - 0.02 if inside else value + 0.02,
            row,
            percent(value),
            ha="right" if inside else "left",
            va="center",
            fontsize=7,
            color="white" if inside and colours[row] in LIGHT else INK,
        )
    axes.set(xlim=(0, 1), ylim=(len(values) - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _strip(page: _Page, facts: Mapping[str, Any], top: float) -> None:
    """The image's row of the graph: a bar for each prototype, class by class."""
    graph, weights = facts["graph"], np.array(facts["graph"]["attention"])
    P, K = len(weights), graph["per_class"]
    kind = graph["nodes"]
    page.text(MARGIN, top, f"Attention to each of {P:,} {kind}, class by class (dashed: if all were alike)")
    axes = page.axes(MARGIN, top + 0.32, page.width - 2 * MARGIN, STRIP)
    most = [prototype["number"] for prototype in facts["prototypes"]]
    colours = np.where(np.isin(np.arange(P), most), BLUE, LIGHT[BLUE])
    if P > 400:  # thinner than a pixel: an outline, and the ones that count on top of it
        axes.fill_between(np.arange(P), weights, step="mid", color=LIGHT[BLUE], linewidth=0)
        axes.vlines(most, 0, weights[most], color=BLUE, linewidth=1.2)
    else:
        axes.bar(np.arange(P), weights, width=0.85, color=list(colours))
    largest = float(weights.max())
    axes.set(xlim=(-0.6, P - 0.4), ylim=(0, 1.3 * largest), xticks=[], yticks=[])
    for rank, number in enumerate(most, start=1):
        axes.text(number, weights[number] + 0.04 * largest, rank, ha="center", va="bottom", fontsize=7)
    axes.axhline(1 / P, color=GREY, linewidth=0.5, linestyle=(0, (4, 4)))
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    if P // K <= 20:
        for end in range(K, P, K):
            axes.axvline(end - 0.5, color=PALE, linewidth=0.5, zorder=0)
        room = max(3, int((page.width - 2 * MARGIN) / (P // K) / 0.062))
        for number, entry in enumerate(facts["classes"]):
            axes.text(
                (number + 0.5) * K - 0.5,
                -0.08 * largest,
                shown(entry["class"], room),
                ha="center",
                va="top",
                fontsize=6.5,
                color=GREY,
                parse_math=False,
            )


def _rows(facts: Mapping[str, Any]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """What stands before each row of training images, and the images by part."""
    if facts["nearest"] is None:
        return []
    rows = [(["the image itself"], facts["nearest"])]
    kind = "prototype" if facts["graph"] and facts["graph"]["nodes"] == "prototypes" else "labelled image"
    for rank, prototype in enumerate(facts["prototypes"], start=1):
        words = [f"{kind} {prototype['number_in_class']} of {shown(prototype['class'], 20)}"]
        if len(words[0]) > 21:
            words = [f"{kind} {prototype['number_in_class']} of", shown(prototype["class"], 20)]
        words.append(f"{percent(prototype['attention'])} of the attention")
        rows.append(([f"{rank}  {words[0]}", *(f"    {line}" for line in words[1:])], prototype["nearest"]))
    return rows


def _training_images(
    page: _Page,
    rows: Sequence[tuple[list[str], Mapping[str, Any]]],
    predicted: str,
    pictures: Mapping[int, Picture],
    top: float,
    neighbours: int,
) -> None:
    page.text(MARGIN, top, "Nearest to …")
    left = MARGIN + HEADER
    per_part = neighbours * (THUMBNAIL + GAP)
    parts = {"labelled": "labelled images", "unlabelled": "unlabelled images, and what they are taken for"}
    for number, (part, title) in enumerate(parts.items()):
        if any(near[part] for _, near in rows):
            page.text(left + number * (per_part + BETWEEN), top, title)
    top += 0.3
    for words, near in rows:
        for line, text in enumerate(words):
            grey = line and line == len(words) - 1
            page.text(MARGIN, top + 0.05 + 0.15 * line, text, fontsize=7.5, color=GREY if grey else INK)
        for number, part in enumerate(parts):
            for column, image in enumerate(near[part]):
                at = left + number * (per_part + BETWEEN) + column * (THUMBNAIL + GAP)
                axes = page.axes(at, top, THUMBNAIL, THUMBNAIL)
                if image["index"] in pictures:
                    _draw_picture(axes, pictures[image["index"]])
                else:
                    _draw_nothing(axes, str(image["index"]))
                name = image["class"] or image["predicted"]
                page.text(
                    at + THUMBNAIL / 2,
                    top + THUMBNAIL + 0.02,
                    shown(name, 11),
                    ha="center",
                    fontsize=6,
                    color=INK if name == predicted else RED,
                )
        top += THUMBNAIL + CAPTION + 0.1


def _draw_picture(axes: Any, picture: Picture) -> None:
    small = max(picture.shape[:2]) < 100
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if small else "antialiased")
    _frame(axes)


def _draw_nothing(axes: Any, text: str) -> None:
    axes.set_facecolor("#f2f2f2")
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=6, color=GREY, transform=axes.transAxes)
    _frame(axes)


def _frame(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=PALE, linewidth=0.5)


def in_words(facts: Mapping[str, Any]) -> str:
    """Why this class, in a few sentences."""
    predicted, before = facts["predicted"], facts["predicted_without_graph"]
    name = predicted["class"]
    sentences = [f"{facts['image']['name']} is taken for {name} ({percent(predicted['probability'])})."]
    if facts["image"]["training_part"] is not None:
        sentences.append(f"It is one of the run's own {facts['image']['training_part']} images.")
    if before is None:
        sentences.append(f"There is no graph to look into: {facts['without_graph']}.")
    else:
        kind = facts["graph"]["nodes"]
        heard = sorted(facts["classes"], key=lambda entry: -entry["attention"])[:2]
        first, second = (
            f"{percent(entry['attention'])} goes to those of {entry['class']}" for entry in heard
        )
        sentences.append(f"Of its attention to all {kind}, {first} and {second.replace(' goes', '', 1)}.")
        if before["class"] == name:
            sentences.append(f"Without the graph it would be the same ({percent(before['probability'])}).")
        else:
            sentences.append(
                f"Without the graph it would be {before['class']} ({percent(before['probability'])})."
            )
    if facts["nearest"] is None:
        sentences.append(f"Training images are not shown: {facts['without_training_images']}.")
    else:
        sentences.append(_near_in_words(facts["nearest"], name))
    return " ".join(sentences)


def _near_in_words(near: Mapping[str, Any], name: str) -> str:
    counts = []
    for part, key, one, many in (
        ("labelled", "class", "has this class", "have this class"),
        ("unlabelled", "predicted", "is taken for it too", "are taken for it too"),
    ):
        if near[part]:
            alike = sum(image[key] == name for image in near[part])
            counts.append(f"{alike} of {len(near[part])} {part} ones {one if alike == 1 else many}")
    return f"Of the nearest training images, {' and '.join(counts)}."
