"""The schedule of the paper at its corner points, and that the optimiser really follows it."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from manigraph.training.schedule import SuperConvergence

PAPER_STEPS = 282_000


@pytest.mark.parametrize(
    ("step", "learning_rate", "momentum"),
    [
        (0, 2e-4, 0.95),
        (1_000, 1.1e-3, 0.95),  # half of 2e-4 -> 2e-3
        (2_000, 2e-3, 0.95),
        (62_000, 1.1e-2, 0.90),  # half of 2e-3 -> 2e-2
        (92_000, 1.55e-2, 0.875),  # three quarters of it
        (122_000, 2e-2, 0.85),
        (152_000, 1.55e-2, 0.875),
        (182_000, 1.1e-2, 0.90),
        (242_000, 2e-3, 0.95),
        (262_000, 1.01e-3, 0.95),  # half of 2e-3 -> 2e-5
        (282_000, 2e-5, 0.95),
    ],
)
def test_schedule_of_the_paper(step: int, learning_rate: float, momentum: float) -> None:
    rates = SuperConvergence().at(step / PAPER_STEPS)
    assert rates.learning_rate == pytest.approx(learning_rate, rel=1e-9)
    assert rates.momentum == pytest.approx(momentum, rel=1e-9)


def test_a_short_run_keeps_the_shape() -> None:
    schedule = SuperConvergence()
    for step in range(283):
        assert schedule.at(step / 282) == pytest.approx(schedule.at(step * 1000 / PAPER_STEPS))


def test_rates_scale_with_the_maximum() -> None:
    schedule = SuperConvergence(max_learning_rate=0.2)
    for share in (0.0, 0.3, 0.6, 1.0):
        assert schedule.at(share).learning_rate == pytest.approx(
            10 * SuperConvergence().at(share).learning_rate
        )


def test_the_lines_meet() -> None:
    schedule = SuperConvergence(warmup=0.1, ramp_up=0.3, ramp_down=0.4)
    for corner in (0.1, 0.4, 0.8):
        assert schedule.at(corner - 1e-9) == pytest.approx(schedule.at(corner + 1e-9), rel=1e-6)


def test_stages_may_be_left_out() -> None:
    without_ends = SuperConvergence(warmup=0.0, ramp_up=0.5, ramp_down=0.5)
    assert without_ends.at(0.0) == pytest.approx((2e-3, 0.95))
    assert without_ends.at(0.5) == pytest.approx((2e-2, 0.85))
    assert without_ends.at(1.0) == pytest.approx((2e-3, 0.95))


@pytest.mark.parametrize("stages", [(0.5, 0.5, 0.1), (-0.1, 0.5, 0.5)])
def test_stages_must_be_shares_of_the_run(stages: tuple[float, float, float]) -> None:
    warmup, ramp_up, ramp_down = stages
    with pytest.raises(ValueError, match="the stages of the schedule must be shares of the run, got"):
        SuperConvergence(warmup=warmup, ramp_up=ramp_up, ramp_down=ramp_down)


def sgd(parameter: nn.Parameter) -> torch.optim.SGD:
    return torch.optim.SGD([parameter], lr=0.5, momentum=0.5, nesterov=True)


@pytest.mark.parametrize("step", [0, 62_000, 122_000, 242_000])
def test_sgd_follows_both_rates(step: int) -> None:
    # Nesterov with gradients g1 = 1 and g2 = 3. The first step has velocity 1. In the second, after
    # `apply`, v = m·1 + 3 and the change is -lr (3 + m v).
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = sgd(parameter)
    parameter.grad = torch.tensor(1.0, dtype=torch.float64)
    optimizer.step()
    start = parameter.item()

    rates = SuperConvergence().apply(optimizer, step / PAPER_STEPS)
    assert rates == SuperConvergence().at(step / PAPER_STEPS)
    parameter.grad = torch.tensor(3.0, dtype=torch.float64)
    optimizer.step()
    lr, m = rates
    assert parameter.item() - start == pytest.approx(-lr * (3 + m * (m * 1 + 3)), rel=1e-9)


def test_every_group_of_parameters_is_written() -> None:
    optimizer = sgd(nn.Parameter(torch.zeros(1)))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 3.0})
    SuperConvergence().apply(optimizer, 122_000 / PAPER_STEPS)
    for group in optimizer.param_groups:
        assert (group["lr"], group["momentum"]) == pytest.approx((2e-2, 0.85))


def test_an_optimiser_without_momentum_is_refused() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    with pytest.raises(AssertionError, match="the schedule needs an optimiser with momentum"):
        SuperConvergence().apply(optimizer, 0.5)


# Cosine cycles


def cycles(**changes: Any) -> SuperConvergence:
    return SuperConvergence(shape="cosine_cycles", max_learning_rate=0.1, max_momentum=0.9, **changes)


def naive_cosine(epoch: float, *, l: float, l0: float, c: float) -> float:  # noqa: E741  # the paper's letters
    """η/2 (1 + cos(π i / l0)) up to epoch l; from there on i goes back by c whenever it comes to l."""
    i = epoch
    while i >= l:
        i -= c
    return 0.1 / 2 * (1 + math.cos(math.pi * i / l0))


@pytest.mark.parametrize(
    ("epoch", "learning_rate"),
    [
        (0, 0.1),
        (105, 0.05),  # half of l0
        (150, 0.05 * (1 + math.cos(math.pi * 150 / 210))),  # where the rates of the cycles begin
        (179.999999, 0.05 * (1 + math.cos(math.pi * 180 / 210))),
        (180, 0.05 * (1 + math.cos(math.pi * 150 / 210))),  # the first cycle
        (195, 0.05 * (1 + math.cos(math.pi * 165 / 210))),
        (209.999999, 0.05 * (1 + math.cos(math.pi * 180 / 210))),
        (210, 0.05 * (1 + math.cos(math.pi * 150 / 210))),
        (450, 0.05 * (1 + math.cos(math.pi * 150 / 210))),  # the tenth
        (479.999999, 0.05 * (1 + math.cos(math.pi * 180 / 210))),
    ],
)
def test_cosine_cycles_of_the_paper(epoch: float, learning_rate: float) -> None:
    rates = cycles().at(epoch / 480)
    assert rates.learning_rate == pytest.approx(learning_rate, rel=1e-6)
    assert rates.momentum == 0.9


@pytest.mark.parametrize("total", [480, 500, 3000, 97])
@pytest.mark.parametrize(
    ("l", "l0", "c"), [(180, 210, 30), (100, 100, 100), (192, 300, 7), (480, 480, 1), (450, 600, 45)]
)
def test_cosine_cycles_are_those_of_a_loop(total: int, l: float, l0: float, c: float) -> None:  # noqa: E741
    schedule = cycles(cosine=l / 480, cosine_zero=l0 / 480, cycle=c / 480)
    for step in range(total):
        expected = naive_cosine(Fraction(480 * step, total), l=l, l0=l0, c=c)  # type: ignore[arg-type]
        assert schedule.at(step / total).learning_rate == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_each_cycle_repeats_the_last_part_of_the_cosine() -> None:
    schedule = cycles()
    last = [schedule.at(step / 480).learning_rate for step in range(150, 180)]
    assert last == sorted(last, reverse=True)
    for begin in range(180, 480, 30):
        cycle = [schedule.at(step / 480).learning_rate for step in range(begin, begin + 30)]
        assert cycle == pytest.approx(last, rel=1e-9)


def test_a_cosine_without_cycles_ends_with_the_run() -> None:
    schedule = cycles(cosine=1.0, cosine_zero=1.0)
    for step in range(100):
        expected = 0.05 * (1 + math.cos(math.pi * step / 100))
        assert schedule.at(step / 100).learning_rate == pytest.approx(expected)


@pytest.mark.parametrize(
    "changes", [{"cycle": 0.0}, {"cycle": 0.5}, {"cosine": 0.5}, {"cosine": 1.2, "cosine_zero": 1.3}]
)
def test_cycles_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cycles need 0 < cycle <= cosine <= cosine_zero"):
        cycles(**changes)
