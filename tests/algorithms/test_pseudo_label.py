"""Pseudo-Label: which images teach what, and from when on."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.algorithms.parts import linear_ramp
from manigraph.algorithms.pseudo_label import PseudoLabel
from manigraph.contract import Batch
from tests.algorithms.naive_mixing import assert_step_is_the_naive_one
from tests.helpers import (
    NUM_LABELLED,
    NUM_UNLABELLED,
    batch_for,
    build,
    case_named,
    context_at,
    gradients_of,
    recorded_inputs,
    recorded_outputs,
    step_of,
    term_values,
)

CASE = case_named("pseudo_label")

VARIANTS: list[dict[str, Any]] = [
    {},
    {"threshold": 0.6},  # three of five are sure
    {"threshold": 0.41, "balance_memory": 12},  # three of five
    {"balance_memory": 3},
    {"ramp_start": 0.2, "ramp_end": 0.7, "pseudo_label_weight": 2.0},
    {"ramp_fraction": 0.6},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_step_with_other_settings(changes: dict[str, Any]) -> None:
    assert_step_is_the_naive_one(CASE, **changes)


def spread() -> tuple[Algorithm[Any], Batch, Tensor]:
    """A network in evaluation mode that does not say one class for all, and its unlabelled predictions."""
    algorithm = build(CASE).eval()
    batch = batch_for(algorithm)
    with torch.no_grad():
        algorithm.model.linear.weight.mul_(3)
        algorithm.model.linear.bias.sub_(algorithm.model(batch.unlabelled["image"]).mean(dim=0))
        probs = algorithm.model(batch.unlabelled["image"]).softmax(dim=1)
    assert probs.argmax(dim=1).unique().numel() > 1
    return algorithm, batch, probs


def pseudo_label_of(algorithm: Algorithm[Any], batch: Batch, **changes: Any) -> Tensor:
    settings = {**CASE.settings, "pseudo_label_weight": 1.0, **changes}
    algorithm.config = PseudoLabel.Config(**settings)
    return step_of(algorithm, batch).terms["pseudo_label"]


def test_the_label_is_the_likeliest_class() -> None:
    algorithm, batch, probs = spread()
    expected = -probs.max(dim=1).values.log().mean().item()
    assert 0.01 < expected < 1
    assert pseudo_label_of(algorithm, batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_label_is_a_constant() -> None:
    algorithm, batch, probs = spread()
    gradients = gradients_of(algorithm, pseudo_label_of(algorithm, batch))
    labels = probs.argmax(dim=1)
    expected = gradients_of(algorithm, F.cross_entropy(algorithm.model(batch.unlabelled["image"]), labels))
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    assert any(gradient.any() for gradient in expected.values())


def test_images_below_the_threshold_count_as_zero() -> None:
    algorithm, batch, probs = spread()
    confidence = probs.max(dim=1).values.sort().values
    threshold = ((confidence[1] + confidence[2]) / 2).item()
    sure = confidence[2:]
    assert 0 < len(sure) < NUM_UNLABELLED
    expected = -sure.log().sum().item() / NUM_UNLABELLED
    assert pseudo_label_of(algorithm, batch, threshold=threshold).item() == pytest.approx(expected, rel=1e-4)


def test_an_image_exactly_at_the_threshold_is_sure() -> None:
    # Weights of zero: two classes of three are equally likely in all images, and the third is not at all.
    algorithm = build(CASE)
    with torch.no_grad():
        algorithm.model.linear.weight.zero_()
        algorithm.model.linear.bias.copy_(torch.tensor([0.0, 0.0, -1000.0]))
    batch = batch_for(algorithm)
    assert pseudo_label_of(algorithm, batch, threshold=0.5).item() == pytest.approx(math.log(2))
    assert pseudo_label_of(algorithm, batch, threshold=0.51).item() == 0.0


def test_nobody_is_sure() -> None:
    algorithm, batch, _ = spread()
    term = pseudo_label_of(algorithm, batch, threshold=1.0)
    assert term.item() == 0.0
    assert not any(gradient.any() for gradient in gradients_of(algorithm, term).values())


def test_balanced_targets_decide_the_label_and_not_the_prediction() -> None:
    # The memory's bias turns the most likely class round; what is taught is the prediction itself.
    algorithm, batch, probs = spread()
    shift = torch.tensor([0.0, 0.0, 50.0])

    class Shifted(torch.nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return logits.detach() + shift

    algorithm.target_balance = Shifted()
    expected = -probs[:, 2].log().mean().item()
    assert pseudo_label_of(algorithm, batch).item() == pytest.approx(expected, rel=1e-4)


def test_one_clean_pass() -> None:
    algorithm = build(CASE)
    batch = batch_for(algorithm)
    with (
        recorded_inputs(algorithm.model.backbone) as seen,
        recorded_outputs(algorithm.model.linear) as logits,
    ):
        step_of(algorithm, batch)
    (images,) = seen
    assert torch.equal(images, torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
    assert [len(rows) for rows in logits] == [NUM_LABELLED + NUM_UNLABELLED]


# α(t)


@pytest.mark.parametrize(
    ("progress", "start", "end", "expected"),
    [
        (0.0, 0.1, 0.6, 0.0),
        (0.099, 0.1, 0.6, 0.0),
        (0.1, 0.1, 0.6, 0.0),
        (0.35, 0.1, 0.6, 0.5),  # half way
        (0.5, 0.1, 0.6, 0.8),
        (0.6, 0.1, 0.6, 1.0),
        (0.9, 0.1, 0.6, 1.0),
        (0.2, 0.0, 0.8, 0.25),
        (0.0, 0.0, 0.0, 1.0),  # no ramp
        (0.29, 0.3, 0.3, 0.0),  # a step
        (0.3, 0.3, 0.3, 1.0),
    ],
)
def test_linear_ramp(progress: float, start: float, end: float, expected: float) -> None:
    assert linear_ramp(progress, start, end) == pytest.approx(expected)


def test_ramps_are_those_of_their_terms() -> None:
    # At 3/10 of the run: 2/5 of the way from 0.1 to 0.6; of a ramp of 0.6 one half, exp(-5 / 4).
    def terms(**changes: float) -> dict[str, float]:
        algorithm = build(CASE, ramp_start=0.0, ramp_end=0.0, ramp_fraction=0.0)
        algorithm.config = PseudoLabel.Config(
            **{**CASE.settings, "ramp_start": 0.0, "ramp_end": 0.0, **changes}
        )
        return term_values(step_of(algorithm, batch_for(algorithm), context_at(step=3)))

    full = terms()
    linear = terms(ramp_start=0.1, ramp_end=0.6)
    exponential = terms(ramp_fraction=0.6)
    assert linear == pytest.approx({**full, "pseudo_label": 0.4 * full["pseudo_label"]})
    assert exponential == pytest.approx({**full, "entropy": math.exp(-1.25) * full["entropy"]})


def test_defaults_are_the_papers() -> None:
    config = PseudoLabel.Config()
    assert (config.pseudo_label_weight, config.threshold, config.entropy_weight) == (3.0, 0.0, 0.0)
    assert (config.ramp_start, config.ramp_end) == (0.1, 0.6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 1.5}, "threshold must be from 0 to 1, got 1.5"),
        ({"threshold": -0.1}, "threshold must be from 0 to 1, got -0.1"),
        ({"ramp_start": 0.7}, "ramp_end not before it, got 0.7 and 0.6"),
        ({"ramp_start": -0.1}, "ramp_start must be at least 0"),
        ({"ramp_fraction": -1.0}, "ramp_fraction"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PseudoLabel.Config(**changes)
