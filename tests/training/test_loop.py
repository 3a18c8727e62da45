import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.algorithms.mean_teacher import MeanTeacher
from manigraph.algorithms.supervised import Supervised
from manigraph.algorithms.temporal_ensembling import TemporalEnsembling
from manigraph.catalogue import BACKBONES
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.errors import NonFiniteLossError
from manigraph.nn import Passes
from manigraph.training.loop import StepRecord, Trainer, TrainingConfig
from manigraph.training.schedule import SuperConvergence


def make_batch(value: float = 1.0) -> Batch:
    images = value * torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch(labelled={"image": images}, labels=torch.arange(8) % 3, unlabelled={})


def make_trainer(config: TrainingConfig) -> Trainer:
    torch.manual_seed(0)
    backbone = BACKBONES.get("small_cnn")((1, 8, 8), width=0.25, dropout=0.0)
    algorithm = Supervised(Supervised.Config(), backbone, 3)
    return Trainer(algorithm, SuperConvergence(max_learning_rate=0.1), config, torch.Generator())


def run(trainer: Trainer, batches: Iterator[Batch] | None = None) -> list[StepRecord]:
    records: list[StepRecord] = []
    trainer.run(batches or itertools.repeat(make_batch()), records.append)
    return records


def test_training_lowers_the_loss_and_logs_the_last_step() -> None:
    records = run(make_trainer(TrainingConfig(steps=45, log_every=10)))
    assert [record.step for record in records] == [10, 20, 30, 40, 45]
    assert records[-1].loss < 0.1 * records[0].loss
    assert all(sum(record.terms.values()) == pytest.approx(record.loss) for record in records)


def test_the_update_is_sgd_with_nesterov_momentum_and_weight_decay() -> None:
    """Three steps, against the update written out: v ← m v + g, w ← w - lr (g + m v)."""
    trainer = make_trainer(TrainingConfig(steps=3, weight_decay=0.01))
    weights = {name: p.detach().clone() for name, p in trainer.algorithm.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
    for step in range(3):
        rates = trainer.schedule.at(step / 3)
        trainer.train_step(make_batch())
        for name, parameter in trainer.algorithm.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad + 0.01 * weights[name]
            velocity[name] = gradient if step == 0 else rates.momentum * velocity[name] + gradient
            update = gradient + rates.momentum * velocity[name]
            weights[name] = weights[name] - rates.learning_rate * update
            assert torch.allclose(parameter, weights[name], atol=1e-6), name


def test_the_average_is_the_exponential_one() -> None:
    trainer = make_trainer(TrainingConfig(steps=4, ema_decay=0.7))
    expected: Tensor | None = None
    for _ in range(4):
        trainer.train_step(make_batch())
        weight = trainer.algorithm.model.linear.weight.detach().clone()
        expected = weight if expected is None else 0.7 * expected + 0.3 * weight
    averaged = trainer.evaluated_algorithm()
    assert expected is not None
    assert torch.allclose(averaged.model.linear.weight, expected, atol=1e-6)
    assert not torch.allclose(trainer.algorithm.model.linear.weight, expected, atol=1e-4)


def test_without_an_average_the_weights_themselves_are_evaluated() -> None:
    trainer = make_trainer(TrainingConfig(steps=1))
    assert trainer.evaluated_algorithm() is trainer.algorithm


def test_a_bad_batch_stops_training_and_changes_nothing() -> None:
    trainer = make_trainer(TrainingConfig(steps=10))
    batches = iter([make_batch(), make_batch(), make_batch(float("nan"))])
    state: dict[str, Tensor] = {}

    def remember() -> Iterator[Batch]:
        for batch in batches:
            state.clear()
            state.update({k: v.clone() for k, v in trainer.algorithm.state_dict().items()})
            yield batch

    with pytest.raises(NonFiniteLossError, match=r"stopped before step 2.*classification nan"):
        run(trainer, remember())
    assert trainer.step == 2
    after = trainer.algorithm.state_dict()
    for name, value in state.items():
        assert torch.equal(after[name], value), name


def test_a_bad_batch_is_not_remembered() -> None:
    # Temporal Ensembling writes one memory in the step and another one after it.
    backbone = BACKBONES.get("small_cnn")((1, 8, 8), width=0.25, dropout=0.0)
    algorithm = TemporalEnsembling(TemporalEnsembling.Config(balance_memory=12), backbone, 3)
    algorithm.expect_images(8)
    trainer = Trainer(algorithm, SuperConvergence(), TrainingConfig(steps=4), torch.Generator())

    def batch(value: float) -> Batch:
        images = make_batch(value).labelled["image"]
        return replace(make_batch(), unlabelled={"image": images}, positions=torch.arange(8))

    trainer.train_step(batch(1.0))
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    assert all(before[name].any() for name in ("ensemble.ensemble", "target_balance.recent_logits"))
    with pytest.raises(NonFiniteLossError):
        trainer.train_step(batch(float("nan")))
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, before[name]), name


class _ExplodingGradient(Algorithm["_ExplodingGradient.Config"]):
    """A finite loss whose gradient is not: sqrt at 0."""

    @dataclass(frozen=True)
    class Config:
        pass

    def data_request(self) -> DataRequest:
        return DataRequest()

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        zero = self.model.linear.weight.sum() * 0
        return StepOutput({"root": zero.sqrt()})


def test_a_finite_loss_with_an_infinite_gradient_is_caught_too() -> None:
    backbone = BACKBONES.get("mlp")((4,), width=0.1)
    algorithm = _ExplodingGradient(_ExplodingGradient.Config(), backbone, 3)
    trainer = Trainer(algorithm, SuperConvergence(), TrainingConfig(steps=1), torch.Generator())
    before = algorithm.model.linear.weight.detach().clone()
    with pytest.raises(NonFiniteLossError):
        trainer.train_step(make_batch())
    assert torch.equal(algorithm.model.linear.weight, before)


def test_every_trainable_parameter_is_in_the_optimiser() -> None:
    trainer = make_trainer(TrainingConfig(steps=1))
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in trainer.algorithm.parameters()}
    assert isinstance(trainer.inference_model(), nn.Module)


def test_zero_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 step"):
        TrainingConfig(steps=0)


def test_long_gradients_are_shortened_and_short_ones_left_alone() -> None:
    clipped, free = (
        make_trainer(TrainingConfig(steps=1, max_gradient_norm=norm, weight_decay=0.0))
        for norm in (0.01, 1e6)
    )
    for trainer in (clipped, free):
        trainer.train_step(make_batch())
    lengths = [
        nn.utils.get_total_norm([p.grad for p in t.algorithm.parameters() if p.grad is not None])
        for t in (clipped, free)
    ]
    assert float(lengths[0]) == pytest.approx(0.01, rel=1e-3)
    assert float(lengths[1]) > 0.02


# Averages


def test_swa_is_the_mean_of_the_last_weights() -> None:
    trainer = make_trainer(TrainingConfig(steps=10, swa_fraction=0.4))
    kept = []
    for step in range(10):
        trainer.train_step(make_batch())
        if step < 6:
            assert trainer.evaluated_algorithm() is trainer.algorithm
        else:
            kept.append(trainer.algorithm.model.linear.weight.detach().clone())
    averaged = trainer.evaluated_algorithm().model.linear.weight
    assert torch.allclose(averaged, torch.stack(kept).mean(dim=0), atol=1e-6)
    assert len(kept) == 4


def batch_norm_of(algorithm: Algorithm[Any]) -> nn.BatchNorm2d:
    return next(layer for layer in algorithm.modules() if isinstance(layer, nn.BatchNorm2d))


def test_the_exponential_average_has_the_newest_running_statistics() -> None:
    trainer = make_trainer(TrainingConfig(steps=3, ema_decay=0.9))
    for _ in range(3):
        trainer.train_step(make_batch())
    mean = batch_norm_of(trainer.evaluated_algorithm()).running_mean
    newest = batch_norm_of(trainer.algorithm).running_mean
    assert mean is not None
    assert newest is not None
    assert torch.equal(mean, newest)


def test_swa_measures_batch_norm_statistics_of_its_own() -> None:
    """Those of the averaged weights, over all batches alike; random numbers and the mode stay the same."""
    trainer = make_trainer(TrainingConfig(steps=4, swa_fraction=1.0))
    for _ in range(4):
        trainer.train_step(make_batch())
    images = [make_batch(value).labelled["image"] for value in (1.0, 2.0)]
    state, training = torch.get_rng_state(), trainer.evaluated_algorithm().model.training
    trainer.refresh_statistics(iter(images))
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.evaluated_algorithm().model.training == training
    backbone = trainer.evaluated_algorithm().model.backbone
    convolution = next(layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d))
    expected = torch.stack([convolution(x).mean(dim=(0, 2, 3)) for x in images]).mean(dim=0)
    found = batch_norm_of(trainer.evaluated_algorithm()).running_mean
    assert found is not None
    assert torch.allclose(found, expected, atol=1e-5)


def test_two_averages_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match=r"goes with --training\.ema_decay 0"):
        TrainingConfig(swa_fraction=0.5, ema_decay=0.9)


# Half precision


def test_a_gradient_too_large_for_float16_lowers_the_scale_and_not_the_weights() -> None:
    trainer = make_trainer(TrainingConfig(steps=40, precision="float16"))
    trainer.algorithm.model.passes = Passes(torch.float16)
    before = trainer.algorithm.model.linear.weight.detach().clone()
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    trainer.train_step(make_batch())
    assert trainer.scaler.get_scale() == 2.0**29
    assert torch.equal(trainer.algorithm.model.linear.weight, before)
    assert trainer.step == 1
    for _ in range(39):
        trainer.train_step(make_batch())
    assert trainer.scaler.get_scale() < 2.0**25
    assert not torch.equal(trainer.algorithm.model.linear.weight, before)


def test_a_loss_that_is_not_finite_stops_float16_too() -> None:
    trainer = make_trainer(TrainingConfig(steps=2, precision="float16"))
    with pytest.raises(NonFiniteLossError, match=r"or training\.precision float32"):
        trainer.train_step(make_batch(float("nan")))


def test_images_per_second_count_all_images() -> None:
    records = run(make_trainer(TrainingConfig(steps=4, log_every=2)))
    assert all(record.images_per_second > 0 for record in records)
    assert make_batch().num_images == 8


def test_signs_of_health_are_those_before_the_update() -> None:
    trainer = make_trainer(TrainingConfig(steps=2, log_every=2))
    trainer.train_step(make_batch())
    with torch.no_grad():
        logits = trainer.algorithm.model(make_batch().labelled["image"])
    record = trainer.train_step(make_batch())
    assert record is not None
    largest = logits.argmax(dim=1).bincount().max().item() / 8
    assert record.health["largest_class"] == pytest.approx(largest)


def test_a_snapshot_brings_everything_back() -> None:
    trainer = make_trainer(TrainingConfig(steps=20, ema_decay=0.5))
    for _ in range(5):
        trainer.train_step(make_batch())
    snapshot = trainer.snapshot()
    for _ in range(3):
        trainer.train_step(make_batch())
    there = trainer.snapshot()
    trainer.restore(snapshot)
    assert trainer.step == 5
    for _ in range(3):
        trainer.train_step(make_batch())
    again = trainer.snapshot()
    assert again.values == there.values
    assert again.tensors.keys() == there.tensors.keys()
    assert all(torch.equal(again.tensors[name], value) for name, value in there.tensors.items())


def test_the_scale_of_float16_comes_back() -> None:
    trainer, other = (make_trainer(TrainingConfig(steps=4, precision="float16")) for _ in range(2))
    trainer.algorithm.model.passes = Passes(torch.float16)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    trainer.train_step(make_batch())
    other.restore(trainer.snapshot())
    assert other.scaler.get_scale() == 2.0**29


def test_a_teacher_follows_weights_that_are_updated_already() -> None:
    backbone = BACKBONES.get("small_cnn")((1, 8, 8), width=0.25, dropout=0.0)
    algorithm = MeanTeacher(MeanTeacher.Config(), backbone, 3)
    schedule = SuperConvergence(max_learning_rate=0.1)
    trainer = Trainer(algorithm, schedule, TrainingConfig(steps=4), torch.Generator())
    images = make_batch().labelled["image"]
    before = [weight.detach().clone() for weight in algorithm.model.parameters()]
    trainer.train_step(replace(make_batch(), unlabelled={"first": images, "second": images}))
    teacher = algorithm.inference_model()
    assert teacher is not algorithm.model
    # In the first step it takes nine tenths of the student's weights.
    weights = zip(teacher.parameters(), before, algorithm.model.parameters(), strict=True)
    for own, first, updated in weights:
        torch.testing.assert_close(own, 0.1 * first + 0.9 * updated)
        assert not torch.equal(updated, first)
