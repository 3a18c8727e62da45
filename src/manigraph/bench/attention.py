"""Attention to the prototypes of the nearest classes only: what it leaves out and what it saves.

With very many classes most prototypes mean nothing to an image. Classes whose centres are nearest are found
first (C products instead of P), and attention is taken over their prototypes alone. Features are drawn around
class centres, since nothing with so many classes can be trained here; how sharp the attention of a trained
model is depends on its features, so several degrees are measured.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manigraph.bench.turns import Patience, ratio_of, take_turns
from manigraph.functional import attention_weights, class_centres, image_context, own_class_attention

FULL, NEAREST = "all prototypes", "prototypes of the nearest classes"
SHARPNESS = (8.0, 12.0, 16.0)
"""Dot product of a unit vector with itself, before the softmax."""
CONSIDERED = (10, 30, 100)
SPREAD = 0.6
"""Length of the noise around a centre of length 1."""


@dataclass(frozen=True)
class NearestAttention:
    """What images hear from the prototypes of a few classes, against what they hear from all."""

    prototypes: int
    classes_considered: int
    sharpness: float
    own_class_weight: float
    """Mean attention to the prototypes of an image's own class, over all prototypes."""
    lost_weight: float
    """Mean attention, over all prototypes, to those that were left out."""
    error: float
    """Of the context, by its length: mean over images."""
    time_ratio: float
    """Time by that over all prototypes, forward only."""


def nearest_classes_context(images: Tensor, prototypes: Tensor, centres: Tensor, considered: int) -> Tensor:
    """Σ w_p g_p over the prototypes of the classes with the nearest centres, (B, E).

    Args:
        images: g of the images, (B, E).
        prototypes: g of the prototypes, class-major, (P, E).
        centres: Their mean in each class, (C, E).
        considered: Classes to look at.
    """
    by_class = prototypes.view(len(centres), -1, prototypes.shape[1])  # (C, K, E)
    nearest = (images @ centres.T).topk(considered, dim=1).indices  # (B, c)
    chosen = by_class[nearest].flatten(1, 2)  # (B, cK, E)
    weights = torch.softmax((chosen @ images.unsqueeze(2)).squeeze(2), dim=1)  # (B, cK)
    context: Tensor = (weights.unsqueeze(1) @ chosen).squeeze(1)
    return context


def measure_nearest(
    classes: int, considered: int, sharpness: float, patience: Patience, per_class: int = 20
) -> NearestAttention:
    """Of 160 images, D = 128."""
    torch.manual_seed(0)
    size, batch = 128, 160
    centres = torch.nn.functional.normalize(torch.randn(classes, size), dim=1)

    def around(labels: Tensor) -> Tensor:
        noise = torch.nn.functional.normalize(torch.randn(len(labels), size), dim=1)
        return math.sqrt(sharpness) * torch.nn.functional.normalize(centres[labels] + SPREAD * noise, dim=1)

    labels = torch.randint(0, classes, (batch,))
    images, prototypes = around(labels), around(torch.arange(classes).repeat_interleave(per_class))
    means = class_centres(prototypes, classes)
    with torch.no_grad():
        weights = attention_weights(images.unsqueeze(1), prototypes.unsqueeze(1))
        full = image_context(images.unsqueeze(1), prototypes.unsqueeze(1)).squeeze(1)
        nearest = nearest_classes_context(images, prototypes, means, considered)
        chosen = (images @ means.T).topk(considered, dim=1).indices
        by_class = weights.squeeze(1).unflatten(1, (classes, per_class)).sum(dim=2)  # (B, C)
        seconds = take_turns(
            {
                FULL: lambda: image_context(images.unsqueeze(1), prototypes.unsqueeze(1)),
                NEAREST: lambda: nearest_classes_context(images, prototypes, means, considered),
            },
            patience,
        )
    lengths = torch.linalg.vector_norm(full, dim=1)
    return NearestAttention(
        prototypes=len(prototypes),
        classes_considered=considered,
        sharpness=sharpness,
        own_class_weight=round(float(own_class_attention(weights, labels, classes)), 4),
        lost_weight=round(float(1 - by_class.gather(1, chosen).sum(dim=1).mean()), 4),
        error=round(float((torch.linalg.vector_norm(nearest - full, dim=1) / lengths).mean()), 4),
        time_ratio=ratio_of(seconds, NEAREST, FULL, setting="").ratio,
    )


def run_attention_benchmark(scale: float, tell: Callable[[str], None]) -> list[NearestAttention]:
    """1,000 classes; below scale 1 a few."""
    classes = 1000 if scale >= 1 else 20
    results = []
    for sharpness in SHARPNESS:
        for considered in CONSIDERED if scale >= 1 else (5, classes):
            tell(f"attention to {considered} of {classes} classes")
            with torch.random.fork_rng():
                patience = Patience(tolerance=0.05, most_seconds=10).scaled(scale)
                results.append(measure_nearest(classes, considered, sharpness, patience))
    return results
