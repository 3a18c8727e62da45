"""Muon: which way convolutions turn, how far, and that all else is SGD."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms.supervised import Supervised
from manigraph.contract import Batch
from manigraph.errors import UserError
from manigraph.nn.backbones.mlp import MLP
from manigraph.training.loop import Trainer, TrainingConfig
from manigraph.training.muon import Muon, orthogonalised
from manigraph.training.schedule import SuperConvergence
from tests.helpers import assert_bitwise_equal, normal, tiny_backbone


def with_singular_values(rows: int, columns: int, values: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix, and the vectors on its left and right."""
    few = min(rows, columns)
    left, _ = torch.linalg.qr(normal(rows, few))
    right, _ = torch.linalg.qr(normal(columns, few, seed=1))
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.T, left, right


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (4, 4)])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_all_directions_get_about_the_same_size(shape: tuple[int, int], size: float) -> None:
    matrix, left, right = with_singular_values(*shape, [5.0, 2.0, 1.0, 0.1])
    inner = left.T @ orthogonalised(size * matrix) @ right
    torch.testing.assert_close(inner, torch.diag(inner.diagonal()), atol=1e-9, rtol=0)
    assert bool(((inner.diagonal() > 0.6) & (inner.diagonal() < 1.25)).all())


def iterated(matrix: Tensor) -> Tensor:
    """As written: X ↦ a X + b XXᵀX + c XXᵀXXᵀX, four times, from length 1."""
    x = matrix / math.sqrt(sum(float(value) ** 2 for value in matrix.flatten()))
    for _ in range(4):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return x


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (1, 5)])
def test_the_product_of_polynomials_is_the_iteration(shape: tuple[int, int]) -> None:
    matrix = normal(*shape)
    torch.testing.assert_close(orthogonalised(matrix), iterated(matrix), rtol=1e-9, atol=1e-12)


def test_nothing_stays_nothing() -> None:
    assert torch.equal(orthogonalised(torch.zeros(2, 3)), torch.zeros(2, 3))


def naive_steps(weight: Tensor, gradients: list[Tensor], angle: float, momentum: float) -> Tensor:
    """Convolution weights after these gradients."""
    length, total = weight.norm(), torch.zeros_like(weight)
    for gradient in gradients:
        total = momentum * total + gradient
        descent = gradient + momentum * total
        direction = iterated(descent.reshape(len(weight), -1)).reshape(weight.shape)
        weight = weight - angle * length * direction / direction.norm()
        weight = weight * length / weight.norm()
    return weight


def test_convolutions_turn_by_the_angle_and_keep_their_length() -> None:
    weight = nn.Parameter(normal(4, 3, 3, 3).to(memory_format=torch.channels_last))
    before = weight.detach().clone()
    optimizer = Muon([weight], turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.3)
    gradients = [normal(4, 3, 3, 3, seed=seed) for seed in (1, 2, 3)]
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(weight.grad, gradient)  # who looks at it afterwards finds it
    expected = naive_steps(before, gradients, angle=0.1, momentum=0.9)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weight.norm(), before.norm())


def test_one_step_turns_against_the_gradient() -> None:
    weight = nn.Parameter(normal(2, 2, 1, 1))
    before = weight.detach().clone()
    weight.grad = normal(2, 2, 1, 1, seed=1)
    Muon([weight], turn=1.0, lr=0.01, momentum=0.9, weight_decay=0.0).step()
    change = weight.detach() - before
    assert float((change * weight.grad).sum()) < 0
    assert 0.5 * 0.01 < float(change.norm() / before.norm()) < 1.01 * 0.01


def test_without_a_gradient_nothing_turns() -> None:
    weight, other = nn.Parameter(normal(2, 3, 3, 3)), nn.Parameter(normal(2, 3, 3, 3, seed=1))
    before = weight.detach().clone(), other.detach().clone()
    weight.grad = torch.zeros_like(weight)
    Muon([weight, other], turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.3).step()
    torch.testing.assert_close(weight.detach(), before[0])
    assert torch.equal(other.detach(), before[1])


def test_a_weight_of_nothing_stays_nothing() -> None:
    weight = nn.Parameter(torch.zeros(2, 3, 1, 1))
    weight.grad = normal(2, 3, 1, 1, dtype=torch.float32)
    Muon([weight], turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.0).step()
    assert torch.equal(weight.detach(), torch.zeros(2, 3, 1, 1))


def test_who_waits_for_steps_is_told_once() -> None:
    parameters = [nn.Parameter(normal(2, 3, 3, 3)), nn.Parameter(normal(3))]
    torch.optim.SGD(parameters, lr=0.1)  # making one wraps the step of all
    optimizer = Muon(parameters, turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.3)
    told: list[int] = []
    optimizer.register_step_post_hook(lambda *_: told.append(1))
    optimizer.step()
    assert told == [1]


def test_the_angle_is_kept_with_the_state() -> None:
    parameters = [nn.Parameter(normal(2, 3, 3, 3))]
    optimizer = Muon(parameters, turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.3)
    assert copy.deepcopy(optimizer).state_dict()["param_groups"][0]["turn"] == 0.5


def test_all_other_weights_are_those_of_sgd() -> None:
    shapes = [(3,), (4, 3)]
    ours, theirs = ([nn.Parameter(normal(*shape)) for shape in shapes] for _ in range(2))
    convolution = nn.Parameter(normal(2, 2, 1, 1))
    muon = Muon([convolution, *ours], turn=0.5, lr=0.2, momentum=0.9, weight_decay=0.3)
    sgd = torch.optim.SGD(theirs, lr=0.2, momentum=0.9, weight_decay=0.3, nesterov=True)
    for seed in range(3):
        for pair in zip(ours, theirs, strict=True):
            for weight in pair:
                weight.grad = normal(*weight.shape, seed=seed)
        muon.step()
        sgd.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def trainer_of(backbone: nn.Module | None = None, **settings: float) -> Trainer:
    torch.manual_seed(0)
    algorithm = Supervised(Supervised.Config(), backbone or tiny_backbone(), 3)  # type: ignore[arg-type]
    config = TrainingConfig(steps=4, **settings)  # type: ignore[arg-type]
    return Trainer(algorithm, SuperConvergence(max_learning_rate=0.1), config, torch.Generator())


def batch_of(step: int) -> Batch:
    images = normal(6, 1, 8, 8, seed=step, dtype=torch.float32)
    return Batch(labelled={"image": images}, labels=torch.arange(6) % 3, unlabelled={})


def test_the_loop_turns_by_the_rate_of_the_step() -> None:
    trainer = trainer_of(muon_turn=0.5)
    convolutions = [p for p in trainer.algorithm.parameters() if p.ndim == 4]
    assert convolutions
    for step in range(4):
        before = [weight.detach().clone() for weight in convolutions]
        trainer.train_step(batch_of(step))
        rate = trainer.schedule.at(step / 4).learning_rate
        for weight, old in zip(convolutions, before, strict=True):
            turned = float((weight.detach() - old).norm() / old.norm())
            assert 0.5 * 0.5 * rate < turned < 1.01 * 0.5 * rate
            torch.testing.assert_close(weight.detach().norm(), old.norm())


def test_without_it_the_loop_is_that_of_sgd() -> None:
    assert type(trainer_of().optimizer) is torch.optim.SGD


def test_it_goes_on_exactly() -> None:
    whole, first = trainer_of(muon_turn=0.5), trainer_of(muon_turn=0.5)
    for step in range(4):
        whole.train_step(batch_of(step))
    for step in range(2):
        first.train_step(batch_of(step))
    second = trainer_of(muon_turn=0.5)
    second.restore(first.snapshot())
    for step in range(2, 4):
        second.train_step(batch_of(step))
    assert_bitwise_equal(second.algorithm.state_dict(), whole.algorithm.state_dict())


def test_a_network_without_convolutions_is_refused() -> None:
    with pytest.raises(UserError, match=r"no convolutions to turn: leave out training\.muon_turn"):
        trainer_of(MLP((1, 8, 8)), muon_turn=0.5)


@pytest.mark.parametrize("turn", [-1.0, math.inf])
def test_an_angle_that_is_none_is_refused(turn: float) -> None:
    with pytest.raises(ValueError, match="muon_turn must be at least 0 and finite"):
        TrainingConfig(muon_turn=turn)
