"""SNTG on both of its comparisons, against steps written out with loops."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.sntg import SNTG
from manigraph.contract import Batch, StepContext
from tests.helpers import (
    NUM_CLASSES,
    NUM_LABELLED,
    NUM_UNLABELLED,
    assert_bitwise_equal,
    batch_for,
    begun,
    build,
    case_named,
    context_at,
    copied,
    gradients_of,
    recorded_outputs,
    running_statistics,
    step_of,
    term_values,
)
from tests.reference import consistency, neighbours

on_both = pytest.mark.parametrize("comparison", ["pi_model", "mean_teacher"])


def method(comparison: str, *, after_steps: bool = True, **settings: Any) -> SNTG:
    """After two steps, such that a teacher is not the student."""
    make = begun if after_steps else build
    algorithm = make(case_named(f"sntg-{comparison}"), **{"neighbours_weight": 2.0, **settings})
    assert isinstance(algorithm, SNTG)
    return algorithm


def naive_terms(
    algorithm: SNTG, model: Any, teacher: Any, batch: Batch, context: StepContext
) -> dict[str, Tensor]:
    """From copies of the student and the teacher; the teacher is not used with the Π-model."""
    config = algorithm.config
    first, second = batch.unlabelled["first"], batch.unlabelled["second"]
    noise = torch.empty_like(second).normal_(generator=context.generator)
    learns_from_first = config.entropy_weight > 0 or config.balance_weight > 0
    if config.comparison == "pi_model" and not learns_from_first:
        own = model.linear(model.backbone(first))
        features = model.backbone(torch.cat([batch.labelled["image"], second + config.noise * noise]))
        labelled_features, student_features = features[:NUM_LABELLED], features[NUM_LABELLED:]
        labelled, target = model.linear(labelled_features), own.detach()
        student = model.linear(student_features)
    else:
        clean_features = model.backbone(torch.cat([batch.labelled["image"], first]))
        clean = model.linear(clean_features)
        labelled_features = clean_features[:NUM_LABELLED]
        labelled, own = clean[:NUM_LABELLED], clean[NUM_LABELLED:]
    if config.comparison == "pi_model" and learns_from_first:
        student_features = model.backbone(second + config.noise * noise)
        target, student = own.detach(), model.linear(student_features)
    elif config.comparison == "mean_teacher":
        student_features = clean_features[NUM_LABELLED:]
        target, student = teacher.linear(teacher.backbone(second)).detach(), own
    classes = [*batch.labels.tolist(), *(row.index(max(row)) for row in target.tolist())]
    contrast = neighbours.neighbour_contrast(
        torch.cat([labelled_features, student_features]), torch.tensor(classes), margin=config.margin
    )
    distance = {"kl": consistency.kl, "mse": consistency.mse}[config.consistency]
    t = min(context.progress / config.ramp_fraction, 1.0) if config.ramp_fraction else 1.0
    ramp = math.exp(-5 * (1 - t) ** 2)
    return {
        "classification": consistency.cross_entropy(labelled, batch.labels),
        "consistency": ramp * config.consistency_weight * distance(target, student),
        "neighbours": ramp * config.neighbours_weight * contrast,
        "entropy": ramp * config.entropy_weight * consistency.entropy(own),
        "balance": config.balance_weight * consistency.class_imbalance(own),
    }


@on_both
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ramp_fraction": 0.6, "margin": 0.3},
        {"consistency": "kl", "ramp_fraction": 0.0, "noise": 0.4},
        {"entropy_weight": 0.0, "balance_weight": 0.0, "noise": 0.4},
    ],
    ids=["paper", "ramp", "kl", "nothing learned from clean predictions"],
)
def test_step_is_the_naive_one(comparison: str, settings: dict[str, Any]) -> None:
    algorithm = method(comparison, **settings).double()
    model: Any = copy.deepcopy(algorithm.model)
    comparison_of_copy: Any = copy.deepcopy(algorithm.comparison)
    teacher = comparison_of_copy.teacher.model if comparison == "mean_teacher" else None
    batch = batch_for(algorithm, dtype=torch.float64)
    terms = naive_terms(algorithm, model, teacher, batch, context_at())
    found = step_of(algorithm, batch, context_at())

    expected = {name: term.item() for name, term in terms.items()}
    assert term_values(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    expected_gradients = gradients_of(model, consistency.added(terms.values()))
    for name, gradient in gradients_of(algorithm.model, found.loss).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)


def features_and_loss(algorithm: SNTG, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """What every pass of the student's backbone gave, and the term of the neighbours."""
    with recorded_outputs(algorithm.model.backbone) as seen:
        term = step_of(algorithm, batch).terms["neighbours"]
    return seen, term


@on_both
def test_labels_count_where_they_are_known(comparison: str) -> None:
    # Predictions and features do not depend on the labels, the graph does.
    algorithm = method(comparison).double().eval()
    batch = batch_for(algorithm, dtype=torch.float64)
    values = [
        term_values(step_of(algorithm, dataclasses.replace(batch, labels=torch.tensor(labels))))
        for labels in ([0, 0, 0, 0], [0, 1, 2, 0])
    ]
    changed = {name for name in values[0] if values[0][name] != values[1][name]}
    assert changed == {"classification", "neighbours"}


@on_both
def test_the_graph_is_the_targets(comparison: str) -> None:
    """The term by hand, from the features of the student and the predictions of the target."""
    algorithm = method(comparison, ramp_fraction=0.0, margin=0.5).double().eval()
    with torch.no_grad():  # a fresh network says one class for all
        algorithm.model.linear.bias.sub_(
            algorithm.model(batch_for(algorithm, dtype=torch.float64).unlabelled["first"]).mean(dim=0)
        )
    batch = batch_for(algorithm, dtype=torch.float64)
    with torch.no_grad():
        target = algorithm.comparison.predictions(
            algorithm.model,
            algorithm.model,
            algorithm.model(batch.unlabelled["first"]),
            batch.unlabelled["second"],
            context_at(),
        ).target_logits
    seen, term = features_and_loss(algorithm, batch)
    student = seen[1] if comparison == "pi_model" else seen[0][NUM_LABELLED:]
    classes = torch.cat([batch.labels, target.argmax(dim=1)])
    expected = neighbours.neighbour_contrast(
        torch.cat([seen[0][:NUM_LABELLED], student]), classes, margin=0.5
    )
    assert term.item() == pytest.approx(2.0 * expected.item())


@on_both
def test_neighbours_teach_the_student_and_not_the_target(comparison: str) -> None:
    # In evaluation mode an image reaches the term only through its own features.
    algorithm = method(comparison, margin=10.0).double().eval()
    batch = batch_for(algorithm, dtype=torch.float64)
    views = {name: view.clone().requires_grad_(True) for name, view in batch.unlabelled.items()}
    labelled = {name: view.clone().requires_grad_(True) for name, view in batch.labelled.items()}
    batch = dataclasses.replace(batch, labelled=labelled, unlabelled=views)
    term = step_of(algorithm, batch).terms["neighbours"]
    inputs = [labelled["image"], views["first"], views["second"]]
    gradients = torch.autograd.grad(term, inputs, allow_unused=True)
    taught = [gradient is not None and bool(gradient.any()) for gradient in gradients]
    assert taught == ([True, False, True] if comparison == "pi_model" else [True, True, False])
    for gradient in gradients:
        if gradient is not None and gradient.any():
            assert (gradient.flatten(1).norm(dim=1) > 0).all(), "every image"


@on_both
def test_identical_images_give_finite_gradients(comparison: str) -> None:
    algorithm = method(comparison)
    batch = batch_for(algorithm)
    same = batch.labelled["image"][:1]
    batch = dataclasses.replace(
        batch,
        labelled={"image": same.repeat(NUM_LABELLED, 1, 1, 1)},
        unlabelled={name: same.repeat(NUM_UNLABELLED, 1, 1, 1) for name in batch.unlabelled},
    )
    for training in (True, False):
        output = step_of(algorithm.train(training), batch)
        assert all(term.isfinite() for term in output.terms.values())
        assert all(gradient.isfinite().all() for gradient in gradients_of(algorithm, output.loss).values())


@on_both
def test_the_order_of_the_images_does_not_matter(comparison: str) -> None:
    def values(reordered: bool) -> dict[str, float]:
        algorithm = method(comparison).double()
        batch = batch_for(algorithm, dtype=torch.float64)
        if reordered:
            batch = dataclasses.replace(
                batch,
                labelled={name: view.flip(0) for name, view in batch.labelled.items()},
                labels=batch.labels.flip(0),
                unlabelled={name: view.flip(0) for name, view in batch.unlabelled.items()},
            )
        return term_values(step_of(algorithm, batch))

    assert values(True) == pytest.approx(values(False), rel=1e-9)


@pytest.mark.parametrize("comparison", ["pi_model", "mean_teacher"])
def test_without_neighbours_it_is_the_comparisons_own_method(comparison: str) -> None:
    """A weight of 0: bit for bit the Π-model or Mean Teacher with the same settings."""
    sntg = method(comparison, after_steps=False, neighbours_weight=0.0, dropout=None)
    shared = {
        field.name: getattr(sntg.config, field.name)
        for field in dataclasses.fields(sntg.config)
        if field.name not in ("comparison", "neighbours_weight", "margin", "noise", "teacher_decay")
    }
    other = build(case_named(comparison), dropout=None, **shared)
    other.load_state_dict(sntg.state_dict())
    outputs = [step_of(algorithm, batch_for(algorithm)) for algorithm in (sntg, other)]
    terms = [copied(output.terms) for output in outputs]
    assert terms[0].pop("neighbours").item() == 0
    assert_bitwise_equal(terms[0], terms[1])
    gradients = [gradients_of(a, o.loss) for a, o in zip((sntg, other), outputs, strict=True)]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])
    assert_bitwise_equal(running_statistics(sntg), running_statistics(other))


@on_both
def test_balanced_targets_decide_the_graph(comparison: str) -> None:
    # All predictions say class 0; balanced over the memory they do not, and the graph changes with them.
    found = {}
    for memory in (0, 50):
        algorithm = method(comparison, after_steps=False, balance_memory=memory, ramp_fraction=0.0)
        algorithm.double().eval()
        models = [algorithm.model]
        if comparison == "mean_teacher":
            models.append(algorithm.inference_model())  # type: ignore[arg-type]
        with torch.no_grad():
            for model in models:
                model.linear.bias.copy_(torch.tensor([3.0, 0.0, 0.0]))
        for seed in range(6):
            output = step_of(algorithm, batch_for(algorithm, dtype=torch.float64, seed=seed))
        found[memory] = output.terms["neighbours"].item()
        assert int(algorithm.target_balance.count) == min(6 * NUM_UNLABELLED, memory), "once a step"
    assert abs(found[0] - found[50]) > 1e-6


def test_a_class_that_is_not_in_the_batch() -> None:
    algorithm = method("pi_model")
    batch = batch_for(algorithm)
    batch = dataclasses.replace(batch, labels=torch.full_like(batch.labels, NUM_CLASSES - 1))
    assert step_of(algorithm, batch).loss.isfinite()


def test_margin_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="margin cannot be negative, got -1"):
        SNTG.Config(margin=-1.0)
