"""Class centres, similarities, and the losses on prototypes except the angle: section 5."""

import pytest
import torch
from torch import Tensor

from manigraph.functional import (
    anchor_boundary,
    anchor_magnitude,
    class_centres,
    cosine_similarity,
    divergence,
    nearest_centre,
    prototype_similarity,
)
from tests.helpers import assert_agree, check_gradients, normal, receivers, seeded, value_and_gradients
from tests.reference import prototypes as reference

MEMBER_CLASSES = torch.tensor([0, 2, 1, 0, 2, 2, 1, 0])


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Centres and similarity


def test_class_centres_are_the_reference() -> None:
    assert_agree(lambda p: class_centres(p, 3), lambda p: reference.class_centres(p, 3), normal(12, 4))
    check_gradients(lambda p: class_centres(p, 3), normal(6, 2))


def test_class_centres_by_hand() -> None:
    # Class-major: rows 1 and 2 are class 0, ((1, 0) + (3, 4)) / 2 = (2, 2); rows 3 and 4 class 1.
    prototypes = rows([1, 0], [3, 4], [-2, 0], [0, 6])
    assert class_centres(prototypes, 2).tolist() == [[2, 2], [-1, 3]]


def test_prototypes_that_do_not_divide_into_classes() -> None:
    with pytest.raises(ValueError, match="7 prototypes do not divide into 3 classes"):
        class_centres(normal(7, 2), 3)


def test_cosine_similarity_is_the_reference() -> None:
    assert_agree(cosine_similarity, reference.similarity, normal(5, 3, seed=1), normal(4, 3, seed=2))
    check_gradients(cosine_similarity, normal(3, 4, seed=1), normal(2, 4, seed=2))


def test_cosine_similarity_by_hand() -> None:
    # (3, 4)·(1, 0) / (5·1) = 0.6 and (3, 4)·(0, 2) / (5·2) = 0.8: lengths do not count.
    assert cosine_similarity(rows([3, 4]), rows([1, 0], [0, 2])).tolist() == [[0.6, 0.8]]


def test_cosine_similarity_receives_gradient_on_both_sides() -> None:
    found = receivers(cosine_similarity, first=normal(5, 3, seed=1), second=normal(4, 3, seed=2))
    assert found == {"first", "second"}


def test_a_zero_vector_has_similarity_zero_and_finite_gradient() -> None:
    value, gradients = value_and_gradients(cosine_similarity, torch.zeros(1, 3), torch.ones(2, 3))
    assert value.tolist() == [[0, 0]]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_nearest_centre_is_the_reference() -> None:
    features, centres = normal(40, 5, seed=1), normal(6, 5, seed=2)
    assert nearest_centre(features, centres).tolist() == reference.nearest_centre(features, centres)


def test_nearest_centre_is_by_angle_and_not_by_distance() -> None:
    # (10, 1) is nearer to (9, 9) than to (0.1, 0) but points along (0.1, 0).
    assert nearest_centre(rows([10, 1]), rows([9, 9], [0.1, 0])).tolist() == [1]


def test_pseudo_labels_carry_no_gradient() -> None:
    features = normal(5, 3, seed=1).requires_grad_(True)
    centres = normal(4, 3, seed=2).requires_grad_(True)
    assert not nearest_centre(features, centres).requires_grad


def test_permuting_the_images_permutes_their_pseudo_labels() -> None:
    features, centres = normal(20, 5, seed=1), normal(6, 5, seed=2)
    order = torch.randperm(20, generator=seeded())
    assert torch.equal(nearest_centre(features[order], centres), nearest_centre(features, centres)[order])


# Anchor, magnitude


def magnitude(centres: Tensor, features: Tensor) -> Tensor:
    return anchor_magnitude(centres, features, margin=0.1)


def test_anchor_magnitude_is_the_reference() -> None:
    assert_agree(
        magnitude,
        lambda c, f: reference.anchor_magnitude(c, f, margin=0.1),
        2 * normal(5, 4, seed=1),
        normal(7, 4, seed=2),
    )


def test_anchor_magnitude_by_hand() -> None:
    # l_avg = (3 + 5) / 2 = 4. Centre of length 6: |6/4 - 1| - 0.1 = 0.4, squared 0.16. Centre of
    # length 4.2: 0.05 - 0.1 < 0, so 0. Centre of length 2: |2/4 - 1| - 0.1 = 0.4, 0.16. Mean 0.32/3.
    centres = rows([6, 0], [0, 4.2], [-2, 0])
    features = rows([3, 0], [3, 4])
    assert magnitude(centres, features).item() == pytest.approx(0.32 / 3)


def test_gradcheck_of_anchor_magnitude() -> None:
    features = normal(7, 4, seed=2)
    check_gradients(lambda centres: magnitude(centres, features), 2 * normal(5, 4, seed=1))


def test_anchor_magnitude_moves_centres_and_not_features() -> None:
    found = receivers(magnitude, centres=2 * normal(5, 4, seed=1), features=normal(7, 4, seed=2))
    assert found == {"centres"}


def test_centres_within_the_margin_are_left_alone() -> None:
    features = rows([1, 0], [0, 1])
    assert magnitude(rows([1.09, 0], [0, -0.91]), features).item() == 0


# Anchor, boundary


@pytest.mark.parametrize("detach_margin", [False, True])
def test_anchor_boundary_is_the_reference(detach_margin: bool) -> None:
    def ours(similarity: Tensor, centres: Tensor) -> Tensor:
        return anchor_boundary(similarity, MEMBER_CLASSES, centres, detach_margin=detach_margin)

    def loops(similarity: Tensor, centres: Tensor) -> Tensor:
        return reference.anchor_boundary(
            similarity, MEMBER_CLASSES, centres, detach_margin=detach_margin
        ).value

    assert_agree(ours, loops, 0.5 * normal(8, 3, seed=1), normal(3, 4, seed=2))


@pytest.mark.parametrize(
    ("detach_margin", "expected"), [(False, {"similarity", "centres"}), (True, {"similarity"})]
)
def test_who_receives_gradient_from_the_boundary(detach_margin: bool, expected: set[str]) -> None:
    found = receivers(
        lambda s, c: anchor_boundary(s, MEMBER_CLASSES, c, detach_margin=detach_margin),
        similarity=0.5 * normal(8, 3, seed=1),
        centres=normal(3, 4, seed=2),
    )
    assert found == expected


def test_anchor_boundary_by_hand() -> None:
    # Centres (1, 0), (0.6, 0.8) and (-1, 0): cosines 0.6, -1 and -0.6. The margins are 0.6, 0.6 and
    # -0.6. Members: class 0 at 0.5: 0.1. Class 1 at 0.9: 0. Class 1 at 0.3: 0.3. Class 2 at -0.5: 0.
    # The mean of the two that are not zero is 0.2, not 0.4 / 4.
    centres = rows([1, 0], [0.6, 0.8], [-1, 0])
    similarity = rows([0.5, 9, 9], [9, 0.9, 9], [9, 0.3, 9], [9, 9, -0.5])
    classes = torch.tensor([0, 1, 1, 2])
    assert anchor_boundary(similarity, classes, centres).item() == pytest.approx(0.2)


def test_gradcheck_of_anchor_boundary() -> None:
    check_gradients(
        lambda s, c: anchor_boundary(s, MEMBER_CLASSES, c),
        0.5 * normal(8, 3, seed=1),
        normal(3, 4, seed=2),
    )


def test_members_inside_their_boundary_cost_nothing() -> None:
    value, gradients = value_and_gradients(
        lambda s, c: anchor_boundary(s, MEMBER_CLASSES, c), torch.ones(8, 3), normal(3, 4).float()
    )
    assert value.item() == 0
    assert all(gradient.isfinite().all() and not gradient.any() for gradient in gradients)


def test_order_of_the_members_does_not_matter_to_the_boundary() -> None:
    similarity, centres = 0.5 * normal(8, 3, seed=1), normal(3, 4, seed=2)
    order = torch.randperm(8, generator=seeded())
    torch.testing.assert_close(
        anchor_boundary(similarity[order], MEMBER_CLASSES[order], centres),
        anchor_boundary(similarity, MEMBER_CLASSES, centres),
    )


# Divergence


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("margin", [0.0, 0.3, 0.75])
def test_divergence_is_the_reference(reduction: str, margin: float) -> None:
    # Prototypes of one class share a direction, so that some pairs are decided by length and some
    # by angle, and some are apart enough.
    prototypes = normal(3, 1, 4, seed=1).expand(3, 5, 4).flatten(0, 1) + 0.7 * normal(15, 4, seed=2)
    assert_agree(
        lambda p: divergence(p, 3, margin=margin, reduction="mean" if reduction == "mean" else "sum"),
        lambda p: reference.divergence(p, 3, margin=margin, reduction=reduction),
        prototypes,
    )


# Class 0: lengths 2 and 4, cosine 0.8. Class 1: lengths 5 and 1, cosine 0.
PAIRS = rows([2, 0], [3.2, 2.4], [5, 0], [0, 1])


def test_divergence_by_hand() -> None:
    # l_avg = (2 + 4 + 5 + 1) / 4 = 3, margin 0.5. Class 0: mag = (1 - 2/6 - 0.5) / 0.5 = 1/3,
    # ang = (0.8 - 0.5) / 0.5 = 0.6, the smaller is 1/3. Class 1: ang = 0. Sum 1/3, mean of 2 pairs 1/6.
    assert divergence(PAIRS, 2, margin=0.5, reduction="sum").item() == pytest.approx(1 / 3)
    assert divergence(PAIRS, 2, margin=0.5).item() == pytest.approx(1 / 6)


def test_sum_is_mean_times_number_of_pairs() -> None:
    # 3 classes with 5 · 4 / 2 = 10 pairs each.
    prototypes = 1 + 0.3 * normal(15, 4)
    mean, total = (
        divergence(prototypes, 3, margin=0.2),
        divergence(prototypes, 3, margin=0.2, reduction="sum"),
    )
    torch.testing.assert_close(total, 30 * mean)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_prototype_per_class_has_no_pair(reduction: str) -> None:
    value, (gradient,) = value_and_gradients(
        lambda p: divergence(p, 3, margin=0.5, reduction="mean" if reduction == "mean" else "sum"),
        normal(3, 4),
    )
    assert value.item() == 0
    assert torch.equal(gradient, torch.zeros(3, 4, dtype=torch.float64))


def test_identical_prototypes_cost_one_per_pair() -> None:
    # mag = (1 - 0 - m) / (1 - m) = 1 and ang = (1 - m) / (1 - m) = 1.
    prototypes = normal(1, 4).expand(6, 4)
    value, (gradient,) = value_and_gradients(lambda p: divergence(p, 2, margin=0.75), prototypes)
    assert value.item() == pytest.approx(1)
    assert gradient.isfinite().all()


def test_gradcheck_of_divergence_by_angle() -> None:
    # Nearly equal lengths: the angle decides every pair, and the constant l_avg plays no part.
    check_gradients(
        lambda p: divergence(torch.nn.functional.normalize(p, dim=1), 2, margin=-1.5), normal(6, 3)
    )


def test_gradcheck_of_divergence_by_length() -> None:
    # Parallel prototypes of lengths 1 + d and 1 - d: the mean length stays 1 whatever d is, so finite
    # differences see the same constant. The length decides as d > 0.
    along = torch.nn.functional.normalize(normal(1, 3), dim=1)

    def of_gap(d: Tensor) -> Tensor:
        return divergence(torch.cat([(1 + d) * along, (1 - d) * along]), 1, margin=0.2)

    check_gradients(of_gap, torch.tensor(0.3, dtype=torch.float64))


def test_average_length_is_a_constant() -> None:
    # Class 0 is decided by length: a longer class 1 changes its value through l_avg, but class 1 must
    # receive no gradient.
    _, (gradient,) = value_and_gradients(lambda p: divergence(p, 2, margin=0.5), PAIRS)
    assert gradient[:2].any()
    assert not gradient[2:].any()
    longer = PAIRS * torch.tensor([[1.0], [1.0], [2.0], [2.0]])
    assert divergence(longer, 2, margin=0.5) > divergence(PAIRS, 2, margin=0.5)


@pytest.mark.parametrize("margin", [1.0, 1.5])
def test_margin_must_leave_something(margin: float) -> None:
    with pytest.raises(ValueError, match=f"the divergence margin must be below 1, got {margin}"):
        divergence(PAIRS, 2, margin=margin)


# Similarity within a class


@pytest.mark.parametrize("per_class", [2, 3, 5])
def test_prototype_similarity_is_the_reference(per_class: int) -> None:
    assert_agree(
        lambda p: prototype_similarity(p, 3),
        lambda p: reference.prototype_similarity(p, 3),
        normal(3 * per_class, 4),
    )


def test_prototype_similarity_by_hand() -> None:
    # Cosines .8 in class 0 and 0 in class 1; lengths and the other class do not count.
    assert prototype_similarity(PAIRS, 2).item() == pytest.approx(0.4)
    assert prototype_similarity(rows([1, 2], [2, 4], [-1, 1], [-3, 3]), 2).item() == pytest.approx(1)


def test_prototype_similarity_needs_pairs() -> None:
    with pytest.raises(ValueError, match="at least 2 prototypes per class, got 1"):
        prototype_similarity(normal(3, 4), 3)
