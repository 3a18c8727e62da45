"""The losses that place prototypes in the feature space (paper, section 3.3).

A *member* is an image or a prototype together with a class. All similarities are cosines.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from manigraph.native import triplets as native

NUMBERS_AT_ONCE = 1 << 22
"""Similarities of members and centres that are sorted at a time: 32 MB in float64."""


def class_centres(prototypes: Float[Tensor, "P D"], num_classes: int) -> Float[Tensor, "C D"]:
    """c_i: the mean of the K prototypes of each class; prototypes are class-major."""
    if len(prototypes) % num_classes:
        raise ValueError(f"{len(prototypes)} prototypes do not divide into {num_classes} classes")
    return prototypes.view(num_classes, -1, prototypes.shape[1]).mean(dim=1)


def cosine_similarity(
    first: Float[Tensor, "... N D"], second: Float[Tensor, "... M D"]
) -> Float[Tensor, "... N M"]:
    """S: the cosine of the angle between each pair of rows."""
    unit = F.normalize(first, dim=-1)
    return unit @ (unit if second is first else F.normalize(second, dim=-1)).mT


def nearest_centre(features: Float[Tensor, "B D"], centres: Float[Tensor, "C D"]) -> Int[Tensor, " B"]:
    """The pseudo-label: the class of the most similar centre. No gradient, no threshold."""
    return cosine_similarity(features.detach(), centres.detach()).argmax(dim=1)


def anchor_magnitude(
    centres: Float[Tensor, "C D"], features: Float[Tensor, "B D"], *, margin: float
) -> Float[Tensor, ""]:
    """Mean over classes of max(|‖c_i‖ / l_avg - 1| - margin_l, 0)².

    l_avg is the mean length of the images' features and is a constant here: centres grow to meet
    the features, features do not shrink to meet the centres.
    """
    average_length = torch.linalg.vector_norm(features.detach(), dim=1).mean()
    relative_length = torch.linalg.vector_norm(centres, dim=1) / average_length  # (C,)
    excess: Tensor = ((relative_length - 1).abs() - margin).clamp_min(0)
    return excess.square().mean()


class TripletSum(NamedTuple):
    """The non-zero triplet terms: their sum and how many there are."""

    total: Float[Tensor, ""]
    number: Int[Tensor, ""]


def anchor_angle(
    similarity: Float[Tensor, "N C"], classes: Int[Tensor, " N"], *, margin: float
) -> Float[Tensor, ""]:
    """Mean of the non-zero triplet terms max(S(c_i, f_k) - S(c_i, f_j) + margin_a, 0)².

    Over every centre i, every member j of class i and every non-member k; 0 if no term is positive.

    Args:
        similarity: Cosine of every member with every centre.
        classes: Class of every member.
        margin: How much more similar a centre must be to its own members than to others.
    """
    total, number = triplet_sum(similarity, classes, margin=margin)
    return (total / number.clamp_min(1)).to(similarity.dtype)


def triplet_sum(
    similarity: Float[Tensor, "N C"],
    classes: Int[Tensor, " N"],
    *,
    margin: float,
    numbers_at_once: int | None = None,
) -> TripletSum:
    """Sum and number of the non-zero triplet terms, exact, without enumerating triplets.

    With t_j = S(c_i, f_j) - margin and n_k = S(c_i, f_k), a member contributes
    Σ_{k: n_k > t_j} (n_k - t_j)² = S2 - 2 t_j S1 + N t_j², where N, S1 and S2 are the number, sum
    and sum of squares of the non-members above t_j: differences of running sums over the sorted n.
    O(C·N log N) instead of O(N²). The running sums are float64, because the three parts cancel.
    Differentiable once.

    Args:
        similarity: Cosine of every member with every centre.
        classes: Class of every member.
        margin: As of `anchor_angle`.
        numbers_at_once: Where there are more similarities than this, a few centres at a time are looked at,
            so that the sorted ones are never all in memory. By default what suits the device; on a CPU in
            float32 nothing is sorted then, but triplets are counted through in C, which is faster.
    """
    total, number = _TripletSum.apply(similarity, classes, margin, numbers_at_once)  # type: ignore[no-untyped-call]
    return TripletSum(total, number)


class _TripletSum(torch.autograd.Function):
    """The gradient is found in the forward pass, where the sorted similarities are at hand."""

    @staticmethod
    def forward(
        context: Any, similarity: Tensor, classes: Tensor, margin: float, numbers_at_once: int | None
    ) -> tuple[Tensor, Tensor]:
        num_members, num_classes = similarity.shape
        if numbers_at_once is None and native.suits(similarity, classes):
            total, number, gradient = native.triplet_sums(similarity, classes, margin)
            context.save_for_backward(gradient)
            context.mark_non_differentiable(number)
            return total, number
        centres_at_once = max(1, (numbers_at_once or NUMBERS_AT_ONCE) // num_members)
        gradient = torch.empty_like(similarity)
        total = similarity.new_zeros((), dtype=torch.float64)
        number = classes.new_zeros(())
        for start in range(0, num_classes, centres_at_once):
            own = slice(start, start + centres_at_once)
            part = _triplets_of_centres(similarity[:, own], classes - start, margin)
            total += part.total
            number += part.number
            gradient[:, own] = part.gradient.T
        context.save_for_backward(gradient)
        context.mark_non_differentiable(number)
        return total, number

    @staticmethod
    @once_differentiable
    def backward(context: Any, output_gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = context.saved_tensors
        return gradient * output_gradient.to(gradient.dtype), None, None, None


class _Triplets(NamedTuple):
    """Of a few centres."""

    total: Tensor
    number: Tensor
    gradient: Tensor
    """(c, N), of the total with respect to the similarities."""


def _triplets_of_centres(similarity: Tensor, classes: Tensor, margin: float) -> _Triplets:
    """Sum, number and gradient for a few centres; other classes have numbers that are not theirs."""
    num_members, num_centres = similarity.shape
    by_centre = similarity.double().T.contiguous()  # (c, N)
    is_member = classes == torch.arange(num_centres, device=classes.device).unsqueeze(1)  # (c, N)

    # Members sort to the front of their own centre's row, where no threshold can reach them.
    others, _ = by_centre.masked_fill(is_member, -torch.inf).sort(dim=1)  # (c, N), ascending
    sum_up_to, square_up_to = _running_sums(others), _running_sums(others, power=2)

    # One threshold per member, in the row of its own class. Members of one class are laid side by
    # side so that one call finds all positions.
    order = classes.argsort(stable=True)  # (N,) members, class by class
    order = order[is_member.any(dim=0)[order]]
    row = classes[order]
    sizes = torch.bincount(row, minlength=num_centres)  # (c,)
    column = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
    threshold = by_centre[row, order] - margin
    grid = threshold.new_full((num_centres, int(sizes.max())), torch.inf)
    grid[row, column] = threshold
    position = torch.searchsorted(others, grid, right=True)[row, column]

    above = num_members - position
    sum_above = sum_up_to[row, -1] - sum_up_to[row, position]
    square_above = square_up_to[row, -1] - square_up_to[row, position]
    terms = square_above - 2 * threshold * sum_above + above * threshold.square()

    # A non-member is pushed away from every threshold below it, a member from every non-member above its own.
    thresholds, _ = grid.sort(dim=1)
    below = torch.searchsorted(thresholds, by_centre)  # (c, N)
    gradient = 2 * (below * by_centre - _running_sums(thresholds).gather(1, below))
    gradient[row, order] = 2 * (above * threshold - sum_above)
    return _Triplets(terms.sum(), above.sum(), gradient)


def _running_sums(ordered: Tensor, power: int = 1) -> Tensor:
    """Sums of the first 0, 1, ... numbers of each row, in which infinite ones do not count."""
    return F.pad(ordered.masked_fill(ordered.isinf(), 0).pow(power).cumsum(dim=1), (1, 0))


def anchor_boundary(
    similarity: Float[Tensor, "N C"],
    classes: Int[Tensor, " N"],
    centres: Float[Tensor, "C D"],
    *,
    detach_margin: bool = False,
) -> Float[Tensor, ""]:
    """Mean of the non-zero max(margin_cj - S(f, c_j), 0), with margin_cj = max_{i≠j} S(c_i, c_j).

    A member of class j must be closer to its centre than the nearest other centre is.

    Args:
        similarity: Cosine of every member with every centre.
        classes: Class of every member.
        centres: The class centres, for the margins.
        detach_margin: Keep gradients from moving the centres apart through the margin.
    """
    centre_similarity = cosine_similarity(centres, centres)
    itself = torch.eye(len(centres), dtype=torch.bool, device=centres.device)
    margins = centre_similarity.masked_fill(itself, -torch.inf).amax(dim=1)  # (C,)
    if detach_margin:
        margins = margins.detach()
    own_similarity = similarity.gather(1, classes.unsqueeze(1)).squeeze(1)  # (N,)
    shortfall = (margins.index_select(0, classes) - own_similarity).clamp_min(0)
    return shortfall.sum() / (shortfall > 0).sum().clamp_min(1)


def divergence(
    prototypes: Float[Tensor, "P D"],
    num_classes: int,
    *,
    margin: float,
    reduction: Literal["mean", "sum"] = "mean",
) -> Float[Tensor, ""]:
    """L_div: how alike the prototypes of one class are, over unordered pairs within each class.

    mag_ij = max(1 - |l_i - l_j| / (2 l_avg) - margin_d, 0) / (1 - margin_d),
    ang_ij = max(S(p_i, p_j) - margin_d, 0) / (1 - margin_d), term = min(mag_ij, ang_ij).
    A pair is left alone as soon as it differs enough in length or in angle. l_avg, the mean length
    of all prototypes, is a constant. With one prototype per class there is no pair and the loss is 0.

    Args:
        prototypes: Class-major.
        num_classes: C.
        margin: margin_d, below 1.
        reduction: "mean" over pairs; the paper's "sum" grows with C·K² and drives training to NaN.
    """
    if not margin < 1:
        raise ValueError(f"the divergence margin must be below 1, got {margin}")
    grouped = prototypes.view(num_classes, -1, prototypes.shape[1])  # (C, K, D)
    K = grouped.shape[1]
    lengths = torch.linalg.vector_norm(grouped, dim=2, keepdim=True)  # (C, K, 1)
    # All ordered pairs, half of them left out again: to pick the others would be dearer, above all backward.
    length_gap = (lengths - lengths.mT).abs() / (2 * lengths.detach().mean())
    unit = grouped / lengths.clamp_min(1e-12)
    alike = torch.minimum(1 - length_gap, unit @ unit.mT)  # (C, K, K)
    terms = (alike - margin).clamp_min(0).triu(1)
    pairs = num_classes * K * (K - 1) // 2 if reduction == "mean" else 1
    return terms.sum() / ((1 - margin) * max(1, pairs))


def prototype_similarity(prototypes: Float[Tensor, "P D"], num_classes: int) -> Float[Tensor, ""]:
    """Mean of S(p_i, p_j) over the pairs of prototypes of one class: 1 if a class has in fact but one.

    Args:
        prototypes: Class-major, at least 2 of each class.
        num_classes: C.
    """
    grouped = prototypes.view(num_classes, -1, prototypes.shape[1])  # (C, K, D)
    K = grouped.shape[1]
    if K < 2:
        raise ValueError(f"pairs of prototypes need at least 2 prototypes per class, got {K}")
    i, j = torch.triu_indices(K, K, offset=1, device=prototypes.device)
    return cosine_similarity(grouped, grouped)[:, i, j].mean()
