"""Pixels to network input; fitted on training images, stored with the run."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Standardise:
    """(x - mean) / std per channel (or per entry of a vector)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, images: Tensor) -> "Standardise":
        """Mean and standard deviation of each channel over all training images."""
        values = images.double()
        axes = [0, *range(2, values.ndim)]
        std = values.std(dim=axes, correction=0)
        # A channel that never varies carries nothing; dividing by 1 keeps it at 0.
        std = torch.where(std > 0, std, torch.ones_like(std))
        return cls(tuple(values.mean(dim=axes).tolist()), tuple(std.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (images.ndim - 2)
        mean = torch.tensor(self.mean, device=images.device).view(shape)
        std = torch.tensor(self.std, device=images.device).view(shape)
        return (images.float() - mean) / std
