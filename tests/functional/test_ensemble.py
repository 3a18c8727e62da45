"""The running mean of predictions: Laine & Aila (2017)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manigraph.functional import accumulated, bias_corrected
from tests.helpers import check_gradients, normal
from tests.reference.ensemble import ImageEnsemble, weighted_mean


def predictions(number: int, seed: int = 0) -> torch.Tensor:
    return normal(number, 4, seed=seed).softmax(dim=1)


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.99])
def test_they_are_the_reference(decay: float) -> None:
    image = ImageEnsemble()
    ensemble = torch.zeros(1, 4, dtype=torch.float64)
    rows = predictions(5)
    for number, probs in enumerate(rows, start=1):
        image.take(probs.tolist(), decay)
        ensemble = accumulated(ensemble, probs.unsqueeze(0), decay=decay)
        target = bias_corrected(ensemble, torch.tensor([number]), decay=decay)
        assert ensemble[0].tolist() == pytest.approx(image.total, rel=1e-12)
        assert target[0].tolist() == pytest.approx(image.target(decay), rel=1e-12)
        assert target[0].tolist() == pytest.approx(weighted_mean(rows[:number].tolist(), decay), rel=1e-10)


def test_by_hand() -> None:
    # α = 0.6. Z1 = 0.4 (1, 0) = (0.4, 0), corrected by 1 - 0.6: (1, 0).
    # Z2 = 0.6 (0.4, 0) + 0.4 (0, 1) = (0.24, 0.4), corrected by 1 - 0.36: (0.375, 0.625).
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    after_one = accumulated(torch.zeros(1, 2), first, decay=0.6)
    after_two = accumulated(after_one, second, decay=0.6)
    assert after_one[0].tolist() == pytest.approx([0.4, 0.0])
    assert after_two[0].tolist() == pytest.approx([0.24, 0.4])
    assert bias_corrected(after_one, torch.tensor([1]), decay=0.6)[0].tolist() == pytest.approx([1.0, 0.0])
    assert bias_corrected(after_two, torch.tensor([2]), decay=0.6)[0].tolist() == pytest.approx(
        [0.375, 0.625]
    )


def test_an_image_without_a_prediction_stays_at_zero() -> None:
    ensemble = torch.cat([torch.zeros(1, 4), predictions(1).float()])
    found = bias_corrected(ensemble, torch.tensor([0, 1]), decay=0.0)
    assert torch.equal(found, ensemble)


@given(st.floats(0, 0.99), st.integers(1, 40))
def test_targets_are_distributions(decay: float, number: int) -> None:
    ensemble = torch.zeros(3, 4, dtype=torch.float64)
    for seed in range(number):
        ensemble = accumulated(ensemble, predictions(3, seed), decay=decay)
    target = bias_corrected(ensemble, torch.full((3,), number), decay=decay)
    torch.testing.assert_close(target.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert target.min() >= 0


@given(st.floats(0, 0.99), st.integers(1, 40))
def test_a_prediction_that_does_not_change_is_its_own_mean(decay: float, number: int) -> None:
    probs = predictions(3)
    ensemble = torch.zeros_like(probs)
    for _ in range(number):
        ensemble = accumulated(ensemble, probs, decay=decay)
    torch.testing.assert_close(bias_corrected(ensemble, torch.full((3,), number), decay=decay), probs)


def test_decay_zero_remembers_the_newest_alone() -> None:
    assert torch.equal(accumulated(predictions(3, 1), predictions(3, 2), decay=0.0), predictions(3, 2))


def test_the_correction_is_as_precise_as_the_ensemble() -> None:
    count = torch.tensor([1, 7, 30])
    ones = torch.ones(3, 2, dtype=torch.float64)
    expected = torch.tensor([1 / (1 - 0.6**t) for t in (1, 7, 30)], dtype=torch.float64)
    found = bias_corrected(ones, count, decay=0.6)
    torch.testing.assert_close(found, expected.unsqueeze(1).expand(3, 2), rtol=1e-15, atol=0)


def test_gradcheck() -> None:
    check_gradients(lambda z, p: accumulated(z, p, decay=0.6), predictions(3, 1), predictions(3, 2))
    check_gradients(lambda z: bias_corrected(z, torch.tensor([0, 1, 4]), decay=0.6), predictions(3))
