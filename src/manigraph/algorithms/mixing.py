"""What methods that mix images share: their settings, and who is mixed with whom."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from manigraph.algorithms.parts import UnlabelledConfig
from manigraph.contract import StepContext
from manigraph.functional import mix, symmetric_beta


@dataclass(frozen=True)
class MixingConfig(UnlabelledConfig):
    """How images are mixed."""

    alpha: float = 0.75
    """α of the Beta(α, α) that shares are drawn from; the smaller, the less an image is mixed."""
    entropy_weight: float = 0.0
    """λ2, weight of the entropy term on the unmixed images; not in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha > 0:
            raise ValueError(f"alpha must be above 0, got {self.alpha}")


class Mixed(NamedTuple):
    """Images and what they should be recognised as."""

    images: Tensor
    """(B, ...)"""
    probs: Tensor
    """(B, C)"""


def mixed_with_others(images: Tensor, probs: Tensor, alpha: float, context: StepContext) -> Mixed:
    """Each image and its label, mixed with those of another image of the whole batch.

    The batch is shuffled to find the partners, and every image has a λ of its own. λ' = max(λ, 1 - λ), so
    that an image stays closer to itself than to its partner, which may be in another process.
    """
    shard, generator = context.shard, context.generator
    B = len(images) * shard.size
    partners = shard.own(torch.randperm(B, generator=generator, device=images.device))
    uniforms = torch.rand(2, B, generator=generator, dtype=images.dtype, device=images.device)
    share = shard.own(symmetric_beta(uniforms, alpha))
    share = torch.maximum(share, 1 - share)
    return Mixed(
        mix(images, shard.gather(images)[partners], share),
        mix(probs, shard.gather(probs)[partners], share),
    )
