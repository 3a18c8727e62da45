"""Whole training steps against steps written out with loops: values, gradients, running statistics."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms.parts import ramp_up
from manigraph.catalogue import ALGORITHMS
from manigraph.errors import UserError
from manigraph.nn import TargetBalance, Teacher
from tests.algorithms import naive_mixing
from tests.algorithms.naive import STEPS
from tests.helpers import (
    NUM_CLASSES,
    NUM_UNLABELLED,
    Case,
    all_cases,
    batch_for,
    begun,
    build,
    case_named,
    context_at,
    copied,
    gradients_of,
    normal,
    recorded_inputs,
    recorded_outputs,
    running_statistics,
    step_of,
    term_values,
)
from tests.reference import consistency


def assert_step_is_the_naive_one(case: Case, **changes: Any) -> None:
    """Terms, gradients of the loss and running statistics, in float64 and without dropout."""
    algorithm = begun(case, **changes).double()
    for memory in [module for module in algorithm.modules() if isinstance(module, TargetBalance)]:
        for buffer in memory.buffers():
            buffer.zero_()
    batch = batch_for(algorithm, dtype=torch.float64)
    expected = STEPS[case.name](algorithm, batch, context_at())
    found = step_of(algorithm, batch)

    assert term_values(found) == pytest.approx(
        {name: term.item() for name, term in expected.terms.items()}, rel=1e-9, abs=1e-12
    )
    gradients = gradients_of(algorithm.model, found.loss)
    expected_gradients = gradients_of(expected.model, consistency.added(expected.terms.values()))
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)
    for name, value in running_statistics(algorithm).items():
        torch.testing.assert_close(value, expected.statistics[name], rtol=1e-12, atol=1e-12)


def test_every_method_is_written_out() -> None:
    """Here, or in a file of its own."""
    elsewhere = {name for name in ALGORITHMS if (Path(__file__).parent / f"test_{name}.py").is_file()}
    assert set(STEPS) | set(naive_mixing.STEPS) | elsewhere == set(ALGORITHMS)


@pytest.mark.parametrize("case", [case for case in all_cases() if case.name in STEPS], ids=str)
def test_step(case: Case) -> None:
    assert_step_is_the_naive_one(case)


NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS = {"entropy_weight": 0.0, "balance_weight": 0.0}

ANCHORED_STUDENT = {**NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS, "anchored_view": "student"}

UNEVEN = (4.0, 3.0, 1.0)  # of 8, so that shares are exact in float32

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("pi_model", NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS),
    ("pi_model", {**NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS, "noise": 0.4, "balance_memory": 12}),
    ("fixmatch", {**NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS, "threshold": 0.4}),
    ("fixmatch-taught", {**NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS, "threshold": 0.4}),
    ("vat", NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS),
    ("pi_vat", NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS),
    ("mean_teacher", NOTHING_LEARNED_FROM_CLEAN_PREDICTIONS),
    ("pi_model", {"entropy_weight": 0.0}),
    ("fixmatch", {"balance_weight": 0.0, "threshold": 0.4}),
    ("vat", {"entropy_weight": 0.0}),
    ("pi_model", {"consistency": "mse"}),
    ("pi_model", {"noise": 0.4}),
    ("pi_model", {"balance_memory": 12}),
    ("pi_model", {"balance_memory": 3, "consistency": "mse"}),
    ("pi_model", {"balance_memory": 12, "class_shares": UNEVEN}),
    ("pi_vat", {"balance_weight": 2.0, "class_shares": UNEVEN}),
    ("pi_model", {"ramp_fraction": 0.6, "consistency_weight": 2.0}),
    ("vat", {"consistency": "mse", "ramp_fraction": 0.4, "xi": 0.5}),
    ("vat", {"num_power_iterations": 3, "epsilon": 0.5}),
    ("pi_vat", {"adversarial_reference": "own_view", "balance_memory": 12}),
    ("pi_vat", {"consistency": "mse", "ramp_fraction": 0.6, "xi": 0.5}),
    ("mean_teacher", {"consistency": "kl", "balance_memory": 12, "entropy_weight": 0.3}),
    ("mean_teacher", {"ramp_fraction": 0.0, "consistency_weight": 2.0}),
    ("fixmatch", {"threshold": 0.4, "ramp_fraction": 0.6}),
    ("fixmatch", {"balance_memory": 12}),
    ("manifold_graph-pi_model", {"noise": 0.4}),
    ("manifold_graph-mean_teacher", {"consistency": "mse", "prototype_update": "shared"}),
    ("manifold_graph-fixmatch", {"threshold": 0.4}),
    ("manifold_graph-fixmatch-student", {"threshold": 0.4}),
    ("manifold_graph-fixmatch-student", {"target_decay": 0.9}),
    ("manifold_graph-pi_model", {"noise": 0.4, **ANCHORED_STUDENT}),
    ("manifold_graph-generated", {"scale": 0.3, "prototype_update": "shared"}),
    ("manifold_graph-generated", {"num_heads": 2, "ramp_fraction": 0.6, "consistency": "mse"}),
    ("manifold_graph-generated", {"adversarial_reference": "own_view", "divergence_reduction": "sum"}),
    ("manifold_graph-labelled_images", {"prototype_update": "none", "detach_boundary_margin": True}),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_step_with_other_settings(name: str, changes: dict[str, Any]) -> None:
    assert_step_is_the_naive_one(case_named(name), **changes)


# The ramp


@pytest.mark.parametrize(
    ("progress", "fraction", "expected"),
    [
        (0.0, 0.4, math.exp(-5)),
        (0.1, 0.4, math.exp(-5 * 0.75**2)),
        (0.2, 0.4, math.exp(-1.25)),  # half way: -5 (1/2)²
        (0.4, 0.4, 1.0),
        (0.9, 0.4, 1.0),
        (0.0, 0.0, 1.0),
    ],
)
def test_ramp(progress: float, fraction: float, expected: float) -> None:
    assert ramp_up(progress, fraction) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name", ["pi_model", "vat", "pi_vat", "mean_teacher", "fixmatch", "manifold_graph-generated"]
)
def test_consistency_and_entropy_are_ramped_up(name: str) -> None:
    # At 1/10 of the run, a quarter of a ramp of 0.4: exp(-5 (3/4)²). Nothing else is ramped.
    def terms(ramp_fraction: float) -> dict[str, float]:
        algorithm = build(case_named(name), ramp_fraction=ramp_fraction)
        return term_values(step_of(algorithm, batch_for(algorithm), context_at(step=1)))

    full, ramped = terms(0.0), terms(0.4)
    for term, value in full.items():
        factor = math.exp(-5 * 0.75**2) if term in ("consistency", "entropy") else 1.0
        assert ramped[term] == pytest.approx(factor * value)


# VAT's one view, and dropout masks


def test_target_of_vat_is_a_constant() -> None:
    # With one view the target's path cannot be told from the student's by the images, so the gradient
    # is compared with that of a student whose target was computed beforehand.
    algorithm = build(case_named("vat")).eval()
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as seen:
        term = step_of(algorithm, batch).terms["consistency"]
    with torch.no_grad():
        target = algorithm.model(batch.unlabelled["image"])
    student = algorithm.model(seen[-1])
    log_target, log_student = target.log_softmax(dim=1), student.log_softmax(dim=1)
    expected = (log_target.exp() * (log_target - log_student)).sum(dim=1).mean()
    expected_gradients = gradients_of(algorithm, expected)
    for name, gradient in gradients_of(algorithm, term).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-7)
    assert any(gradient.any() for gradient in expected_gradients.values())


def unlabelled_masks(name: str, **changes: Any) -> list[Tensor]:
    """Which features dropout kept, in each pass over the unlabelled images of one step."""
    algorithm = build(case_named(name), dropout=0.5, **changes)
    (dropout,) = (module for module in algorithm.modules() if isinstance(module, nn.Dropout))
    with recorded_outputs(dropout) as seen:
        step_of(algorithm, batch_for(algorithm))
    return [outputs[-NUM_UNLABELLED:] != 0 for outputs in seen if len(outputs) >= NUM_UNLABELLED]


@pytest.mark.parametrize("num_power_iterations", [1, 2])
def test_all_passes_of_vat_share_their_dropout_masks(num_power_iterations: int) -> None:
    # Target, power steps, student: otherwise the noise of the masks decides the direction.
    masks = unlabelled_masks("vat", num_power_iterations=num_power_iterations)
    assert len(masks) == 2 + num_power_iterations
    assert all(torch.equal(mask, masks[0]) for mask in masks)


@pytest.mark.parametrize("num_power_iterations", [1, 2])
@pytest.mark.parametrize("name", ["pi_vat", "manifold_graph-generated"])
def test_own_view_and_power_steps_share_their_dropout_masks(name: str, num_power_iterations: int) -> None:
    # p(x2) and p(x2 + ξ d) are compared at one and the same network here as well.
    target, own_view, *power_steps, _ = unlabelled_masks(
        name, adversarial_reference="own_view", num_power_iterations=num_power_iterations
    )
    assert len(power_steps) == num_power_iterations
    assert all(torch.equal(mask, own_view) for mask in power_steps)
    assert not torch.equal(target, own_view)


@pytest.mark.parametrize("name", ["pi_model", "pi_vat"])
def test_views_have_dropout_masks_of_their_own(name: str) -> None:
    target, *_, student = unlabelled_masks(name)
    assert not torch.equal(target, student)


def test_noise_of_the_pi_model_is_the_students() -> None:
    algorithm = build(case_named("pi_model"), noise=0.4)
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as (seen):
        step_of(algorithm, batch)
    clean, student = seen
    noise = normal(*student.shape, seed=5, dtype=torch.float32)
    assert torch.equal(clean[-NUM_UNLABELLED:], batch.unlabelled["first"])
    torch.testing.assert_close(student, batch.unlabelled["second"] + 0.4 * noise)


@pytest.mark.parametrize("name", ["vat", "pi_vat", "manifold_graph-generated"])
def test_length_of_the_perturbation(name: str) -> None:
    algorithm = build(case_named(name), epsilon=1.5)
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as seen:
        step_of(algorithm, batch)
    *_, disturbed_view = batch.unlabelled.values()
    lengths = (seen[-1] - disturbed_view).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((NUM_UNLABELLED,), 1.5), rtol=1e-4, atol=1e-4)


# Mean Teacher and FixMatch


@pytest.mark.parametrize("name", ["fixmatch", "manifold_graph-fixmatch"])
def test_only_the_student_of_fixmatch_sees_strong_views(name: str) -> None:
    request = build(case_named(name)).data_request()
    assert request.unlabelled == {"first": "weak", "second": "strong"}
    assert request.labelled == {"image": "weak"}


@pytest.mark.parametrize("name", ["mean_teacher", "manifold_graph-mean_teacher"])
@pytest.mark.parametrize(
    ("update", "decay"),
    [
        (0, 1 / 10),
        (1, 2 / 11),
        (8, 1 / 2),
        (79, 80 / 89),
        (80, 0.9),
        (500, 0.9),
    ],  # (1 + n) / (10 + n), at most 0.9
)
def test_the_teacher_follows_the_faster_the_younger_it_is(name: str, update: int, decay: float) -> None:
    algorithm = build(case_named(name), teacher_decay=0.9)
    (teacher,) = [module for module in algorithm.modules() if isinstance(module, Teacher)]
    before = copied(dict(teacher.model.named_parameters()))
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter.add_(1.0)
    teacher.num_updates.fill_(update)
    algorithm.after_step(context_at())
    for parameter_name, parameter in teacher.model.named_parameters():
        torch.testing.assert_close(parameter, before[parameter_name] + (1 - decay))


@pytest.mark.parametrize(
    "name",
    ["mean_teacher", "manifold_graph-mean_teacher", "fixmatch-taught", "manifold_graph-fixmatch-taught"],
)
def test_the_teacher_predicts_in_the_end(name: str) -> None:
    algorithm = begun(case_named(name))
    (teacher,) = [module for module in algorithm.modules() if isinstance(module, Teacher)]
    images = normal(6, 1, 8, 8).float()
    for c in range(NUM_CLASSES):
        with torch.no_grad():
            teacher.model.linear.bias.zero_()[c] = 1000.0
            assert set(algorithm.inference_model().eval()(images).argmax(dim=1).tolist()) == {c}


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_teacher_forgets_some_of_its_weights_and_not_all(decay: float) -> None:
    with pytest.raises(ValueError, match=f"target_decay must be from 0 to below 1, got {decay}"):
        build(case_named("fixmatch"), target_decay=decay)


@pytest.mark.parametrize("shares", [(0.0, 1.0, 1.0), (-1.0, 1.0, 1.0)])
def test_shares_are_above_zero(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="class_shares must be above 0"):
        build(case_named("pi_model"), class_shares=shares)


def test_there_is_a_share_for_every_class() -> None:
    with pytest.raises(
        UserError, match=f"method.class_shares has 1 numbers, but there are {NUM_CLASSES} classes"
    ):
        build(case_named("pi_model"), class_shares=(1.0,))


@pytest.mark.parametrize("setting", ["entropy_weight", "balance_weight", "ramp_fraction", "noise"])
def test_negative_settings_are_refused(setting: str) -> None:
    changes: dict[str, Any] = {setting: -0.1}
    with pytest.raises(ValueError, match=rf"{setting} cannot be negative, got -0.1"):
        build(case_named("pi_model"), **changes)
