"""Endless batches of augmented images, whose place in the stream can be kept and taken up again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from manigraph.contract import NEUTRAL, Batch, DataRequest, ImageTable, ViewKind
from manigraph.data.augmentation import AugmentationConfig, augment
from manigraph.data.neighbours import Neighbours
from manigraph.data.strong_augmentation import StrongAugmentationConfig, strongly_augment
from manigraph.sharding import ALONE, Shard


class IndexStream:
    """Indices in random order without end: every index once before any comes again.

    A batch may run over the end of one permutation into the next, so a batch can be larger than
    the set it draws from.
    """

    def __init__(self, indices: Tensor, generator: torch.Generator) -> None:
        if len(indices) == 0:
            raise ValueError("there are no images to draw from")
        self.indices = indices
        self.generator = generator
        self.waiting = indices[:0]

    def take(self, count: int) -> Tensor:
        """The next `count` indices."""
        while len(self.waiting) < count:
            order = torch.randperm(len(self.indices), generator=self.generator)
            self.waiting = torch.cat([self.waiting, self.indices[order.to(self.indices.device)]])
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


@dataclass(frozen=True)
class BatchConfig:
    """What a batch is made of."""

    labelled: int = 32
    """Labelled images in a batch."""
    unlabelled: int = 128
    """Unlabelled images in a batch, drawn independently of the labelled ones."""
    labelled_view: Literal["weak", "strong"] = field(default="weak", metadata=NEUTRAL)
    """How labelled images are augmented; few of them are not so soon known by heart in strong views."""

    def __post_init__(self) -> None:
        if min(self.labelled, self.unlabelled) < 2:
            raise ValueError(
                f"a batch needs at least 2 labelled and 2 unlabelled images (batch norm), got "
                f"{self.labelled} and {self.unlabelled}"
            )


class BatchStream(Iterator[Batch]):
    """Batches without end, with the views a method asked for.

    Args:
        images: Gives images by index, and prepares views of them for the network.
        classes: Classes of all images; only those of labelled images are read.
        labelled: Indices of labelled images.
        unlabelled: Indices of unlabelled images.
        num_classes: C.
        request: The views a method wants.
        batch: How many images of each kind.
        augmentation: How weak views are made.
        strong: What is done to weak views to make strong ones.
        generator: Source of all randomness here; it agrees in all processes.
        shard: Which part of every batch to give out.
        device: Where the batches are needed.
    """

    def __init__(
        self,
        images: ImageTable,
        classes: Tensor,
        *,
        labelled: Tensor,
        unlabelled: Tensor,
        num_classes: int,
        request: DataRequest,
        batch: BatchConfig,
        augmentation: AugmentationConfig,
        strong: StrongAugmentationConfig | None = None,
        generator: torch.Generator,
        shard: Shard = ALONE,
        device: torch.device | None = None,
    ) -> None:
        self._shard = shard
        self._device = device
        self._images = images
        self._classes = classes
        self._request = request
        self._batch = batch
        self._augmentation = augmentation
        self._strong = StrongAugmentationConfig() if strong is None else strong
        self._generator = generator
        self._sorted_pool = unlabelled.sort().values
        self._neighbours: Neighbours | None = None
        if augmentation.neighbours and images.stored(labelled[:1]).ndim == 2:
            self._neighbours = Neighbours(images, torch.cat([labelled, unlabelled]), augmentation.neighbours)
        self._streams = {"labelled": IndexStream(labelled, generator)}
        if request.unlabelled:
            self._streams["unlabelled"] = IndexStream(unlabelled, generator)
        self._class_streams = {
            f"class {c}": IndexStream(labelled[classes[labelled] == c], generator)
            for c in range(num_classes if request.images_per_class else 0)
        }

    @property
    def labelled_view(self) -> ViewKind:
        """How labelled images are augmented."""
        return self._batch.labelled_view

    def __next__(self) -> Batch:
        request = self._request
        own = self._shard.own
        chosen = own(self._streams["labelled"].take(self._batch.labelled))
        labelled = self._images.stored(chosen)
        unlabelled_views: dict[str, Tensor] = {}
        positions = None
        if request.unlabelled:
            taken = own(self._streams["unlabelled"].take(self._batch.unlabelled))
            positions = torch.searchsorted(self._sorted_pool, taken.contiguous())
            stored = self._images.stored(taken)
            unlabelled_views = {
                name: self._view(kind, taken, stored) for name, kind in request.unlabelled.items()
            }
        class_images = None
        if self._class_streams:
            of_classes = [stream.take(request.images_per_class) for stream in self._class_streams.values()]
            # Every process takes all of these.
            stored = self._images.stored(torch.cat(of_classes))
            class_images = self._images.prepare(augment(stored, self._augmentation, self._generator))
        batch = Batch(
            labelled={
                name: self._view(self.labelled_view if kind == "weak" else kind, chosen, labelled)
                for name, kind in request.labelled.items()
            },
            labels=self._classes[chosen],
            unlabelled=unlabelled_views,
            positions=positions,
            class_images=class_images,
        )
        return batch if self._device is None else batch.to(self._device)

    def _view(self, kind: ViewKind, indices: Tensor, stored: Tensor) -> Tensor:
        """One view of the images at `indices`, of which `stored` is what the table gave."""
        images, augmentation = self._images, self._augmentation
        if kind == "plain":
            return images.prepare(stored)
        if kind == "weak":
            if self._neighbours is not None:
                stored = self._neighbours.views(indices, stored, self._generator, self._shard)
            return images.prepare(augment(stored, augmentation, self._generator, self._shard))
        original = images.original(indices)
        if original.ndim == 2:  # vectors, in which 0 is the mean once they are prepared
            return strongly_augment(
                images.prepare_original(original), self._strong, self._generator, self._shard
            )
        shifted = augment(original, augmentation, self._generator, self._shard)
        return images.prepare_original(
            strongly_augment(shifted, self._strong, self._generator, self._shard, scale=images.white)
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The place in the stream: what waits in each permutation, and the random generator."""
        streams = self._streams | self._class_streams
        return {
            "generator": self._generator.get_state(),
            **{name: stream.waiting.clone() for name, stream in streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the stream was when `state_dict` was called."""
        streams = self._streams | self._class_streams
        if state.keys() != {"generator", *streams}:
            raise ValueError(
                f"the state is of another stream: it has {sorted(state)}, this one {sorted(streams)} and "
                f"a generator"
            )
        self._generator.set_state(state["generator"])
        for name, stream in streams.items():
            stream.waiting = state[name].clone()
