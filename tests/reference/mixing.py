"""Mixed images and labels, and the losses on them."""

import math

import torch
from torch import Tensor

from tests.reference.consistency import added, softmax


def symmetric_beta(u: float, v: float, alpha: float) -> float:
    """λ = 1/2 + t / (2 √(1 + t²)) with t = √(u^(-1/α) - 1) cos(2π v)."""
    t = math.sqrt(u ** (-1 / alpha) - 1) * math.cos(2 * math.pi * v)
    return 0.5 + t / (2 * math.sqrt(1 + t * t))


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """λ x1 + (1 - λ) x2, row by row."""
    return torch.stack(
        [part * x1 + (1 - part) * x2 for x1, x2, part in zip(first, second, share, strict=True)]
    )


def mean_prediction(logits: Tensor) -> Tensor:
    """1/K Σ_k p_k of each image; logits are (K, U, C)."""
    K, U, C = logits.shape
    rows = []
    for u in range(U):
        predictions = [softmax(logits[k, u]) for k in range(K)]
        rows.append(torch.stack([added(probs[c] for probs in predictions) / K for c in range(C)]))
    return torch.stack(rows)


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p_c^(1/T) / Σ_k p_k^(1/T); a constant."""
    rows = []
    for row in probs.detach():
        powers = [p ** (1 / temperature) for p in row]
        rows.append(torch.stack([power / added(powers) for power in powers]))
    return torch.stack(rows)


def soft_cross_entropy(target_probs: Tensor, student_logits: Tensor) -> Tensor:
    """Mean over images of -Σ_c q_c log p_c; the target is a constant."""
    losses = []
    for target, student in zip(target_probs.detach(), student_logits, strict=True):
        losses.append(-added(q * torch.log(p) for q, p in zip(target, softmax(student), strict=True)))
    return added(losses) / len(losses)


def soft_squared_error(target_probs: Tensor, student_logits: Tensor) -> Tensor:
    """1 / (C B) Σ (q - p)²; the target is a constant."""
    errors = []
    for target, student in zip(target_probs.detach(), student_logits, strict=True):
        errors += [(q - p) ** 2 for q, p in zip(target, softmax(student), strict=True)]
    return added(errors) / len(errors)
