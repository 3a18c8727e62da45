"""Training steps of Pseudo-Label, MixUp and MixMatch, written out with the looped references."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.contract import Batch, StepContext
from tests.algorithms.naive import NaiveStep, ramp
from tests.helpers import (
    Case,
    batch_for,
    build,
    context_at,
    gradients_of,
    running_statistics,
    step_of,
    term_values,
)
from tests.reference import consistency, mixing


def linear(progress: float, start: float, end: float) -> float:
    """0 before `start`, 1 from `end` on, a straight line in between."""
    if progress >= end:
        return 1.0
    return 0.0 if progress < start else (progress - start) / (end - start)


def balanced(config: Any, logits: Tensor) -> Tensor:
    """The first step: nothing but this batch is remembered, in float32."""
    if not config.balance_memory:
        return logits.detach()
    known = logits.detach()[: config.balance_memory].float().double()
    return logits.detach() + consistency.balancing_bias(known, num_iterations=3)


def extra_terms(config: Any, context: StepContext, clean: Tensor) -> dict[str, Tensor]:
    return {
        "entropy": ramp(config, context) * config.entropy_weight * consistency.entropy(clean),
        "balance": config.balance_weight * consistency.class_imbalance(clean),
    }


def pseudo_label(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """L = cross-entropy + α(t) 1/U Σ_u cross-entropy with the class of the same prediction, if it is sure."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]])))
    labelled, unlabelled = clean[: len(batch.labels)], clean[len(batch.labels) :]
    losses = []
    for target_row, row in zip(balanced(config, unlabelled), unlabelled, strict=True):
        target = [probability.item() for probability in consistency.softmax(target_row)]
        if max(target) >= config.threshold:
            losses.append(-torch.log(consistency.softmax(row)[target.index(max(target))]))
    alpha = config.pseudo_label_weight * linear(context.progress, config.ramp_start, config.ramp_end)
    terms = {
        "classification": consistency.cross_entropy(labelled, batch.labels),
        "pseudo_label": alpha * consistency.added(losses) / len(unlabelled),
        **extra_terms(config, context, unlabelled),
    }
    return NaiveStep(model, terms, running_statistics(model))


class Mixture(NamedTuple):
    images: Tensor
    probs: Tensor


def mixture(images: Tensor, probs: Tensor, alpha: float, context: StepContext) -> Mixture:
    """Each with its partner in the shuffled batch, from the next random numbers of the step's generator."""
    partners = torch.randperm(len(images), generator=context.generator).tolist()
    numbers = torch.rand(2, len(images), generator=context.generator, dtype=images.dtype)
    shares = []
    for u, v in numbers.T.tolist():
        share = mixing.symmetric_beta(u, v, alpha)
        shares.append(max(share, 1 - share))
    own = torch.tensor(shares, dtype=images.dtype)
    shuffled_images = torch.stack([images[partner] for partner in partners])
    shuffled_probs = torch.stack([probs[partner] for partner in partners])
    return Mixture(mixing.mix(images, shuffled_images, own), mixing.mix(probs, shuffled_probs, own))


def one_hot(labels: Tensor, C: int) -> Tensor:
    rows = [[1.0 if c == label else 0.0 for c in range(C)] for label in labels.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def mixup(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Cross-entropy on mixed labelled images and on mixed unlabelled ones with their predictions."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    L = len(batch.labels)
    images, others = batch.labelled["image"], batch.unlabelled["image"]
    clean = model.linear(model.backbone(torch.cat([images, others])))[L:]
    statistics = running_statistics(model)
    guesses = torch.stack([torch.stack(consistency.softmax(row)) for row in balanced(config, clean)])
    labelled = mixture(images, one_hot(batch.labels, model.num_classes), config.alpha, context)
    unlabelled = mixture(others, guesses, config.alpha, context)
    logits = model.linear(model.backbone(torch.cat([labelled.images, unlabelled.images])))
    weight = ramp(config, context) * config.mixed_consistency_weight
    terms = {
        "mixed_classification": mixing.soft_cross_entropy(labelled.probs, logits[:L]),
        "mixed_consistency": weight * mixing.soft_cross_entropy(unlabelled.probs, logits[L:]),
        **extra_terms(config, context, clean),
    }
    return NaiveStep(model, terms, statistics)


def mixmatch(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Algorithm 1: guess, sharpen, shuffle all, mix; then the losses of equations 3 and 4."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    L, K = len(batch.labels), config.num_views
    views = [batch.unlabelled[f"view{k}"] for k in range(1, K + 1)]
    clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], views[0]])))[L:]
    statistics = running_statistics(model)
    logits_of_views = [clean, *(model.linear(model.backbone(view)) for view in views[1:])]
    mean = balanced(config, mixing.mean_prediction(torch.stack(logits_of_views)).log())
    mean = torch.stack([torch.stack(consistency.softmax(row)) for row in mean])
    guesses = mixing.sharpen(mean, config.temperature)
    all_images = torch.cat([batch.labelled["image"], *views])
    all_probs = torch.cat([one_hot(batch.labels, model.num_classes), *[guesses for _ in range(K)]])
    mixed = mixture(all_images, all_probs, config.alpha, context)
    logits = model.linear(model.backbone(mixed.images))
    weight = linear(context.progress, 0.0, config.ramp_fraction) * config.mixed_consistency_weight
    terms = {
        "mixed_classification": mixing.soft_cross_entropy(mixed.probs[:L], logits[:L]),
        "mixed_consistency": weight * mixing.soft_squared_error(mixed.probs[L:], logits[L:]),
        **extra_terms(config, context, clean),
    }
    return NaiveStep(model, terms, statistics)


STEPS: dict[str, Callable[[Algorithm[Any], Batch, StepContext], NaiveStep]] = {
    "pseudo_label": pseudo_label,
    "mixup": mixup,
    "mixmatch": mixmatch,
}


def assert_step_is_the_naive_one(case: Case, **changes: Any) -> None:
    """Terms, the gradient of each and running statistics, in float64 and without dropout."""
    algorithm = build(case, **changes).double()
    batch = batch_for(algorithm, dtype=torch.float64)
    expected = STEPS[case.name](algorithm, batch, context_at())
    found = step_of(algorithm, batch)

    assert list(found.terms) == list(expected.terms)
    assert term_values(found) == pytest.approx(
        {name: term.item() for name, term in expected.terms.items()}, rel=1e-9, abs=1e-12
    )
    for term, value in found.terms.items():
        gradients = gradients_of(algorithm.model, value)
        expected_gradients = gradients_of(expected.model, expected.terms[term])
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)
    for name, statistic in running_statistics(algorithm).items():
        torch.testing.assert_close(statistic, expected.statistics[name], rtol=1e-12, atol=1e-12)
