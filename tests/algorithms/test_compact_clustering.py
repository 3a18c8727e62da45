"""Compact latent space clustering against the paper's equations, written out entry by entry."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.compact_clustering import CompactClustering
from manigraph.contract import Batch, StepContext
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
from tests.reference import clustering as reference
from tests.reference import consistency

L, C = NUM_LABELLED, NUM_CLASSES


def method(**settings: Any) -> CompactClustering:
    """After two updates."""
    algorithm = begun(case_named("compact_clustering"), **settings)
    assert isinstance(algorithm, CompactClustering)
    return algorithm


def naive_step(
    algorithm: CompactClustering, batch: Batch, context: StepContext
) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """A copy of the model, the terms, and its running statistics after the one pass."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
    logits = model.linear(features)
    H = reference.transitions(features, scale=config.scale)
    walk = reference.without_staying(H, config.smoothing)
    phi = reference.propagated(walk, batch.labels.tolist(), C)
    if config.balance_memory:  # nothing was remembered before
        known = phi[L:].detach().clamp_min(1e-6).log().float().double()
        factor = consistency.balancing_bias(known, num_iterations=3).exp()
        rows = [row * factor / consistency.added(row * factor) for row in phi[L:]]
        phi = torch.cat([phi[:L], torch.stack(rows)])
    if config.detach_propagation:
        phi = phi.detach()
    clustering = reference.loss(H, phi, num_steps=config.num_steps)
    factor_of_ramp = ramp(config, context)
    terms = {
        "classification": consistency.cross_entropy(logits[:L], batch.labels),
        "clustering": factor_of_ramp * config.clustering_weight * clustering,
        "entropy": factor_of_ramp * config.entropy_weight * consistency.entropy(logits[L:]),
        "balance": config.balance_weight * consistency.class_imbalance(logits[L:]),
    }
    return model, terms, running_statistics(model)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], [2, 2, 0, 2]], ids=["all classes", "no class 1"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_steps": 1},
        {"num_steps": 2, "scale": 0.1, "clustering_weight": 0.3},
        {"detach_propagation": True, "scale": 0.1},
        {"smoothing": 0.1, "ramp_fraction": 0.9, "scale": 0.1},
        {"balance_memory": 20, "scale": 0.1},
    ],
    ids=str,
)
def test_step_is_the_naive_one(settings: dict[str, Any], labels: list[int]) -> None:
    algorithm = method(**settings).double()
    algorithm.target_balance.bias.zero_()
    algorithm.target_balance.count.zero_()
    batch = dataclasses.replace(batch_for(algorithm, dtype=torch.float64), labels=torch.tensor(labels))
    model, expected, statistics = naive_step(algorithm, batch, context_at())
    found = step_of(algorithm, batch)
    values = {name: term.item() for name, term in expected.items()}
    assert term_values(found) == pytest.approx(values, rel=1e-9, abs=1e-12)
    expected_gradients = gradients_of(model, consistency.added(expected.values()))
    for name, gradient in gradients_of(algorithm.model, found.loss).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-7, atol=1e-9)
    for name, value in running_statistics(algorithm).items():
        torch.testing.assert_close(value, statistics[name], rtol=1e-12, atol=1e-12)


# Gradients


def test_features_of_all_images_are_taught_and_the_linear_layer_is_not() -> None:
    algorithm = method(scale=0.1).eval()
    batch = batch_for(algorithm)
    labelled = batch.labelled["image"].clone().requires_grad_(True)
    unlabelled = batch.unlabelled["image"].clone().requires_grad_(True)
    images = dataclasses.replace(batch, labelled={"image": labelled}, unlabelled={"image": unlabelled})
    term = step_of(algorithm, images).terms["clustering"]
    for gradient in torch.autograd.grad(term, [labelled, unlabelled], retain_graph=True):
        assert (gradient.flatten(1).norm(dim=1) > 0).all()
    gradients = gradients_of(algorithm, term)
    assert not gradients["model.linear.weight"].any()
    assert not gradients["model.linear.bias"].any()


def test_constant_labels_change_the_gradient_and_not_the_value() -> None:
    through, constant = method(scale=0.1), method(scale=0.1, detach_propagation=True)
    constant.load_state_dict(through.state_dict())
    batch = batch_for(through)
    first, second = step_of(through, batch), step_of(constant, batch)
    assert term_values(first) == term_values(second)
    gradients = gradients_of(through, first.loss), gradients_of(constant, second.loss)
    assert any(not torch.allclose(g, gradients[1][name]) for name, g in gradients[0].items())


# Balanced labels


def test_labels_are_balanced_only_if_asked_for() -> None:
    algorithm = method()
    phi = normal(6, C).softmax(dim=1)
    torch.testing.assert_close(algorithm._balanced(phi), phi, rtol=1e-15, atol=1e-15)
    balanced = method(balance_memory=12)
    skewed = (normal(12, C) + torch.tensor([2.0, 0.0, 0.0])).double().softmax(dim=1)
    for _ in range(20):
        result = balanced._balanced(skewed)
    torch.testing.assert_close(result.sum(dim=1), torch.ones(12, dtype=torch.float64))
    assert result.mean(dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_a_class_without_a_label_gets_none_by_balance() -> None:
    algorithm = method(balance_memory=20)
    phi = normal(6, C).softmax(dim=1)
    phi[:, 1] = 0
    phi = phi / phi.sum(dim=1, keepdim=True)
    for _ in range(10):
        result = algorithm._balanced(phi)
    assert not result[:, 1].any()
    assert result.isfinite().all()


# Corner cases


def check(algorithm: CompactClustering, batch: Batch) -> None:
    output = step_of(algorithm, batch)
    assert all(term.isfinite() for term in output.terms.values())
    assert all(g.isfinite().all() for g in gradients_of(algorithm, output.loss).values())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("detach", [False, True])
def test_features_of_any_size_are_finite(scale: float, detach: bool) -> None:
    algorithm = build(case_named("compact_clustering"), scale=scale, detach_propagation=detach)
    assert isinstance(algorithm, CompactClustering)
    check(algorithm, batch_for(algorithm))


def test_the_graph_is_computed_in_float64() -> None:
    # Chances as small as exp(-100) after two steps and more, which float32 would not tell from smaller ones.
    algorithm = build(case_named("compact_clustering"), scale=2.0, clustering_weight=1.0)
    batch = batch_for(algorithm)
    with torch.no_grad():
        features = algorithm.model.features(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
    found = step_of(algorithm, batch).terms["clustering"]
    assert found.dtype == torch.float32
    H = reference.transitions(features.double(), scale=2.0)
    phi = reference.propagated(reference.without_staying(H, 1e-3), batch.labels.tolist(), C)
    assert 1e-150 < H.min() < 1e-40
    assert found.item() == pytest.approx(reference.loss(H, phi, num_steps=3).item(), rel=1e-5)


def test_identical_images_and_one_label_are_finite() -> None:
    algorithm = method(balance_memory=20)
    batch = batch_for(algorithm)
    image = batch.labelled["image"][:1]
    same = dataclasses.replace(
        batch,
        labelled={"image": image},
        labels=torch.tensor([1]),
        unlabelled={"image": image.expand(5, -1, -1, -1).clone()},
    )
    for _ in range(3):
        check(algorithm, same)


@pytest.mark.parametrize("num_classes", [2, 1000])
def test_few_and_many_classes(num_classes: int) -> None:
    torch.manual_seed(0)
    algorithm = CompactClustering(CompactClustering.Config(), tiny_backbone(), num_classes)
    labels = torch.tensor([0, 1, 1, num_classes - 1])
    check(algorithm, dataclasses.replace(batch_for(algorithm), labels=labels))


def test_half_precision_features_are_fine() -> None:
    algorithm = method()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(algorithm, batch_for(algorithm))


# Settings


def test_clustering_is_ramped_up() -> None:
    # At 1/10 of the run, a quarter of a ramp of 0.4: exp(-5 (3/4)²). Balance is not ramped.
    full, ramped = (
        term_values(
            step_of(
                algorithm := build(case_named("compact_clustering"), ramp_fraction=f),
                batch_for(algorithm),
                context_at(step=1),
            )
        )
        for f in (0.0, 0.4)
    )
    for name, value in full.items():
        factor = 1.0 if name in ("classification", "balance") else math.exp(-5 * 0.75**2)
        assert ramped[name] == pytest.approx(factor * value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"smoothing": 0.0}, "smoothing must be above 0 and below 1 and scale above 0, got 0.0 and 1.0"),
        ({"scale": 0.0}, "smoothing must be above 0 and below 1 and scale above 0, got 0.001 and 0.0"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompactClustering.Config(**settings)
