"""What several recipes use, and what is known of a recipe besides its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from manigraph.catalogue import ALGORITHMS
from manigraph.config import Config

Recipe = Callable[[str], Config[Any]]


def method_config(algorithm: str, **settings: Any) -> Any:
    """The method's configuration with those of the settings that it has."""
    kind: Any = ALGORITHMS.get(algorithm).Config
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})


@dataclass(frozen=True)
class Aim:
    """The place in the paper that a recipe reproduces."""

    place: str
    """Table and column."""
    errors: Mapping[str, tuple[float, float]]
    """Algorithm to the paper's test error in per cent: mean and standard deviation over 3 runs."""
    further: str = ""
    """What else of the paper it reproduces, with which options."""


_AIMS: dict[Recipe, Aim] = {}


def aims_at(place: str, *, further: str = "", **errors: tuple[float, float]) -> Callable[[Recipe], Recipe]:
    """Say beside a recipe which figures of the paper it aims at; a recipe without this aims at none."""

    def note(recipe: Recipe) -> Recipe:
        _AIMS[recipe] = Aim(place, errors, further)
        return recipe

    return note


def aim_of(recipe: Recipe) -> Aim | None:
    """What of the paper a recipe reproduces; None if the paper has nothing like it."""
    return _AIMS.get(recipe)
