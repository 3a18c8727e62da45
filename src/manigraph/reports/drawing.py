"""Figures of matplotlib that look alike and are the same file whenever they are drawn again."""

from pathlib import Path
from typing import Any

from manigraph.runs import write_atomically

TEN_COLOURS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
"""Petroff 2021: ten colours that people with any kind of colour vision can tell apart."""

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.0,
    "text.parse_math": False,  # a class may be called $x$
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.hashsalt": "manigraph",
    "svg.fonttype": "path",
}


def save(figure: Any, path: Path) -> None:
    """Write as the suffix says, PNG or SVG, atomically; nothing in it says when."""
    from matplotlib import rc_context

    kind = path.suffix.removeprefix(".")
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with rc_context(STYLE):
        write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=220, metadata=metadata))


def class_colours(num_classes: int) -> list[Any]:
    """Ten that are easy to tell apart; beyond ten, as many as there are classes along a rainbow."""
    if num_classes <= len(TEN_COLOURS):
        return list(TEN_COLOURS[:num_classes])
    from matplotlib import colormaps

    rainbow = colormaps["turbo"]
    return [rainbow((number + 0.5) / num_classes) for number in range(num_classes)]


def hex_colour(colour: Any) -> str:
    """A colour as pages write it."""
    from matplotlib.colors import to_hex

    return str(to_hex(colour))
