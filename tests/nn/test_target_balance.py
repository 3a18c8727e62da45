import copy

import pytest
import torch
from torch import Tensor

from manigraph.nn import TargetBalance


def skewed(count: int, seed: int = 0) -> Tensor:
    """Logits that prefer class 0."""
    logits = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    logits[:, 0] += 1.5
    return logits


def test_targets_are_balanced_over_the_memory() -> None:
    balance = TargetBalance(4, memory=60, num_iterations=50)
    batches = [skewed(20, seed) for seed in range(3)]
    for batch in batches:
        balanced = balance(batch)
    everything = torch.cat(batches)
    frequency = (everything + balance.bias).softmax(dim=1).mean(dim=0)
    assert torch.allclose(frequency, torch.full((4,), 0.25), atol=1e-4)
    assert torch.allclose(balanced, batches[-1] + balance.bias)
    assert float(everything.softmax(dim=1).mean(dim=0)[0]) > 0.4  # it was not balanced before


def test_the_oldest_predictions_are_forgotten() -> None:
    balance = TargetBalance(4, memory=30)
    for seed in range(5):
        balance(skewed(20, seed))
    assert torch.equal(balance.recent_logits, torch.cat([skewed(20, 4), skewed(20, 3)[:10]]))


def test_before_the_memory_is_full_only_what_was_seen_counts() -> None:
    large, exact = (TargetBalance(4, memory=m, num_iterations=20) for m in (1000, 20))
    assert torch.allclose(large(skewed(20)), exact(skewed(20)))


def test_a_batch_larger_than_the_memory_is_possible() -> None:
    balanced = TargetBalance(4, memory=8)(skewed(20))
    assert balanced.shape == (20, 4)
    assert torch.isfinite(balanced).all()


def test_without_memory_the_targets_stay_as_they_are() -> None:
    logits = skewed(20)
    assert torch.equal(TargetBalance(4, memory=0)(logits), logits)


def test_targets_are_constants() -> None:
    logits = skewed(20).requires_grad_()
    for memory in (0, 30):
        assert not TargetBalance(4, memory)(logits).requires_grad


def test_saving_and_loading_continues_where_it_was() -> None:
    balance = TargetBalance(4, memory=50)
    balance(skewed(20, 0))
    loaded = TargetBalance(4, memory=50)
    loaded.load_state_dict(copy.deepcopy(balance.state_dict()))
    assert torch.equal(loaded(skewed(20, 1)), balance(skewed(20, 1)))


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative, got -1"):
        TargetBalance(4, memory=-1)
