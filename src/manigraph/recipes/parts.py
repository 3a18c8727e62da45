"""What several recipes use, and what is known of a recipe besides its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from manigraph.catalogue import ALGORITHMS
from manigraph.config import Config
from manigraph.training.schedule import SuperConvergence

Recipe = Callable[[str], Config[Any]]


def method_config(algorithm: str, **settings: Any) -> Any:
    """The method's configuration with those of the settings that it has."""
    return with_settings(ALGORITHMS.get(algorithm).Config(), **settings)


def with_settings(method: Any, **settings: Any) -> Any:
    """A method's configuration, changed in those of the settings that it has."""
    known = {field.name for field in fields(method)}
    return replace(method, **{name: value for name, value in settings.items() if name in known})


def average_for(algorithm: str, decay: float) -> float:
    """Decay of the average of weights; 0, none, for a method that keeps one of its own."""
    method = ALGORITHMS.get(algorithm)
    return 0.0 if method.keeps_average(method.Config()) else decay


def averaged(config: Config[Any]) -> Config[Any]:
    """The configuration with the rates and the average of fast-SWA, if its method is such an average.

    As the authors have it, in shares of a run of 480 epochs: weights enter every 3 epochs, from where the
    rates of the cycles begin.
    """
    if not ALGORITHMS.get(config.algorithm).needs_weight_average:
        return config
    return replace(
        config,
        schedule=SuperConvergence(
            max_learning_rate=0.1, shape="cosine_cycles", max_momentum=0.9, min_momentum=0.9
        ),
        training=replace(config.training, ema_decay=0.0, swa_fraction=330 / 480, swa_every=3 / 480),
    )


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
