"""Networks from images to features: section 6."""

import copy

import pytest
import torch
from torch import Tensor, nn

from manigraph.catalogue import ALGORITHMS, BACKBONES
from manigraph.nn.backbones.base import Backbone
from tests.helpers import normal

CONVOLUTIONAL = ["cnn13", "wide_resnet28_2", "resnet9", "small_cnn"]
WITH_LAYERS = [*CONVOLUTIONAL, "mlp"]
SIZES = [(8, 8), (9, 13), (28, 28), (32, 32)]


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def features_of(backbone: Backbone, number: int = 2) -> Tensor:
    features: Tensor = backbone(normal(number, *backbone.input_shape).float())
    return features


def test_cnn13_has_the_parameters_of_the_paper() -> None:
    # 3.12 M with a 10-way classifier. 3x3: 3·128 + 2·128² + 128·256 + 2·256² + 256·512 = 328,064 times 9;
    # 1x1: 512·256 + 256·128 = 163,840; batch norm: 2 · 2,048; linear: 128·10 + 10.
    backbone = BACKBONES.get("cnn13")((3, 32, 32))
    total = num_parameters(backbone) + num_parameters(nn.Linear(backbone.feature_size, 10))
    assert backbone.feature_size == 128
    assert total == 9 * 328_064 + 163_840 + 4_096 + 1_290
    assert 3.115e6 < total < 3.125e6


@pytest.mark.parametrize("num_classes", [10, 100])
def test_the_method_adds_about_two_per_cent(num_classes: int) -> None:
    def size(name: str) -> int:
        method = ALGORITHMS.get(name)
        return num_parameters(method(method.Config(), BACKBONES.get("cnn13")((3, 32, 32)), num_classes))

    plain, with_graph = size("supervised"), size("manifold_graph")
    assert 0.015 < (with_graph - plain) / plain < 0.025


def test_wide_resnet_has_the_parameters_of_the_literature() -> None:
    backbone = BACKBONES.get("wide_resnet28_2")((3, 32, 32))
    assert num_parameters(backbone) + 1_290 == pytest.approx(1.47e6, rel=0.01)
    layers = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(layers) + 1 + 2 == 28, "25 3x3 convolutions; two 1x1 of the shortcuts and the classifier"


def test_resnet9_has_the_layers_of_its_author() -> None:
    # 3x3: 3·64 + 64·128 + 2·128² + 128·256 + 256·512 + 2·512² = 729,280 times 9; batch norm: 2 · 2,240.
    backbone = BACKBONES.get("resnet9")((3, 32, 32))
    assert backbone.feature_size == 512
    assert num_parameters(backbone) == 9 * 729_280 + 4_480


def test_dropout_of_resnet9_leaves_the_size_of_features() -> None:
    torch.manual_seed(0)
    backbone = BACKBONES.get("resnet9")((3, 16, 16), width=0.125, dropout=0.3)
    without = BACKBONES.get("resnet9")((3, 16, 16), width=0.125, dropout=0.0)
    for layer in (*backbone.modules(), *without.modules()):  # the statistics of the batch in both
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats = False
    without.load_state_dict(backbone.state_dict())
    images = normal(64, 3, 16, 16).float()
    ratio = backbone(images).mean() / without(images).mean()
    assert 0.8 < ratio < 1.25, "the maximum over a map with dropout is nearly twice as large"


def test_residual_blocks_of_resnet9_add_what_went_in() -> None:
    backbone = BACKBONES.get("resnet9")((3, 16, 16), width=0.125).eval()
    images = normal(4, 3, 16, 16).float()
    last = next(m for m in reversed(list(backbone.modules())) if type(m).__name__ == "_Residual")
    maps: list[Tensor] = []
    last.register_forward_hook(lambda _, inputs, __: maps.append(inputs[0].clone()))
    with torch.no_grad():
        for layer in last.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.zero_()
        features = backbone(images)
    torch.testing.assert_close(features, maps[0].amax(dim=(2, 3)))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", list(BACKBONES))
def test_sizes_of_images(name: str, size: tuple[int, int]) -> None:
    backbone = BACKBONES.get(name)((3, *size), width=0.125)
    features = features_of(backbone)
    assert features.shape == (2, backbone.feature_size)
    assert features.isfinite().all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_numbers_of_channels(name: str, channels: int) -> None:
    backbone = BACKBONES.get(name)((channels, 8, 8), width=0.125)
    assert features_of(backbone).shape == (2, backbone.feature_size)


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_width_multiplies_the_features(name: str) -> None:
    build = BACKBONES.get(name)
    narrow, wide = build((1, 8, 8), width=0.5), build((1, 8, 8), width=1.0)
    assert wide.feature_size == 2 * narrow.feature_size
    assert features_of(narrow).shape == (2, narrow.feature_size)
    assert num_parameters(narrow) < 0.6 * num_parameters(wide)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_the_narrowest_still_works(name: str) -> None:
    backbone = BACKBONES.get(name)((1, 8, 8), width=0.001)
    assert features_of(backbone).shape == (2, backbone.feature_size)


def test_mlp_takes_vectors() -> None:
    backbone = BACKBONES.get("mlp")((20,), width=0.25)
    assert features_of(backbone).shape == (2, 32)


def test_head_leaves_vectors_as_they_are_and_learns_nothing() -> None:
    backbone, vectors = BACKBONES.get("head")((20,)), normal(3, 20).float()
    assert backbone.feature_size == 20
    assert num_parameters(backbone) == 0
    assert torch.equal(backbone.train()(vectors), vectors)
    assert torch.equal(BACKBONES.get("head")((20,), dropout=0.5).eval()(vectors), vectors)


def test_head_drops_some_entries_if_told() -> None:
    torch.manual_seed(1)
    backbone, vectors = BACKBONES.get("head")((2000,), dropout=0.25), 1 + normal(4, 2000).float().abs()
    dropped = backbone.train()(vectors)
    kept = dropped != 0
    assert 0.72 < kept.float().mean() < 0.78
    torch.testing.assert_close(dropped[kept], vectors[kept] / 0.75)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 7, 8), "images must be at least 8x8 pixels, got 7x8; enlarge them or use the backbone 'mlp'"),
        ((1, 8, 7), "images must be at least 8x8 pixels, got 8x7"),
        ((5, 8, 8), "images must have 1 to 4 channels, got 5"),
        ((0, 8, 8), "images must have 1 to 4 channels, got 0"),
        ((64,), r"got shape \(64,\); use the backbone 'mlp' for vectors"),
    ],
)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_images_that_cannot_be_used(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BACKBONES.get(name)(shape)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_settings_that_cannot_be_used(name: str) -> None:
    with pytest.raises(ValueError, match=r"width must be positive, got 0\.0"):
        BACKBONES.get(name)((1, 8, 8), width=0.0)
    with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, got 1\.0"):
        BACKBONES.get(name)((1, 8, 8), dropout=1.0)


@pytest.mark.parametrize(("dropout", "rates"), [(None, {0.3}), (0.0, {0.0}), (0.5, {0.5})])
@pytest.mark.parametrize("name", ["cnn13", "small_cnn", "mlp"])
def test_dropout_rate(name: str, dropout: float | None, rates: set[float]) -> None:
    backbone = BACKBONES.get(name)((1, 8, 8), width=0.125, dropout=dropout)
    assert {layer.p for layer in backbone.modules() if isinstance(layer, nn.Dropout)} == rates


def test_cnn13_is_built_as_the_appendix_says() -> None:
    # Each convolution is followed by batch norm, then LeakyReLU of slope 0.1; dropout after each pool.
    backbone = BACKBONES.get("cnn13")((3, 32, 32), width=1.0)
    layers = [layer for layer in backbone.modules() if not list(layer.children())]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    described = [(c.out_channels, c.kernel_size[0], c.padding[0]) for c in convolutions]
    assert described == [(128, 3, 1)] * 3 + [(256, 3, 1)] * 3 + [(512, 3, 0), (256, 1, 0), (128, 1, 0)]
    for place, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d):
            norm, activation = layers[place + 1 : place + 3]
            assert isinstance(norm, nn.BatchNorm2d)
            assert isinstance(activation, nn.LeakyReLU)
            assert activation.negative_slope == 0.1
        if isinstance(layer, nn.MaxPool2d):
            assert isinstance(layers[place + 1], nn.Dropout), "elementwise"


@pytest.mark.parametrize(("size", "final"), [(32, 6), (12, 1), (8, 2)])
def test_cnn13_pads_its_last_3x3_only_where_it_must(size: int, final: int) -> None:
    # 32 -> 8 -> 6 without padding; 12 -> 3 -> 1; 8 -> 2, padded to 4, -> 2.
    backbone = BACKBONES.get("cnn13")((1, size, size), width=0.03125)
    shapes: list[torch.Size] = []
    last = backbone.get_submodule("head")
    last.register_forward_hook(lambda _, __, output: shapes.append(output.shape[2:]))
    features_of(backbone)
    assert shapes == [torch.Size([final, final])]


# Faster, and the same


def outcome(backbone: Backbone, images: Tensor) -> list[Tensor]:
    """Features, gradients and running statistics of a training pass."""
    torch.manual_seed(5)  # of dropout
    images = images.detach().requires_grad_(True)
    features = backbone.train()(images)
    features.square().sum().backward()
    assert images.grad is not None
    gradients = [parameter.grad for parameter in backbone.parameters() if parameter.grad is not None]
    assert len(gradients) == len(list(backbone.parameters()))
    return [features, images.grad, *gradients, *(b for b in backbone.buffers() if b.is_floating_point())]


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_activations_in_place_change_no_bit(name: str) -> None:
    torch.manual_seed(1)
    backbone = BACKBONES.get(name)((3, 16, 16), width=0.125)
    usual = copy.deepcopy(backbone)
    activations = [module for module in usual.modules() if isinstance(module, nn.LeakyReLU)]
    assert any(module.inplace for module in activations)
    for module in activations:
        module.inplace = False
    images = normal(6, 3, 16, 16).float()
    for found, expected in zip(outcome(backbone, images), outcome(usual, images), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_layout_changes_rounding_only(name: str) -> None:
    torch.manual_seed(1)
    backbone = BACKBONES.get(name)((3, 16, 16), width=0.125, dropout=0.0).double()
    usual = copy.deepcopy(backbone)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stub
    images = normal(6, 3, 16, 16)
    in_layout = images.contiguous(memory_format=torch.channels_last)
    assert not in_layout.is_contiguous()
    for found, expected in zip(outcome(backbone, in_layout), outcome(usual, images), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
