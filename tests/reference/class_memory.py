"""SSL with memory (Chen et al. 2018): slots of the classes, how they are written and read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.consistency import added, softmax


def updated(
    keys: Tensor, values: Tensor, features: Tensor, probs: Tensor, labels: Sequence[int], *, rate: float
) -> tuple[Tensor, Tensor]:
    """k_c ← k_c - η Σ_i (k_c - f_i) / (1 + n_c), v_c likewise and then divided by its sum."""
    new_keys, new_values = [], []
    for c in range(len(keys)):
        members = [i for i, label in enumerate(labels) if label == c]
        key, value = keys[c], values[c]
        for i in members:
            key = key - rate * (keys[c] - features[i]) / (1 + len(members))
            value = value - rate * (values[c] - probs[i]) / (1 + len(members))
        new_keys.append(key)
        new_values.append(value / added(value))
    return torch.stack(new_keys), torch.stack(new_values)


def address(feature: Tensor, keys: Tensor, known: Sequence[bool]) -> list[Tensor]:
    """exp(-‖f - k_c‖) over the known classes, divided by its sum; 0 for the others."""
    distances = [torch.sqrt(added((x - y) ** 2 for x, y in zip(feature, key, strict=True))) for key in keys]
    nearest = min(d.item() for d, is_known in zip(distances, known, strict=True) if is_known)
    weights = [
        torch.exp(nearest - d) if is_known else torch.zeros_like(d)
        for d, is_known in zip(distances, known, strict=True)
    ]
    total = added(weights)
    return [weight / total for weight in weights]


def content_prediction(features: Tensor, keys: Tensor, values: Tensor, known: Sequence[bool]) -> Tensor:
    """p̂ = Σ_c w_c v_c of each image."""
    rows = []
    for feature in features:
        weights = address(feature, keys, known)
        rows.append(
            torch.stack(
                [
                    added(w * value[j] for w, value in zip(weights, values, strict=True))
                    for j in range(len(keys))
                ]
            )
        )
    return torch.stack(rows)


def memory_divergence(logits: Tensor, memory_logits: Tensor) -> Tensor:
    """Mean over images of max(p̂) Σ_c p_c log(p_c / p̂_c)."""
    terms = []
    for row, memory_row in zip(logits, memory_logits, strict=True):
        probs, remembered = softmax(row), softmax(memory_row)
        largest = max(range(len(remembered)), key=lambda c: remembered[c].item())
        distance = added(p * torch.log(p / q) for p, q in zip(probs, remembered, strict=True))
        terms.append(remembered[largest] * distance)
    return added(terms) / len(terms)
