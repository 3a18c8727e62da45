"""KL, squared error and entropy: section 2."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manigraph.functional import (
    class_imbalance,
    entropy,
    kl_consistency,
    kl_divergence,
    largest_class_share,
    mse_consistency,
)
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import consistency as reference

Pair = Callable[[Tensor, Tensor], Tensor]
Single = Callable[[Tensor], Tensor]


def kl_rows(target_logits: Tensor, student_logits: Tensor) -> Tensor:
    return torch.stack(reference.kl_per_image(target_logits, student_logits))


DISTANCES = [
    pytest.param(kl_divergence, kl_rows, id="kl_divergence"),
    pytest.param(kl_consistency, reference.kl, id="kl_consistency"),
    pytest.param(mse_consistency, reference.mse, id="mse_consistency"),
]


@pytest.mark.parametrize(("function", "loops"), DISTANCES)
def test_distance_is_the_reference(function: Pair, loops: Pair) -> None:
    assert_agree(function, loops, 2 * normal(5, 4, seed=1), 2 * normal(5, 4, seed=2))


PREDICTIONS = [
    pytest.param(entropy, reference.entropy, id="entropy"),
    pytest.param(class_imbalance, reference.class_imbalance, id="class_imbalance"),
]


@pytest.mark.parametrize(("function", "loops"), PREDICTIONS)
def test_function_of_a_prediction_is_the_reference(function: Single, loops: Single) -> None:
    assert_agree(function, loops, 2 * normal(5, 4))
    check_gradients(function, normal(3, 4))
    assert receivers(function, logits=normal(5, 4)) == {"logits"}


@pytest.mark.parametrize(("function", "loops"), DISTANCES)
def test_gradcheck_of_the_student(function: Pair, loops: Pair) -> None:
    target = normal(3, 4, seed=1)
    check_gradients(lambda student: function(target, student), normal(3, 4, seed=2))


@pytest.mark.parametrize(("function", "loops"), DISTANCES)
def test_only_the_student_receives_gradient(function: Pair, loops: Pair) -> None:
    assert receivers(function, target=normal(5, 4, seed=1), student=normal(5, 4, seed=2)) == {"student"}


# Image 1: target (1/2, 1/2), student (1/4, 3/4). Image 2: target and student are both (1/2, 1/2).
HALVES = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
QUARTERS = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()


def test_kl_by_hand() -> None:
    # 1/2 ln(1/2 : 1/4) + 1/2 ln(1/2 : 3/4) = 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3; image 2 gives 0.
    expected = [0.5 * math.log(4 / 3), 0.0]
    assert kl_divergence(HALVES, QUARTERS).tolist() == pytest.approx(expected, abs=1e-15)
    assert kl_consistency(HALVES, QUARTERS).item() == pytest.approx(0.25 * math.log(4 / 3))


def test_kl_is_of_the_target_from_the_student() -> None:
    # The other way round: 1/4 ln(1/4 : 1/2) + 3/4 ln(3/4 : 1/2) = 3/4 ln 3 - ln 2.
    expected = 0.75 * math.log(3) - math.log(2)
    assert kl_divergence(QUARTERS, HALVES)[0].item() == pytest.approx(expected)


def test_mse_by_hand() -> None:
    # (1/2 - 1/4)² + (1/2 - 3/4)² = 1/8, summed over classes; the mean with image 2 (0) is 1/16.
    assert mse_consistency(HALVES, QUARTERS).item() == pytest.approx(1 / 16)


def test_entropy_by_hand() -> None:
    # Image 1: -1/4 ln 1/4 - 3/4 ln 3/4 = ln 4 - 3/4 ln 3. Image 2: ln 2.
    expected = (math.log(4) - 0.75 * math.log(3) + math.log(2)) / 2
    assert entropy(QUARTERS).item() == pytest.approx(expected)


def test_class_imbalance_with_shares_is_the_reference() -> None:
    logits, shares = normal(7, 3), [0.6, 0.3, 0.1]
    expected = reference.class_imbalance(logits, shares)
    torch.testing.assert_close(class_imbalance(logits, torch.tensor(shares).double()), expected)
    right = torch.tensor([shares], dtype=torch.float64).log()
    assert class_imbalance(right, torch.tensor(shares).double()).item() == pytest.approx(0, abs=1e-7)
    assert class_imbalance(right).item() > 0.1


def test_class_imbalance_by_hand() -> None:
    # Mean prediction of the two images: ((1/4 + 1/2) / 2, (3/4 + 1/2) / 2) = (3/8, 5/8).
    # 1/2 ln(1/2 : 3/8) + 1/2 ln(1/2 : 5/8) = 1/2 ln(4/3 · 4/5) = 1/2 ln 16/15.
    assert class_imbalance(QUARTERS).item() == pytest.approx(0.5 * math.log(16 / 15))


def test_decided_predictions_are_balanced_if_all_classes_occur_equally_often() -> None:
    decided = 1000 * torch.eye(3, dtype=torch.float64)
    assert class_imbalance(decided).item() == pytest.approx(0, abs=1e-12)
    assert class_imbalance(decided[:1].expand(3, 3)).item() == pytest.approx(2000 / 3 - math.log(3))


LOGITS = st.lists(st.floats(-30, 30), min_size=8, max_size=8)


def matrix(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(2, 4)


@given(LOGITS)
def test_a_prediction_is_at_distance_zero_from_itself(values: list[float]) -> None:
    logits = matrix(values)
    assert kl_divergence(logits, logits).tolist() == [0.0, 0.0]
    assert mse_consistency(logits, logits).item() == 0.0


@given(LOGITS, LOGITS)
def test_bounds(first: list[float], second: list[float]) -> None:
    target, student = matrix(first), matrix(second)
    assert kl_divergence(target, student).min().item() >= -1e-12
    assert 0 <= mse_consistency(target, student).item() <= 2 + 1e-12
    assert -1e-12 <= entropy(target).item() <= math.log(4) + 1e-12


@given(LOGITS, LOGITS, st.floats(-20, 20))
def test_only_differences_of_logits_count(first: list[float], second: list[float], shift: float) -> None:
    target, student = matrix(first), matrix(second)
    torch.testing.assert_close(kl_divergence(target + shift, student), kl_divergence(target, student))
    torch.testing.assert_close(entropy(target + shift), entropy(target))


def test_limits_of_entropy() -> None:
    # Undecided among 5 classes: ln 5. Decided: 0, and finite although exp(-1000) is 0.
    assert entropy(torch.zeros(3, 5, dtype=torch.float64)).item() == pytest.approx(math.log(5))
    decided = torch.tensor([[0.0, -1000.0, -1000.0]], dtype=torch.float64)
    assert entropy(decided).item() == 0.0


def test_decided_predictions_stay_finite() -> None:
    first = torch.tensor([[0.0, -1000.0]])
    second = first.flip(1).requires_grad_(True)
    distance = kl_consistency(first, second)
    assert distance.item() == pytest.approx(1000)
    (gradient,) = torch.autograd.grad(distance, second)
    assert gradient.isfinite().all()


def test_permuting_the_batch_permutes_the_distances() -> None:
    target, student = normal(6, 4, seed=1), normal(6, 4, seed=2)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    expected = kl_divergence(target, student)[order]
    torch.testing.assert_close(kl_divergence(target[order], student[order]), expected)


@pytest.mark.parametrize("seed", range(5))
def test_largest_class_share_is_the_reference(seed: int) -> None:
    logits = normal(9, 4, seed=seed)
    assert largest_class_share(logits).item() == pytest.approx(reference.largest_class_share(logits))


def test_largest_class_share_by_hand() -> None:
    # Classes 2, 0, 2, 2 of 3: three of four. The last alone: all.
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 2.0], [-3.0, -2.0, -1.0], [0.0, 0.0, 5.0]])
    assert largest_class_share(logits).item() == 0.75
    assert largest_class_share(logits[3:]).item() == 1.0
