import math

import pytest
import torch
from torch import Tensor

from manigraph.data.augmentation import (
    AugmentationConfig,
    Padding,
    augment,
    rotate_and_scale,
    shift_and_flip,
)
from tests.helpers import seeded


def images(count: int = 6) -> Tensor:
    return 1 + torch.arange(count * 2 * 8 * 9, dtype=torch.float32).view(count, 2, 8, 9)


def looked_up(position: int, size: int, padding: Padding) -> int:
    """Where the pixel at `position`, perhaps outside, comes from."""
    if 0 <= position < size:
        return position
    if padding == "edge":
        return 0 if position < 0 else size - 1
    return -position if position < 0 else 2 * (size - 1) - position


@pytest.mark.parametrize("padding", ["edge", "reflect"])
@pytest.mark.parametrize("mirror", [False, True])
def test_shifting_a_batch_equals_moving_one_pixel_at_a_time(padding: Padding, mirror: bool) -> None:
    x = images()
    shifted = shift_and_flip(x, 3, seeded(), mirror=mirror, padding=padding)
    generator = seeded()
    shift = torch.randint(-3, 4, (2, 6, 1), generator=generator)
    mirrored = torch.rand((6, 1), generator=generator) < 0.5
    assert mirrored.any()
    for b in range(6):
        for row in range(8):
            for column in range(9):
                seen = 8 - column if mirror and mirrored[b] else column
                source_row = looked_up(row + int(shift[0, b]), 8, padding)
                source_column = looked_up(seen + int(shift[1, b]), 9, padding)
                assert torch.equal(shifted[b, :, row, column], x[b, :, source_row, source_column])


def test_every_shift_occurs_and_none_is_larger() -> None:
    x = torch.zeros(2000, 1, 9, 9)
    x[:, :, 4, 4] = 1
    where = shift_and_flip(x, 2, seeded()).flatten(1).argmax(1)
    counts = torch.bincount(where, minlength=81).view(9, 9)
    assert int((counts > 0).sum()) == 25
    assert int((counts[2:7, 2:7] > 40).sum()) == 25  # 80 expected each


def test_about_half_of_the_images_are_mirrored() -> None:
    x = images(400)
    flipped = shift_and_flip(x, 0, seeded(), mirror=True)
    same = (flipped == x).all(dim=(1, 2, 3))
    mirrored = (flipped == x.flip(3)).all(dim=(1, 2, 3))
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_bytes_stay_bytes_and_move_like_floats() -> None:
    x = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    moved = shift_and_flip(x, 2, seeded(), mirror=True)
    assert moved.dtype == torch.uint8
    assert torch.equal(moved.float(), shift_and_flip(x.float(), 2, seeded(), mirror=True))
    assert not torch.equal(moved, x)


def test_the_images_given_are_not_changed() -> None:
    x = images()
    augment(x, AugmentationConfig(translation=2, flip=True, rotation=10.0, scale=0.1), seeded())
    assert torch.equal(x, images())


def test_mirrored_borders_cannot_be_wider_than_the_image() -> None:
    with pytest.raises(ValueError, match="8 pixels, got 8"):
        shift_and_flip(images(), 8, seeded(), padding="reflect")


def test_no_augmentation_changes_nothing() -> None:
    x = images()
    none = AugmentationConfig(translation=0, flip=False, rotation=0.0, scale=0.0)
    assert torch.equal(augment(x, none, seeded()), x)


def test_vectors_are_not_augmented() -> None:
    x = torch.randn(4, 10, generator=seeded())
    assert torch.equal(augment(x, AugmentationConfig(), seeded()), x)


@pytest.mark.parametrize(
    ("changes", "unchanged"),
    [
        ({"translation": 2}, False),
        ({"translation": 0, "flip": True}, False),
        ({"translation": 0, "rotation": 20.0}, False),
        ({"translation": 0, "scale": 0.3}, False),
        ({"translation": 0}, True),
    ],
)
def test_every_setting_changes_the_view(changes: dict[str, float], unchanged: bool) -> None:
    x = torch.rand(16, 1, 9, 9, generator=seeded())
    view = augment(x, AugmentationConfig(**changes), seeded())  # type: ignore[arg-type]
    assert torch.equal(view, x) == unchanged


def test_rotation_moves_the_outside_and_keeps_the_centre() -> None:
    x = torch.zeros(64, 1, 9, 9)
    x[:, :, 4, 4] = 1.0  # the centre pixel
    x[:, :, 4, 8] = 1.0  # a pixel at the edge
    turned = rotate_and_scale(x, 20.0, 0.0, seeded())
    assert torch.allclose(turned[:, 0, 4, 4], torch.ones(64), atol=1e-5)
    assert int((turned[:, 0, 4, 8] < 0.9).sum()) > 32
    assert not torch.equal(turned[0], turned[1])


def test_rotation_keeps_lengths_in_images_that_are_not_square() -> None:
    """A bright spot 10 pixels right of the centre of a wide image stays 10 pixels from the centre."""
    x = torch.zeros(40, 1, 25, 61)
    x[:, :, 11:14, 39:42] = 1.0  # centred at row 12, column 40; the image's centre is (12, 30)
    turned = rotate_and_scale(x, 45.0, 0.0, seeded(3))
    rows, columns = torch.arange(25.0), torch.arange(61.0)
    mass = turned.sum(dim=(1, 2, 3))
    row = (turned.sum(dim=(1, 3)) * rows).sum(1) / mass - 12
    column = (turned.sum(dim=(1, 2)) * columns).sum(1) / mass - 30
    distances = (row**2 + column**2).sqrt()
    assert float(row.abs().max()) > 5  # some have been turned a lot
    assert torch.allclose(distances, torch.full((40,), 10.0), atol=0.2)
    angle = torch.atan2(row, column).abs().max().item()
    assert angle <= math.radians(45) + 0.02


@pytest.mark.parametrize(
    "changes", [{"translation": -1}, {"rotation": -1.0}, {"scale": 1.0}, {"scale": -0.1}]
)
def test_impossible_settings_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least 0 and scale from 0 to below 1"):
        AugmentationConfig(**changes)  # type: ignore[arg-type]
