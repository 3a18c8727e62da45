"""Section 2: distances between predictions and the entropy of a prediction."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def added(values: Iterable[Tensor]) -> Tensor:
    """Σ, one value after the other."""
    total = torch.zeros((), dtype=torch.float64)
    for value in values:
        total = total + value
    return total


def softmax(logits: Tensor) -> list[Tensor]:
    """exp(x_c) / Σ exp(x_k), shifted by the largest so that nothing overflows."""
    largest = max(logit.item() for logit in logits)
    exponentials = [torch.exp(logit - largest) for logit in logits]
    total = added(exponentials)
    return [exponential / total for exponential in exponentials]


def kl_per_image(target_logits: Tensor, student_logits: Tensor) -> list[Tensor]:
    """Σ_c t_c (log t_c - log s_c) of each image; the target is a constant."""
    distances = []
    for target_row, student_row in zip(target_logits.detach(), student_logits, strict=True):
        target, student = softmax(target_row), softmax(student_row)
        distances.append(
            added(t * (torch.log(t) - torch.log(s)) for t, s in zip(target, student, strict=True))
        )
    return distances


def kl(target_logits: Tensor, student_logits: Tensor) -> Tensor:
    """L_con: the mean over images."""
    return added(kl_per_image(target_logits, student_logits)) / len(student_logits)


def mse(target_logits: Tensor, student_logits: Tensor) -> Tensor:
    """L_con with squared errors, summed over classes, mean over images; the target is a constant."""
    errors = []
    for target_row, student_row in zip(target_logits.detach(), student_logits, strict=True):
        for t, s in zip(softmax(target_row), softmax(student_row), strict=True):
            errors.append((t - s) ** 2)
    return added(errors) / len(student_logits)


def confident_cross_entropy(target_logits: Tensor, student_logits: Tensor, *, threshold: float) -> Tensor:
    """1/U Σ -log s_class over the images whose target has a class of at least that probability."""
    losses = []
    for target_row, student_row in zip(target_logits.tolist(), student_logits, strict=True):
        target = [p.item() for p in softmax(torch.tensor(target_row, dtype=torch.float64))]
        if max(target) >= threshold:
            losses.append(-torch.log(softmax(student_row)[target.index(max(target))]))
    return added(losses) / len(student_logits)


def entropy(logits: Tensor) -> Tensor:
    """L_em: mean over images of -Σ_c p_c log p_c."""
    return added(-p * torch.log(p) for row in logits for p in softmax(row)) / len(logits)


def class_imbalance(logits: Tensor, shares: Sequence[float] | None = None) -> Tensor:
    """KL(s ‖ p̄) = Σ_c s_c (log s_c - log p̄_c), p̄ being the mean prediction; s_c = 1/C by default."""
    predictions = [softmax(row) for row in logits]
    C = logits.shape[1]
    distance = torch.zeros((), dtype=torch.float64)
    for c in range(C):
        share = 1 / C if shares is None else shares[c]
        mean = added(probs[c] for probs in predictions) / len(predictions)
        distance = distance + share * (math.log(share) - torch.log(mean))
    return distance


def largest_class_share(logits: Tensor) -> float:
    """How many of the images the most frequent prediction has, as a share."""
    votes = [0] * logits.shape[1]
    for row in logits.tolist():
        votes[row.index(max(row))] += 1
    return max(votes) / len(logits)


def balancing_bias(logits: Tensor, *, num_iterations: int, shares: Sequence[float] | None = None) -> Tensor:
    """b ← b + log s - log mean softmax(logits + b), from 0, shifted to mean 0; s is 1/C by default."""
    C = logits.shape[1]
    shares = shares or [1 / C] * C
    bias = torch.zeros(C, dtype=torch.float64)
    for _ in range(num_iterations):
        predictions = [softmax(row + bias) for row in logits]
        frequency = [added(probs[c] for probs in predictions) / len(predictions) for c in range(C)]
        bias = torch.stack([bias[c] + math.log(shares[c]) - torch.log(frequency[c]) for c in range(C)])
    return bias - added(bias) / C


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """L_clf: mean over rows of -log p_class."""
    return added(
        -torch.log(softmax(row)[int(label)]) for row, label in zip(logits, classes, strict=True)
    ) / len(logits)
