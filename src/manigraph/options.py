"""Command-line options from dataclasses, by tyro, with errors of one line."""

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from manigraph.errors import UnknownNameError, UserError

T = TypeVar("T")


def parse(kind: Any, arguments: Sequence[str], *, program: str, default: Any = None) -> Any:
    """An instance of the dataclass `kind` from `arguments`.

    Options are the fields' names, nested ones with dots; each field's docstring is its help.
    `--help` prints and exits; anything wrong raises `UserError`.
    """
    extra = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=_with_hyphens_undone(arguments),
                prog=program,
                config=(tyro.conf.FlagConversionOff,),
                use_underscores=True,
                **extra,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise _in_one_line(complaint.getvalue(), kind, arguments, program) from None


def _with_hyphens_undone(arguments: Sequence[str]) -> list[str]:
    """`--data.num-labels` and `--data.num_labels` are the same option."""
    return [
        argument.replace("-", "_").replace("__", "--", 1) if argument.startswith("--") else argument
        for argument in arguments
    ]


def _in_one_line(complaint: str, kind: Any, arguments: Sequence[str], program: str) -> UserError:
    legal = set(_option_names(kind))
    for argument in _with_hyphens_undone(arguments):
        name = argument.partition("=")[0]
        if name.startswith("--") and name != "--help" and name not in legal:
            return UnknownNameError("option", name, legal, hint=f"see `{program} --help`")
    # tyro draws a box; its first section says what is wrong.
    lines = [line.strip("│ ").strip() for line in complaint.splitlines() if line.startswith("│")]
    first_section = " ".join(" ".join(lines).split("───")[0].split())
    message = re.sub(r"\s+", " ", first_section) or "the options could not be understood"
    return UserError(f"{message.rstrip('.')} (see `{program} --help`)")


def _option_names(kind: Any, prefix: str = "--") -> Iterator[str]:
    """The names of all options of a dataclass, following tyro's rules."""
    origin = typing.get_origin(kind) or kind
    known = dict(zip(getattr(origin, "__parameters__", ()), typing.get_args(kind), strict=False))
    hints = typing.get_type_hints(origin, include_extras=True)
    for field in dataclasses.fields(origin):
        hint = hints[field.name]
        name = f"{field.name}."
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            if any(getattr(extra, "name", None) == "" for extra in extras):
                name = ""
        hint = known.get(hint, hint)
        if dataclasses.is_dataclass(typing.get_origin(hint) or hint):
            arguments = typing.get_args(hint)
            resolved = tuple(known.get(argument, argument) for argument in arguments)
            inner = (typing.get_origin(hint) or hint)[resolved] if arguments else hint
            yield from _option_names(inner, prefix + name)
        else:
            yield f"{prefix}{field.name}"
