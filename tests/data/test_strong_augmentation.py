import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data import strong_augmentation
from manigraph.data.augmentation import rotate_and_scale
from manigraph.data.strong_augmentation import (
    OPERATIONS,
    RANGES,
    StrongAugmentationConfig,
    apply_operations,
    strongly_augment,
)
from manigraph.sharding import Shard
from tests.helpers import seeded
from tests.reference import strong_augmentation as reference

SHAPES = [(3, 32, 32), (1, 32, 32), (1, 8, 8), (3, 20, 31)]
GREY = 128


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Bytes that vary smoothly with a little noise, some of them dark, some of little contrast."""
    generator = seeded(seed)
    C, H, W = shape
    smooth = F.interpolate(torch.rand(count, C, 4, 4, generator=generator), size=(H, W), mode="bicubic")
    ends = torch.rand(2, count, C, 1, 1, generator=generator).sort(dim=0).values
    noise = 0.03 * torch.randn(count, C, H, W, generator=generator)
    return ((ends[0] + (ends[1] - ends[0]) * smooth + noise).clamp(0, 1) * 255).round().to(torch.uint8)


def view(images: Tensor, *, seed: int = 0, scale: float | None = None, **settings: float) -> Tensor:
    config = StrongAugmentationConfig(**settings)  # type: ignore[arg-type]
    return strongly_augment(images, config, seeded(seed), scale=scale)


def operated(name: str, images: Tensor, amounts: Tensor, fill: int = GREY) -> Tensor:
    return apply_operations(images, torch.full((len(images),), OPERATIONS.index(name)), amounts, fill)


# Operations


def test_operations_are_in_the_order_in_which_they_are_done() -> None:
    kinds = strong_augmentation
    assert list(OPERATIONS) == ["identity", *kinds.TABLES, *kinds.MIXTURES, *kinds.MOVEMENTS]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(60, shape)
    low, high = reference.LIST[name]
    drawn = low + (high - low) * torch.rand(60, generator=seeded(1))
    amounts = torch.ones(60) if name in ("autocontrast", "equalise") else drawn
    answer = operated(name, images, amounts)
    expected = torch.stack(
        [
            torch.tensor(reference.operation(name, image.numpy(), amount, GREY))
            for image, amount in zip(images, amounts.tolist(), strict=True)
        ]
    )
    assert answer.dtype == torch.uint8
    difference = (answer.int() - expected.int()).abs()
    if name == "autocontrast":
        assert int(difference.max()) <= 1
        assert (difference > 0).float().mean() < 0.02
    elif name in ("rotate", "shear_x", "shear_y"):
        assert (difference > 0).float().mean() < 0.001
    else:
        assert int(difference.max()) == 0
    changes_nothing = (
        name == "identity"
        or (name == "colour" and shape[0] == 1)
        or (name == "equalise" and shape[1] * shape[2] < 256)
    )
    assert torch.equal(answer, images) == changes_nothing


def test_the_whole_view_is_pillows() -> None:
    images = pictures(300, (3, 32, 32))
    views = view(images)
    draws = torch.rand((300, 7), generator=seeded()).tolist()
    inexact = 0
    for image, answer, numbers in zip(images, views, draws, strict=True):
        expected = torch.tensor(
            reference.strong_view(image.numpy(), numbers, num_operations=2, largest_square=0.5, fill=GREY)
        )
        difference = (answer.int() - expected.int()).abs()
        if {"autocontrast", "rotate", "shear_x", "shear_y"} & set(reference.names(numbers, 2)):
            inexact += 1
            assert (difference > 2).float().mean() < 0.04  # a row and a bit
        else:
            assert int(difference.max()) == 0
    assert 100 < inexact < 200  # about 1 - (10/14)² of them, that is 147


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_neutral_amount_changes_nothing(name: str) -> None:
    images = pictures(20, (3, 16, 16))
    assert torch.equal(operated(name, images, torch.full((20,), float(RANGES[name].neutral))), images)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("value", [0, 7, 128, 255])
def test_images_of_one_value_are_handled(name: str, value: int) -> None:
    images = torch.full((1, 3, 32, 32), value, dtype=torch.uint8)
    low, high = RANGES[name][1:]
    amount = (low + high) / 2
    expected = reference.operation(name, images[0].numpy(), amount, GREY)
    assert torch.equal(operated(name, images, torch.tensor([amount]))[0], torch.tensor(expected))


def test_grey_of_other_than_three_channels_is_their_mean() -> None:
    """Four channels 10, 20, 40, 130 have the grey 50; half way there they are 30, 35, 45 and 90."""
    images = torch.tensor([10, 20, 40, 130], dtype=torch.uint8).view(1, 4, 1, 1).expand(1, 4, 8, 8)
    answer = operated("colour", images, torch.tensor([0.5]))
    assert answer[0, :, 3, 3].tolist() == [30, 35, 45, 90]
    assert torch.equal(operated("contrast", images, torch.tensor([0.5])), answer)  # the mean grey is 50 too


# Draws


def test_every_operation_is_as_frequent_and_fills_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def recorded(images: Tensor, kinds: Tensor, amounts: Tensor, fill: int) -> Tensor:
        seen.append((kinds, amounts))
        return apply_operations(images, kinds, amounts, fill)

    monkeypatch.setattr(strong_augmentation, "apply_operations", recorded)
    view(torch.zeros(7000, 1, 2, 2, dtype=torch.uint8))
    assert len(seen) == 2
    for kinds, amounts in seen:
        counts = kinds.bincount(minlength=14)
        assert int(counts.min()) > 400  # 500 expected, with a deviation of 22
        assert int(counts.max()) < 600
        for number, (name, (low, high)) in enumerate(reference.LIST.items()):
            if name in ("autocontrast", "equalise"):
                low = high = 1
            values = amounts[kinds == number]
            width = high - low
            assert low - 1e-5 <= float(values.min()) <= low + 0.03 * width + 1e-5
            assert high - 0.03 * width - 1e-5 <= float(values.max()) <= high + 1e-5
            assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.06 * width + 1e-5)
    (first, _), (second, _) = seen
    assert 400 < int((first == second).sum()) < 600  # with replacement: one in 14 draws the same twice


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_without_magnitude_and_square_nothing_changes(dtype: torch.dtype) -> None:
    images = pictures(64, (3, 16, 16))
    images = images if dtype == torch.uint8 else images.to(dtype) / 255
    assert torch.equal(view(images, operations=3, magnitude=0.0, cutout=0.0), images)
    assert torch.equal(view(images, operations=0, cutout=0.0), images)
    assert not torch.equal(view(images, operations=1, cutout=0.0), images)
    assert not torch.equal(view(images, operations=0), images)


def test_more_magnitude_and_more_operations_change_more() -> None:
    images = pictures(400, (3, 16, 16))

    def change(operations: int, magnitude: float) -> float:
        changed = view(images, operations=operations, magnitude=magnitude, cutout=0.0)
        return float((changed.float() - images.float()).abs().mean())

    by_magnitude = [change(2, magnitude) for magnitude in (0.0, 0.25, 0.5, 1.0)]
    assert by_magnitude == sorted(set(by_magnitude))
    by_number = [change(number, 1.0) for number in (0, 1, 2, 4)]
    assert by_number == sorted(set(by_number))


def test_an_image_does_not_depend_on_the_others() -> None:
    images, others = pictures(32, (3, 16, 16)), pictures(32, (3, 16, 16), seed=1)
    views = view(images)
    for kept in (0, 5, 31):
        mixed = others.clone()
        mixed[kept] = images[kept]
        assert torch.equal(view(mixed)[kept], views[kept])


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_processes_make_the_rows_that_one_would(processes: int, kind: str) -> None:
    images = pictures(24, (3, 16, 16)) if kind == "images" else torch.rand(24, 30, generator=seeded())
    config = StrongAugmentationConfig()
    whole = view(images)
    states = []
    for rank in range(processes):
        shard, generator = Shard(rank, processes), seeded()
        part = strongly_augment(shard.own(images), config, generator, shard)
        assert torch.equal(part, whole[rank::processes])
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


def test_the_same_generator_repeats_and_goes_on_alike_whatever_the_images() -> None:
    first, second = seeded(), seeded()
    images, others = pictures(16, (3, 8, 8)), pictures(16, (3, 8, 8), seed=1)
    config = StrongAugmentationConfig()
    view_of_images = strongly_augment(images, config, first)
    assert torch.equal(view_of_images, view(images))
    strongly_augment(others, config, second)
    assert torch.equal(first.get_state(), second.get_state())
    assert not torch.equal(strongly_augment(images, config, first), view_of_images)


# The square


@pytest.mark.parametrize(("height", "width"), [(12, 17), (17, 12)])
def test_squares_are_those_cut_out_pixel_by_pixel(height: int, width: int) -> None:
    images = pictures(300, (3, height, width))
    draws = torch.rand((300, 3), generator=seeded()).tolist()
    for image, answer, (side, row, column) in zip(
        images, view(images, operations=0, fill=0.2), draws, strict=True
    ):
        # half of 12 pixels: 0 to 6; a fifth of 255 is 51
        place = int(row * height), int(column * width), int(side * 7)
        assert torch.equal(answer, torch.tensor(reference.cut_out(image.numpy(), *place, fill=51)))


def test_squares_have_every_side_and_are_clipped_at_the_border() -> None:
    images = torch.zeros(4000, 1, 32, 32, dtype=torch.uint8)
    cut = (view(images, operations=0) == GREY).squeeze(1)
    height, width = cut.any(dim=2).sum(dim=1), cut.any(dim=1).sum(dim=1)
    assert torch.equal(cut.sum(dim=(1, 2)), height * width)  # rectangles without holes
    inside = ~(cut[:, [0, -1]].any(dim=(1, 2)) | cut[:, :, [0, -1]].any(dim=(1, 2)))
    assert torch.equal(height[inside], width[inside])
    assert set(height[inside].tolist()) == set(range(17))
    assert int(height.max()) == int(width.max()) == 16
    assert bool((height[~inside] != width[~inside]).any())
    covered = cut.float().mean(dim=0)
    assert float(covered[0, 0]) > 0  # corners are reached, less often than the middle
    assert float(covered[16, 16]) > 2 * float(covered[0, 0])
    # E[s²] / 32² = (0² + … + 16²) / 17 / 1024 = 0.0859 without clipping
    assert 0.06 < float(covered.mean()) < 0.0859


# Kinds of images


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_shape_and_dtype_stay_and_the_images_given_are_not_changed(
    channels: int, side: int, dtype: torch.dtype
) -> None:
    images = pictures(64, (channels, side, side))
    images = images if dtype == torch.uint8 else images.to(dtype) / 255
    before = images.clone()
    answer = view(images)
    assert (answer.shape, answer.dtype) == (images.shape, dtype)
    assert torch.equal(images, before)
    assert (answer != images).flatten(1).any(dim=1).float().mean() > 0.8
    assert float(answer.min()) >= 0
    assert float(answer.max()) <= (255 if dtype == torch.uint8 else 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_view_has_memory_of_its_own(dtype: torch.dtype) -> None:
    images = pictures(4, (3, 8, 8)).to(dtype)
    view(images, operations=0, cutout=0.0, scale=255).zero_()
    assert torch.equal(images, pictures(4, (3, 8, 8)).to(dtype))


def test_the_memory_format_changes_nothing() -> None:
    images = pictures(32, (3, 16, 16))
    assert torch.equal(view(images.to(memory_format=torch.channels_last)), view(images))
    one = images[:1].expand(32, -1, -1, -1)  # rows that share their memory
    assert torch.equal(view(one), view(one.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_and_floats_agree(dtype: torch.dtype) -> None:
    images = pictures(64, (3, 16, 16))
    assert torch.equal(view(images.to(dtype) / 255), view(images).to(dtype) / 255)
    assert torch.equal(view(images.to(dtype), scale=255), view(images).to(dtype))


def test_the_default_dtype_changes_nothing() -> None:
    images = pictures(64, (3, 16, 16))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        answer = view(images)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(answer, view(images))


def test_bytes_of_another_scale_are_spread_and_brought_back() -> None:
    """Digits are stored as 0 to 16."""
    digits = torch.randint(0, 17, (64, 1, 8, 8), dtype=torch.uint8, generator=seeded())
    assert torch.equal(view(digits, scale=16, magnitude=0.0, cutout=0.0), digits)
    spread = (digits.float() * 255 / 16).round().to(torch.uint8)
    answer = view(digits, scale=16)
    assert torch.equal(answer, (view(spread).float() * 16 / 255).round().to(torch.uint8))
    assert int(answer.max()) == 16
    assert view(digits, scale=16, operations=0)[view(spread, operations=0) == GREY].unique().tolist() == [8]
    turned = rotate_and_scale(digits, 10.0, 0.1, seeded())  # floats from 0 to 16
    assert float((view(turned, scale=16) - view(digits, scale=16).float()).abs().mean()) < 2


@pytest.mark.parametrize(
    ("images", "scale", "message"),
    [
        (torch.tensor([0.0, 1.5]), None, "from 0 to 1, got 0 to 1.5"),
        (torch.tensor([-2.0, 1.0]), None, "from 0 to 1, got -2 to 1"),
        (torch.tensor([0.0, float("nan")]), None, "from 0 to 1, got nan"),
        (torch.tensor([0, 17], dtype=torch.uint8), 16, "from 0 to 16, got 0 to 17"),
    ],
)
def test_what_is_not_a_pixel_is_refused(images: Tensor, scale: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        view(images.view(2, 1, 1, 1).expand(2, 3, 8, 8), scale=scale)


def test_no_images_give_no_views() -> None:
    assert view(torch.zeros(0, 3, 8, 8, dtype=torch.uint8)).shape == (0, 3, 8, 8)
    assert view(torch.zeros(0, 3, 8, 8)).shape == (0, 3, 8, 8)
    assert view(torch.zeros(0, 5)).shape == (0, 5)


def test_shapes_other_than_images_and_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got the shape \(3, 8, 8\)"):
        view(torch.zeros(3, 8, 8))


# Vectors


def test_vectors_have_a_random_share_of_their_entries_set_to_zero() -> None:
    vectors = 1 + torch.rand(2000, 200, generator=seeded())
    before = vectors.clone()
    answer = view(vectors, cutout=0.4)
    assert torch.equal(vectors, before)
    masked = answer == 0
    assert torch.equal(answer[~masked], vectors[~masked])
    shares = masked.float().mean(dim=1)
    assert float(shares.mean()) == pytest.approx(0.2, abs=0.01)  # from 0 to 0.4, uniformly
    assert float(shares.std()) == pytest.approx(0.4 / 12**0.5, abs=0.01)
    assert 0.35 < float(shares.max()) < 0.55
    everywhere = masked.float().mean(dim=0)
    assert float(everywhere.min()) > 0.15
    assert torch.equal(view(vectors, cutout=0.0), vectors)
    other = vectors.flip(0)
    assert torch.equal(view(other, cutout=0.4) == 0, masked)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operations": -1}, "operations must be at least 0, got -1"),
        ({"magnitude": -0.1}, "magnitude must be from 0 to 1, got -0.1"),
        ({"magnitude": 1.1}, "magnitude must be from 0 to 1, got 1.1"),
        ({"cutout": 1.5}, "cutout must be from 0 to 1, got 1.5"),
        ({"cutout": float("nan")}, "cutout must be from 0 to 1, got nan"),
        ({"fill": 128}, "fill must be from 0 to 1, got 128"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StrongAugmentationConfig(**settings)  # type: ignore[arg-type]


def test_the_largest_number_of_bits_is_eight() -> None:
    # 4 + 5 (1 - 2⁻²⁴) is 9 in float32; a modulus of 2⁻¹ would be a division by 0.
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    largest = torch.tensor([4 + 5 * (1 - 2**-24)])
    assert largest.item() == 9
    table = strong_augmentation._posterise_table(images, largest)
    assert table.flatten().tolist() == list(range(256))
