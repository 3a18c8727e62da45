"""Values that people give by name, checked against the types that are written beside the names."""

import numbers
import os
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from manigraph.errors import UnknownNameError, UserError

WORDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("True or False", (bool, np.bool_)),
    int: ("a whole number", (numbers.Integral,)),
    float: ("a number", (numbers.Real,)),
    str: ("text", (str,)),
    os.PathLike: ("a path", (os.PathLike,)),
    Mapping: ("a dict", (Mapping,)),
    types.NoneType: ("None", (types.NoneType,)),
}
"""Types that are checked: what they are called, and what may be given for them."""


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, of Python's own types where it was of NumPy's; refused if `hint` does not allow it.

    Types that are not among `WORDS` are not looked at.
    """
    if get_origin(hint) is Literal:
        legal = get_args(hint)
        if isinstance(value, str) and value not in legal:
            raise UnknownNameError(name, value, legal)
        if value not in legal:
            raise UserError(f"{name} must be one of {', '.join(map(repr, legal))}, got {value!r}")
        return str(value)
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    known = [WORDS.get(get_origin(kind) or kind) for kind in kinds]
    if any(word is None for word in known):
        return value
    words = [word for word in known if word is not None]
    if not any(_is_one(value, allowed) for _, allowed in words):
        raise UserError(f"{name} must be {' or '.join(text for text, _ in words)}, got {value!r}")
    return value.item() if isinstance(value, np.generic) else value


def _is_one(value: Any, allowed: tuple[type, ...]) -> bool:
    """Truth values are numbers only where they are asked for."""
    is_truth = isinstance(value, (bool, np.bool_))
    return isinstance(value, allowed) and (not is_truth or bool in allowed)
