"""Errors meant for people: one sentence that names the cause and the way out."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the person at the keyboard can put right; shown without a traceback."""


class UnknownNameError(UserError):
    """A name that is not in the list of legal ones, with the nearest legal one if there is any."""

    def __init__(self, kind: str, name: str, legal: Iterable[str], *, hint: str = "") -> None:
        names = sorted(legal)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
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
