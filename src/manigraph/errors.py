"""Errors meant for people: one sentence that names the cause and the way out."""

import difflib
import unicodedata
from collections.abc import Iterable

DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Signs that show what follows in another order."""


def shown(text: str) -> str:
    r"""Text that a terminal shows and does not obey, whatever it holds: the rest is written as \x1b."""
    return "".join(_shown(sign) if not sign.isascii() or not sign.isprintable() else sign for sign in text)


def _shown(sign: str) -> str:
    if unicodedata.category(sign) not in ("Cc", "Cs", "Zl", "Zp") and sign not in DIRECTIONS:
        return sign
    code = ord(sign)
    # A byte of a file name that is no UTF-8 has this place in Python's text.
    byte = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return f"\\x{byte:02x}" if byte < 256 else f"\\u{byte:04x}"


class UserError(ValueError):
    """Something the person at the keyboard can put right; shown without a traceback."""


class UnknownNameError(UserError):
    """A name that is not in the list of legal ones, with the nearest legal one if there is any."""

    def __init__(self, kind: str, name: str, legal: Iterable[str], *, hint: str = "") -> None:
        names = sorted(legal)
        close = [legal_name for legal_name in names if legal_name.casefold() == name.casefold()]
        close += difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        if close:
            way_out = f"did you mean '{close[0]}'?"
        else:
            way_out = hint or f"choose one of: {', '.join(names)}"
        super().__init__(f"unknown {kind} '{name}': {way_out}")


class NonFiniteLossError(RuntimeError):
    """The loss or a gradient is not a number any more; raised before the update is made."""


class DiskFullError(RuntimeError):
    """There is no room for what training must write."""


class ProcessLostError(RuntimeError):
    """Another process of the same training ended, so this one cannot go on."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, wrote a checkpoint and stopped; the message says how to go on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
