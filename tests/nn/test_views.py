"""The mean answer over views, against views made pixel by pixel."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from manigraph.nn.views import AveragedViews

H, W = 5, 4


def model() -> nn.Module:
    """Any that is not the same for shifted images."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * H * W, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def shifted(images: Tensor, down: int, right: int, padding: str) -> Tensor:
    """One pixel after the other."""

    def source(place: int, size: int) -> int:
        if padding == "edge":
            return min(max(place, 0), size - 1)
        return -place if place < 0 else 2 * (size - 1) - place if place >= size else place

    moved = torch.empty_like(images)
    for y in range(H):
        for x in range(W):
            moved[:, :, y, x] = images[:, :, source(y - down, H), source(x - right, W)]
    return moved


@pytest.mark.parametrize("padding", ["edge", "reflect"])
@pytest.mark.parametrize(("shift", "mirror"), [(True, True), (True, False), (False, True)])
def test_it_is_the_mean_of_probabilities(
    shift: bool, mirror: bool, padding: Literal["edge", "reflect"]
) -> None:
    asked, images = model(), torch.randn(6, 2, H, W, dtype=torch.float64)
    places = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)] if shift else [(0, 0)]
    views = [shifted(images, *place, padding) for place in places]
    views += [view.flip(3) for view in views] if mirror else []
    expected = sum(asked(view).softmax(dim=1) for view in views) / len(views)
    logits = AveragedViews(asked, shift=shift, mirror=mirror, padding=padding)(images)
    torch.testing.assert_close(logits.exp(), expected)
    assert not torch.allclose(expected, asked(images).softmax(dim=1))


def test_a_probability_of_nothing_has_a_finite_logarithm() -> None:
    class Sure(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([[0.0, -1000.0]]).expand(len(images), 2)

    assert AveragedViews(Sure())(torch.zeros(1, 1, 3, 3)).tolist() == [[0.0, -1000.0]]
