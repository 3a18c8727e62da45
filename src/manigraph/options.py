"""Command-line options from dataclasses, by tyro, with errors of one line."""

import contextlib
import dataclasses
import io
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from manigraph.errors import UnknownNameError, UserError

T = TypeVar("T")


def parse(kind: Any, arguments: Sequence[str], *, program: str, default: Any = None) -> Any:
    """An instance of the dataclass `kind` from `arguments`.

    Options are the fields' names, nested ones with dots; each field's docstring is its help.
    `--help` prints and exits; anything wrong raises `UserError`.
    """
    import tyro  # takes as long as a fifth of torch, and whoever trains from Python needs no options

    extra = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=_with_flags_spelled_out(_with_hyphens_undone(arguments), kind),
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

    def normal(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return "--" + name.removeprefix("--").replace("-", "_") + equals + value

    return [normal(argument) if argument.startswith("--") else argument for argument in arguments]


def _with_flags_spelled_out(arguments: Sequence[str], kind: Any) -> list[str]:
    """A yes-or-no option without a value means yes: `--json` is `--json True`."""
    flags = {name for name, hint in _options(kind) if hint is bool}
    spelled: list[str] = []
    for argument, following in itertools.pairwise([*arguments, "--"]):
        spelled.append(argument)
        if argument in flags and following.startswith("--"):
            spelled.append("True")
    return spelled


def _in_one_line(complaint: str, kind: Any, arguments: Sequence[str], program: str) -> UserError:
    legal = {name for name, _ in _options(kind)}
    for argument in _with_hyphens_undone(arguments):
        name = argument.partition("=")[0]
        if name.startswith("--") and name != "--help" and name not in legal:
            return UnknownNameError("option", name, legal, hint=f"see `{program} --help`")
    message = _first_section(complaint) or "the options could not be understood"
    return UserError(f"{message.rstrip('.')} (see `{program} --help`)")


def _first_section(complaint: str) -> str:
    """What is wrong, out of the box that tyro draws: a title, then sections between rules.

    Without UTF-8 the box has no frame and the title is a section of its own.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint)
    sections = re.split(r"^[\s│]*[─-]{3,}[\s│]*$", plain, flags=re.MULTILINE)
    framed = plain.lstrip().startswith("╭")
    body = sections[0].partition("╮")[2] if framed else "".join(sections[1:2])
    return " ".join(body.replace("│", " ").partition("╰")[0].split())


def _options(kind: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Names and types of all options of a dataclass, following tyro's rules."""
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
            yield from _options(inner, prefix + name)
        else:
            yield f"{prefix}{field.name}", hint
