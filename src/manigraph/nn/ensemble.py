"""What was predicted for each unlabelled image until now."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manigraph.functional import accumulated, bias_corrected
from manigraph.nn.memory import Memory
from manigraph.sharding import ALONE, Shard


class EnsembleTargets(NamedTuple):
    """The mean predictions of some images."""

    probs: Float[Tensor, "U C"]
    """Bias-corrected, rows sum to 1; all 0 for an image without a prediction."""
    known: Bool[Tensor, " U"]
    """Whether there was a prediction before."""


class PredictionEnsemble(Memory):
    """An exponential mean of the predictions of every unlabelled image, by its position among them.

    Every image has its own number of predictions, by which its targets are corrected. The memory is empty
    until `make_room` is called. Where there are several processes, all hold the whole of it.

    Args:
        num_classes: C.
        decay: α, how much of the old mean is kept when a prediction comes in; from 0 to below 1.
    """

    is_written_between_steps = True  # it may be large: N·C numbers

    ensemble: Tensor
    """Z, (N, C), not bias-corrected."""
    count: Tensor
    """t, (N,): how many predictions of each image are in Z."""
    shard: Shard = ALONE

    def __init__(self, num_classes: int, decay: float) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of an ensemble must be at least 0 and below 1, got {decay}")
        self.decay = decay
        self.register_buffer("ensemble", torch.zeros(0, num_classes))
        self.register_buffer("count", torch.zeros(0, dtype=torch.long))

    def make_room(self, num_images: int) -> None:
        """Hold N images from now on, none of which has a prediction."""
        self.ensemble = self.ensemble.new_zeros(num_images, self.ensemble.shape[1])
        self.count = self.count.new_zeros(num_images)

    @torch.no_grad()
    def targets(self, positions: Int[Tensor, " U"]) -> EnsembleTargets:
        """z̃ of the images at these positions, as constants."""
        self._check_room()
        count = self.count[positions]
        return EnsembleTargets(
            bias_corrected(self.ensemble[positions], count, decay=self.decay), known=count > 0
        )

    @torch.no_grad()
    def update(self, positions: Int[Tensor, " U"], probs: Float[Tensor, "U C"]) -> None:
        """Let the newest predictions of these images in, with those of all processes.

        If a batch holds an image more than once, the mean of its predictions comes in, as one: the result
        does not depend on the order within the batch.
        """
        self._check_room()
        positions = self.shard.gather(positions)
        probs = self.shard.gather(probs.to(self.ensemble.dtype))
        images, place = positions.unique(return_inverse=True)
        # A matrix product adds up in a fixed order on all devices, which index_add_ does not.
        shares = (place == torch.arange(len(images), device=place.device).unsqueeze(1)).to(probs.dtype)
        means = shares @ probs / shares.sum(dim=1, keepdim=True)
        self.ensemble[images] = accumulated(self.ensemble[images], means, decay=self.decay)
        self.count[images] += 1

    def _check_room(self) -> None:
        assert len(self.count) > 0, "there is no room for any image: call expect_images before the first step"
