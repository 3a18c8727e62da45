"""The sum over all triplets, against all triplets: section 5."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manigraph.functional import anchor_angle, cosine_similarity
from manigraph.functional.prototypes import triplet_sum
from tests.helpers import assert_agree, check_gradients, normal, receivers, seeded, value_and_gradients
from tests.reference import prototypes as reference


class Members(NamedTuple):
    """Similarities (N, C), classes (N,) and a margin."""

    similarity: Tensor
    classes: Tensor
    margin: float


def assert_equals_enumeration(members: Members, tolerance: float = 1e-10) -> None:
    """Value, number of terms and gradient."""
    similarity, classes, margin = members
    expected = reference.anchor_angle(similarity, classes, margin=margin)
    total, number = triplet_sum(similarity, classes, margin=margin)
    assert number.item() == expected.number
    assert total.item() == pytest.approx(
        (expected.value * expected.number).item(), rel=tolerance, abs=tolerance
    )
    assert_agree(
        lambda s: anchor_angle(s, classes, margin=margin),
        lambda s: reference.anchor_angle(s, classes, margin=margin).value,
        similarity,
        tolerance=tolerance,
    )


def members(similarity: list[list[float]], classes: list[int], margin: float) -> Members:
    return Members(torch.tensor(similarity, dtype=torch.float64), torch.tensor(classes), margin)


@pytest.mark.parametrize("margin", [0.0, 0.15, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_random_members(seed: int, margin: float) -> None:
    similarity = torch.tanh(normal(12, 4, seed=seed))
    classes = torch.randint(0, 4, (12,), generator=seeded(seed))
    assert_equals_enumeration(Members(similarity, classes, margin))


@pytest.mark.parametrize("centres_at_once", [1, 2, 3])
def test_a_few_centres_at_a_time(centres_at_once: int) -> None:
    similarity = torch.tanh(normal(12, 5, seed=4))
    classes = torch.tensor([0, 1, 1, 4, 4, 0, 1, 4, 4, 4, 0, 0])  # no member of centres 2 and 3

    def in_parts(s: Tensor) -> Tensor:
        return triplet_sum(s, classes, margin=0.15, numbers_at_once=12 * centres_at_once).total

    assert_agree(in_parts, lambda s: triplet_sum(s, classes, margin=0.15).total, similarity, tolerance=1e-13)
    number = triplet_sum(similarity, classes, margin=0.15, numbers_at_once=12 * centres_at_once).number
    assert number == triplet_sum(similarity, classes, margin=0.15).number


def test_by_hand() -> None:
    # Margin 1/4, members a (class 0) and b, c (class 1).
    # Centre 0: t_a = 1/2 - 1/4 = 1/4; S(c_0, b) = 3/8 gives (1/8)² = 1/64; S(c_0, c) = 1/4 is a tie: 0.
    # Centre 1: t_b = 3/4 - 1/4 = 1/2; S(c_1, a) = 1/2 is a tie: 0. t_c = 1/4 - 1/4 = 0; a gives 1/4.
    # Two terms: (1/64 + 16/64) / 2 = 17/128.
    case = members([[1 / 2, 1 / 2], [3 / 8, 3 / 4], [1 / 4, 1 / 4]], [0, 1, 1], 1 / 4)
    total, number = triplet_sum(case.similarity, case.classes, margin=case.margin)
    assert (total.item(), number.item()) == (17 / 64, 2)
    assert anchor_angle(case.similarity, case.classes, margin=case.margin).item() == 17 / 128
    assert_equals_enumeration(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(members([[0.5, 0.5]] * 4, [0, 0, 1, 1], 0.0), id="all tied at the threshold"),
        pytest.param(members([[0.5, 0.5]] * 4, [0, 0, 1, 1], 0.125), id="all tied above it"),
        pytest.param(
            members([[0.875, -0.5], [0.75, -0.25], [-0.5, 0.875]], [0, 0, 1], 0.125), id="no positive term"
        ),
        pytest.param(
            members([[0.5, 0.25, 0.75], [0.25, 0.5, 0.625]], [0, 1], 0.125), id="a class with no members"
        ),
        pytest.param(members([[0.5, 0.25], [0.25, 0.875]], [1, 1], 0.25), id="all members in one class"),
        pytest.param(members([[0.5, 0.25]], [0], 0.25), id="one member"),
        pytest.param(members([[-0.5], [0.25]], [0, 0], 0.25), id="one class"),
        pytest.param(
            members([[-1.0, 1.0], [1.0, -1.0], [1.0, -1.0]], [0, 1, 1], 0.5), id="as wrong as can be"
        ),
    ],
)
def test_corner_cases(case: Members) -> None:
    assert_equals_enumeration(case)


@st.composite
def eighths(draw: st.DrawFn) -> Members:
    """Similarities in multiples of 1/8, which float64 holds exactly: full of ties."""
    num_classes = draw(st.integers(1, 4))
    num_members = draw(st.integers(1, 7))
    numbers = st.lists(
        st.integers(-8, 8), min_size=num_members * num_classes, max_size=num_members * num_classes
    )
    similarity = torch.tensor(draw(numbers), dtype=torch.float64).view(num_members, num_classes) / 8
    of_class = st.lists(st.integers(0, num_classes - 1), min_size=num_members, max_size=num_members)
    return Members(similarity, torch.tensor(draw(of_class)), draw(st.integers(0, 6)) / 8)


@given(eighths())
def test_generated_members(case: Members) -> None:
    assert_equals_enumeration(case)


def test_gradcheck() -> None:
    classes = torch.tensor([0, 1, 2, 0, 1, 1])
    check_gradients(lambda s: anchor_angle(s, classes, margin=0.3), 0.5 * normal(6, 3))


def test_members_and_centres_receive_gradient() -> None:
    classes = torch.tensor([0, 1, 2, 0, 1, 1])
    found = receivers(
        lambda m, c: anchor_angle(cosine_similarity(m, c), classes, margin=0.15),
        members=normal(6, 4, seed=1),
        centres=normal(3, 4, seed=2),
    )
    assert found == {"members", "centres"}


def test_from_vectors_to_gradients_of_vectors() -> None:
    classes = torch.tensor([0, 1, 2, 0, 1, 1])
    assert_agree(
        lambda m, c: anchor_angle(cosine_similarity(m, c), classes, margin=0.15),
        lambda m, c: reference.anchor_angle(reference.similarity(m, c), classes, margin=0.15).value,
        normal(6, 4, seed=1),
        normal(3, 4, seed=2),
    )


def test_order_of_the_members_does_not_matter() -> None:
    similarity, classes = torch.tanh(normal(12, 4)), torch.arange(12) % 4
    order = torch.randperm(12, generator=seeded())
    value, (gradient,) = value_and_gradients(lambda s: anchor_angle(s, classes, margin=0.2), similarity)
    permuted_value, (permuted_gradient,) = value_and_gradients(
        lambda s: anchor_angle(s, classes[order], margin=0.2), similarity[order]
    )
    torch.testing.assert_close(permuted_value, value)
    torch.testing.assert_close(permuted_gradient, gradient[order])


def crowded(num_members: int = 120) -> tuple[Tensor, Tensor]:
    """float32 similarities around 7/8 that differ by a few 1/1024: S2, 2tS1 and Nt² nearly cancel."""
    steps = torch.randint(0, 4, (num_members, 2), generator=seeded(4))
    return 0.875 + steps.float() / 1024, torch.arange(num_members) % 2


def test_cancellation() -> None:
    # All numbers are exact in float32; terms of 1e-6 come out of sums of 100. Sums in float32 would
    # leave no correct digit.
    similarity, classes = crowded()
    expected = reference.anchor_angle(similarity.double(), classes, margin=0.0)
    total, number = triplet_sum(similarity, classes, margin=0.0)
    assert number.item() == expected.number
    assert total.item() == pytest.approx((expected.value * expected.number).item(), rel=1e-8)
    assert anchor_angle(similarity, classes, margin=0.0).item() == pytest.approx(
        expected.value.item(), rel=1e-6
    )


def test_cancellation_in_the_gradient() -> None:
    similarity, classes = crowded(40)
    _, (gradient,) = value_and_gradients(lambda s: anchor_angle(s, classes, margin=0.0), similarity)
    _, (expected,) = value_and_gradients(
        lambda s: reference.anchor_angle(s, classes, margin=0.0).value, similarity.double()
    )
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-9)


def test_answer_has_the_type_of_the_similarities() -> None:
    similarity, classes = crowded(10)
    assert anchor_angle(similarity, classes, margin=0.1).dtype == torch.float32
    assert anchor_angle(similarity.double(), classes, margin=0.1).dtype == torch.float64
