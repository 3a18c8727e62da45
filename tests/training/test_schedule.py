"""The schedule of the paper at its corner points, and that the optimiser really follows it."""

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
