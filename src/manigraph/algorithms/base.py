"""The contract between a method and the training loop.

A method says which views of the data it wants, turns a batch into a loss made of named terms, and
names the weights to evaluate. It touches no optimiser, device, logger or file, so any loop can drive
it and the loop needs to know no method.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from manigraph.nn import Classifier
from manigraph.nn.backbones.base import Backbone

ViewKind = Literal["plain", "weak"]
"""How a view is made: "plain" is the preprocessed image, "weak" is randomly augmented."""


@dataclass(frozen=True)
class DataRequest:
    """Which views of which images a method wants in each batch."""

    labelled: Mapping[str, ViewKind] = field(default_factory=lambda: {"image": "weak"})
    """View name to kind, for labelled images."""
    unlabelled: Mapping[str, ViewKind] = field(default_factory=dict)
    """View name to kind, for unlabelled images; views of one kind are drawn independently."""
    images_per_class: int = 0
    """Labelled images of every class to draw besides, for methods that use them as graph nodes."""


@dataclass(frozen=True)
class Batch:
    """What a method sees of the data in one step. Labels of unlabelled images are not in it."""

    labelled: Mapping[str, Tensor]
    """View name to images (L, ...)."""
    labels: Tensor
    """Classes of the labelled images, (L,)."""
    unlabelled: Mapping[str, Tensor]
    """View name to images (U, ...)."""
    class_images: Tensor | None = None
    """(C · images_per_class, ...), class-major, if asked for."""


@dataclass(frozen=True)
class StepContext:
    """Where in the run a step is, and its source of random numbers."""

    step: int
    """From 0."""
    total_steps: int
    generator: torch.Generator
    """For noise and perturbations, on the device of the batch."""

    @property
    def progress(self) -> float:
        """Share of the run that lies behind this step, from 0 to below 1."""
        return self.step / self.total_steps


@dataclass(frozen=True)
class StepOutput:
    """A loss and what it is made of."""

    terms: Mapping[str, Tensor]
    """Weighted terms; the loss is their sum."""
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached numbers worth watching that are not part of the loss."""

    @property
    def loss(self) -> Tensor:
        """The sum of the terms, in their order."""
        total, *others = self.terms.values()
        for term in others:
            total = total + term
        return total


ConfigT = TypeVar("ConfigT")


class Algorithm(nn.Module, Generic[ConfigT]):
    """A semi-supervised method: its model, and how a batch becomes a loss.

    A module, so that teachers, memories and averages a method keeps are saved with the model.
    """

    Config: ClassVar[type]
    """Frozen dataclass of the method's own settings, with the paper's defaults."""
    model: Classifier

    def __init__(self, config: ConfigT, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.model = self.build_model(backbone, num_classes)

    def build_model(self, backbone: Backbone, num_classes: int) -> Classifier:
        """Backbone and linear layer, for methods without a head of their own."""
        return Classifier(backbone, nn.Linear(backbone.feature_size, num_classes))

    def data_request(self) -> DataRequest:
        """The views this method wants."""
        raise NotImplementedError

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        """The loss of one batch, as named terms."""
        raise NotImplementedError

    def after_step(self, context: StepContext) -> None:
        """Called after each update; for teachers and averages."""

    def inference_model(self) -> nn.Module:
        """The module, images to logits, whose predictions count."""
        return self.model
