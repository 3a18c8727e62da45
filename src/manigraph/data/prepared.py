"""Images ready for the network, taken by index."""

import torch
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.preprocessing import Preprocessing

MEMORY_FOR_PREPARED = 2 << 30
"""Bytes up to which costly preprocessing is done once and its result kept as float32."""


class PreparedImages:
    """Stored images with their preprocessing, which happens when images are taken.

    The images stay as they are stored (one byte a value, perhaps mapped from a file), so a large data
    set needs little memory. Whitening costs a matrix product for each image: where the result fits, it
    is computed once.
    """

    def __init__(
        self,
        images: Tensor,
        preprocessing: Preprocessing,
        progress: Progress = silent,
        *,
        white: float = 255.0,
    ) -> None:
        self.white = white
        self._images = images
        self._preprocessing = preprocessing
        self._whitened: Tensor | None = None
        if not preprocessing.is_pixelwise and 4 * images.numel() <= MEMORY_FOR_PREPARED:
            self._whitened = torch.empty(images.shape, dtype=torch.float32, device=images.device)
            for start in range(0, len(images), 1024):
                part = slice(start, start + 1024)
                self._whitened[part] = preprocessing(images[part])
                progress("whitening images", min(start + 1024, len(images)), len(images))

    def stored(self, indices: Tensor) -> Tensor:
        """Images that may be shifted and mirrored; `index_select` copies them whole, far faster than `[]`."""
        if self._whitened is not None:
            return self._whitened.index_select(0, indices)
        images = self._images.index_select(0, indices)
        return images if self._preprocessing.is_pixelwise else self._preprocessing(images)

    def prepare(self, images: Tensor) -> Tensor:
        """Network input from what `stored` gave."""
        return self._preprocessing(images) if self._preprocessing.is_pixelwise else images

    def original(self, indices: Tensor) -> Tensor:
        """Images as they are stored, not whitened."""
        return self._images.index_select(0, indices)

    def prepare_original(self, images: Tensor) -> Tensor:
        """Network input from what `original` gave."""
        return self._preprocessing(images)
