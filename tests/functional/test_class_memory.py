"""How slots of classes are written and read: SSL with memory."""

import math

import pytest
import torch
from torch import Tensor

from manigraph.functional import ClassSlots, class_address, memory_divergence, memory_logits, updated_slots
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import class_memory as reference

C, D = 4, 3
KEYS = normal(C, D, seed=1)
VALUES = normal(C, C, seed=2).softmax(dim=1)
FEATURES = normal(6, D, seed=3)
PROBS = normal(6, C, seed=4).softmax(dim=1)
LABELS = torch.tensor([2, 0, 2, 3, 2, 0])  # none of class 1
ALL_KNOWN = torch.ones(C, dtype=torch.bool)
WITHOUT_1 = torch.tensor([True, False, True, True])


# Writing


@pytest.mark.parametrize("rate", [0.5, 1.0, 0.1])
@pytest.mark.parametrize("size", [1.0, 1.5], ids=["probabilities", "after much rounding"])
def test_update_is_the_reference(rate: float, size: float) -> None:
    before = size * VALUES
    found = updated_slots(ClassSlots(KEYS, before), FEATURES, PROBS, LABELS, rate=rate)
    keys, values = reference.updated(KEYS, before, FEATURES, PROBS, LABELS.tolist(), rate=rate)
    torch.testing.assert_close(found.keys, keys, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.values, values, rtol=1e-12, atol=1e-12)


def test_update_by_hand() -> None:
    # Class 0 has n = 2 images, at 3 and 5; from 1, η = 1/2: 1 - 1/2 ((1 - 3) + (1 - 5)) / 3 = 1 + 1 = 2.
    # Its value, from (1/2, 1/2) with predictions (1, 0) twice: 1/2 - 1/2 (2 (1/2 - 1)) / 3 = 2/3.
    slots = ClassSlots(torch.tensor([[1.0], [7.0]]), torch.full((2, 2), 0.5))
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    found = updated_slots(slots, torch.tensor([[3.0], [5.0]]), probs, torch.tensor([0, 0]), rate=0.5)
    assert found.keys.flatten().tolist() == pytest.approx([2.0, 7.0])
    assert found.values.flatten().tolist() == pytest.approx([2 / 3, 1 / 3, 0.5, 0.5])


def test_a_class_without_images_stays() -> None:
    found = updated_slots(ClassSlots(KEYS, VALUES), FEATURES, PROBS, LABELS, rate=0.5)
    assert torch.equal(found.keys[1], KEYS[1])
    torch.testing.assert_close(found.values[1], VALUES[1], rtol=1e-15, atol=0)
    assert (found.keys != KEYS).any(dim=1).tolist() == [True, False, True, True]


def test_values_stay_probabilities() -> None:
    slots = ClassSlots(torch.zeros(C, D), torch.full((C, C), 1 / C))
    for seed in range(200):
        labels = torch.arange(6) % C
        sure = (50 * normal(6, C, seed=seed)).softmax(dim=1).float()
        slots = updated_slots(slots, normal(6, D, seed=seed).float(), sure, labels, rate=1.0)
    torch.testing.assert_close(slots.values.sum(dim=1), torch.ones(C))
    assert (slots.values >= 0).all()


def test_slots_come_to_where_a_class_is() -> None:
    slots = ClassSlots(torch.zeros(C, D, dtype=torch.float64), torch.full((C, C), 1 / C, dtype=torch.float64))
    for _ in range(100):
        slots = updated_slots(slots, FEATURES, PROBS, LABELS, rate=0.5)
    torch.testing.assert_close(slots.keys[2], FEATURES[LABELS == 2].mean(dim=0))
    torch.testing.assert_close(slots.values[2], PROBS[LABELS == 2].mean(dim=0))


def test_the_order_of_the_images_does_not_matter() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    expected = updated_slots(ClassSlots(KEYS, VALUES), FEATURES, PROBS, LABELS, rate=0.5)
    found = updated_slots(ClassSlots(KEYS, VALUES), FEATURES[order], PROBS[order], LABELS[order], rate=0.5)
    torch.testing.assert_close(found.keys, expected.keys)
    torch.testing.assert_close(found.values, expected.values)


# Reading


def prediction(known: Tensor) -> tuple[Tensor, Tensor]:
    """Found and expected."""
    found = memory_logits(class_address(FEATURES, KEYS, known), VALUES)
    return found, reference.content_prediction(FEATURES, KEYS, VALUES, known.tolist())


@pytest.mark.parametrize("known", [ALL_KNOWN, WITHOUT_1], ids=["all", "without 1"])
def test_reading_is_the_reference(known: Tensor) -> None:
    assert_agree(
        lambda features, keys, values: memory_logits(class_address(features, keys, known), values),
        lambda features, keys, values: torch.log(
            reference.content_prediction(features, keys, values, known.tolist())
        ),
        FEATURES,
        KEYS,
        VALUES,
    )
    check_gradients(lambda features: class_address(features, KEYS, known), FEATURES)


def test_address_by_hand() -> None:
    # Distances 5 (of 3, 4) and 4: weights e^-5 and e^-4, that is 1 / (1 + e) and e / (1 + e).
    keys = torch.tensor([[3.0, 4.0], [0.0, -4.0]], dtype=torch.float64)
    features = torch.zeros(1, 2, dtype=torch.float64)
    found = class_address(features, keys, torch.tensor([True, True]))
    assert found[0].tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    # With values (1, 0) and (1/2, 1/2): p̂ = ((1 + e/2) / (1 + e), (e/2) / (1 + e)).
    values = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    expected = [(1 + math.e / 2) / (1 + math.e), math.e / 2 / (1 + math.e)]
    assert memory_logits(found, values).exp()[0].tolist() == pytest.approx(expected)


def test_a_class_that_was_never_seen_has_no_weight() -> None:
    address = class_address(FEATURES, KEYS, WITHOUT_1)
    assert (address[:, 1] == 0).all()
    torch.testing.assert_close(address.sum(dim=1), torch.ones(6, dtype=torch.float64))
    elsewhere = KEYS.clone()
    elsewhere[1] = FEATURES[0]  # at the very place of an image
    assert torch.equal(class_address(FEATURES, elsewhere, WITHOUT_1), address)


def test_only_one_class_was_seen() -> None:
    alone = torch.tensor([False, False, True, False])
    address = class_address(FEATURES, KEYS, alone)
    assert torch.equal(address, alone.double().expand(6, C))


def test_an_image_at_a_key_has_a_finite_gradient() -> None:
    features = KEYS.clone().requires_grad_(True)
    logits = memory_logits(class_address(features, KEYS, ALL_KNOWN), VALUES)
    (gradient,) = torch.autograd.grad(logits.logsumexp(dim=0).sum(), features)
    assert gradient.isfinite().all()


def test_far_images_and_sure_values_stay_finite() -> None:
    features = torch.tensor([[1e4, 0.0], [0.0, 0.0]], requires_grad=True)
    keys = torch.tensor([[1e4, 1.0], [-1e4, 0.0]])
    logits = memory_logits(class_address(features, keys, torch.tensor([True, True])), torch.eye(2))
    assert logits.isfinite().all()
    loss = memory_divergence(torch.zeros(2, 2), logits)
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss.isfinite()
    assert gradient.isfinite().all()


# Divergence


def test_divergence_is_the_reference() -> None:
    inputs = 2 * normal(5, 4, seed=1), 2 * normal(5, 4, seed=2)
    assert_agree(memory_divergence, reference.memory_divergence, *inputs)
    check_gradients(memory_divergence, normal(3, 4, seed=1), normal(3, 4, seed=2))


def test_divergence_by_hand() -> None:
    # p = (1/2, 1/2), p̂ = (1/4, 3/4): 3/4 · (1/2 ln 2 + 1/2 ln 2/3) = 3/8 ln 4/3; p = p̂ in image 2 gives 0.
    logits = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64).log()
    memory = torch.tensor([[0.25, 0.75], [0.1, 0.9]], dtype=torch.float64).log()
    assert memory_divergence(logits, memory).item() == pytest.approx(3 / 16 * math.log(4 / 3))


def test_divergence_teaches_the_network_by_both_ways() -> None:
    inputs = {"logits": normal(5, 4, seed=1), "memory": normal(5, 4, seed=2)}
    assert receivers(memory_divergence, **inputs) == {"logits", "memory"}


def test_a_memory_that_is_unsure_counts_less() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    undecided = memory_divergence(logits, torch.zeros(1, 3, dtype=torch.float64))
    probs = logits.softmax(dim=1)
    assert undecided.item() == pytest.approx((probs * (3 * probs).log()).sum().item() / 3)
