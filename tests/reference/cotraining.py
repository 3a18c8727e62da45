"""Deep Co-Training (Qiao et al. 2018): agreement, difference, and the fast gradient sign method."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.reference.consistency import added, cross_entropy, softmax


def mean_prediction(logits: Sequence[Tensor], image: int) -> list[Tensor]:
    """p̄_c = 1/V Σ_v p_vc of one image."""
    predictions = [softmax(of_view[image]) for of_view in logits]
    return [added(probs[c] for probs in predictions) / len(logits) for c in range(logits[0].shape[1])]


def entropy_of(probs: Sequence[Tensor]) -> Tensor:
    """H(p) = -Σ_c p_c log p_c."""
    return -added(p * torch.log(p) for p in probs)


def view_disagreement(logits: Sequence[Tensor]) -> Tensor:
    """L_cot: mean over images of H(p̄) - 1/V Σ_v H(p_v)."""
    differences = []
    for image in range(len(logits[0])):
        single = added(entropy_of(softmax(of_view[image])) for of_view in logits) / len(logits)
        differences.append(entropy_of(mean_prediction(logits, image)) - single)
    return added(differences) / len(differences)


def prediction_cross_entropy(first: Tensor, second: Tensor) -> Tensor:
    """Mean over images of H(p, q) = -Σ_c p_c log q_c."""
    terms = []
    for first_row, second_row in zip(first, second, strict=True):
        terms += [-p * torch.log(q) for p, q in zip(softmax(first_row), softmax(second_row), strict=True)]
    return added(terms) / len(first)


def gradient_sign(
    forward: Callable[[Tensor], Tensor], images: Tensor, classes: Tensor, *, epsilon: float
) -> Tensor:
    """ε, -ε or 0 for each pixel, after the sign of ∇_x of the cross-entropy."""
    leaf = images.detach().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(len(images) * cross_entropy(forward(leaf), classes), leaf)
    signs = [
        epsilon if value > 0 else -epsilon if value < 0 else 0.0 for value in gradient.flatten().tolist()
    ]
    return torch.tensor(signs, dtype=images.dtype).view_as(images)


def finite_difference_sign(
    forward: Callable[[Tensor], Tensor], images: Tensor, classes: Tensor, *, epsilon: float
) -> Tensor:
    """The same with no automatic differentiation: one pixel at a time."""
    step = 1e-5

    def distance(changed: Tensor) -> float:
        with torch.no_grad():
            return cross_entropy(forward(changed), classes).item()

    signs = torch.zeros_like(images)
    for pixel in range(images.numel()):
        bump = torch.zeros_like(images)
        bump.view(-1)[pixel] = step
        signs.view(-1)[pixel] = 1.0 if distance(images + bump) > distance(images - bump) else -1.0
    return epsilon * signs
