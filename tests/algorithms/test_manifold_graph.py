"""Manifold Graph: its warm-up is Π-VAT, its prototype losses are those of section 5."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.algorithms.manifold_graph import ManifoldGraphMethod
from manigraph.nn import GraphClassifier, PrototypeGenerator, Teacher
from tests.algorithms.naive import anchor_terms, prototype_terms
from tests.helpers import (
    NUM_CLASSES,
    NUM_LABELLED,
    NUM_UNLABELLED,
    Case,
    assert_bitwise_equal,
    batch_for,
    build,
    case_named,
    context_at,
    copied,
    gradients_of,
    normal,
    recorded_inputs,
    recorded_outputs,
    running_statistics,
    seeded,
    step_of,
    term_values,
)
from tests.reference import prototypes as reference
from tests.reference.graph import attention, attention_entropy, own_class_attention

GENERATED = case_named("manifold_graph-generated")
LABELLED_IMAGES = case_named("manifold_graph-labelled_images")
both_kinds = pytest.mark.parametrize("case", [GENERATED, LABELLED_IMAGES], ids=str)
PROTOTYPE_TERMS = {"anchor", "divergence", "prototypes"}


def model_of(algorithm: Algorithm[Any]) -> GraphClassifier:
    assert isinstance(algorithm.model, GraphClassifier)
    return algorithm.model


# Warm-up


def shared_parameters(algorithm: Algorithm[Any]) -> dict[str, Tensor]:
    """The parameters every method has."""
    return {
        name: parameter
        for name, parameter in algorithm.model.named_parameters()
        if name.startswith(("backbone.", "linear."))
    }


@both_kinds
@pytest.mark.parametrize("reference", ["target", "own_view"])
def test_with_the_graph_off_it_is_pi_vat_bit_for_bit(case: Case, reference: str) -> None:
    pi_vat = build(case_named("pi_vat"), dropout=None, adversarial_reference=reference)
    graph_off = build(case, dropout=None, adversarial_reference=reference, warmup_fraction=1.0)
    assert_same_step(graph_off, pi_vat)


def test_with_the_graph_off_and_anchored_students_it_is_fixmatch_bit_for_bit() -> None:
    nothing: dict[str, Any] = {"entropy_weight": 0.0, "balance_weight": 0.0}
    fixmatch = build(case_named("fixmatch"), dropout=None, **nothing)
    graph_off = build(case_named("manifold_graph-fixmatch-student"), dropout=None, warmup_fraction=1.0)
    assert_same_step(graph_off, fixmatch)


def assert_same_step(graph_off: Algorithm[Any], other: Algorithm[Any]) -> None:
    """From the same seeds: loss, terms, gradients, running statistics, and the random numbers left."""
    assert_bitwise_equal(shared_parameters(graph_off), shared_parameters(other))
    results = []
    for algorithm in (other, graph_off):
        batch = batch_for(algorithm)
        context = context_at()
        output = step_of(algorithm, batch, context)
        output.loss.backward()
        gradients = {
            name: parameter.grad
            for name, parameter in shared_parameters(algorithm).items()
            if parameter.grad is not None
        }
        assert len(gradients) == len(shared_parameters(algorithm))
        random = {"torch": torch.get_rng_state(), "step": context.generator.get_state()}
        results.append(
            (copied({**output.terms, "loss": output.loss}), gradients, running_statistics(algorithm), random)
        )
    for expected, found in zip(*results, strict=True):
        assert_bitwise_equal(found, expected)
    others = set(dict(graph_off.model.named_parameters())) - set(shared_parameters(graph_off))
    assert others, "the generator or the graph"
    assert all(graph_off.model.get_parameter(name).grad is None for name in others)


@pytest.mark.parametrize(
    ("fraction", "total", "last_without"),
    [(0.5, 10, 4), (0.0, 10, -1), (1.0, 10, 9), (2 / 282, 282_000, 1_999), (2 / 282, 282, 1), (0.3, 10, 2)],
)
def test_the_graph_comes_in_at_the_right_step(fraction: float, total: int, last_without: int) -> None:
    algorithm = build(GENERATED, warmup_fraction=fraction)
    for step in (last_without, last_without + 1):
        if 0 <= step < total:
            output = step_of(algorithm, batch_for(algorithm), context_at(step=step, total_steps=total))
            graph_is_on = step > last_without
            assert (set(output.terms) >= PROTOTYPE_TERMS) is graph_is_on
            assert (not PROTOTYPE_TERMS & set(output.terms)) is not graph_is_on
            assert bool(model_of(algorithm).graph_is_on) is graph_is_on


@both_kinds
def test_predictions_go_through_the_graph_once_it_is_on(case: Case) -> None:
    images = normal(4, 1, 8, 8, seed=2).float()
    algorithm = build(case, warmup_fraction=0.5)
    for step, graph_is_on in ((4, False), (5, True)):
        step_of(algorithm, batch_for(algorithm), context_at(step=step))
        model = algorithm.inference_model().eval()
        with torch.no_grad():
            raw = algorithm.model.linear(algorithm.model.backbone(images))
            assert torch.equal(model(images), raw) is not graph_is_on
        algorithm.train()


# Prototype losses


def captured(algorithm: Algorithm[Any]) -> tuple[dict[str, float], Tensor, Tensor, Tensor]:
    """Terms of a step, and from its backbone: features of the clean images, labels, class nodes."""
    batch = batch_for(algorithm, dtype=torch.float64)
    with recorded_outputs(algorithm.model.backbone) as seen:
        output = step_of(algorithm, batch)
    (features,) = [f for f in seen if len(f) == NUM_LABELLED + NUM_UNLABELLED]
    model = model_of(algorithm)
    if isinstance(model.nodes, PrototypeGenerator):
        nodes = model.nodes().detach()
    else:
        (nodes,) = [f for f in seen if len(f) == len(model.nodes.images)]
    return term_values(output), features, batch.labels, nodes


@both_kinds
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"margin_length": 0.05, "margin_angle": 0.3, "margin_divergence": 0.1, "anchor_weight": 2.0},
        {"divergence_reduction": "sum", "divergence_weight": 0.5, "prototype_weight": 1.0},
        {"num_heads": 2, "scale": 0.2},
    ],
    ids=["defaults", "margins", "weights", "heads"],
)
def test_prototype_terms_from_the_features_of_the_step(case: Case, changes: dict[str, Any]) -> None:
    algorithm = build(case, **changes).double()
    terms, features, labels, nodes = captured(algorithm)
    parts = anchor_terms(algorithm.config, features, labels, nodes, NUM_CLASSES)
    assert all(part > 1e-4 for part in parts.values()), "or a part could be left out unnoticed"
    expected = prototype_terms(algorithm.config, algorithm.model, features, labels, nodes)
    for name, term in expected.items():
        assert terms[name] == pytest.approx(term.item(), rel=1e-9)


def groups_with_gradient(algorithm: Algorithm[Any], term: Tensor) -> str:
    """Parts of the model that the term sends gradient to, in the order of the alphabet."""
    gradients = gradients_of(algorithm.model, term)
    return " ".join(sorted({name.split(".")[0] for name, gradient in gradients.items() if gradient.any()}))


@pytest.mark.parametrize(
    ("case", "term", "expected"),
    [
        (GENERATED, "classification", "backbone graph linear nodes"),
        (GENERATED, "consistency", "backbone graph linear nodes"),
        (GENERATED, "entropy", "backbone graph linear nodes"),
        (GENERATED, "anchor", "backbone nodes"),
        (GENERATED, "divergence", "nodes"),
        (GENERATED, "prototypes", "backbone graph linear nodes"),
        (LABELLED_IMAGES, "classification", "backbone graph linear"),
        (LABELLED_IMAGES, "anchor", "backbone"),
        (LABELLED_IMAGES, "divergence", "backbone"),
        (LABELLED_IMAGES, "prototypes", "backbone graph linear"),
    ],
    ids=str,
)
def test_who_receives_gradient_from_which_term(case: Case, term: str, expected: str) -> None:
    algorithm = build(case)
    output = step_of(algorithm, batch_for(algorithm))
    assert groups_with_gradient(algorithm, output.terms[term]) == expected


@pytest.mark.parametrize(("update", "expected"), [("shared", "graph linear nodes"), ("none", "linear nodes")])
def test_images_have_no_part_in_prototypes_that_do_not_see_them(update: str, expected: str) -> None:
    algorithm = build(GENERATED, prototype_update=update)
    output = step_of(algorithm, batch_for(algorithm))
    assert groups_with_gradient(algorithm, output.terms["prototypes"]) == expected


def test_margin_of_the_boundary_can_be_a_constant() -> None:
    found = []
    for detach in (False, True):
        algorithm = build(GENERATED, detach_boundary_margin=detach)
        term = step_of(algorithm, batch_for(algorithm)).terms["anchor"]
        found.append((term, gradients_of(algorithm, term)["model.nodes.class_embedding"]))
    (value, gradient), (same_value, other_gradient) = found
    assert torch.equal(value, same_value)
    assert not torch.allclose(gradient, other_gradient)


# Prototype losses on what the student sees

STUDENT = case_named("manifold_graph-fixmatch-student")


def test_the_clean_view_decides_the_class_of_the_students() -> None:
    algorithm = build(STUDENT)
    batch = batch_for(algorithm)
    other_first = {**batch.unlabelled, "first": batch.unlabelled["first"].flip(0) * 3}
    changed = dataclasses.replace(batch, unlabelled=other_first)
    term, other_term = (step_of(algorithm, images).terms["anchor"] for images in (batch, changed))
    assert term != other_term, "the class of a student's view would be its own"


def test_clean_views_have_no_gradient_and_cost_nothing_more() -> None:
    algorithm = build(STUDENT)
    with_gradient: list[int] = []
    algorithm.model.backbone.register_forward_hook(
        lambda _, __, output: with_gradient.append(len(output) if output.requires_grad else 0)
    )
    step_of(algorithm, batch_for(algorithm))
    assert with_gradient == [0, NUM_LABELLED + NUM_UNLABELLED]


def test_the_teacher_of_anchored_students_has_prototypes_of_its_own() -> None:
    algorithm = build(STUDENT, target_decay=0.9)
    batch = batch_for(algorithm)
    (teacher,) = [module.model for module in algorithm.modules() if isinstance(module, Teacher)]
    assert isinstance(teacher, GraphClassifier)
    assert isinstance(teacher.nodes, PrototypeGenerator)
    with recorded_outputs(teacher.linear) as logits:
        anchor = step_of(algorithm, batch).terms["anchor"]
        with torch.no_grad():  # the first class becomes the second, and so on
            teacher.nodes.class_embedding.copy_(3 * teacher.nodes.class_embedding.roll(1, 0))
        assert step_of(algorithm, batch).terms["anchor"] != anchor, "images have the teacher's nearest centre"
    before, after = logits
    assert not torch.allclose(before, after)


def test_a_teacher_has_the_images_and_the_graph_of_the_same_step() -> None:
    algorithm = build(LABELLED_IMAGES, comparison="mean_teacher")
    (teacher,) = [module.model for module in algorithm.modules() if isinstance(module, Teacher)]
    batch = batch_for(algorithm)
    with recorded_inputs(teacher.backbone) as seen:
        step_of(algorithm, batch)
    assert batch.class_images is not None
    assert any(torch.equal(images, batch.class_images) for images in seen)
    off = build(case_named("manifold_graph-mean_teacher"), warmup_fraction=0.5)
    (teacher,) = [module.model for module in off.modules() if isinstance(module, Teacher)]
    assert isinstance(teacher, GraphClassifier)
    for step, is_on in ((1, False), (8, True)):
        step_of(off, batch_for(off), context_at(step, 10))
        assert bool(teacher.graph_is_on) == is_on


@pytest.mark.parametrize("comparison", ["pi_model", "pi_vat", "mean_teacher"])
def test_a_teacher_for_targets_goes_with_fixmatch(comparison: str) -> None:
    with pytest.raises(ValueError, match=f"target_decay needs comparison fixmatch, got {comparison}"):
        build(GENERATED, comparison=comparison, target_decay=0.9)


@pytest.mark.parametrize(
    "changes",
    [
        {"comparison": "pi_vat"},
        {"comparison": "mean_teacher"},
        {"entropy_weight": 0.1},
        {"balance_weight": 1},
    ],
    ids=str,
)
def test_students_are_anchored_only_where_nothing_else_needs_clean_views(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="anchored_view student needs comparison pi_model or fixmatch"):
        build(STUDENT, **changes)


# Health


@both_kinds
@pytest.mark.parametrize(
    "changes", [{}, {"num_heads": 2, "scale": 0.2, "prototypes_per_class": 4}], ids=["defaults", "heads"]
)
def test_health_of_the_graph_from_the_features_of_the_step(case: Case, changes: dict[str, Any]) -> None:
    algorithm = build(case, **changes).double()
    batch = batch_for(algorithm, dtype=torch.float64)
    with recorded_outputs(algorithm.model.linear) as logits:
        _, features, labels, nodes = captured(algorithm)
    health = step_of(algorithm, batch).health()
    graph = model_of(algorithm).graph
    with torch.no_grad():
        images, prototypes = graph.embedding(features), graph.embedding(nodes)
    rows = [torch.cat([image.unsqueeze(0), prototypes]) for image in images]
    weights = torch.stack([attention(row, scale=algorithm.config.scale)[0, :, 1:] for row in rows])
    predicted = logits[0][NUM_LABELLED:].argmax(dim=1).tolist()
    nearest = reference.nearest_centre(features[NUM_LABELLED:], reference.class_centres(nodes, NUM_CLASSES))
    expected = {
        "own_class_attention": own_class_attention(weights[:NUM_LABELLED], labels, NUM_CLASSES).item(),
        "attention_entropy": attention_entropy(weights).item(),
        "prototype_similarity": reference.prototype_similarity(nodes, NUM_CLASSES).item(),
        "pseudo_label_agreement": sum(a == b for a, b in zip(nearest, predicted, strict=True)) / len(nearest),
    }
    assert {name: health[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert set(health) == {"largest_class", *expected}


def test_health_of_the_graph_is_left_out_where_there_is_none() -> None:
    def names(**changes: Any) -> set[str]:
        algorithm = build(GENERATED, **changes)
        return set(step_of(algorithm, batch_for(algorithm)).health())

    assert names(warmup_fraction=1.0) == {"largest_class"}
    assert names() - names(prototypes_per_class=1) == {"prototype_similarity"}


# Labelled images as nodes


def test_nodes_are_the_class_images_of_the_batch() -> None:
    algorithm = build(LABELLED_IMAGES)
    batch = batch_for(algorithm)
    assert algorithm.data_request().images_per_class == 2
    step_of(algorithm, batch)
    nodes = model_of(algorithm).nodes
    assert batch.class_images is not None
    assert torch.equal(nodes.get_buffer("images"), batch.class_images)


def test_generated_nodes_ask_for_no_class_images() -> None:
    assert build(GENERATED).data_request().images_per_class == 0


def test_class_nodes_are_class_major() -> None:
    # Images of one class twice: class-major, each centre is such an image and
    # each node belongs to its own centre, so a divergence of 1 per pair and no more follows.
    algorithm = build(LABELLED_IMAGES, margin_divergence=0.3)
    batch = batch_for(algorithm)
    originals = torch.empty(NUM_CLASSES, 1, 8, 8).normal_(generator=seeded(3))
    class_images = originals.repeat_interleave(2, dim=0)
    same = dataclasses.replace(batch, class_images=class_images)
    assert step_of(algorithm, same).terms["divergence"].item() == pytest.approx(1, abs=1e-5)


# The paper's numbers


def test_defaults_are_those_of_the_paper() -> None:
    config = ManifoldGraphMethod.Config()
    assert (config.consistency, config.ramp_fraction) == ("kl", 0)
    assert (config.balance_weight, config.balance_memory) == (0, 0)
    assert (config.consistency_weight, config.entropy_weight) == (1, 0.1)
    assert (config.anchor_weight, config.divergence_weight, config.prototype_weight) == (1, 1, 0.1)
    assert (config.margin_length, config.margin_angle, config.margin_divergence) == (0.1, 0.15, 0.75)
    assert (config.prototypes_per_class, config.embedding_size, config.hidden_size) == (20, 32, 64)
    assert (config.num_heads, config.scale, config.prototype_update) == (1, 1, "per_image")
    assert (config.adversarial_reference, config.num_power_iterations) == ("target", 1)
    assert (config.epsilon, config.divergence_reduction, config.nodes) == (8, "mean", "generated")
    assert config.warmup_fraction == 2_000 / 282_000
    assert 1e-2 <= config.xi <= 1
    assert not config.detach_boundary_margin
