"""Dropout masks drawn twice."""

import pytest
import torch
from torch import Tensor, nn

from manigraph.nn import RandomState

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
