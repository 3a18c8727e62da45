"""MixUp and MixMatch: who is mixed with whom, what is guessed, and which passes there are."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.algorithms.mixing import Mixed, mixed_with_others
from manigraph.algorithms.mixmatch import MixMatch
from manigraph.algorithms.mixup import MixUp
from manigraph.contract import Batch, StepContext
from manigraph.sharding import Shard
from tests.algorithms.naive_mixing import assert_step_is_the_naive_one
from tests.helpers import (
    NUM_CLASSES,
    NUM_LABELLED,
    NUM_UNLABELLED,
    Case,
    batch_for,
    begun,
    build,
    case_named,
    context_at,
    gradients_of,
    normal,
    recorded_inputs,
    recorded_outputs,
    seeded,
    step_of,
    term_values,
)
from tests.reference import consistency

MIXUP, MIXMATCH = case_named("mixup"), case_named("mixmatch")
both = pytest.mark.parametrize("case", [MIXUP, MIXMATCH], ids=str)

VARIANTS: list[tuple[Case, dict[str, Any]]] = [
    (MIXUP, {}),
    (MIXUP, {"alpha": 0.2}),
    (MIXUP, {"balance_memory": 12, "mixed_consistency_weight": 2.0}),
    (MIXUP, {"ramp_fraction": 0.6, "balance_memory": 3}),
    (MIXMATCH, {}),
    (MIXMATCH, {"num_views": 1, "temperature": 1.0}),
    (MIXMATCH, {"num_views": 3, "alpha": 2.0}),
    (MIXMATCH, {"temperature": 0.2, "balance_memory": 12}),
    (MIXMATCH, {"ramp_fraction": 0.6, "mixed_consistency_weight": 10.0}),
]


@pytest.mark.parametrize(("case", "changes"), VARIANTS, ids=str)
def test_step_with_other_settings(case: Case, changes: dict[str, Any]) -> None:
    assert_step_is_the_naive_one(case, **changes)


# Partners and shares


def numbered(B: int) -> tuple[Tensor, Tensor]:
    """Image b is b everywhere, and its label the b-th class: a mixture tells whom it is made of."""
    return torch.arange(B, dtype=torch.float64).view(B, 1, 1, 1).expand(B, 1, 2, 2), torch.eye(B).double()


def mixed_numbers(B: int, *, alpha: float = 0.75, seed: int = 5) -> Mixed:
    return mixed_with_others(*numbered(B), alpha, context_at(seed=seed))


def test_image_and_label_are_mixed_alike() -> None:
    images, probs = mixed_numbers(12)
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(12).double())
    assert ((probs > 0).sum(dim=1) <= 2).all()
    expected = probs @ torch.arange(12.0).double()  # λ' b + (1 - λ') partner
    torch.testing.assert_close(images, expected.view(12, 1, 1, 1).expand(12, 1, 2, 2))


def test_an_image_stays_closer_to_itself() -> None:
    _, probs = mixed_numbers(200)
    own = probs.diagonal()
    assert (own >= 0.5).all()
    assert own.unique().numel() > 150, "a share for each image"


def test_everybody_is_partner_once() -> None:
    _, probs = mixed_numbers(50)
    partners = probs - torch.diag(probs.diagonal())
    assert ((partners > 0).sum(dim=0) <= 1).all()
    assert (partners > 0).sum() >= 45, "few are mixed with themselves"


def test_mean_share_is_that_of_the_larger_half_of_beta() -> None:
    # Beta(1, 1): max(λ, 1 - λ) is uniform from 1/2 to 1; its mean is 3/4, its deviation 1/√48.
    _, probs = mixed_numbers(4000, alpha=1.0)
    images_with_partner = probs.diagonal()[probs.diagonal() < 1]
    assert images_with_partner.mean().item() == pytest.approx(0.75, abs=4 / math.sqrt(48 * 4000))


def test_mixtures_come_from_the_generator_of_the_step_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = mixed_numbers(20), mixed_numbers(20), mixed_numbers(20, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)


@dataclass(frozen=True)
class Rehearsed(Shard):
    """One of several processes, whose others are not there: what they hold is known."""

    known: tuple[Tensor, ...] = ()

    def gather(self, rows: Tensor) -> Tensor:
        (whole,) = (
            w for w in self.known if self.own(w).shape == rows.shape and torch.equal(self.own(w), rows)
        )
        return whole


@pytest.mark.parametrize("size", [2, 3])
def test_processes_mix_what_one_would(size: int) -> None:
    # Labelled images first, then unlabelled: each process has every N-th of both.
    images, probs = normal(18, 1, 4, 4), normal(18, 3, seed=1).softmax(dim=1)
    whole = mixed_with_others(images, probs, 0.75, context_at())
    for rank in range(size):
        shard = Rehearsed(rank, size, (images, probs))
        context = replace(context_at(), shard=shard)
        part = mixed_with_others(shard.own(images), shard.own(probs), 0.75, context)
        assert torch.equal(part.images, shard.own(whole.images))
        assert torch.equal(part.probs, shard.own(whole.probs))


# Passes


@contextmanager
def recorded_gradient_modes(module: nn.Module) -> Iterator[list[bool]]:
    seen: list[bool] = []
    handle = module.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    try:
        yield seen
    finally:
        handle.remove()


@both
@pytest.mark.parametrize(
    ("weights", "clean_gradient"),
    [
        ({"entropy_weight": 0.0, "balance_weight": 0.0}, False),
        ({"entropy_weight": 0.1, "balance_weight": 0.0}, True),
        ({"entropy_weight": 0.0, "balance_weight": 0.1}, True),
    ],
)
def test_the_clean_pass_has_a_gradient_only_if_a_term_wants_it(
    case: Case, weights: dict[str, Any], clean_gradient: bool
) -> None:
    algorithm = build(case, **weights)
    with recorded_gradient_modes(algorithm.model.backbone) as modes:
        output = step_of(algorithm, batch_for(algorithm))
    clean, *other_views, mixed = modes
    assert clean == clean_gradient
    assert not any(other_views)
    assert mixed
    for name in ("entropy", "balance"):
        assert output.terms[name].requires_grad == (weights[f"{name}_weight"] > 0)


@both
def test_the_clean_pass_gives_the_same_with_and_without_gradient(case: Case) -> None:
    def mixed_terms(weight: float) -> list[float]:
        algorithm = build(case, dropout=0.5, entropy_weight=weight, balance_weight=weight)
        terms = term_values(step_of(algorithm, batch_for(algorithm)))
        return [terms["mixed_classification"], terms["mixed_consistency"]]

    assert mixed_terms(0.0) == mixed_terms(0.5)


def passes_of(case: Case, **changes: Any) -> tuple[Batch, list[Tensor]]:
    algorithm = build(case, **changes)
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as seen:
        step_of(algorithm, batch)
    return batch, seen


@pytest.mark.parametrize("num_views", [1, 2, 4])
def test_passes_of_mixmatch(num_views: int) -> None:
    batch, (clean, *others, mixed) = passes_of(MIXMATCH, num_views=num_views)
    views = list(batch.unlabelled.values())
    assert list(batch.unlabelled) == [f"view{k}" for k in range(1, num_views + 1)]
    assert torch.equal(clean, torch.cat([batch.labelled["image"], views[0]]))
    assert len(others) == num_views - 1
    assert all(torch.equal(seen, view) for seen, view in zip(others, views[1:], strict=True))
    everything = torch.cat([batch.labelled["image"], *views])
    expected = mixed_with_others(everything, torch.zeros(len(everything), 1), 0.75, context_at())
    assert torch.equal(mixed, expected.images)


def test_passes_of_mixup() -> None:
    batch, (clean, mixed) = passes_of(MIXUP)
    labelled, unlabelled = batch.labelled["image"], batch.unlabelled["image"]
    assert torch.equal(clean, torch.cat([labelled, unlabelled]))
    context = context_at()
    expected = [
        mixed_with_others(images, torch.zeros(len(images), 1), 0.75, context).images
        for images in (labelled, unlabelled)
    ]
    assert torch.equal(mixed, torch.cat(expected))


@both
def test_health_is_that_of_images_that_are_not_mixed(case: Case) -> None:
    algorithm = begun(case)
    for seed in range(8):
        with recorded_outputs(algorithm.model.linear) as seen:
            health = step_of(algorithm, batch_for(algorithm, seed=seed)).health()
        predictions = seen[0][NUM_LABELLED:].argmax(dim=1).tolist()
        most = max(predictions.count(c) for c in range(NUM_CLASSES))
        assert health["largest_class"] == pytest.approx(most / NUM_UNLABELLED)


@both
def test_passes_have_dropout_masks_of_their_own(case: Case) -> None:
    algorithm = build(case, dropout=0.5)
    (dropout,) = (module for module in algorithm.modules() if isinstance(module, nn.Dropout))
    with recorded_outputs(dropout) as seen:
        step_of(algorithm, batch_for(algorithm))
    clean, *_, mixed = [outputs[:NUM_LABELLED] != 0 for outputs in seen]
    assert not torch.equal(clean, mixed)


# Guesses


def recorded_mixture(
    algorithm: Algorithm[Any], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, Tensor]]:
    """What is handed over to be mixed: images and their labels."""
    seen: list[tuple[Tensor, Tensor]] = []

    def noted(images: Tensor, probs: Tensor, alpha: float, context: StepContext) -> Mixed:
        seen.append((images, probs))
        return mixed_with_others(images, probs, alpha, context)

    module = "manigraph.algorithms." + ("mixup" if isinstance(algorithm, MixUp) else "mixmatch")
    monkeypatch.setattr(f"{module}.mixed_with_others", noted)
    step_of(algorithm, batch)
    return seen


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_guess_of_mixmatch(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # In evaluation mode every image has its own prediction: p1 and p2, their mean, to the power of 1/T.
    algorithm = build(MIXMATCH, temperature=temperature).eval()
    batch = batch_for(algorithm)
    ((_, probs),) = recorded_mixture(algorithm, batch, monkeypatch)
    with torch.no_grad():
        p1, p2 = (algorithm.model(view).softmax(dim=1) for view in batch.unlabelled.values())
    powers = ((p1 + p2) / 2) ** (1 / temperature)
    guess = powers / powers.sum(dim=1, keepdim=True)
    torch.testing.assert_close(probs[:NUM_LABELLED], F.one_hot(batch.labels, NUM_CLASSES).float())
    torch.testing.assert_close(probs[NUM_LABELLED:], torch.cat([guess, guess]), rtol=1e-5, atol=1e-6)
    assert not probs.requires_grad


def test_guess_of_mixup(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build(MIXUP).eval()
    batch = batch_for(algorithm)
    (_, labels), (_, guess) = recorded_mixture(algorithm, batch, monkeypatch)
    with torch.no_grad():
        expected = algorithm.model(batch.unlabelled["image"]).softmax(dim=1)
    assert torch.equal(labels, F.one_hot(batch.labels, NUM_CLASSES).float())
    torch.testing.assert_close(guess, expected)
    assert not guess.requires_grad


@both
def test_guesses_are_constants(case: Case) -> None:
    """Gradients are those of a network that is shown finished mixtures."""
    algorithm = build(case, ramp_fraction=0.0).eval()
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as seen:
        terms = step_of(algorithm, batch).terms
    logits = algorithm.model(seen[-1])
    unlabelled = logits[NUM_LABELLED:]
    context = context_at()
    with torch.no_grad():
        views = list(batch.unlabelled.values())
        mean = torch.stack([algorithm.model(view).softmax(dim=1) for view in views]).mean(dim=0)
        if case is MIXUP:
            mixed_with_others(batch.labelled["image"], torch.zeros(NUM_LABELLED, 1), 0.75, context)
            target = mixed_with_others(views[0], mean, 0.75, context).probs
        else:
            guess = mean**2 / (mean**2).sum(dim=1, keepdim=True)
            classes = F.one_hot(batch.labels, NUM_CLASSES).float()
            images = torch.cat([batch.labelled["image"], *views])
            target = mixed_with_others(images, torch.cat([classes, guess, guess]), 0.75, context).probs
            target = target[NUM_LABELLED:]
    if case is MIXUP:
        expected = -(target * unlabelled.log_softmax(dim=1)).sum(dim=1).mean()
    else:
        expected = 75 * (target - unlabelled.softmax(dim=1)).square().mean()
    torch.testing.assert_close(terms["mixed_consistency"], expected, rtol=1e-4, atol=1e-6)
    expected_gradients = gradients_of(algorithm, expected)
    for name, gradient in gradients_of(algorithm, terms["mixed_consistency"]).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-3, atol=1e-5)
    assert any(gradient.any() for gradient in expected_gradients.values())


# Limits


def clean_loss(algorithm: Algorithm[Any], batch: Batch) -> tuple[float, Tensor]:
    """Cross-entropy on unmixed labelled images and logits of unmixed unlabelled ones, in training mode."""
    first = next(iter(batch.unlabelled.values()))
    with torch.no_grad():
        logits = algorithm.model(torch.cat([batch.labelled["image"], first])).double()
    loss = consistency.cross_entropy(logits[:NUM_LABELLED], batch.labels).item()
    return loss, logits[NUM_LABELLED:]


def test_mixup_without_mixing() -> None:
    # α → 0: labelled images as they are; each prediction is its own target, so what is left is its entropy.
    algorithm = build(MIXUP, alpha=1e-6)
    batch = batch_for(algorithm)
    loss, logits = clean_loss(algorithm, batch)
    terms = term_values(step_of(algorithm, batch))
    assert terms["mixed_classification"] == pytest.approx(loss, rel=1e-5)
    assert terms["mixed_consistency"] == pytest.approx(consistency.entropy(logits).item(), rel=1e-5)


def test_mixmatch_without_mixing_sharpening_and_averaging() -> None:
    # α → 0, T = 1, K = 1: each prediction is its own target, and their squared distance is nothing.
    algorithm = build(MIXMATCH, alpha=1e-6, temperature=1.0, num_views=1)
    batch = batch_for(algorithm)
    loss, _ = clean_loss(algorithm, batch)
    terms = term_values(step_of(algorithm, batch))
    assert terms["mixed_classification"] == pytest.approx(loss, rel=1e-5)
    assert terms["mixed_consistency"] == pytest.approx(0, abs=1e-8)


def test_mixmatch_of_one_image_many_times() -> None:
    # All images are the same: so are all mixtures. Everything stays finite, batch norm included.
    algorithm = build(MIXMATCH)
    batch = batch_for(algorithm)
    same = batch.labelled["image"][:1]
    batch = replace(
        batch,
        labelled={"image": same.expand(NUM_LABELLED, -1, -1, -1)},
        unlabelled={name: same.expand(NUM_UNLABELLED, -1, -1, -1) for name in batch.unlabelled},
    )
    output = step_of(algorithm, batch)
    assert all(term.isfinite() for term in output.terms.values())
    assert all(gradient.isfinite().all() for gradient in gradients_of(algorithm, output.loss).values())


@both
def test_one_labelled_image(case: Case) -> None:
    algorithm = build(case)
    batch = batch_for(algorithm)
    batch = replace(batch, labelled={"image": batch.labelled["image"][:1]}, labels=batch.labels[:1])
    assert all(term.isfinite() for term in step_of(algorithm, batch).terms.values())


def changed_by_other_unlabelled(case: Case) -> set[str]:
    algorithm = build(case).eval()
    batch = batch_for(algorithm)
    others = {n: torch.randn(v.shape, generator=seeded(9)) for n, v in batch.unlabelled.items()}
    before = term_values(step_of(algorithm, batch))
    after = term_values(step_of(algorithm, replace(batch, unlabelled=others)))
    return {name for name in before if abs(before[name] - after[name]) > 1e-6}


def test_mixup_keeps_labelled_and_unlabelled_images_apart() -> None:
    assert changed_by_other_unlabelled(MIXUP) == {"mixed_consistency", "entropy", "balance"}


def test_mixmatch_mixes_labelled_with_unlabelled_images() -> None:
    assert "mixed_classification" in changed_by_other_unlabelled(MIXMATCH)


# Settings


@pytest.mark.parametrize(
    ("step", "linear", "exponential"),
    [(0, 0.0, math.exp(-5)), (2, 0.5, math.exp(-1.25)), (4, 1.0, 1.0), (9, 1.0, 1.0)],
)
def test_ramps(step: int, linear: float, exponential: float) -> None:
    # A ramp of 0.4: MixMatch's weight grows as in its paper, all else as in the other methods.
    def terms(case: Case, ramp_fraction: float) -> dict[str, float]:
        algorithm = build(case, ramp_fraction=ramp_fraction)
        return term_values(step_of(algorithm, batch_for(algorithm), context_at(step)))

    for case, factor in ((MIXMATCH, linear), (MIXUP, exponential)):
        full, ramped = terms(case, 0.0), terms(case, 0.4)
        full["mixed_consistency"] *= factor
        full["entropy"] *= exponential
        assert ramped == pytest.approx(full)


def test_defaults_are_the_papers_but_for_a_longer_ramp() -> None:
    mixmatch, mixup = MixMatch.Config(), MixUp.Config()
    assert (mixmatch.num_views, mixmatch.temperature, mixmatch.alpha) == (2, 0.5, 0.75)
    assert (mixmatch.mixed_consistency_weight, mixmatch.ramp_fraction) == (75.0, 0.4)
    assert (mixup.alpha, mixup.mixed_consistency_weight, mixup.ramp_fraction) == (0.75, 1.0, 0.0)
    assert mixmatch.entropy_weight == mixup.entropy_weight == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, "alpha must be above 0, got 0.0"),
        ({"num_views": 0}, "num_views must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"ramp_fraction": -1.0}, "ramp_fraction"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixMatch.Config(**changes)
