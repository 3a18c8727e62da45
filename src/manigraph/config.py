"""The whole configuration of a run, typed and frozen."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from manigraph.catalogue import ALGORITHMS
from manigraph.data.batches import AugmentationConfig, BatchConfig
from manigraph.options import parse
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

MethodConfig = TypeVar("MethodConfig")


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split."""

    name: str = "digits"
    """Data set (see `manigraph list datasets`)."""
    labels: int = 20
    """Labelled images in all, the same number of each class."""
    validation: int = 0
    """Images held out of the unlabelled ones for validation."""


@dataclass(frozen=True)
class BackboneConfig:
    """The network that turns images into features."""

    name: str = "cnn13"
    """Architecture (see `manigraph list backbones`)."""
    width: float = 1.0
    """Multiplier on the number of channels."""
    dropout: float | None = None
    """Dropout rate; None means the architecture's own."""


@dataclass(frozen=True)
class Config(Generic[MethodConfig]):
    """Everything that decides what a run computes."""

    algorithm: str
    """Method (see `manigraph list algorithms`)."""
    method: MethodConfig
    """The method's own settings."""
    seed: int = 0
    """Seed of the split, the weights, the batches and all noise."""
    data: DataConfig = field(default_factory=DataConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    schedule: SuperConvergence = field(default_factory=SuperConvergence)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def run_name(self) -> str:
        """Name of the run's folder."""
        return f"{self.data.name}-{self.data.labels}-{self.algorithm}-seed{self.seed}"


def as_dict(config: Config[Any]) -> dict[str, Any]:
    """The configuration as plain values, for `config.json`."""
    return dataclasses.asdict(config)


def as_options(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested values as command-line options: {"data": {"labels": 50}} is `--data.labels 50`.

    A configuration file and the command line then go through one parser, with one set of checks.
    """
    options: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            options += as_options(value, f"{prefix}{key}.")
        else:
            options += [f"--{prefix}{key}", str(value)]
    return options


def with_options(config: Config[Any], options: Sequence[str], *, program: str) -> Config[Any]:
    """The configuration with some settings changed by command-line options."""
    if not options:
        return config
    kind: Any = Config[type(config.method)]  # type: ignore[misc]
    changed: Config[Any] = parse(kind, options, program=program, default=config)
    return changed


def from_dict(values: Mapping[str, Any], *, source: str) -> Config[Any]:
    """The configuration that `as_dict` turned into plain values; `source` is named in errors."""
    method = ALGORITHMS.get(str(values.get("algorithm")))
    kind: Any = Config[method.Config]  # type: ignore[name-defined]
    config: Config[Any] = parse(kind, as_options(values), program=source)
    return config
