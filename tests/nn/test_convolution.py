"""Convolutions by Winograd's minimal filtering: the same as torch's up to rounding, where they suit."""

import copy
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from manigraph.functional import virtual_adversarial_direction
from manigraph.native import convolution as native_convolution
from manigraph.native import lanes, library, native
from manigraph.nn.convolution import Convolution
from tests.helpers import normal

needs_library = pytest.mark.skipif(
    library() is None, reason="manigraph.native was not compiled for this machine: no C compiler at install"
)

TOLERANCE = 6e-6
"""Error by the size of the exact numbers, root mean squares of both; torch's own way has up to 1e-6."""


def in_layout(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).float().contiguous(memory_format=torch.channels_last)


def layer(inputs: int, outputs: int, padding: int = 1) -> Convolution:
    torch.manual_seed(inputs + outputs)
    built = Convolution(inputs, outputs, 3, padding=padding, bias=False)
    built.weight.data = built.weight.data.contiguous(memory_format=torch.channels_last)
    return built


def outcome(convolution: nn.Conv2d, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of the images and of the kernels."""
    images = images.detach().requires_grad_(True)
    output = convolution(images)
    direction = normal(*output.shape, seed=9).to(output.dtype)
    return (output, *torch.autograd.grad((output * direction).sum(), [images, convolution.weight]))


def is_native(convolution: nn.Conv2d, images: Tensor) -> bool:
    output: Tensor = convolution(images.requires_grad_(True))
    return "Winograd" in type(output.grad_fn).__name__


SHAPES = [
    # images, inputs, outputs, height, width, padding
    (3, 16, 16, 8, 8, 1),
    (5, 32, 16, 12, 8, 1),
    (2, 16, 48, 7, 9, 1),  # tiles that reach beyond the image, and an odd number of vectors
    (3, 32, 64, 8, 8, 0),
    (2, 16, 32, 6, 10, 0),
    (1, 16, 16, 3, 3, 1),
    (70, 32, 32, 4, 4, 1),  # several blocks of tiles
    (2, 64, 32, 32, 32, 1),
    (40, 16, 16, 32, 32, 1),  # more blocks than one short sum takes
    (2, 128, 256, 8, 8, 1),
    (5, 3, 32, 12, 12, 1),  # torch's way, but for the gradient of the images
    (5, 1, 16, 8, 8, 0),
]


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_those_of_a_convolution(shape: tuple[int, ...], threads: int) -> None:
    number, inputs, outputs, height, width, padding = shape
    convolution, images = layer(inputs, outputs, padding), in_layout(number, inputs, height, width)
    exact = outcome(copy.deepcopy(convolution).double(), images.double())
    assert is_native(convolution, images.clone())
    for found, expected in zip(outcome(convolution, images), exact, strict=True):
        assert found.shape == expected.shape
        error, size = found - expected, expected.square().mean().sqrt()
        assert error.square().mean().sqrt() < TOLERANCE * size
        assert error.abs().max() < 10 * TOLERANCE * size


def test_a_kernel_that_picks_one_pixel_moves_the_image() -> None:
    """All other entries 0, one 1: every output is a neighbour of its pixel, beyond the border 0."""
    images = in_layout(2, 16, 8, 8)
    convolution = layer(16, 16)
    for row in range(3):
        for column in range(3):
            with torch.no_grad():
                convolution.weight.zero_()
                convolution.weight[:, :, row, column] = torch.eye(16)
                moved = convolution(images)
            expected = F.pad(images, (1, 1, 1, 1))[:, :, row : row + 8, column : column + 8]
            torch.testing.assert_close(moved, expected, rtol=0, atol=2e-5)


@needs_library
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_the_same_bits_every_time(threads: int) -> None:
    convolution, images = layer(32, 32), in_layout(9, 32, 16, 16)
    for once, again in zip(outcome(convolution, images), outcome(convolution, images), strict=True):
        assert torch.equal(once, again)


@needs_library
def test_numbers_are_float32_in_memory_whatever_the_defaults_are() -> None:
    convolution, images = layer(16, 16), in_layout(3, 16, 8, 8).requires_grad_(True)
    direction = torch.ones_like(images)

    def found() -> list[Tensor]:
        output = convolution(images)
        return [output, *torch.autograd.grad(output, [images, convolution.weight], direction)]

    expected = found()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            others = found()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(others, expected, strict=True):
        assert torch.equal(one, other)


@needs_library
def test_many_threads_share_what_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has sums of its own for the gradient of the kernels, which are large for many channels."""
    convolution, images = layer(32, 32), in_layout(40, 32, 16, 16)
    expected = outcome(convolution, images)
    monkeypatch.setattr(native_convolution, "MOST_SCRATCH", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = outcome(convolution, images)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_library
def test_an_image_does_not_feel_the_others() -> None:
    convolution, images = layer(32, 32), in_layout(9, 32, 16, 16)
    with torch.no_grad():
        assert torch.equal(convolution(images)[3:4], convolution(images[3:4]))


@needs_library
def test_a_bad_number_stays_in_its_image_and_is_seen() -> None:
    convolution, images = layer(16, 16), in_layout(3, 16, 8, 8)
    images[1, 0, 0, 0] = torch.nan
    with torch.no_grad():
        output = convolution(images)
    assert output[1].isnan().any()
    assert output[[0, 2]].isfinite().all()


@needs_library
def test_other_gradients_than_those_asked_for_are_not_computed() -> None:
    """VAT's power step needs the gradient of the images alone."""
    network = nn.Sequential(layer(16, 16), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(16 * 64, 5))
    images = in_layout(4, 16, 8, 8)
    own = native_convolution.kernel_gradient
    with patch.object(native_convolution, "kernel_gradient", wraps=own) as kernel_gradients:
        virtual_adversarial_direction(network, images, network(images), xi=0.1, start=in_layout(4, 16, 8, 8))
        assert kernel_gradients.call_count == 0
        network(images).sum().backward()
        assert kernel_gradients.call_count == 1
    own_of_images = native_convolution.image_gradient
    with patch.object(native_convolution, "image_gradient", wraps=own_of_images) as image_gradients:
        network(images).sum().backward()
        assert not image_gradients.called


@needs_library
def test_gradients_asked_for_by_name_are_those_of_a_whole_backward_pass() -> None:
    first, second, images = layer(16, 16), layer(16, 32), in_layout(4, 16, 8, 8)
    named = torch.autograd.grad(second(first(images)).square().sum(), [first.weight, second.weight])
    second(first(images)).square().sum().backward()
    for found, weight in zip(named, (first.weight, second.weight), strict=True):
        assert weight.grad is not None
        assert torch.equal(found, weight.grad)


@needs_library
def test_gradients_of_any_layout_are_taken() -> None:
    convolution, images = layer(16, 16), in_layout(4, 16, 8, 8)
    output = convolution(images)
    direction = normal(*output.shape, seed=4).float()  # as images are usually laid out
    (found,) = torch.autograd.grad(output, convolution.weight, direction)
    in_order = direction.contiguous(memory_format=torch.channels_last)
    (expected,) = torch.autograd.grad(convolution(images), convolution.weight, in_order)
    assert torch.equal(found, expected)
    # The gradient of a sum is a single number that stands for all.
    (of_a_sum,) = torch.autograd.grad(convolution(images).sum(), convolution.weight)
    (of_ones,) = torch.autograd.grad(convolution(images), convolution.weight, torch.ones_like(output))
    assert torch.equal(of_a_sum, of_ones)


@needs_library
def test_kernels_of_any_layout_are_taken() -> None:
    convolution, images = layer(16, 16), in_layout(4, 16, 8, 8)
    expected = outcome(convolution, images)
    convolution.weight.data = torch.empty(convolution.weight.shape).copy_(convolution.weight.data)
    assert convolution.weight.is_contiguous()
    for found, other in zip(outcome(convolution, images), expected, strict=True):
        assert torch.equal(found, other)


@needs_library
@pytest.mark.parametrize(
    ("convolution", "images"),
    [
        (layer(16, 16), in_layout(2, 16, 8, 8).contiguous()),
        (layer(16, 16).double(), in_layout(2, 16, 8, 8).double()),
        (layer(16, 16), in_layout(0, 16, 8, 8)),
        (layer(16, 20), in_layout(2, 16, 8, 8)),
        (layer(16, 16, padding=0), in_layout(2, 16, 3, 3)),  # one of 16 outputs would be of use
        (Convolution(16, 16, 1, bias=False), in_layout(2, 16, 8, 8)),
        (Convolution(16, 16, 3, padding=1), in_layout(2, 16, 8, 8)),
        (Convolution(16, 16, 3, padding=1, stride=2, bias=False), in_layout(2, 16, 8, 8)),
        (Convolution(16, 16, 3, padding=2, dilation=2, bias=False), in_layout(2, 16, 8, 8)),
        (Convolution(16, 16, 3, padding=2, bias=False), in_layout(2, 16, 8, 8)),
        (Convolution(16, 16, 3, padding="same", bias=False), in_layout(2, 16, 8, 8)),
        (Convolution(32, 32, 3, padding=1, groups=2, bias=False), in_layout(2, 32, 8, 8)),
        (Convolution(16, 16, 3, padding=1, bias=False, padding_mode="circular"), in_layout(2, 16, 8, 8)),
    ],
    ids=[
        "layout", "float64", "no images", "odd channels", "small", "1x1", "bias", "stride",
        "dilation", "padding", "named padding", "groups", "border"
    ],
)  # fmt: skip
def test_everything_else_goes_torchs_way(convolution: Convolution, images: Tensor) -> None:
    assert not is_native(convolution, images)
    with torch.no_grad():
        assert torch.equal(convolution(images), nn.Conv2d.forward(convolution, images))


@needs_library
def test_it_can_be_switched_off_and_steps_back_where_torch_must_see_its_operations() -> None:
    convolution, images = layer(16, 16), in_layout(2, 16, 8, 8)
    assert is_native(convolution, images)
    with native(False):
        assert not is_native(convolution, images)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_native(convolution, images)
    with FlopCounterMode(display=False) as counter:
        convolution(images)
    assert counter.get_total_flops() == 2 * 2 * 16 * 16 * 64 * 9
    exported = torch.export.export(nn.Sequential(convolution), (images,))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)
    assert is_native(convolution, images)


def test_channels_come_in_whole_vectors() -> None:
    assert lanes() in (1, 8, 16)
