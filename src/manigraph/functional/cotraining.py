"""Several networks that learn from each other: Deep Co-Training (Qiao et al. 2018)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from manigraph.functional.mixing import mean_log_probs


def view_disagreement(logits: Float[Tensor, "V B C"]) -> Float[Tensor, ""]:
    """L_cot: the mean over images of H(p̄) - mean_i H(p_i), the Jensen-Shannon divergence of the networks.

    p̄ is the mean of the V predictions p_i. It is 0 if all agree and log V if each is sure of something else.
    It is computed as the mean over i of KL(p_i ‖ p̄), which is the same.
    """
    log_probs = F.log_softmax(logits, dim=2)
    from_mean = log_probs - mean_log_probs(logits)  # (V, B, C)
    return (log_probs.exp() * from_mean).sum(dim=2).mean()


def prediction_cross_entropy(
    first_logits: Float[Tensor, "B C"], second_logits: Float[Tensor, "B C"]
) -> Float[Tensor, ""]:
    """The mean over images of H(p, q) = -Σ_c p_bc log q_bc, with p and q the softmax of the two logits.

    One part of L_dif. Gradient flows into both.
    """
    return -(F.softmax(first_logits, dim=1) * F.log_softmax(second_logits, dim=1)).sum(dim=1).mean()


def gradient_sign_perturbation(
    forward: Callable[[Tensor], Tensor],
    images: Float[Tensor, "B ..."],
    classes: Int[Tensor, " B"],
    *,
    epsilon: float,
) -> Float[Tensor, "B ..."]:
    """ε sign(∇_x H(class, softmax(forward(x)))), the fast gradient sign method of Goodfellow et al. (2015).

    The gradient is taken with respect to the images alone: gradients of parameters are neither computed nor
    touched. It is found in float32 (or float64 when the images are float64) whatever the surrounding autocast
    says.

    Args:
        forward: Images to logits. The caller decides about dropout masks and batch-norm statistics.
        images: Where the gradient is taken.
        classes: The classes that the images are to be taken for no longer.
        epsilon: By how much every pixel changes, in the units of `images`.

    Returns:
        A constant: ε, -ε, or 0 where the gradient vanishes. Adding it makes the adversarial images.
    """
    images = images.detach()
    if images.dtype != torch.float64:
        images = images.float()
    images = images.requires_grad_(True)
    with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        return gradient_sign(images, forward(images), classes, epsilon=epsilon)


def gradient_sign(
    images: Float[Tensor, "B ..."],
    logits: Float[Tensor, "B C"],
    classes: Int[Tensor, " B"],
    *,
    epsilon: float,
) -> Float[Tensor, "B ..."]:
    """The same from logits that are at hand, computed from these images; what their gradient needs stays."""
    # A sum, not a mean: each image's gradient must not shrink with the batch.
    distance = F.cross_entropy(logits, classes, reduction="sum")
    (gradient,) = torch.autograd.grad(distance, images, retain_graph=True)
    return epsilon * gradient.sign()
