"""Endless batches of augmented images."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manigraph.contract import Batch, DataRequest, ViewKind
from manigraph.data.augmentation import flip, rotate_and_scale, translate


@dataclass(frozen=True)
class AugmentationConfig:
    """How a weakly augmented view is made."""

    translation: int = 2
    """Largest shift in whole pixels, in each direction."""
    flip: bool = False
    """Mirror half of the images left to right."""
    rotation: float = 0.0
    """Largest rotation in degrees, to either side."""
    scale: float = 0.0
    """Largest change of the sampling step, as a share: 0.1 shows the image at 91 to 111 %."""

    def __post_init__(self) -> None:
        if min(self.translation, self.rotation) < 0 or not 0 <= self.scale < 1:
            raise ValueError(
                f"translation and rotation must be at least 0 and scale from 0 to below 1, got "
                f"{self.translation}, {self.rotation} and {self.scale}"
            )


def augment(images: Tensor, config: AugmentationConfig, generator: torch.Generator) -> Tensor:
    """One random view of each image; vectors are left as they are."""
    if images.ndim != 4:
        return images
    images = rotate_and_scale(images, config.rotation, config.scale, generator)
    images = translate(images, config.translation, generator)
    return flip(images, generator) if config.flip else images


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
        self._waiting = indices[:0]

    def take(self, count: int) -> Tensor:
        """The next `count` indices."""
        while len(self._waiting) < count:
            order = torch.randperm(len(self.indices), generator=self.generator)
            self._waiting = torch.cat([self._waiting, self.indices[order.to(self.indices.device)]])
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


@dataclass(frozen=True)
class BatchConfig:
    """Size of a batch."""

    labelled: int = 32
    """Labelled images in a batch."""
    unlabelled: int = 128
    """Unlabelled images in a batch, drawn independently of the labelled ones."""

    def __post_init__(self) -> None:
        if min(self.labelled, self.unlabelled) < 2:
            raise ValueError(
                f"a batch needs at least 2 labelled and 2 unlabelled images (batch norm), got "
                f"{self.labelled} and {self.unlabelled}"
            )


def batches(
    images: Tensor,
    classes: Tensor,
    *,
    labelled: Tensor,
    unlabelled: Tensor,
    num_classes: int,
    request: DataRequest,
    batch: BatchConfig,
    augmentation: AugmentationConfig,
    generator: torch.Generator,
) -> Iterator[Batch]:
    """Batches without end, with the views a method asked for.

    Args:
        images: All preprocessed images, on the device to train on.
        classes: Their classes; only those of labelled images are read.
        labelled: Indices of labelled images.
        unlabelled: Indices of unlabelled images.
        num_classes: C.
        request: The views a method wants.
        batch: How many images of each kind.
        augmentation: How weak views are made.
        generator: Source of all randomness here.
    """
    make: Mapping[ViewKind, Callable[[Tensor], Tensor]] = {
        "plain": lambda chosen: chosen,
        "weak": lambda chosen: augment(chosen, augmentation, generator),
    }
    labelled_stream = IndexStream(labelled, generator)
    unlabelled_stream = IndexStream(unlabelled, generator) if request.unlabelled else None
    class_streams = [
        IndexStream(labelled[classes[labelled] == c], generator)
        for c in range(num_classes if request.images_per_class else 0)
    ]
    while True:
        chosen = labelled_stream.take(batch.labelled)
        labelled_images = images[chosen]
        unlabelled_views: dict[str, Tensor] = {}
        if unlabelled_stream is not None:
            unlabelled_images = images[unlabelled_stream.take(batch.unlabelled)]
            unlabelled_views = {
                name: make[kind](unlabelled_images) for name, kind in request.unlabelled.items()
            }
        class_images = None
        if class_streams:
            nodes = torch.cat([stream.take(request.images_per_class) for stream in class_streams])
            class_images = make["weak"](images[nodes])
        yield Batch(
            labelled={name: make[kind](labelled_images) for name, kind in request.labelled.items()},
            labels=classes[chosen],
            unlabelled=unlabelled_views,
            class_images=class_images,
        )
