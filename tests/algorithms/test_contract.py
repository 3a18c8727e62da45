"""What every method of the registry must do, whatever it is. There is no list of exceptions."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.catalogue import ALGORITHMS
from manigraph.contract import Batch
from manigraph.nn import Classifier, Teacher
from tests.helpers import (
    NUM_CLASSES,
    NUM_LABELLED,
    NUM_UNLABELLED,
    Case,
    all_cases,
    assert_bitwise_equal,
    batch_for,
    batch_norm_layers,
    context_at,
    copied,
    gradients_of,
    normal,
    recorded_outputs,
    running_statistics,
    step_of,
    term_values,
)
from tests.helpers import (
    begun as build,
)

CASES = all_cases()
HEALTH_EQUATIONS = (
    "attention_entropy",
    "largest_class_share",
    "own_class_attention",
    "prototype_similarity",
)
every_method = pytest.mark.parametrize("case", CASES, ids=str)
# Anchored students have no entropy, no balance and no gradient of first views: their steps are written out in
# test_steps.py.
with_every_term = pytest.mark.parametrize(
    "case", [case for case in CASES if case.settings.get("anchored_view") != "student"], ids=str
)


def unsupervised(values: dict[str, Any]) -> set[str]:
    """Every term but the first, that of the labelled images."""
    return set(list(values)[1:])


def weights_of(case: Case) -> list[str]:
    """λ1, λ2, ... among the settings of a method."""
    fields = dataclasses.fields(ALGORITHMS.get(case.name).Config)
    return [f.name for f in fields if f.name.endswith("_weight")]


def with_setting(case: Case, name: str, value: float) -> Case:
    return Case(case.name, {**case.settings, name: value})


def with_weight(algorithm: Algorithm[Any], case: Case, name: str, value: float) -> Algorithm[Any]:
    """The same weights, teachers and memories, with one setting changed."""
    other = build(with_setting(case, name, value))
    other.load_state_dict(algorithm.state_dict())
    return other


def test_every_method_of_the_registry_is_here() -> None:
    assert {case.name for case in CASES} == set(ALGORITHMS)


# The step


@every_method
def test_batch_is_what_was_asked_for(case: Case) -> None:
    algorithm = build(case)
    batch = batch_for(algorithm)
    assert {len(view) for view in batch.labelled.values()} == {NUM_LABELLED}
    assert {len(view) for view in batch.unlabelled.values()} <= {NUM_UNLABELLED}
    if algorithm.data_request().images_per_class:
        assert batch.class_images is not None
        assert len(batch.class_images) == NUM_CLASSES * algorithm.data_request().images_per_class
    step_of(algorithm, batch)


@every_method
@pytest.mark.parametrize("dropout", [0.0, None])
def test_step_is_finite_and_terms_add_up(case: Case, dropout: float | None) -> None:
    algorithm = build(case, dropout=dropout)
    output = step_of(algorithm, batch_for(algorithm))
    assert all(term.shape == () and term.isfinite() for term in output.terms.values())
    assert output.loss.item() == pytest.approx(sum(term_values(output).values()), rel=1e-6)
    total = gradients_of(algorithm, output.loss)
    of_terms = [gradients_of(algorithm, term) for term in output.terms.values() if term.requires_grad]
    for name, gradient in total.items():
        added = torch.stack([gradients[name] for gradients in of_terms]).sum(dim=0)
        torch.testing.assert_close(gradient, added, rtol=1e-4, atol=1e-6)


@with_every_term
def test_no_term_is_zero(case: Case) -> None:
    # The other tests rest on this: a term that is zero would pass many of them.
    algorithm = build(case)
    assert all(value > 1e-6 for value in term_values(step_of(algorithm, batch_for(algorithm))).values())


@every_method
def test_every_trainable_parameter_receives_gradient(case: Case) -> None:
    algorithm = build(case)
    step_of(algorithm, batch_for(algorithm)).loss.backward()
    without = [
        name
        for name, parameter in algorithm.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    assert not without
    assert all(p.grad.isfinite().all() for p in algorithm.parameters() if p.grad is not None)


@every_method
def test_same_seed_repeats_bit_for_bit(case: Case) -> None:
    def run() -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        algorithm = build(case, dropout=None)
        output = step_of(algorithm, batch_for(algorithm))
        gradients = gradients_of(algorithm, output.loss)
        return copied(output.terms), gradients, copied(algorithm.state_dict())

    for first, second in zip(run(), run(), strict=True):
        assert_bitwise_equal(first, second)


@every_method
def test_saved_state_is_all_there_is(case: Case) -> None:
    """Save, load, go on: the next step is the one of no interruption."""

    def next_step(algorithm: Algorithm[Any]) -> dict[str, Tensor]:
        return copied(step_of(algorithm, batch_for(algorithm, seed=1), context_at(step=4)).terms)

    algorithm, fresh = build(case, dropout=None), build(case, dropout=None, seed=1)
    step_of(algorithm, batch_for(algorithm))
    fresh.load_state_dict(algorithm.state_dict())
    assert_bitwise_equal(next_step(fresh), next_step(algorithm))


@every_method
def test_step_changes_no_parameter_no_gradient_and_no_image(case: Case) -> None:
    algorithm = build(case)
    batch = batch_for(algorithm)
    images = {**batch.labelled, **batch.unlabelled}
    parameters, views = copied(dict(algorithm.named_parameters())), copied(images)
    step_of(algorithm, batch)
    assert_bitwise_equal(copied(dict(algorithm.named_parameters())), parameters)
    assert_bitwise_equal(images, views)
    assert all(parameter.grad is None for parameter in algorithm.parameters())


@every_method
def test_step_works_in_mixed_precision(case: Case) -> None:
    algorithm = build(case)
    exact = term_values(step_of(algorithm, batch_for(algorithm)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = step_of(algorithm, batch_for(algorithm))
    # Only this term: a perturbation found against a rounded prediction may be quite another one.
    supervised = next(iter(exact))
    assert term_values(output)[supervised] == pytest.approx(exact[supervised], rel=0.05)
    assert all(term.isfinite() for term in output.terms.values())
    assert all(gradient.isfinite().all() for gradient in gradients_of(algorithm, output.loss).values())


# Health


@every_method
@pytest.mark.parametrize("dropout", [0.0, None])
def test_health_is_finite_numbers_and_has_the_largest_class(case: Case, dropout: float | None) -> None:
    algorithm = build(case, dropout=dropout)
    health = step_of(algorithm, batch_for(algorithm)).health()
    assert 1 / NUM_CLASSES <= health["largest_class"] <= 1
    assert all(type(value) is float and -1 <= value <= 1 for value in health.values()), health


@with_every_term
def test_largest_class_is_of_the_clean_predictions(case: Case) -> None:
    # The first view of the unlabelled images; the labelled ones where there are no others.
    algorithm = build(case)
    batch = batch_for(algorithm)
    number = NUM_LABELLED + (NUM_UNLABELLED if batch.unlabelled else 0)

    def clean_logits_and_health() -> tuple[Tensor, Mapping[str, float]]:
        with recorded_outputs(algorithm.model.linear) as seen:
            health = step_of(algorithm, batch).health()
        clean = torch.cat([logits for logits in seen if logits.ndim == 2])[:number]
        return clean[NUM_LABELLED if batch.unlabelled else 0 :], health

    # Move the network to where it does not say one class for all.
    with torch.no_grad():
        algorithm.model.linear.bias.sub_(clean_logits_and_health()[0].mean(dim=0))
    logits, health = clean_logits_and_health()
    predictions = [row.index(max(row)) for row in logits.tolist()]
    most = max(predictions.count(c) for c in range(NUM_CLASSES))
    assert most < len(predictions)
    assert health["largest_class"] == pytest.approx(most / len(predictions))


@every_method
def test_health_changes_nothing(case: Case) -> None:
    """No gradient, buffer or random state."""
    algorithm, context = build(case, dropout=None), context_at()
    output = step_of(algorithm, batch_for(algorithm), context)
    output.loss.backward()

    def state() -> dict[str, Tensor]:
        gradients = {f"{n}.grad": p.grad for n, p in algorithm.named_parameters() if p.grad is not None}
        random = {"torch": torch.get_rng_state(), "step": context.generator.get_state()}
        return copied({**algorithm.state_dict(), **gradients, **random})

    before = state()
    health = output.health()
    assert_bitwise_equal(state(), before)
    assert output.health() == health


@every_method
def test_health_is_not_computed_unless_asked_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_now(*values: Any, **named: Any) -> Tensor:
        raise AssertionError("health was computed")

    for module in [m for name, m in sys.modules.items() if name.startswith("manigraph.algorithms")]:
        for equation in HEALTH_EQUATIONS:
            monkeypatch.setattr(module, equation, not_now, raising=False)
    algorithm = build(case)
    output = step_of(algorithm, batch_for(algorithm))
    with pytest.raises(AssertionError, match="health was computed"):
        output.health()


@every_method
def test_health_in_mixed_precision_is_asked_for_outside_of_it(case: Case) -> None:
    algorithm = build(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = step_of(algorithm, batch_for(algorithm))
    assert all(-1 <= value <= 1 for value in output.health().values())


# Views


def with_views(batch: Batch, change: Callable[[str, Tensor], Tensor]) -> Batch:
    changed = {name: change(name, view) for name, view in batch.unlabelled.items()}
    return dataclasses.replace(batch, unlabelled=changed)


def with_other_view(batch: Batch, name: str) -> Batch:
    return with_views(
        batch, lambda n, view: view + 10 * normal(*view.shape, seed=11).float() if n == name else view
    )


def evaluated(case: Case, batch_of: Callable[[Batch], Batch] = lambda batch: batch) -> dict[str, float]:
    """Terms in evaluation mode: with batch statistics, everything would depend on every view."""
    algorithm = build(case).eval()
    return term_values(step_of(algorithm, batch_of(batch_for(algorithm))))


def with_other_nodes(case: Case) -> dict[str, float]:
    """Terms after all parameters outside the backbone and the linear layer have been changed."""
    algorithm = build(case).eval()
    batch = batch_for(algorithm)
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if ".backbone." not in name and ".linear." not in name:
                parameter.add_(0.1 * normal(*parameter.shape, seed=11).float())
    if batch.class_images is not None:
        other = normal(*batch.class_images.shape, seed=11).float()
        batch = dataclasses.replace(batch, class_images=other)
    return term_values(step_of(algorithm, batch))


def changed_terms(first: dict[str, float], second: dict[str, float]) -> set[str]:
    assert first.keys() == second.keys()
    return {name for name in first if abs(first[name] - second[name]) > 1e-6}


@with_every_term
def test_every_unsupervised_term_changes_with_what_it_is_about(case: Case) -> None:
    views = list(build(case).data_request().unlabelled)
    expected = evaluated(case)
    by_view = {
        view: changed_terms(expected, evaluated(case, functools.partial(with_other_view, name=view)))
        for view in views
    }
    by_nodes = changed_terms(expected, with_other_nodes(case))
    assert unsupervised(expected) <= by_nodes.union(*by_view.values())
    for changed in by_view.values():
        if "consistency" in expected:
            assert "consistency" in changed, "two predictions are compared: each counts"
        assert changed, "no view is made for nothing"
        assert "classification" not in changed, "labelled images have nothing to do with it"


@every_method
def test_consistency_teaches_the_student_and_not_the_target(case: Case) -> None:
    # In evaluation mode an image reaches the term only through its own prediction. Of two views one is the
    # target's and one the student's; where there is one, its target is something remembered or itself.
    algorithm = build(case).eval()
    batch = with_views(batch_for(algorithm), lambda _, view: view.clone().requires_grad_(True))
    output = step_of(algorithm, batch)
    if "consistency" in output.terms:
        inputs = list(batch.unlabelled.values())
        gradients = torch.autograd.grad(output.terms["consistency"], inputs, allow_unused=True)
        taught = [g.flatten(1).norm(dim=1) > 0 for g in gradients if g is not None and g.any()]
        assert len(taught) == 1, "one student"
        assert taught[0].all(), "every image"


@with_every_term
def test_every_unsupervised_term_teaches_the_student(case: Case) -> None:
    algorithm = build(case)
    terms = step_of(algorithm, batch_for(algorithm)).terms
    for name in unsupervised(dict(terms)):
        gradients = gradients_of(algorithm, terms[name])
        assert any(gradient.any() for gradient in gradients.values()), name


@every_method
def test_teachers_and_memories_are_no_part_of_the_gradient(case: Case) -> None:
    algorithm = build(case)
    loss = step_of(algorithm, batch_for(algorithm)).loss
    assert not any(buffer.requires_grad for buffer in algorithm.buffers())
    loss.backward()
    assert all(p.grad is None for p in algorithm.parameters() if not p.requires_grad)
    trainable = {id(p) for p in algorithm.parameters() if p.requires_grad}
    teachers = [module for module in algorithm.modules() if isinstance(module, Teacher)]
    assert not any(id(p) in trainable for teacher in teachers for p in teacher.parameters())
    if "mean_teacher" in str(case) or "taught" in str(case):
        assert teachers


@every_method
def test_an_update_moves_what_follows_the_student_in_after_step_alone(case: Case) -> None:
    """A step leaves teachers' weights alone; the average is taken when the weights have changed."""
    algorithm = build(case)
    context = context_at()
    teachers = [module for module in algorithm.modules() if isinstance(module, Teacher)]
    weights = [copied(dict(teacher.named_parameters())) for teacher in teachers]
    step_of(algorithm, batch_for(algorithm), context)
    for teacher, before in zip(teachers, weights, strict=True):
        assert_bitwise_equal(copied(dict(teacher.named_parameters())), before)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    algorithm.after_step(context)
    for teacher, before in zip(teachers, weights, strict=True):
        for name, parameter in teacher.named_parameters():
            assert (parameter > before[name]).all(), name
            assert (parameter < before[name] + 1).all(), name


# Batch norm


@contextmanager
def recorded_tracking_passes(backbone: nn.Module) -> Iterator[list[Tensor]]:
    """The images of every pass that moves running statistics."""
    seen: list[Tensor] = []
    layers = batch_norm_layers(backbone)

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        tracking = {layer.training and layer.track_running_stats for layer in layers}
        assert len(tracking) == 1, "all layers or none"
        if tracking == {True}:
            seen.append(inputs[0].detach().clone())

    handle = backbone.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def as_set(images: Tensor) -> set[tuple[float, ...]]:
    return {tuple(image.flatten().tolist()) for image in images}


@with_every_term
def test_running_statistics_move_by_clean_passes_alone(case: Case) -> None:
    algorithm, by_hand = build(case), build(case)
    batch = batch_for(algorithm)
    request = algorithm.data_request()
    weak = [view for name, view in batch.unlabelled.items() if request.unlabelled[name] != "strong"]
    labelled = torch.cat(list(batch.labelled.values()))
    clean = as_set(torch.cat([labelled, *weak]))
    models = [module for module in algorithm.modules() if isinstance(module, Classifier)]
    with ExitStack() as stack:
        passes = [stack.enter_context(recorded_tracking_passes(model.backbone)) for model in models]
        step_of(algorithm, batch)

    for model, seen in zip(models, passes, strict=True):
        images = torch.cat(seen)
        assert len(as_set(images)) == len(images), "no image twice"
        assert as_set(images) <= clean, "nothing disturbed, mixed or strong"
        if model is algorithm.model:
            assert as_set(torch.cat([labelled, *weak[:1]])) <= as_set(images)
        elif batch.unlabelled:
            assert any(as_set(view) <= as_set(images) for view in weak)
    # By hand, in the same order: the same statistics to the last bit.
    others = [module for module in by_hand.modules() if isinstance(module, Classifier)]
    for model, seen in zip(others, passes, strict=True):
        for inputs in seen:
            model.backbone(inputs)
    assert_bitwise_equal(running_statistics(algorithm), running_statistics(by_hand))
    assert all(layer.track_running_stats for layer in batch_norm_layers(algorithm))


# Ablations


@with_every_term
def test_a_weight_of_zero_takes_one_term_away_and_nothing_else(case: Case) -> None:
    algorithm = build(case)
    output = step_of(algorithm, batch_for(algorithm))
    values, gradients = term_values(output), gradients_of(algorithm, output.loss)
    taken_away = []
    for weight in weights_of(case):
        without = with_weight(build(case), case, weight, 0.0)
        output = step_of(without, batch_for(without))
        zero = [name for name, value in term_values(output).items() if value == 0.0]
        assert changed_terms(values, term_values(output)) == set(zero)
        taken_away += zero
        other_gradients = gradients_of(without, output.loss)
        assert any(not torch.allclose(gradients[name], g, atol=1e-6) for name, g in other_gradients.items())
    assert sorted(taken_away) == sorted(unsupervised(values)), "one weight for each unsupervised term"


@with_every_term
def test_a_weight_multiplies_its_term(case: Case) -> None:
    values = term_values(step_of(algorithm := build(case), batch_for(algorithm)))
    for weight in weights_of(case):
        tripled = with_weight(build(case), case, weight, 3 * getattr(algorithm.config, weight))
        found = term_values(step_of(tripled, batch_for(tripled)))
        (name,) = changed_terms(values, found)
        assert found[name] == pytest.approx(3 * values[name])


# Predictions


@every_method
def test_inference_model_gives_logits_that_do_not_depend_on_the_batch(case: Case) -> None:
    algorithm = build(case, dropout=None)
    step_of(algorithm, batch_for(algorithm))
    model = algorithm.inference_model().eval()
    images = normal(5, 1, 8, 8, seed=3).float()
    with torch.no_grad():
        together, alone = model(images), torch.cat([model(image.unsqueeze(0)) for image in images])
    assert together.shape == (5, NUM_CLASSES)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)
    assert torch.equal(alone.argmax(dim=1), together.argmax(dim=1))
