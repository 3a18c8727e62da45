"""What every source returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True)
class Dataset:
    """Images with their classes; the split says which of the classes a method may see."""

    name: str
    images: Tensor
    """(N, channels, height, width) uint8, or (N, size) float vectors."""
    classes: Tensor
    """(N,) int64."""
    class_names: Sequence[str]
    test: Tensor
    """Indices of the images that are only for testing."""
    train: Tensor
    """Indices of all others, in the order in which splits draw from them."""

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.images.shape[1:])


Source = Callable[[], Dataset]
