"""A memory with one slot for each class."""

import pytest
import torch

from manigraph.nn import ClassMemory, Memory
from tests.helpers import assert_bitwise_equal, copied, normal
from tests.reference import class_memory as reference

C, D = 4, 3
FEATURES = normal(6, D, seed=3).float()
LOGITS = normal(6, C, seed=4).float()
LABELS = torch.tensor([2, 0, 2, 3, 2, 0])  # none of class 1


def filled() -> ClassMemory:
    memory = ClassMemory(C, D)
    memory.update(FEATURES, LOGITS, LABELS)
    return memory


def test_it_begins_empty() -> None:
    memory = ClassMemory(C, D)
    assert torch.equal(memory.keys, torch.zeros(C, D))
    assert torch.equal(memory.values, torch.full((C, C), 0.25))
    assert not memory.is_known.any()


def test_updates_are_the_reference() -> None:
    memory = ClassMemory(C, D, rate=0.3).double()
    keys = torch.zeros(C, D, dtype=torch.float64)
    values = torch.full((C, C), 0.25, dtype=torch.float64)
    for seed in range(3):
        features, logits = normal(6, D, seed=seed), normal(6, C, seed=10 + seed)
        memory.update(features, logits, LABELS)
        probs = logits.softmax(dim=1)
        keys, values = reference.updated(keys, values, features, probs, LABELS.tolist(), rate=0.3)
    torch.testing.assert_close(memory.keys, keys, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(memory.values, values, rtol=1e-12, atol=1e-12)
    assert memory.is_known.tolist() == [True, False, True, True]
    expected = reference.content_prediction(features, keys, values, memory.is_known.tolist())
    torch.testing.assert_close(memory(features).exp(), expected, rtol=1e-12, atol=1e-12)


def test_what_is_known_of_a_class_is_its_value() -> None:
    memory = filled()
    torch.testing.assert_close(memory.of_classes(LABELS).exp(), memory.values[LABELS])
    assert not memory.of_classes(LABELS).requires_grad


def test_gradient_goes_to_features_that_are_looked_up_and_not_into_the_memory() -> None:
    memory = ClassMemory(C, D)
    features, logits = FEATURES.clone().requires_grad_(True), LOGITS.clone().requires_grad_(True)
    memory.update(features, logits, LABELS)
    assert not any(buffer.requires_grad for buffer in memory.buffers())
    (gradient,) = torch.autograd.grad(memory(features)[:, 0].sum(), features)
    assert (gradient.norm(dim=1) > 0).all()


def test_a_gradient_can_wait_until_after_the_next_update() -> None:
    memory = filled()
    features = FEATURES.clone().requires_grad_(True)
    looked_up = memory(features)[:, 0].sum()
    (expected,) = torch.autograd.grad(looked_up, features, retain_graph=True)
    memory.update(-FEATURES, LOGITS, LABELS)
    (gradient,) = torch.autograd.grad(looked_up, features)
    assert torch.equal(gradient, expected)


def test_an_unseen_class_changes_nothing() -> None:
    memory = filled()
    before = memory(FEATURES)
    memory.keys[1] = FEATURES[0]
    memory.values[1] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert torch.equal(memory(FEATURES), before)


def test_half_precision_features_are_taken_in() -> None:
    memory = ClassMemory(C, D)
    memory.update(FEATURES.bfloat16(), LOGITS.bfloat16(), LABELS)
    assert memory.keys.dtype == torch.float32
    assert memory(FEATURES.bfloat16()).dtype == torch.float32


def test_memory_is_saved_but_is_no_part_of_the_trained_model() -> None:
    memory, fresh = filled(), ClassMemory(C, D)
    assert isinstance(memory, Memory)
    fresh.load_state_dict(memory.state_dict())
    assert_bitwise_equal(copied(fresh.state_dict()), copied(memory.state_dict()))
    assert torch.equal(fresh(FEATURES), memory(FEATURES))


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ValueError, match=f"rate of a memory must be above 0 and at most 1, got {rate}"):
        ClassMemory(C, D, rate=rate)
