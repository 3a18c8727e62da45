"""SWA and fast-SWA: the step that is averaged, who predicts, the refusal, and what recipes set."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from manigraph.algorithms.weight_averaging import WeightAveraging
from manigraph.build import build as build_job
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.errors import UserError
from manigraph.training.loop import TrainingConfig
from tests.algorithms.naive import STEPS
from tests.helpers import (
    Case,
    assert_bitwise_equal,
    batch_for,
    begun,
    build,
    case_named,
    context_at,
    copied,
    gradients_of,
    running_statistics,
    step_of,
    term_values,
)
from tests.reference import consistency

on_both = pytest.mark.parametrize("comparison", ["pi_model", "mean_teacher"])


# The step


@on_both
def test_the_step_is_that_of_what_is_averaged_written_out(comparison: str) -> None:
    algorithm = begun(case_named(f"fast_swa-{comparison}"), ramp_fraction=0.6).double()
    batch = batch_for(algorithm, dtype=torch.float64)
    expected = STEPS[comparison](algorithm, batch, context_at())
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


@on_both
def test_with_the_same_settings_it_trains_as_the_plain_method_bit_for_bit(comparison: str) -> None:
    """The average is all that is new."""
    settings: dict[str, Any] = {
        "consistency": "mse",
        "consistency_weight": 3.0,
        "entropy_weight": 0.2,
        "ramp_fraction": 0.1,
        **({"teacher_decay": 0.9} if comparison == "mean_teacher" else {"noise": 0.2}),
    }
    plain = begun(Case(comparison, settings), dropout=0.3)
    averaged = begun(Case("fast_swa", {**settings, "comparison": comparison}), dropout=0.3)
    assert_bitwise_equal(copied(plain.state_dict()), copied(averaged.state_dict()))
    outputs = [step_of(algorithm, batch_for(algorithm)) for algorithm in (plain, averaged)]
    assert_bitwise_equal(*(copied(output.terms) for output in outputs))


def test_the_student_predicts_and_not_the_teacher() -> None:
    algorithm = begun(case_named("fast_swa-mean_teacher"))
    assert algorithm.inference_model() is algorithm.model
    plain = begun(case_named("mean_teacher"))
    assert plain.inference_model() is not plain.model


def test_the_settings_are_those_of_the_paper() -> None:
    config = WeightAveraging.Config()
    assert (config.consistency, config.consistency_weight, config.entropy_weight) == ("mse", 10.0, 0.0)
    assert config.ramp_fraction == pytest.approx(5 / 480)
    assert config.teacher_decay == 0.97
    assert config.comparison == "pi_model"


# The average in a job


def quick(**training: Any) -> Config[Any]:
    config = RECIPES.get("digits")("fast_swa")
    return replace(
        config,
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=replace(config.training, **{"steps": 32, **training}),
    )


@on_both
def test_the_average_of_a_run_is_the_mean_of_the_students_weights(comparison: str) -> None:
    """32 steps: cycles of two, weights enter after every step from the eleventh on."""
    config = quick()
    job = build_job(replace(config, method=replace(config.method, comparison=comparison)))
    kept = []
    for step in range(1, 33):
        job.trainer.train_step(next(job.batches))
        if step > 10:
            kept.append(copy.deepcopy(job.trainer.algorithm.model))
    model = job.trainer.inference_model()
    for name, parameter in model.named_parameters():
        mean = torch.stack([dict(one.named_parameters())[name].detach() for one in kept]).mean(dim=0)
        torch.testing.assert_close(parameter, mean, rtol=1e-4, atol=1e-6)
    assert model is not job.trainer.algorithm.model


def test_swa_is_fast_swa_with_one_weight_in_a_cycle() -> None:
    job = build_job(quick(swa_every=30 / 480))
    assert job.trainer.average is not None
    entered = []
    for _ in range(32):
        before = int(job.trainer.average.n_averaged)
        job.trainer.train_step(next(job.batches))
        if int(job.trainer.average.n_averaged) > before:
            entered.append(job.trainer.step)
    assert entered == list(range(12, 33, 2))


@pytest.mark.parametrize("ema_decay", [0.0, 0.98])
def test_a_run_without_the_average_is_refused(ema_decay: float) -> None:
    config = replace(quick(), training=TrainingConfig(steps=4, ema_decay=ema_decay))
    with pytest.raises(
        UserError,
        match=r"fast_swa is an average of weights and none is kept: use --training\.ema_decay 0 "
        r"--training\.swa_fraction 0\.6875 --training\.swa_every 0\.00625",
    ):
        build_job(config)


def test_no_other_method_needs_it() -> None:
    needing = {name for name in ALGORITHMS if ALGORITHMS.get(name).needs_weight_average}
    assert needing == {"fast_swa"}
    build_job(replace(RECIPES.get("digits")("pi_model"), training=TrainingConfig(steps=1)))


# Recipes


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_recipes_give_it_cycles_and_the_average_and_nobody_else(recipe: str) -> None:
    config = RECIPES.get(recipe)("fast_swa")
    assert config.schedule.shape == "cosine_cycles"
    assert config.schedule.at(0.7).momentum == 0.9
    assert config.schedule.max_learning_rate == 0.1
    training = config.training
    assert training.ema_decay == 0
    assert training.swa_fraction == pytest.approx(1 - config.schedule.cosine + config.schedule.cycle)
    assert training.swa_every == pytest.approx(config.schedule.cycle / 10)
    other = RECIPES.get(recipe)("pi_model")
    assert other.schedule.shape == "super_convergence"
    assert other.training.swa_fraction == 0
    assert replace(training, ema_decay=0.0, swa_fraction=0.0, swa_every=0.0) == replace(
        other.training, ema_decay=0.0
    )


def test_a_fresh_method_has_nothing_of_the_average() -> None:
    """It is the loop's, so that a checkpoint of the method alone is that of the plain one."""
    assert not any("average" in name for name in build(case_named("fast_swa-pi_model")).state_dict())
