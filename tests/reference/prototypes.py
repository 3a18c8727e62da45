"""Sections 3 and 5: prototypes, their centres, and the losses that place them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.consistency import added


def leaky(value: Tensor) -> Tensor:
    """LeakyReLU with slope 0.1."""
    return torch.where(value > 0, value, 0.1 * value)


def positive_part(value: Tensor) -> Tensor:
    """max(value, 0)."""
    return value if value.item() > 0 else 0 * value


def length(vector: Tensor) -> Tensor:
    """‖v‖."""
    return torch.sqrt(added(value**2 for value in vector))


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """S(a, b) = a·b / (‖a‖ ‖b‖)."""
    product = added(a * b for a, b in zip(first, second, strict=True))
    return product / (length(first) * length(second))


def similarity(members: Tensor, centres: Tensor) -> Tensor:
    """S of every member with every centre."""
    return torch.stack([torch.stack([cosine(member, centre) for centre in centres]) for member in members])


class Layer(NamedTuple):
    """W and b of a linear layer."""

    weight: Tensor
    bias: Tensor

    def __call__(self, vector: Tensor) -> Tensor:
        return torch.stack(
            [
                added(w * x for w, x in zip(row, vector, strict=True)) + b
                for row, b in zip(self.weight, self.bias, strict=True)
            ]
        )


def generated_prototypes(
    instance_embedding: Tensor, class_embedding: Tensor, hidden: Layer, output: Layer
) -> Tensor:
    """p_ij = MLP([f_k_i, f_c_j]), class after class, LeakyReLU between the two layers."""
    return torch.stack(
        [
            output(leaky(hidden(torch.cat([instance, of_class]))))
            for of_class in class_embedding
            for instance in instance_embedding
        ]
    )


def class_centres(prototypes: Tensor, num_classes: int) -> Tensor:
    """c_i, the mean of the K prototypes of class i; K rows belong to one class, then K to the next."""
    K = len(prototypes) // num_classes
    centres = []
    for c in range(num_classes):
        centre = torch.zeros_like(prototypes[0])
        for k in range(K):
            centre = centre + prototypes[c * K + k] / K
        centres.append(centre)
    return torch.stack(centres)


def nearest_centre(features: Tensor, centres: Tensor) -> list[int]:
    """The class of the most similar centre."""
    labels = []
    for feature in features.detach():
        cosines = [cosine(feature, centre).item() for centre in centres.detach()]
        labels.append(cosines.index(max(cosines)))
    return labels


def anchor_magnitude(centres: Tensor, features: Tensor, *, margin: float) -> Tensor:
    """Mean over C of max(|‖c_i‖/l_avg - 1| - margin, 0)², l_avg = mean ‖f‖, a constant."""
    average = added(length(feature) for feature in features.detach()) / len(features)
    return added(
        positive_part(torch.abs(length(centre) / average - 1) - margin) ** 2 for centre in centres
    ) / len(centres)


class NonZeroMean(NamedTuple):
    """The mean of the positive terms (0 if there are none) and how many they are."""

    value: Tensor
    number: int


def non_zero_mean(terms: Sequence[Tensor]) -> NonZeroMean:
    """Mean over the terms above 0."""
    number = sum(term.item() > 0 for term in terms)
    return NonZeroMean(added(terms) / max(number, 1), number)


def anchor_angle(similarities: Tensor, classes: Tensor, *, margin: float) -> NonZeroMean:
    """Every triplet (centre i, member j of class i, non-member k), one by one."""
    num_members, num_classes = similarities.shape
    terms = []
    for i in range(num_classes):
        for j in range(num_members):
            for k in range(num_members):
                if classes[j] == i and classes[k] != i:
                    gap = similarities[k, i] - similarities[j, i] + margin
                    terms.append(positive_part(gap) ** 2)
    return non_zero_mean(terms)


def anchor_boundary(
    similarities: Tensor, classes: Tensor, centres: Tensor, *, detach_margin: bool = False
) -> NonZeroMean:
    """max(max_{i≠j} S(c_i, c_j) - S(f, c_j), 0) of every member f of class j."""
    terms = []
    for row, label in zip(similarities, classes, strict=True):
        j = int(label)
        to_others = [cosine(centres[i], centres[j]) for i in range(len(centres)) if i != j]
        margin = max(to_others, key=Tensor.item)
        if detach_margin:
            margin = margin.detach()
        terms.append(positive_part(margin - row[j]))
    return non_zero_mean(terms)


def divergence(prototypes: Tensor, num_classes: int, *, margin: float, reduction: str = "mean") -> Tensor:
    """min(mag, ang) of every unordered pair of prototypes of one class, l_avg being a constant."""
    K = len(prototypes) // num_classes
    average = added(length(prototype) for prototype in prototypes.detach()) / len(prototypes)
    terms = []
    for c in range(num_classes):
        for i in range(K):
            for j in range(i + 1, K):
                first, second = prototypes[c * K + i], prototypes[c * K + j]
                gap = torch.abs(length(first) - length(second)) / (2 * average)
                magnitude = positive_part(1 - gap - margin) / (1 - margin)
                angle = positive_part(cosine(first, second) - margin) / (1 - margin)
                terms.append(magnitude if magnitude.item() < angle.item() else angle)
    return added(terms) / (max(len(terms), 1) if reduction == "mean" else 1)


def prototype_similarity(prototypes: Tensor, num_classes: int) -> Tensor:
    """S of every unordered pair of one class: their mean, then the mean over classes."""
    K = len(prototypes) // num_classes
    means = []
    for c in range(num_classes):
        of_class = prototypes[c * K : (c + 1) * K]
        pairs = [cosine(of_class[i], of_class[j]) for i in range(K) for j in range(i + 1, K)]
        means.append(added(pairs) / len(pairs))
    return added(means) / num_classes
