"""Temporal Ensembling against the paper's algorithm 2, written out image by image."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.temporal_ensembling import TemporalEnsembling
from manigraph.contract import Batch, StepContext, StepOutput
from manigraph.nn import trained_state
from tests.helpers import (
    NUM_UNLABELLED,
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
    term_values,
    tiny_backbone,
)
from tests.helpers import step_of as step_without_update
from tests.reference import consistency
from tests.reference.ensemble import ImageEnsemble

NUM_IMAGES = NUM_UNLABELLED + 2


def step_of(algorithm: TemporalEnsembling, batch: Batch, context: StepContext | None = None) -> StepOutput:
    """A step and what comes after it, when predictions are remembered."""
    output = step_without_update(algorithm, batch, context)
    algorithm.after_step(context_at() if context is None else context)
    return output


def method(**settings: Any) -> TemporalEnsembling:
    """With room for NUM_IMAGES images."""
    algorithm = build(case_named("temporal_ensembling"), **settings)
    assert isinstance(algorithm, TemporalEnsembling)
    return algorithm


def positions_of_three_epochs() -> list[Tensor]:
    """Three permutations of all images, cut into batches that run over the ends of epochs."""
    generator = seeded(4)
    stream = torch.cat([torch.randperm(NUM_IMAGES, generator=generator) for _ in range(3)])
    return list(stream.split(NUM_UNLABELLED))


def batch_at(algorithm: TemporalEnsembling, step: int, positions: Tensor) -> Batch:
    """Views of the images at these positions: the same image is always nearly the same."""
    batch = batch_for(algorithm, seed=step, dtype=torch.float64)
    images = normal(NUM_IMAGES, 1, 8, 8, seed=77)[positions]
    views = {name: images + 0.3 * normal(*images.shape, seed=50 + step) for name in batch.unlabelled}
    return dataclasses.replace(batch, unlabelled=views, positions=positions)


class NaiveTemporalEnsembling:
    """One ensemble per image, in numbers."""

    def __init__(self) -> None:
        self.images = [ImageEnsemble() for _ in range(NUM_IMAGES)]

    def step(
        self, algorithm: TemporalEnsembling, batch: Batch, context: StepContext
    ) -> tuple[Any, dict[str, Tensor]]:
        """Terms, then the update; an image that is twice in the batch enters with its mean."""
        model, config = copy.deepcopy(algorithm.model), algorithm.config
        images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
        logits = model.linear(model.backbone(images))
        labelled, own = logits[: len(batch.labels)], logits[len(batch.labels) :]
        assert batch.positions is not None
        positions = batch.positions.tolist()
        distance = {"kl": consistency.kl, "mse": consistency.mse}[config.consistency]
        distances = []
        for row, position in enumerate(positions):
            target = self.images[position].target(config.ensemble_decay)
            if target is not None:
                target_logits = torch.tensor([[math.log(z) for z in target]], dtype=torch.float64)
                distances.append(distance(target_logits, own[row : row + 1]))
        t = min(context.progress / config.ramp_fraction, 1.0)
        ramp = math.exp(-5 * (1 - t) ** 2)
        terms = {
            "classification": consistency.cross_entropy(labelled, batch.labels),
            "consistency": ramp * config.consistency_weight * consistency.added(distances) / len(own),
            "entropy": ramp * config.entropy_weight * consistency.entropy(own),
            "balance": config.balance_weight * consistency.class_imbalance(own),
        }
        for position in sorted(set(positions)):
            rows = [
                [p.item() for p in consistency.softmax(own[row])]
                for row, at in enumerate(positions)
                if at == position
            ]
            mean = [sum(values) / len(rows) for values in zip(*rows, strict=True)]
            self.images[position].take(mean, config.ensemble_decay)
        return model, terms


@pytest.mark.parametrize(
    "settings",
    [{}, {"consistency": "kl", "ensemble_decay": 0.9, "consistency_weight": 1.0}, {"ensemble_decay": 0.0}],
    ids=["paper", "kl", "newest"],
)
def test_three_epochs_are_the_naive_ones(settings: dict[str, Any]) -> None:
    """Terms, gradients and memory of every step, the weights changing in between."""
    algorithm = method(**settings).double()
    naive = NaiveTemporalEnsembling()
    optimizer = torch.optim.SGD(algorithm.parameters(), lr=0.05)
    for step, positions in enumerate(positions_of_three_epochs()):
        batch = batch_at(algorithm, step, positions)
        context = context_at(step, total_steps=10)
        model, terms = naive.step(algorithm, batch, context)
        found = step_of(algorithm, batch, context)

        expected = {name: term.item() for name, term in terms.items()}
        assert term_values(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        expected_gradients = gradients_of(model, consistency.added(terms.values()))
        for name, gradient in gradients_of(algorithm.model, found.loss).items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-8, atol=1e-10)
        assert_bitwise_equal(running_statistics(algorithm), running_statistics(model))
        for position, image in enumerate(naive.images):
            assert int(algorithm.ensemble.count[position]) == image.count
            assert algorithm.ensemble.ensemble[position].tolist() == pytest.approx(
                image.total or [0.0] * 3, rel=1e-12
            )

        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
    assert sum(image.count for image in naive.images) > 2 * NUM_IMAGES


def test_before_there_are_targets_the_term_is_zero_and_teaches_nothing() -> None:
    for measure in ("mse", "kl"):
        algorithm = method(consistency=measure).double()
        output = step_of(algorithm, batch_for(algorithm, dtype=torch.float64))
        assert output.terms["consistency"].item() == 0
        gradients = gradients_of(algorithm, output.terms["consistency"])
        assert all(gradient.abs().max() < 1e-14 for gradient in gradients.values())


def test_unseen_images_count_as_zero_in_the_mean() -> None:
    # Images 0 and 1 were seen; of the five images of the next batch only these two have a distance.
    algorithm = method(ramp_fraction=0.0, consistency_weight=1.0).double().eval()
    algorithm.ensemble.update(torch.tensor([0, 1]), normal(2, 3, seed=8).softmax(dim=1))
    batch = batch_for(algorithm, dtype=torch.float64)
    with torch.no_grad():
        probs = algorithm.model(batch.unlabelled["image"]).softmax(dim=1)
    distances = (normal(2, 3, seed=8).softmax(dim=1) - probs[:2]).square().sum(dim=1)
    found = step_of(algorithm, batch).terms["consistency"].item()
    assert found == pytest.approx(distances.sum().item() / NUM_UNLABELLED)


def test_the_target_is_read_before_the_prediction_enters() -> None:
    # α = 0: the ensemble is the last prediction. Read after the update, the distance would be 0.
    algorithm = method(ensemble_decay=0.0).double().eval()
    step_of(algorithm, batch_for(algorithm, dtype=torch.float64, seed=1))
    batch = batch_for(algorithm, dtype=torch.float64, seed=2)
    assert step_of(algorithm, batch).terms["consistency"].item() > 1e-8
    # The same images again, and nothing has changed: now it is 0.
    assert step_of(algorithm, batch).terms["consistency"].item() == pytest.approx(0, abs=1e-20)


def test_an_image_is_known_by_its_position_and_not_by_its_row() -> None:
    algorithm = method().double().eval()
    batch = batch_for(algorithm, dtype=torch.float64, seed=1)
    step_of(algorithm, batch)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert batch.positions is not None
    permuted = dataclasses.replace(
        batch, unlabelled={"image": batch.unlabelled["image"][order]}, positions=batch.positions[order]
    )
    assert step_of(algorithm, permuted).terms["consistency"].item() == pytest.approx(0, abs=1e-20)


def test_one_view_one_pass() -> None:
    algorithm = method()
    batch = batch_for(algorithm)
    with recorded_inputs(algorithm.model.backbone) as seen:
        step_of(algorithm, batch)
    (images,) = seen
    assert torch.equal(images, torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))


def test_what_is_remembered_are_the_predictions_of_the_training_pass() -> None:
    # With dropout: those of the network that was trained, not of one without noise.
    algorithm = method(dropout=0.5)
    with recorded_outputs(algorithm.model.linear) as seen:
        step_of(algorithm, batch_for(algorithm))
    (logits,) = seen
    expected = 0.4 * logits[-NUM_UNLABELLED:].softmax(dim=1)
    torch.testing.assert_close(algorithm.ensemble.ensemble[:NUM_UNLABELLED], expected)


def test_balanced_targets_leave_the_memory_as_it_is() -> None:
    plain, balanced = method().double(), method(balance_memory=20).double()
    outputs = []
    for step in range(2):
        batch = batch_for(plain, dtype=torch.float64, seed=step)
        outputs.append([step_of(algorithm, batch) for algorithm in (plain, balanced)])
    assert torch.equal(plain.ensemble.ensemble, balanced.ensemble.ensemble)
    without, with_balance = (term_values(output)["consistency"] for output in outputs[1])
    assert abs(without - with_balance) > 1e-6
    # Without a target there is nothing to balance: the first step is zero all the same.
    assert [output.terms["consistency"].item() for output in outputs[0]] == [0.0, 0.0]


def test_balance_remembers_targets_and_predictions_where_there_is_none() -> None:
    algorithm = method(balance_memory=20).double()
    algorithm.ensemble.update(torch.tensor([1, 4]), normal(2, 3, seed=8).softmax(dim=1))
    targets = algorithm.ensemble.targets(torch.arange(NUM_UNLABELLED)).probs
    with recorded_outputs(algorithm.model.linear) as seen:
        step_of(algorithm, batch_for(algorithm, dtype=torch.float64))
    own = seen[0][-NUM_UNLABELLED:]
    expected = torch.stack([targets[i].log() if i in (1, 4) else own[i] for i in range(NUM_UNLABELLED)])
    remembered = algorithm.target_balance.recent_logits[:NUM_UNLABELLED]
    torch.testing.assert_close(remembered, expected, rtol=1e-5, atol=1e-6)


def test_targets_by_hand_with_balance() -> None:
    algorithm = method(balance_memory=20, ramp_fraction=0.0, consistency_weight=1.0).double().eval()
    remembered = normal(NUM_UNLABELLED, 3, seed=8).softmax(dim=1)
    algorithm.ensemble.update(torch.arange(NUM_UNLABELLED), remembered)
    batch = batch_for(algorithm, dtype=torch.float64)
    with torch.no_grad():
        own = algorithm.model(batch.unlabelled["image"])
    bias = consistency.balancing_bias(remembered.log().float().double(), num_iterations=3)
    expected = consistency.mse(remembered.log() + bias, own).item()
    assert step_of(algorithm, batch).terms["consistency"].item() == pytest.approx(expected, rel=1e-6)


def test_a_decided_prediction_gives_finite_targets() -> None:
    # Probabilities rounded to 0 in float32: their logarithm is not infinite.
    for settings in ({"consistency": "kl"}, {"consistency": "kl", "balance_memory": 10}, {}):
        algorithm = method(**settings)
        decided = torch.tensor([[1.0, 0.0, 0.0]]).expand(NUM_UNLABELLED, 3)
        algorithm.ensemble.update(torch.arange(NUM_UNLABELLED), decided)
        output = step_of(algorithm, batch_for(algorithm))
        assert output.loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients_of(algorithm, output.loss).values())


def test_an_image_twice_in_a_batch() -> None:
    algorithm = method().double()
    batch = batch_for(algorithm, dtype=torch.float64)
    batch = dataclasses.replace(batch, positions=torch.tensor([2, 6, 2, 0, 2]))
    with recorded_outputs(algorithm.model.linear) as seen:
        step_of(algorithm, batch)
    probs = seen[0][-NUM_UNLABELLED:].softmax(dim=1)
    assert algorithm.ensemble.count.tolist() == [1, 0, 1, 0, 0, 0, 1]
    torch.testing.assert_close(algorithm.ensemble.ensemble[2], 0.4 * probs[[0, 2, 4]].mean(dim=0))
    assert step_of(algorithm, batch).loss.isfinite()


def test_going_on_from_saved_state_is_exact() -> None:
    def go_on(algorithm: TemporalEnsembling) -> list[dict[str, Tensor]]:
        results = []
        for step in (3, 4):
            batch = batch_for(algorithm, seed=step)
            results.append(copied(step_of(algorithm, batch, context_at(step)).terms))
        return [*results, copied(dict(algorithm.named_buffers()))]

    algorithm, fresh = method(balance_memory=6), method(balance_memory=6, seed=1)
    for step in range(3):
        step_of(algorithm, batch_for(algorithm, seed=step), context_at(step))
    fresh.load_state_dict(copied(algorithm.state_dict()))
    for first, second in zip(go_on(algorithm), go_on(fresh), strict=True):
        assert_bitwise_equal(first, second)


def test_the_trained_model_has_no_memory_of_images() -> None:
    algorithm = method()
    assert {"ensemble.ensemble", "ensemble.count"} <= set(algorithm.state_dict())
    assert not any(name.startswith("ensemble.") for name in trained_state(algorithm))


def test_without_room_there_is_a_clear_error() -> None:
    algorithm = TemporalEnsembling(TemporalEnsembling.Config(), tiny_backbone(), 3)
    with pytest.raises(AssertionError, match="call expect_images before the first step"):
        step_of(algorithm, batch_for(algorithm))


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decay_must_be_a_share(decay: float) -> None:
    with pytest.raises(ValueError, match=f"ensemble_decay must be from 0 to below 1, got {decay}"):
        method(ensemble_decay=decay)
