"""Deep Co-Training against the paper's algorithm, written out network by network."""

import copy
import math
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms import deep_cotraining
from manigraph.algorithms.deep_cotraining import DeepCoTraining, partners_in
from manigraph.algorithms.parts import with_masks
from manigraph.contract import Batch, StepContext
from manigraph.functional import gradient_sign, gradient_sign_perturbation
from manigraph.nn import Classifier, Passes, RandomState, trained_state
from tests.algorithms.naive import ramp
from tests.helpers import (
    NUM_LABELLED,
    assert_bitwise_equal,
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
from tests.reference import cotraining as reference

L = NUM_LABELLED
ROUNDS_OF_FOUR = [{0: 3, 1: 2}, {0: 2, 1: 3}, {0: 1, 2: 3}]


def method(**settings: Any) -> DeepCoTraining:
    """After two updates."""
    algorithm = begun(case_named("deep_cotraining"), **{"ramp_fraction": 0.0, **settings})
    assert isinstance(algorithm, DeepCoTraining)
    return algorithm


def partner_of(view: int, step: int, num_views: int) -> int:
    """In the rounds that are written out above."""
    meetings = ROUNDS_OF_FOUR[step % 3] if num_views == 4 else {0: 1}
    return {**meetings, **{b: a for a, b in meetings.items()}}[view]


def naive_step(
    algorithm: DeepCoTraining, batch: Batch, context: StepContext
) -> tuple[DeepCoTraining, dict[str, Tensor], dict[str, Tensor]]:
    """A copy, its terms, and running statistics as the clean passes leave them."""
    algorithm = copy.deepcopy(algorithm)
    config, views = algorithm.config, algorithm.views
    images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
    clean = [view.linear(view.backbone(images)) for view in views]
    statistics = running_statistics(algorithm)
    unlabelled = [logits[L:] for logits in clean]

    targets = clean
    if config.balance_memory:  # with room for the predictions of this step alone
        mean = [
            torch.stack(reference.mean_prediction(unlabelled, i)).log() for i in range(len(unlabelled[0]))
        ]
        bias = consistency.balancing_bias(torch.stack(mean).detach().float().double(), num_iterations=3)
        targets = [torch.cat([logits[:L], logits[L:] + bias]).detach() for logits in clean]
    differences = []
    for i, view in enumerate(views):
        pseudo_labels = [row.index(max(row)) for row in targets[i][L:].tolist()]
        noise = reference.gradient_sign(
            lambda x, view=view: view.linear(view.backbone(x)),  # type: ignore[misc]
            images,
            torch.tensor([*batch.labels.tolist(), *pseudo_labels]),
            epsilon=config.pixel_epsilon,
        )
        other = views[partner_of(i, context.step, len(views))]
        misled = other.linear(other.backbone(images + noise))
        differences.append(reference.prediction_cross_entropy(targets[i], misled))

    factor = ramp(config, context)
    everything = torch.cat(unlabelled)
    terms = {
        "classification": consistency.added(
            consistency.cross_entropy(logits[:L], batch.labels) for logits in clean
        ),
        "agreement": factor * config.agreement_weight * reference.view_disagreement(unlabelled),
        "difference": factor * config.difference_weight * consistency.added(differences),
        "entropy": factor * config.entropy_weight * consistency.entropy(everything),
        "balance": config.balance_weight * consistency.class_imbalance(everything),
    }
    return algorithm, terms, statistics


@pytest.mark.parametrize("step", [3, 4, 5])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_views": 4},
        {"ramp_fraction": 0.9, "pixel_epsilon": 0.3, "agreement_weight": 2.0, "num_views": 4},
        {"pixel_epsilon": 0.0},
        {"balance_memory": 5},
    ],
    ids=str,
)
def test_step_is_the_naive_one(settings: dict[str, Any], step: int) -> None:
    algorithm = method(**settings).double()
    algorithm.target_balance.bias.zero_()
    batch = batch_for(algorithm, dtype=torch.float64)
    model, expected, statistics = naive_step(algorithm, batch, context_at(step))
    found = step_of(algorithm, batch, context_at(step))
    values = {name: term.item() for name, term in expected.items()}
    assert term_values(found) == pytest.approx(values, rel=1e-9, abs=1e-12)
    expected_gradients = gradients_of(model, consistency.added(expected.values()))
    for name, gradient in gradients_of(algorithm, found.loss).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)
    for name, value in running_statistics(algorithm).items():
        torch.testing.assert_close(value, statistics[name], rtol=1e-12, atol=1e-12)


# Views


@pytest.mark.parametrize("num_views", [2, 4, 8])
def test_views_are_networks_with_weights_of_their_own(num_views: int) -> None:
    algorithm = build(case_named("deep_cotraining"), num_views=num_views)
    assert isinstance(algorithm, DeepCoTraining)
    assert len(algorithm.views) == num_views
    assert algorithm.views[0] is algorithm.model
    first = [parameter.detach() for parameter in algorithm.model.parameters()]
    for view in algorithm.views[1:]:
        weights = [parameter.detach() for parameter in view.parameters()]
        assert [w.shape for w in weights] == [w.shape for w in first]
        assert not any(torch.equal(a, b) for a, b in zip(weights, first, strict=True) if a.ndim > 1)
    assert len({id(p) for p in algorithm.parameters()}) == num_views * len(first)


def test_the_first_view_starts_as_the_network_of_any_other_method() -> None:
    ours, supervised = build(case_named("deep_cotraining")), build(case_named("supervised"))
    assert_bitwise_equal(copied(ours.model.state_dict()), copied(supervised.model.state_dict()))


@pytest.mark.parametrize("num_views", [2, 4, 6, 8])
def test_every_two_views_meet_once_in_a_tournament(num_views: int) -> None:
    met = []
    for step in range(num_views - 1):
        partners = partners_in(step, num_views)
        assert all(partners[partners[i]] == i != partners[i] for i in range(num_views))
        met += [frozenset((i, partners[i])) for i in range(num_views) if i < partners[i]]
    assert len(met) == len(set(met)) == num_views * (num_views - 1) // 2
    assert partners_in(num_views - 1, num_views) == partners_in(0, num_views)


def test_views_that_are_the_same_agree_and_cannot_differ() -> None:
    algorithm = method(pixel_epsilon=0.0, agreement_weight=1.0, difference_weight=1.0).double()
    for view in algorithm.views[1:]:
        view.load_state_dict(algorithm.model.state_dict())
    batch = batch_for(algorithm, dtype=torch.float64)
    values = term_values(step_of(algorithm, batch))
    assert values["agreement"] == pytest.approx(0, abs=1e-12)
    # H(p, p) of each, over all images: with no step, adversarial images are the images.
    images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
    entropy = consistency.entropy(algorithm.model(images)).item()
    assert values["difference"] == pytest.approx(2 * entropy)


# Adversarial images


def test_adversarial_images_are_a_step_away_in_every_pixel_and_go_to_the_partner() -> None:
    algorithm = method(num_views=4, pixel_epsilon=0.05).eval()
    batch = batch_for(algorithm)
    images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
    with ExitStack() as stack:
        seen = [stack.enter_context(recorded_inputs(view.backbone)) for view in algorithm.views]
        step_of(algorithm, batch, context_at(4))
    for number, view in enumerate(algorithm.views):
        inputs = seen[partner_of(number, 4, 4)]
        assert len(inputs) == 2, "clean, which finds its own, and its partner's"
        (adversarial,) = [i for i in inputs if not torch.equal(i, images)]
        torch.testing.assert_close((adversarial - images).abs(), torch.full_like(images, 0.05))
        # The partner saw what makes this view less sure of each class, but not the others' images.
        with torch.no_grad():
            classes = torch.cat([batch.labels, view(images)[L:].argmax(dim=1)])
            sure = view(images).log_softmax(dim=1).gather(1, classes[:, None])
            misled = view(adversarial).log_softmax(dim=1).gather(1, classes[:, None])
        assert (misled < sure).all()


def test_in_lower_precision_adversarial_images_are_found_with_the_masks_of_the_clean_pass() -> None:
    algorithm = begun(case_named("deep_cotraining"), dropout=0.5)
    assert isinstance(algorithm, DeepCoTraining)
    for view in algorithm.views:
        view.passes = Passes(dtype=torch.bfloat16)
    with ExitStack() as stack:
        seen = []
        for view in algorithm.views:
            (dropout,) = (layer for layer in view.modules() if isinstance(layer, nn.Dropout))
            seen.append(stack.enter_context(recorded_outputs(dropout)))
        step_of(algorithm, batch_for(algorithm))
    (clean_0, finding_0, other_0), (clean_1, other_1, finding_1) = [[o != 0 for o in view] for view in seen]
    assert torch.equal(clean_0, finding_0)
    assert torch.equal(clean_1, finding_1)
    assert not torch.equal(clean_0, other_0)
    assert not torch.equal(clean_1, other_1)
    assert not torch.equal(clean_0, clean_1), "views have masks of their own"


def test_clean_passes_find_what_a_pass_of_its_own_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed twice: each network sees the images once, and the misleading ones of the other."""
    algorithm = begun(case_named("deep_cotraining"), dropout=0.5)
    assert isinstance(algorithm, DeepCoTraining)
    found, expected = [], []

    def noticed(images: Tensor, logits: Tensor, classes: Tensor, *, epsilon: float) -> Tensor:
        found.append(gradient_sign(images, logits, classes, epsilon=epsilon))
        return found[-1]

    monkeypatch.setattr(deep_cotraining, "gradient_sign", noticed)
    batch = batch_for(algorithm)
    with ExitStack() as stack:
        inputs = [stack.enter_context(recorded_inputs(view.backbone)) for view in algorithm.views]
        twin = copy.deepcopy(algorithm)
        step_of(algorithm, batch)
    assert [len(seen) for seen in inputs] == [2, 2]
    images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
    torch.manual_seed(7)  # as in `step_of`
    masks = []
    for view in twin.views:
        masks.append(RandomState(images.device))
        logits = view(images)
        classes = torch.cat([batch.labels, logits[len(batch.labels) :].argmax(dim=1)])
        same_network = with_masks(view, masks[-1])
        epsilon = algorithm.config.pixel_epsilon
        expected.append(gradient_sign_perturbation(same_network, images, classes, epsilon=epsilon))
    for own, other in zip(found, expected, strict=True):
        assert (own == other).double().mean() > 0.999  # the sign of a gradient that is 0 up to rounding


def test_adversarial_images_are_found_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = method()
    for view in algorithm.views:
        view.passes = Passes(dtype=torch.bfloat16)
    precisions: list[list[torch.dtype]] = []

    def noticed(*inputs: Any, **named: Any) -> Tensor:
        precisions.append([view.passes.dtype for view in algorithm.views])
        return gradient_sign_perturbation(*inputs, **named)

    monkeypatch.setattr(deep_cotraining, "gradient_sign_perturbation", noticed)
    output = step_of(algorithm, batch_for(algorithm))
    assert precisions == [[torch.float32, torch.bfloat16], [torch.bfloat16, torch.float32]]
    assert [view.passes.dtype for view in algorithm.views] == 2 * [torch.bfloat16]
    assert all(term.isfinite() for term in output.terms.values())


def test_finding_them_computes_no_gradient_of_a_parameter() -> None:
    algorithm = method()
    for parameter in algorithm.parameters():
        parameter.register_hook(lambda _: pytest.fail("a gradient was computed"))
    step_of(algorithm, batch_for(algorithm))


# Gradients


def reached_views(algorithm: DeepCoTraining, term: Tensor) -> list[bool]:
    gradients = gradients_of(algorithm, term)
    parts = [{id(p) for p in view.parameters()} for view in algorithm.views]
    parameters = dict(algorithm.named_parameters())
    return [any(g.any() for name, g in gradients.items() if id(parameters[name]) in part) for part in parts]


def test_every_term_teaches_all_views() -> None:
    algorithm = method(num_views=4)
    output = step_of(algorithm, batch_for(algorithm))
    for name, term in output.terms.items():
        assert reached_views(algorithm, term) == 4 * [True], name


# Predictions


def test_prediction_is_the_mean_of_all_views() -> None:
    algorithm = method().eval()
    images = normal(5, 1, 8, 8, seed=3).float()
    with torch.no_grad():
        expected = torch.stack([view(images).softmax(dim=1) for view in algorithm.views]).mean(dim=0)
        torch.testing.assert_close(algorithm.inference_model()(images).exp(), expected)


def test_one_network_alone_can_predict() -> None:
    algorithm = method(predict_with="first_view")
    assert algorithm.inference_model() is algorithm.model


def test_all_views_are_in_the_trained_model() -> None:
    algorithm = method(balance_memory=5)
    names = set(trained_state(algorithm))
    assert {f"model.{name}" for name in algorithm.model.state_dict()} <= names
    assert {f"other_views.0.{name}" for name in algorithm.model.state_dict()} <= names
    assert not any(name.startswith("target_balance") for name in names)
    assert all(isinstance(view, Classifier) for view in algorithm.views)


# Settings


def test_agreement_and_difference_are_ramped_up() -> None:
    # At 1/10 of the run, a quarter of a ramp of 0.4: exp(-5 (3/4)²). Balance is not ramped.
    def terms(ramp_fraction: float) -> dict[str, float]:
        algorithm = method(ramp_fraction=ramp_fraction)
        algorithm.load_state_dict(method().state_dict())
        return term_values(step_of(algorithm, batch_for(algorithm), context_at(step=1)))

    full, ramped = terms(0.0), terms(0.4)
    for name, value in full.items():
        factor = math.exp(-5 * 0.75**2) if name in ("agreement", "difference", "entropy") else 1.0
        assert ramped[name] == pytest.approx(factor * value, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_views": 3}, "num_views must be an even number from 2 on, got 3"),
        ({"num_views": 0}, "num_views must be an even number from 2 on, got 0"),
        ({"pixel_epsilon": -0.1}, "pixel_epsilon cannot be negative, got -0.1"),
        ({"ramp_fraction": -0.1}, "cannot be negative, got -0.1"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeepCoTraining.Config(**settings)
