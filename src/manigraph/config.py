"""The whole configuration of a run, typed and frozen."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from manigraph.catalogue import ALGORITHMS
from manigraph.contract import NEUTRAL
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.data.split import Stratify
from manigraph.data.strong_augmentation import StrongAugmentationConfig
from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

MethodConfig = TypeVar("MethodConfig")


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split."""

    name: str = "digits"
    """Data set (see `manigraph list datasets`); `folder` means your own images at `path`."""
    path: str = ""
    """Own images: their folder, or a CSV file with path,label."""
    image_size: int | None = None
    """Side in pixels. Own images are resized and cropped to it; None keeps small ones as they are and makes
    others at most 64, or what the pretrained network of `features` looks at. Images of a benchmark can be
    reduced to a whole fraction of their size, such as 16; None keeps them."""
    features: str = field(default="", metadata=NEUTRAL)
    """Name of the pretrained network whose features are learned from instead of pixels (see `manigraph list
    encoders`); empty = train from the pixels."""
    labels: int | None = None
    """Labelled images in all, drawn class by class; None means every label there is."""
    stratify: Stratify = "proportional"
    """Share the labels among classes in proportion to their sizes, or equally."""
    validation: int | None = None
    """Images held out for validation; None means a fifth of those whose class is known, at most 1,000."""
    test: int | None = field(default=None, metadata=NEUTRAL)
    """Test images, drawn at random, that are used; None means all. Few are enough to see that a run works."""
    labelled_in_pool: bool = False
    """Also use the labelled images, without their labels, among the unlabelled ones."""
    split: str = ""
    """A run's split.json, to use the same split again; labels, stratify, validation and test are not read
    then."""

    @property
    def title(self) -> str:
        """What the data set is called in the names of runs."""
        if not self.path:
            return self.name
        name = Path(self.path).resolve().stem
        return "".join(c if c.isalnum() or c in "._-" else "_" for c in name) or "images"


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
    preprocessing: PreprocessingConfig = field(default_factory=PreprocessingConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    strong: StrongAugmentationConfig = field(default_factory=StrongAugmentationConfig, metadata=NEUTRAL)
    batch: BatchConfig = field(default_factory=BatchConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    schedule: SuperConvergence = field(default_factory=SuperConvergence)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be from 0 to {2**32 - 1}, got {self.seed}")

    @property
    def run_name(self) -> str:
        """Name of the run's folder."""
        labels = "split" if self.data.split else "all" if self.data.labels is None else self.data.labels
        return f"{self.data.title}-{labels}-{self.algorithm}-seed{self.seed}"


def as_dict(config: Config[Any]) -> dict[str, Any]:
    """The configuration as plain values, for `config.json`."""
    return dataclasses.asdict(config)


def deciding_settings(config: Any) -> dict[str, Any]:
    """The settings as plain values, without those that are marked neutral and at their default.

    A setting that came later and is off then leaves measured results as they are.
    """
    settings: dict[str, Any] = {}
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        made = field_.default_factory
        default = field_.default if made is dataclasses.MISSING else made()
        if field_.metadata.get("neutral") and value == default:
            continue
        settings[field_.name] = deciding_settings(value) if dataclasses.is_dataclass(value) else value
    return settings


def as_options(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested values as command-line options: {"data": {"labels": 50}} is `--data.labels 50`.

    A configuration file and the command line then go through one parser, with one set of checks.
    """
    options: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            options += as_options(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            options += [f"--{prefix}{key}", *map(str, value)]
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
