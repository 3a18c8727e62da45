"""What passes between the data, a method and the training loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.sharding import ALONE, Shard

ViewKind = Literal["plain", "weak", "strong"]
"""How a view is made: "plain" is the preprocessed image, "weak" is randomly augmented, "strong" is so changed
that only what matters stays."""

NEUTRAL = {"neutral": True}
"""Marks a setting that came after results had been measured and whose default changes none of them."""


class ImageTable(Protocol):
    """Gives images by their index in a data set.

    Random changes are made between `stored` and `prepare`: on bytes, if preprocessing treats every pixel
    alike, which takes a quarter of the memory traffic.
    """

    def stored(self, indices: Tensor) -> Tensor:
        """(B,) indices to (B, ...) images as they may be shifted, mirrored, turned."""
        ...

    def prepare(self, images: Tensor) -> Tensor:
        """What `stored` gave, perhaps changed, to float network input."""
        ...

    def original(self, indices: Tensor) -> Tensor:
        """(B,) indices to (B, ...) images from 0 (black) to `white`, whose colours may be changed."""
        ...

    def prepare_original(self, images: Tensor) -> Tensor:
        """What `original` gave, perhaps changed, to float network input."""
        ...

    @property
    def white(self) -> float:
        """The largest value of an original image."""
        ...


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
    positions: Tensor | None = None
    """(U,) place of each unlabelled image among all of them, from 0, for what is remembered of each image."""
    class_images: Tensor | None = None
    """(C · images_per_class, ...), class-major, if asked for."""

    @property
    def num_images(self) -> int:
        """Labelled and unlabelled images, however many views there are of them."""
        return len(self.labels) + len(next(iter(self.unlabelled.values()), ()))

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        batch = self.with_images(lambda images: images.to(device, non_blocking=True))
        return replace(
            batch,
            labels=self.labels.to(device, non_blocking=True),
            positions=None if self.positions is None else self.positions.to(device, non_blocking=True),
        )

    def half_size(self) -> "Batch":
        """The batch with images averaged down to half their sides."""
        return self.with_images(lambda images: F.avg_pool2d(images, 2))

    def with_images(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with all its images changed."""
        return replace(
            self,
            labelled={name: change(view) for name, view in self.labelled.items()},
            unlabelled={name: change(view) for name, view in self.unlabelled.items()},
            class_images=None if self.class_images is None else change(self.class_images),
        )


@dataclass(frozen=True)
class StepContext:
    """Where in the run a step is, and its source of random numbers."""

    step: int
    """From 0."""
    total_steps: int
    generator: torch.Generator
    """For noise and perturbations, on the device of the batch; it agrees in all processes."""
    shard: Shard = ALONE
    """Which part of the whole batch this process holds."""

    def normal_like(self, images: Tensor) -> Tensor:
        """Standard normal noise for each image, of which this process draws all and keeps its own."""
        shape = (len(images) * self.shard.size, *images.shape[1:])
        return self.shard.own(images.new_empty(shape).normal_(generator=self.generator))

    @property
    def progress(self) -> float:
        """Share of the run that lies behind this step, from 0 to below 1."""
        return self.step / self.total_steps


@dataclass(frozen=True)
class StepOutput:
    """A loss and what it is made of."""

    terms: Mapping[str, Tensor]
    """Weighted terms; the loss is their sum. The first is that of the labelled images."""
    health: Callable[[], Mapping[str, float]] = dict
    """Signs of whether the method works, by name; computed only when they are asked for, which must be before
    the weights change. `largest_class` is the share of predictions in the most frequent class."""

    @property
    def loss(self) -> Tensor:
        """The sum of the terms, in their order."""
        total, *others = self.terms.values()
        for term in others:
            total = total + term
        return total
