"""The virtual adversarial perturbation of Miyato et al. (2018)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from manigraph.functional.consistency import kl_divergence


def virtual_adversarial_direction(
    forward: Callable[[Tensor], Tensor],
    images: Float[Tensor, "B ..."],
    target_logits: Float[Tensor, "B C"],
    *,
    xi: float,
    num_power_iterations: int = 1,
    generator: torch.Generator | None = None,
    start: Float[Tensor, "B ..."] | None = None,
) -> Float[Tensor, "B ..."]:
    """The unit direction, per image, in which the prediction moves away from the target fastest.

    d ~ N(0, I), normalised; then once per power iteration
    d ← g / ‖g‖ with g = ∇_d KL(target ‖ softmax(forward(x + ξ d))).

    The gradient is taken with respect to d alone: gradients of parameters are neither computed nor
    touched. The power step runs in float32 (or float64 when the images are float64) whatever the
    surrounding autocast says.

    Args:
        forward: Images to logits. The caller decides about dropout masks and batch-norm statistics.
        images: Where the direction is looked for.
        target_logits: The prediction to move away from; a constant.
        xi: Length of the probing step, in the units of `images`. Far below 1e-2, float32 leaves
            most pixels unchanged and the direction is rounding noise.
        num_power_iterations: One is what the paper uses.
        generator: Source of the first, random direction.
        start: The first direction itself, of any length; by default drawn with `generator`.

    Returns:
        Directions of length 1 over the whole image, or exactly zero where the gradient vanishes.
    """
    if xi <= 0:
        raise ValueError(f"xi must be positive, got {xi}")
    if num_power_iterations < 1:
        raise ValueError(f"num_power_iterations must be at least 1, got {num_power_iterations}")
    images = images.detach()
    if images.dtype != torch.float64:
        images = images.float()
    if start is None:
        start = torch.empty_like(images).normal_(generator=generator)
    direction = unit_per_image(start.to(images.dtype))
    with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        for _ in range(num_power_iterations):
            direction.requires_grad_(True)
            student_logits = forward(images + xi * direction)
            # A sum, not a mean: each image's gradient must not shrink with the batch.
            distance = kl_divergence(target_logits.to(images.dtype), student_logits).sum()
            (gradient,) = torch.autograd.grad(distance, direction)
            direction = unit_per_image(gradient)
    return direction


def virtual_adversarial_perturbation(
    forward: Callable[[Tensor], Tensor],
    images: Float[Tensor, "B ..."],
    target_logits: Float[Tensor, "B C"],
    *,
    epsilon: float,
    xi: float,
    num_power_iterations: int = 1,
    generator: torch.Generator | None = None,
    start: Float[Tensor, "B ..."] | None = None,
) -> Float[Tensor, "B ..."]:
    """R = ε d: the virtual adversarial direction at length ε (L2 over the whole image).

    ε is in the units of the preprocessed images. ε = 0 gives exactly zero.
    """
    direction = virtual_adversarial_direction(
        forward,
        images,
        target_logits,
        xi=xi,
        num_power_iterations=num_power_iterations,
        generator=generator,
        start=start,
    )
    return epsilon * direction


def unit_per_image(vectors: Tensor) -> Tensor:
    """Every image's vector at length 1, as a constant; exactly zero where it is zero."""
    flat = vectors.flatten(start_dim=1)
    # Dividing by the largest entry first keeps tiny gradients from underflowing when squared.
    tiny = torch.finfo(flat.dtype).tiny
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    flat = flat / lengths.clamp_min(tiny)
    return flat.view_as(vectors).detach()
