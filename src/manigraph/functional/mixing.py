"""Images and labels between those of two images (Zhang et al. 2018; Berthelot et al. 2019)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def symmetric_beta(uniforms: Float[Tensor, "2 B"], alpha: float) -> Float[Tensor, " B"]:
    """λ ~ Beta(α, α), each from two numbers that are uniform from 0 to 1.

    λ = 1/2 + t / (2 √(1 + t²)) with t = √(u^(-1/α) - 1) cos(2π v). √(2α) t has Student's distribution with 2α
    degrees of freedom (Bailey 1994), and the map from t to λ is the one that turns it into Beta(α, α)
    (Devroye 1996). Exact for every α, and any source of uniform numbers will do; torch draws from a Beta
    without a generator only.

    Args:
        uniforms: u and v of each λ.
        alpha: α, above 0. Near 0, λ is nearly always close to 0 or 1; at 1 it is uniform.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    u, v = uniforms
    log_w = u.log() / alpha  # w = u^(1/α); then t² = (1 - w) cos² / w, which is infinite where u is 0
    cosine = torch.cos(2 * math.pi * v)
    numerator = -torch.expm1(log_w) * cosine.square()
    ratio = numerator / (log_w.exp() + numerator)  # t² / (1 + t²)
    share: Tensor = 0.5 + 0.5 * cosine.sign() * ratio.sqrt()
    return share


def mix(
    first: Float[Tensor, "B ..."], second: Float[Tensor, "B ..."], share: Float[Tensor, " B"]
) -> Float[Tensor, "B ..."]:
    """λ x1 + (1 - λ) x2, with a λ for each row: images, or the probabilities of their classes."""
    share = share.view(-1, *[1] * (first.ndim - 1))
    return share * first + (1 - share) * second


def mean_log_probs(logits: Float[Tensor, "K U C"]) -> Float[Tensor, "U C"]:
    """The logarithm of the mean of K predictions of each image: log 1/K Σ_k softmax(logits_k)."""
    return F.log_softmax(logits, dim=2).logsumexp(dim=0) - math.log(len(logits))


def sharpen(logits: Float[Tensor, "U C"], temperature: float) -> Float[Tensor, "U C"]:
    """Sharpen(p, T)_c = p_c^(1/T) / Σ_k p_k^(1/T), with p the softmax of the logits; a constant.

    A temperature of 1 leaves p as it is; towards 0, only the most likely class remains.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return F.softmax(logits.detach() / temperature, dim=1)


def soft_cross_entropy(
    target_probs: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]
) -> Float[Tensor, ""]:
    """Mean over images of H(q, p) = -Σ_c q_bc log p_bc, with q the target, a constant, and p the student."""
    return -(target_probs.detach() * F.log_softmax(student_logits, dim=1)).sum(dim=1).mean()


def soft_squared_error(
    target_probs: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]
) -> Float[Tensor, ""]:
    """Mean over images and classes of (q_bc - p_bc)², with q the target, a constant, and p the student.

    The mean over classes is that of MixMatch (its 1 / L with L classes) and what its weights are made for;
    `mse_consistency` is the sum over classes.
    """
    return (target_probs.detach() - F.softmax(student_logits, dim=1)).square().mean()
