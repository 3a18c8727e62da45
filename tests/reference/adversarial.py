"""Section 2: the virtual adversarial direction, from a given first direction."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.consistency import added, kl_per_image


def unit_per_image(vectors: Tensor) -> Tensor:
    """Each image divided by its L2 length over all its pixels."""
    return torch.stack(
        [vector / torch.sqrt(added(value**2 for value in vector.flatten())) for vector in vectors]
    )


def vat_direction(
    forward: Callable[[Tensor], Tensor],
    images: Tensor,
    target_logits: Tensor,
    start: Tensor,
    *,
    xi: float,
    num_power_iterations: int = 1,
) -> Tensor:
    """d ← g / ‖g‖, g = ∇_d Σ_b KL(target ‖ p(x + ξ d)), from d = start / ‖start‖."""
    direction = unit_per_image(start)
    for _ in range(num_power_iterations):
        leaf = direction.detach().clone().requires_grad_(True)
        distance = added(kl_per_image(target_logits, forward(images.detach() + xi * leaf)))
        (gradient,) = torch.autograd.grad(distance, leaf)
        direction = unit_per_image(gradient)
    return direction


def finite_difference_direction(
    forward: Callable[[Tensor], Tensor],
    images: Tensor,
    target_logits: Tensor,
    start: Tensor,
    *,
    xi: float,
    step: float = 1e-5,
) -> Tensor:
    """The same after one iteration, with no automatic differentiation: one pixel at a time."""
    direction = unit_per_image(start)

    def distance_of(changed: Tensor) -> float:
        with torch.no_grad():
            return added(kl_per_image(target_logits, forward(images + xi * changed))).item()

    gradient = torch.zeros_like(direction)
    for pixel in range(direction.numel()):
        bump = torch.zeros_like(direction)
        bump.view(-1)[pixel] = step
        slope = (distance_of(direction + bump) - distance_of(direction - bump)) / (2 * step)
        gradient.view(-1)[pixel] = slope
    return unit_per_image(gradient)
