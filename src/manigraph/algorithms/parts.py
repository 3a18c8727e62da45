"""Pieces that several consistency methods share: their settings and their unlabelled terms."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.contract import NEUTRAL, StepContext
from manigraph.errors import UserError
from manigraph.functional import (
    class_imbalance,
    entropy,
    kl_consistency,
    mse_consistency,
    virtual_adversarial_perturbation,
)
from manigraph.nn import Classifier, RandomState, TargetBalance, full_precision
from manigraph.nn.backbones.base import Backbone

ConsistencyMeasure = Literal["kl", "mse"]
_CONSISTENCY: Mapping[ConsistencyMeasure, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl_consistency,
    "mse": mse_consistency,
}


@dataclass(frozen=True)
class UnlabelledConfig:
    """What every method can add to its own terms for unlabelled images."""

    entropy_weight: float = 0.1
    """λ2, weight of the entropy term."""
    balance_weight: float = 0.0
    """Weight of a term that keeps all classes in use on unlabelled images; not in the paper."""
    balance_memory: int = 0
    """Recent predictions over which targets are balanced among the classes; 0, the paper's, means not."""
    class_shares: tuple[float, ...] = field(default=(), metadata=NEUTRAL)
    """Expected shares of the classes among unlabelled images, for both; none means that all are alike."""
    ramp_fraction: float = 0.0
    """Share of the run over which λ1 and λ2 grow to their full size; 0 means at once."""

    def __post_init__(self) -> None:
        for name in ("entropy_weight", "balance_weight", "balance_memory", "ramp_fraction"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative, got {getattr(self, name)}")
        if any(share <= 0 for share in self.class_shares):
            raise ValueError(f"class_shares must be above 0, got {self.class_shares}")

    @property
    def learns_from_clean_predictions(self) -> bool:
        """Whether entropy or balance send gradient into the clean predictions of unlabelled images."""
        return self.entropy_weight > 0 or self.balance_weight > 0


@dataclass(frozen=True)
class ConsistencyConfig(UnlabelledConfig):
    """How a target and a student prediction are compared."""

    consistency: ConsistencyMeasure = "kl"
    """How the distance of two predictions is measured."""
    consistency_weight: float = 1.0
    """λ1, weight of the consistency term."""


UnlabelledConfigT = TypeVar("UnlabelledConfigT", bound=UnlabelledConfig)


@dataclass(frozen=True)
class AdversarialConfig(ConsistencyConfig):
    """How the virtual adversarial perturbation is found."""

    epsilon: float = 8.0
    """ε, length of the perturbation (L2 over the image, in units of the preprocessed input)."""
    xi: float = 0.1
    """ξ, length of the probing step that finds the direction, in the same units."""
    num_power_iterations: int = 1
    """Gradient steps taken to find the direction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon < 0 or self.xi <= 0 or self.num_power_iterations < 1:
            raise ValueError(
                f"epsilon must be at least 0, xi above 0 and num_power_iterations at least 1, got "
                f"{self.epsilon}, {self.xi} and {self.num_power_iterations}"
            )


def ramp_up(progress: float, fraction: float) -> float:
    """exp(-5 (1 - t)²) with t running from 0 to 1 over the first `fraction` of the run; then 1.

    The ramp of Laine & Aila (2017). A fraction of 0 means no ramp, as in the paper.
    """
    if progress >= fraction:
        return 1.0
    return math.exp(-5.0 * (1.0 - progress / fraction) ** 2)


def linear_ramp(progress: float, start: float, end: float) -> float:
    """0 up to `start`, then a straight line to 1 at `end`, both being shares of the run; then 1.

    The ramp of Pseudo-Label and MixMatch. An end of 0 means no ramp.
    """
    if progress >= end:
        return 1.0
    return 0.0 if progress <= start else (progress - start) / (end - start)


class UnlabelledAlgorithm(Algorithm[UnlabelledConfigT]):
    """A method that learns from unlabelled images; it can ask for sure and for balanced predictions."""

    class_shares: Tensor | None

    def __init__(self, config: UnlabelledConfigT, backbone: Backbone, num_classes: int) -> None:
        super().__init__(config, backbone, num_classes)
        shares = config.class_shares
        if shares and len(shares) != num_classes:
            raise UserError(
                f"method.class_shares has {len(shares)} numbers, but there are {num_classes} classes"
            )
        self.target_balance = TargetBalance(num_classes, config.balance_memory, shares=shares)
        expected = torch.tensor(shares) / sum(shares) if shares else None
        self.register_buffer("class_shares", expected, persistent=False)

    def extra_terms(self, clean_logits: Tensor, progress: float) -> dict[str, Tensor]:
        """λ2 L_em and the balance of the classes, from the clean predictions of unlabelled images."""
        config = self.config
        none = clean_logits.new_zeros(())
        ramp = ramp_up(progress, config.ramp_fraction)
        return {
            "entropy": ramp * config.entropy_weight * entropy(clean_logits)
            if config.entropy_weight > 0
            else none,
            "balance": config.balance_weight
            * class_imbalance(self.shard.gather(clean_logits), self.class_shares)
            if config.balance_weight > 0
            else none,
        }


def prediction_distance(measure: ConsistencyMeasure, target_logits: Tensor, student_logits: Tensor) -> Tensor:
    """L_con, as `ConsistencyConfig.consistency` names it; the target is constant."""
    return _CONSISTENCY[measure](target_logits, student_logits)


def gradient_of_clean_pass(config: UnlabelledConfig) -> AbstractContextManager[object]:
    """Around a clean pass over unlabelled images, of which entropy and balance alone want the gradient."""
    return nullcontext() if config.learns_from_clean_predictions else torch.no_grad()


def with_masks(forward: Callable[[Tensor], Tensor], masks: RandomState) -> Callable[[Tensor], Tensor]:
    """The same network in every call: `forward` with the dropout masks drawn after `masks` was taken."""

    def same_network(images: Tensor) -> Tensor:
        with masks.replay():
            return forward(images)

    return same_network


def perturbation(
    config: AdversarialConfig,
    model: Classifier,
    forward: Callable[[Tensor], Tensor],
    images: Tensor,
    reference_logits: Tensor,
    context: StepContext,
) -> Tensor:
    """r: the virtual adversarial perturbation of `images` away from the reference prediction.

    Found in float32, whatever the precision of the other passes of the model.
    """
    with full_precision(model):
        return virtual_adversarial_perturbation(
            forward,
            images,
            reference_logits,
            epsilon=config.epsilon,
            xi=config.xi,
            num_power_iterations=config.num_power_iterations,
            start=context.normal_like(images),
        )


def precise_reference(
    model: Classifier, forward: Callable[[Tensor], Tensor], images: Tensor, logits: Tensor
) -> Tensor:
    """`logits`, or in float32 what a pass in lower precision gave them as.

    The direction is found where prediction and reference are nearly the same, so that the rounding of a
    reference in half precision would decide it.
    """
    if model.passes.dtype == torch.float32:
        return logits
    with full_precision(model), torch.no_grad():
        return forward(images)
