"""Names for methods, data sets, backbones and recipes; nothing is imported until it is asked for."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from manigraph.errors import UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One line of a registry."""

    location: str
    """`package.module:attribute`."""
    summary: str
    """One line for `manigraph list`."""


class Registry(Generic[T]):
    """A table from names to objects that live in modules of their own.

    Listing names must not import torch, so an entry is a location and a sentence; `get` imports.
    """

    def __init__(self, kind: str, entries: dict[str, Entry]) -> None:
        self.kind = kind
        self.entries = entries

    def get(self, name: str) -> T:
        """The object registered as `name`, or an error that suggests a near name."""
        entry = self.entries.get(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.entries)
        module, _, attribute = entry.location.partition(":")
        found: T = getattr(importlib.import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries
