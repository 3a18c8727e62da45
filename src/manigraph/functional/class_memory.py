"""A memory of each class: what its images look like and how they are predicted (Chen et al. 2018)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ClassSlots(NamedTuple):
    """What is remembered of each class."""

    keys: Float[Tensor, "C D"]
    """k_c, where its features are."""
    values: Float[Tensor, "C C"]
    """v_c, how its images are predicted: a probability for each class."""


def updated_slots(
    slots: ClassSlots,
    features: Float[Tensor, "L D"],
    probs: Float[Tensor, "L C"],
    labels: Int[Tensor, " L"],
    *,
    rate: float,
) -> ClassSlots:
    """k_c ← k_c - η Σ_i (k_c - f_i) / (1 + n_c), and v_c in the same way with p_i; then v_c / Σ v_c.

    The sum is over the n_c labelled images of class c; a class without any stays as it is.

    Args:
        slots: The memory before.
        features: f, of the labelled images.
        probs: p, their predictions.
        labels: Their classes.
        rate: η.
    """
    keys, values = slots
    members = F.one_hot(labels, len(keys)).to(keys.dtype).T  # (C, L)
    number = members.sum(dim=1, keepdim=True)  # (C, 1)
    share = rate / (1 + number)
    keys = keys - share * (number * keys - members @ features)
    values = values - share * (number * values - members @ probs)
    return ClassSlots(keys, values / values.sum(dim=1, keepdim=True))


def class_address(
    features: Float[Tensor, "B D"], keys: Float[Tensor, "C D"], is_known: Bool[Tensor, " C"]
) -> Float[Tensor, "B C"]:
    """w_bc = exp(-‖f_b - k_c‖) / Σ_k exp(-‖f_b - k_k‖), over the classes that are known.

    Args:
        features: Of the images whose class is looked for.
        keys: Of all classes.
        is_known: Whether a class has been seen; one that has not gets weight 0. At least one is known.
    """
    # Not by the difference of squares, in which the small distances that count would cancel.
    distance = torch.cdist(features, keys, compute_mode="donot_use_mm_for_euclid_dist")
    return (-distance).masked_fill(~is_known, -torch.inf).softmax(dim=1)


def memory_logits(address: Float[Tensor, "B C"], values: Float[Tensor, "C C"]) -> Float[Tensor, "B C"]:
    """The logarithm of p̂_b = Σ_c w_bc v_c, the memory's prediction; finite where p̂ is 0 by rounding."""
    probs = address @ values
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def memory_divergence(logits: Float[Tensor, "B C"], memory_logits: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """The mean over images of max_c p̂_bc · KL(p_b ‖ p̂_b): the network follows a memory that is sure.

    Gradient flows into both, as far as they have any.

    Args:
        logits: The network's; p is their softmax.
        memory_logits: The memory's; p̂ is their softmax.
    """
    log_probs = F.log_softmax(logits, dim=1)
    memory_log_probs = F.log_softmax(memory_logits, dim=1)
    distance = (log_probs.exp() * (log_probs - memory_log_probs)).sum(dim=1)  # (B,)
    return (memory_log_probs.amax(dim=1).exp() * distance).mean()
