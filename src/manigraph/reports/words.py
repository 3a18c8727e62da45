"""Names that people gave, made fit to be drawn: of any length, in any script, with anything in them."""

import unicodedata
from functools import cache
from pathlib import Path

MISSING = "□"
"""In the place of a character that the font does not have."""


def font_path(*, bold: bool = False) -> Path:
    """DejaVu Sans, which comes with matplotlib."""
    from matplotlib import get_data_path

    return Path(get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{'-Bold' if bold else ''}.ttf"


@cache
def _characters() -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(font_path())).get_charmap())


def shown(text: str, length: int) -> str:
    """On one line, at most so long, with no character that cannot be drawn.

    What is cut lies in the middle: names that belong together differ at one of their ends.
    """
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    plain = "".join(c if ord(c) in _characters() and c.isprintable() else MISSING for c in plain)
    if len(plain) <= length:
        return plain
    tail = (length - 1) // 3
    return plain[: length - 1 - tail] + "…" + plain[len(plain) - tail :]


def percent(share: float) -> str:
    """In whole per cent, but never 0 for what is more, nor 100 for what is less."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"
