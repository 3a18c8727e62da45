"""SSL with memory against the paper's equations, written out class by class over several updates."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.memory import MemorySSL
from manigraph.contract import Batch, StepContext
from manigraph.nn import trained_state
from tests.algorithms.naive import ramp
from tests.helpers import (
    NUM_CLASSES,
    NUM_LABELLED,
    batch_for,
    begun,
    build,
    case_named,
    context_at,
    gradients_of,
    normal,
    running_statistics,
    step_of,
    term_values,
    tiny_backbone,
)
from tests.reference import class_memory as reference
from tests.reference import consistency

L, C = NUM_LABELLED, NUM_CLASSES


def method(**settings: Any) -> MemorySSL:
    """With an empty memory."""
    algorithm = build(case_named("memory"), **settings)
    assert isinstance(algorithm, MemorySSL)
    return algorithm


def filled(**settings: Any) -> MemorySSL:
    """After two updates."""
    algorithm = begun(case_named("memory"), **settings)
    assert isinstance(algorithm, MemorySSL)
    return algorithm


class NaiveMemory:
    """Slots in numbers, from nothing."""

    def __init__(self, feature_size: int) -> None:
        self.keys = torch.zeros(C, feature_size, dtype=torch.float64)
        self.values = torch.full((C, C), 1 / C).double()  # the method begins in float32
        self.known = [False] * C

    def step(
        self, algorithm: MemorySSL, batch: Batch, context: StepContext, bias: Tensor | None = None
    ) -> tuple[Any, dict[str, Tensor]]:
        """A copy of the model, and the terms, after the labelled images have been written down."""
        model, config = copy.deepcopy(algorithm.model), algorithm.config
        features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
        logits = model.linear(features)
        labels = batch.labels.tolist()
        probs = torch.stack([torch.stack(consistency.softmax(row)) for row in logits[:L].detach()])
        self.keys, self.values = reference.updated(
            self.keys, self.values, features[:L].detach(), probs, labels, rate=config.memory_rate
        )
        self.known = [known or c in labels for c, known in enumerate(self.known)]

        of_labelled = torch.stack([self.values[label] for label in labels])
        of_unlabelled = reference.content_prediction(features[L:], self.keys, self.values, self.known)
        memory = torch.cat([of_labelled, of_unlabelled]).log()
        told = memory if bias is None else torch.cat([memory[:L], memory[L:] + bias])
        factor = ramp(config, context)
        return model, {
            "classification": consistency.cross_entropy(logits[:L], batch.labels),
            "memory_entropy": factor * config.memory_entropy_weight * consistency.entropy(memory),
            "memory_divergence": factor
            * config.memory_divergence_weight
            * reference.memory_divergence(logits, told),
            "entropy": factor * config.entropy_weight * consistency.entropy(logits[L:]),
            "balance": config.balance_weight * consistency.class_imbalance(logits[L:]),
        }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"memory_rate": 1.0, "memory_entropy_weight": 0.3},
        {"ramp_fraction": 0.9, "memory_divergence_weight": 2.0},
    ],
    ids=str,
)
def test_several_steps_are_the_naive_ones(settings: dict[str, Any]) -> None:
    algorithm = method(**settings).double()
    naive = NaiveMemory(algorithm.model.linear.in_features)
    optimizer = torch.optim.SGD(algorithm.parameters(), lr=0.05)
    for step in range(3):
        batch = batch_for(algorithm, seed=step, dtype=torch.float64)
        if step == 0:  # class 2 is not seen before the second step
            batch = dataclasses.replace(batch, labels=torch.tensor([0, 1, 0, 0]))
        before = running_statistics(algorithm)
        model, expected = naive.step(algorithm, batch, context_at(step))
        found = step_of(algorithm, batch, context_at(step))

        values = {name: term.item() for name, term in expected.items()}
        assert term_values(found) == pytest.approx(values, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(algorithm.memory.keys, naive.keys, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(algorithm.memory.values, naive.values, rtol=1e-10, atol=1e-12)
        assert algorithm.memory.is_known.tolist() == naive.known
        expected_gradients = gradients_of(model, consistency.added(expected.values()))
        for name, gradient in gradients_of(algorithm.model, found.loss).items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)
        assert any((value != before[name]).any() for name, value in running_statistics(algorithm).items())
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()


def test_balanced_targets_are_what_the_network_follows_and_not_what_is_remembered() -> None:
    algorithm, plain = method(balance_memory=20).double(), method().double()
    batch = batch_for(algorithm, dtype=torch.float64)
    found = step_of(algorithm, batch)
    expected_entropy = step_of(plain, batch).terms["memory_entropy"]
    assert found.terms["memory_entropy"].item() == pytest.approx(expected_entropy.item())
    assert torch.equal(algorithm.memory.values, plain.memory.values)

    features = copy.deepcopy(plain.model).backbone(
        torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
    )
    remembered = plain.memory(features[L:]).detach().float().double()
    bias = consistency.balancing_bias(remembered, num_iterations=3)
    naive = NaiveMemory(features.shape[1])
    fresh = method().double()
    _, expected = naive.step(fresh, batch, context_at(), bias)
    assert found.terms["memory_divergence"].item() == pytest.approx(expected["memory_divergence"].item())
    assert bias.abs().max() > 1e-3


# What is remembered


def test_only_labelled_images_are_remembered() -> None:
    first, second = filled().eval(), filled().eval()
    batch = batch_for(first)
    other = {name: view + normal(*view.shape, seed=9).float() for name, view in batch.unlabelled.items()}
    step_of(first, batch)
    step_of(second, dataclasses.replace(batch, unlabelled=other))
    assert torch.equal(first.memory.keys, second.memory.keys)
    assert torch.equal(first.memory.values, second.memory.values)


def test_images_are_written_down_before_the_memory_is_read() -> None:
    algorithm = method().eval()
    batch = batch_for(algorithm)
    output = step_of(algorithm, batch)
    algorithm.memory.rate = 1e-12  # no further change
    again = step_of(algorithm, batch)
    assert term_values(again) == pytest.approx(term_values(output), rel=1e-6)


def test_memory_is_in_checkpoints_and_not_in_the_trained_model() -> None:
    algorithm = filled()
    assert {"memory.keys", "memory.values", "memory.is_known"} <= set(algorithm.state_dict())
    assert not any(name.startswith("memory.") for name in trained_state(algorithm))


def test_a_class_that_was_not_seen_is_predicted_for_nobody_because_of_its_key() -> None:
    algorithm = method()
    batch = dataclasses.replace(batch_for(algorithm), labels=torch.zeros(L, dtype=torch.long))
    output = step_of(algorithm, batch)
    assert algorithm.memory.is_known.tolist() == [True, False, False]
    assert not algorithm.memory.keys[1:].any()
    with torch.no_grad():
        features = algorithm.model.features(batch.unlabelled["image"])
        told = algorithm.memory(features).exp()
    torch.testing.assert_close(told, algorithm.memory.values[:1].expand_as(told))
    assert all(term.isfinite() for term in output.terms.values())
    assert all(g.isfinite().all() for g in gradients_of(algorithm, output.loss).values())


def test_identical_images_and_one_label_are_finite() -> None:
    algorithm = method()
    batch = batch_for(algorithm)
    image = batch.labelled["image"][:1]
    same = dataclasses.replace(
        batch,
        labelled={"image": image},
        labels=torch.tensor([1]),
        unlabelled={"image": image.expand(5, -1, -1, -1).clone()},
    )
    for _ in range(3):
        output = step_of(algorithm, same)
    assert all(term.isfinite() for term in output.terms.values())
    assert all(g.isfinite().all() for g in gradients_of(algorithm, output.loss).values())


@pytest.mark.parametrize("num_classes", [2, 1000])
def test_few_and_many_classes(num_classes: int) -> None:
    torch.manual_seed(0)
    algorithm = MemorySSL(MemorySSL.Config(), tiny_backbone(), num_classes)
    batch = dataclasses.replace(batch_for(algorithm), labels=torch.tensor([0, 1, 1, num_classes - 1]))
    output = step_of(algorithm, batch)
    assert all(term.isfinite() for term in output.terms.values())
    assert all(g.isfinite().all() for g in gradients_of(algorithm, output.loss).values())


# Gradients


def test_who_is_taught() -> None:
    """In evaluation mode an image is reached through its own features alone."""
    algorithm = filled().eval()
    batch = batch_for(algorithm)
    labelled = batch.labelled["image"].clone().requires_grad_(True)
    unlabelled = batch.unlabelled["image"].clone().requires_grad_(True)
    terms = step_of(
        algorithm, dataclasses.replace(batch, labelled={"image": labelled}, unlabelled={"image": unlabelled})
    ).terms

    def taught(term: str) -> tuple[bool, bool]:
        gradients = torch.autograd.grad(
            terms[term], [labelled, unlabelled], retain_graph=True, allow_unused=True
        )
        found = [g is not None and bool((g.flatten(1).norm(dim=1) > 0).all()) for g in gradients]
        return found[0], found[1]

    # The value of a labelled image's class is a constant: its entropy teaches nobody.
    assert taught("memory_entropy") == (False, True)
    assert taught("memory_divergence") == (True, True)
    assert not gradients_of(algorithm, terms["memory_entropy"])["model.linear.weight"].any()
    assert gradients_of(algorithm, terms["memory_divergence"])["model.linear.weight"].any()


def test_model_entropy_draws_features_to_a_key() -> None:
    algorithm = filled()
    algorithm.memory.values.copy_(0.1 / (C - 1) + (0.9 - 0.1 / (C - 1)) * torch.eye(C))
    features = normal(6, algorithm.memory.keys.shape[1]).float()

    def entropy_of(features: Tensor) -> Tensor:
        return consistency.entropy(algorithm.memory(features).double())

    leaf = features.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(entropy_of(leaf), leaf)
    assert entropy_of(features - gradient / gradient.norm()) < entropy_of(features)


# Settings


def test_both_terms_are_ramped_up() -> None:
    # At 1/10 of the run, a quarter of a ramp of 0.4: exp(-5 (3/4)²). Balance is not ramped.
    full, ramped = (
        term_values(step_of(algorithm := method(ramp_fraction=f), batch_for(algorithm), context_at(step=1)))
        for f in (0.0, 0.4)
    )
    for name, value in full.items():
        factor = 1.0 if name in ("classification", "balance") else math.exp(-5 * 0.75**2)
        assert ramped[name] == pytest.approx(factor * value)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ValueError, match=f"memory_rate must be above 0 and at most 1, got {rate}"):
        MemorySSL.Config(memory_rate=rate)
