"""Dropout masks: what they are like, and drawn twice."""

import pytest
import torch
from torch import Tensor, nn

from manigraph.nn import RandomState
from manigraph.nn.dropout import STEPS, Dropout, _draw

CPU = torch.device("cpu")


def masks(number: int = 2) -> list[Tensor]:
    dropout = nn.Dropout(0.5)
    return [dropout(torch.ones(50)) for _ in range(number)]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_replay_repeats_the_masks() -> None:
    torch.manual_seed(0)
    state = RandomState(CPU)
    drawn = masks()
    assert not equal(masks(), drawn)
    for _ in range(2):
        with state.replay():
            assert equal(masks(), drawn)


def test_afterwards_the_stream_goes_on_as_if_nothing_had_happened() -> None:
    torch.manual_seed(0)
    masks()
    expected = masks()

    torch.manual_seed(0)
    state = RandomState(CPU)
    masks()
    with state.replay():
        masks(5)
    assert equal(masks(), expected)


def test_the_stream_goes_on_after_an_exception_too() -> None:
    torch.manual_seed(0)
    state = RandomState(CPU)
    masks()
    expected = torch.get_rng_state()

    def fail() -> None:
        masks()
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), state.replay():
        fail()
    assert torch.equal(torch.get_rng_state(), expected)


def test_taking_the_state_draws_nothing() -> None:
    torch.manual_seed(0)
    expected = masks()
    torch.manual_seed(0)
    RandomState(CPU)
    assert equal(masks(), expected)


# Masks from quarters of random words


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.9])
def test_values_are_dropped_at_the_rate_and_the_mean_stays(rate: float) -> None:
    torch.manual_seed(0)
    n = 1_000_003  # not a multiple of the four decisions of a word
    dropped = Dropout(rate)(torch.ones(n, dtype=torch.float64))
    kept = dropped != 0
    # Five standard deviations of a binomial.
    assert abs(kept.double().mean() - (1 - rate)) < 5 * (rate * (1 - rate) / n) ** 0.5 + 0.5 / STEPS
    assert dropped[kept].unique().tolist() == [STEPS / round((1 - rate) * STEPS)]
    assert dropped[kept][0] == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_all_four_quarters_of_a_word_are_used_and_independent() -> None:
    torch.manual_seed(0)
    words = (Dropout(0.3)(torch.ones(200_000, 4)) != 0).double()
    assert torch.allclose(words.mean(dim=0), torch.full((4,), 0.7, dtype=torch.float64), atol=0.006)
    off_diagonal = torch.corrcoef(words.T) - torch.eye(4, dtype=torch.float64)
    assert off_diagonal.abs().max() < 0.012
    # The next word does not follow from this one.
    assert torch.corrcoef(torch.stack([words[:-1, 0], words[1:, 0]]))[0, 1].abs() < 0.012


def test_the_extremes_are_those_of_torch() -> None:
    values = torch.rand(50) + 1
    assert torch.equal(Dropout(0.0)(values), values)
    assert torch.equal(Dropout(1.0)(values), torch.zeros(50))
    assert torch.equal(Dropout(0.4).eval()(values), values)
    assert Dropout(0.4)(torch.rand(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_kind_of_number_stays(dtype: torch.dtype) -> None:
    values = torch.ones(64, dtype=dtype)
    dropped = Dropout(0.5)(values)
    assert dropped.dtype == dtype
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_gradients_go_through_the_mask() -> None:
    values = torch.rand(40, 2, 3, 3).to(memory_format=torch.channels_last).requires_grad_(True)
    dropped = Dropout(0.5)(values)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.where(dropped == 0, 0.0, 2.0))
    assert dropped.is_contiguous(memory_format=torch.channels_last)


def test_one_of_all_random_numbers_is_one_and_not_two() -> None:
    torch.manual_seed(0)
    mask = torch.empty(1 << 22)
    _draw(mask, 1)
    assert 34 < mask.sum() < 94  # 64 are expected, of two numbers 128
