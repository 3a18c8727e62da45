"""Targets balanced over a memory of recent predictions."""

import pytest
import torch
from torch import Tensor

from manigraph.nn import TargetBalance
from tests.helpers import assert_bitwise_equal, normal
from tests.reference import consistency as reference

SKEWED = normal(10, 3) + torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)


def frequencies(logits: Tensor) -> list[float]:
    values: list[float] = logits.softmax(dim=1).mean(dim=0).tolist()
    return values


def test_first_bias_is_the_reference() -> None:
    balance = TargetBalance(3, memory=20).double()
    remembered = SKEWED.float().double()  # the memory holds float32
    bias = reference.balancing_bias(remembered, num_iterations=3)
    torch.testing.assert_close(balance(SKEWED), SKEWED + bias, rtol=1e-12, atol=1e-12)


def test_classes_become_equally_frequent() -> None:
    assert frequencies(SKEWED) != pytest.approx([1 / 3] * 3, abs=0.1)
    balanced = TargetBalance(3, memory=20, num_iterations=200)(SKEWED.float())
    assert frequencies(balanced) == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_classes_become_as_frequent_as_their_shares() -> None:
    shares = [5.0, 3.0, 2.0]
    balance = TargetBalance(3, memory=20, shares=shares).double()
    bias = reference.balancing_bias(
        SKEWED.float().double(), num_iterations=3, shares=[share / 10 for share in shares]
    )
    torch.testing.assert_close(balance(SKEWED), SKEWED + bias, rtol=1e-12, atol=1e-12)
    balanced = TargetBalance(3, memory=20, num_iterations=200, shares=shares)(SKEWED.float())
    assert frequencies(balanced) == pytest.approx([0.5, 0.3, 0.2], abs=1e-3)


@pytest.mark.parametrize("shares", [[1.0], [1.0, 1.0, 0.0], [1.0, 1.0, -1.0]])
def test_shares_that_cannot_be(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="a share above 0 for each of 3 classes"):
        TargetBalance(3, memory=20, shares=shares)


def test_by_hand() -> None:
    # One prediction (3/4, 1/4). One step: b = -log 2 - log p = (log 2/3, log 2), minus its mean
    # log(4/3) / 2 is ±log(3) / 2; added to logits log 3/4 and log 1/4 it makes them equal.
    logits = torch.tensor([[0.75, 0.25]]).log()
    balance = TargetBalance(2, memory=5, num_iterations=1)
    assert frequencies(balance(logits)) == pytest.approx([0.5, 0.5])
    assert balance.bias.tolist() == pytest.approx([-0.5493061, 0.5493061])


def test_without_memory_nothing_is_changed() -> None:
    logits = SKEWED.float()
    assert torch.equal(TargetBalance(3, memory=0)(logits), logits)


def test_the_newest_predictions_are_remembered() -> None:
    balance = TargetBalance(3, memory=5)
    batches = [normal(2, 3, seed=seed).float() for seed in range(4)]
    for seen, batch in enumerate(batches, start=1):
        balance(batch)
        assert int(balance.count) == min(2 * seen, 5)
    expected = torch.cat([batches[3], batches[2], batches[1][:1]])
    assert torch.equal(balance.recent_logits, expected)


def test_a_batch_may_be_larger_than_the_memory() -> None:
    balance = TargetBalance(3, memory=4)
    assert balance(SKEWED.float()).shape == SKEWED.shape
    assert int(balance.count) == 4


def test_targets_are_constants() -> None:
    for memory in (0, 5):
        assert not TargetBalance(3, memory=memory)(SKEWED.float().requires_grad_(True)).requires_grad


def test_memory_is_saved() -> None:
    balance, fresh = TargetBalance(3, memory=8), TargetBalance(3, memory=8)
    balance(SKEWED.float())
    fresh.load_state_dict(balance.state_dict())
    following = normal(2, 3, seed=5).float()
    assert torch.equal(fresh(following), balance(following))
    assert_bitwise_equal(fresh.state_dict(), balance.state_dict())


def test_memory_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="the memory of balanced targets cannot be negative, got -1"):
        TargetBalance(3, memory=-1)
