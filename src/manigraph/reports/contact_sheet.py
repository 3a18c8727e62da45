"""A sheet of small pictures with a few words below each, for somebody to look through."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from manigraph.reports.words import font_path, shown
from manigraph.runs import write_atomically

if TYPE_CHECKING:
    from PIL import Image, ImageFont

Picture = npt.NDArray[np.uint8]

SIDE = 144
"""Pixels of a picture on the sheet, at its longer side."""
MARGIN, GAP = 24, 16
LINE, SIZE = 17, 13
BACKGROUND, FRAME, INK, GREY = "#ffffff", "#d9d9d9", "#222222", "#767676"


@dataclass(frozen=True, eq=False)
class Entry:
    """One picture and what is below it."""

    picture: Picture | None
    """(height, width) or (height, width, 3); None leaves the place empty."""
    title: str
    lines: tuple[str, ...]


def save_contact_sheet(entries: Sequence[Entry], path: Path, *, columns: int = 10) -> None:
    """Write a PNG, row by row in the order of the entries."""
    from PIL import Image, ImageDraw, ImageFont

    columns = max(1, min(columns, len(entries)))
    words = max(len(entry.lines) for entry in entries)
    width, height = SIDE + GAP, SIDE + 6 + (1 + words) * LINE + GAP
    rows = -(-len(entries) // columns)
    size = (2 * MARGIN + columns * width - GAP, 2 * MARGIN + rows * height - GAP)
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    plain, bold = (ImageFont.truetype(font_path(bold=bold), SIZE) for bold in (False, True))
    for number, entry in enumerate(entries):
        left = MARGIN + number % columns * width
        top = MARGIN + number // columns * height
        if entry.picture is None:
            draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), fill="#f2f2f2")
        else:
            picture = _enlarged(Image.fromarray(entry.picture).convert("RGB"))
            # In the middle of its place, on its lower edge.
            sheet.paste(picture, (left + (SIDE - picture.width) // 2, top + SIDE - picture.height))
        draw.rectangle((left - 1, top - 1, left + SIDE, top + SIDE), outline=FRAME)
        texts = [(entry.title, bold, INK), *((line, plain, GREY) for line in entry.lines)]
        for line, (text, font, colour) in enumerate(texts):
            place = (left, top + SIDE + 6 + line * LINE)
            draw.text(place, _fitting(text, font, SIDE), fill=colour, font=font)
    write_atomically(path, lambda file: sheet.save(file, "PNG"))


def _enlarged(picture: "Image.Image") -> "Image.Image":
    """As large as its place; small images by whole pixels, so that they stay what they are."""
    from PIL import Image

    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS)


def _fitting(text: str, font: "ImageFont.FreeTypeFont", width: int) -> str:
    """As much of the text as there is room for."""
    length = len(text)
    while length > 1 and font.getlength(shown(text, length)) > width:
        length -= 1
    return shown(text, length)
