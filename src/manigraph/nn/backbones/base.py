"""What every backbone has in common."""

from typing import ClassVar

from torch import Tensor, nn

from manigraph.nn.convolution import Convolution

SMALLEST_IMAGE = 8
LEAKY_SLOPE = 0.1


class Backbone(nn.Module):
    """Maps inputs of `input_shape` to `feature_size` numbers.

    Args:
        input_shape: (channels, height, width) of an image, or (size,) of a vector.
        width: Multiplier on the number of channels.
        dropout: Rate; None means the architecture's own.
    """

    feature_size: int
    takes_any_size: ClassVar[bool] = False
    """Whether images of other sizes than `input_shape` go through too."""

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__()
        if width <= 0:
            raise ValueError(f"width must be positive, got {width}")
        if dropout is not None and not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.input_shape = input_shape
        self.width = width
        self.dropout = dropout

    def begin(self) -> None:
        """Take the weights that training begins with, if they are others than those that were drawn."""

    def another(self) -> "Backbone":
        """One of the same kind with weights of its own."""
        return type(self)(self.input_shape, width=self.width, dropout=self.dropout)


def image_channels(input_shape: tuple[int, ...]) -> int:
    """The number of channels, after checking that a convolutional network can take the images."""
    if len(input_shape) != 3:
        raise ValueError(
            f"a convolutional backbone takes images (channels, height, width), got shape "
            f"{input_shape}; use the backbone 'mlp' for vectors"
        )
    channels, height, width = input_shape
    if min(height, width) < SMALLEST_IMAGE:
        raise ValueError(
            f"images must be at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} pixels, got "
            f"{height}x{width}; enlarge them or use the backbone 'mlp' on flat vectors"
        )
    if not 1 <= channels <= 4:
        raise ValueError(f"images must have 1 to 4 channels, got {channels}")
    return channels


def scaled(channels: int, width: float) -> int:
    """A number of channels times the width multiplier, in multiples of 4 for the kernels' sake."""
    return max(4, 4 * round(channels * width / 4))


def convolution(
    in_channels: int, out_channels: int, kernel_size: int = 3, padding: int = 1
) -> list[nn.Module]:
    """Convolution, batch norm, LeakyReLU; no bias, since batch norm has one."""
    conv = Convolution(in_channels, out_channels, kernel_size, padding=padding, bias=False)
    nn.init.kaiming_normal_(conv.weight, a=LEAKY_SLOPE)
    return [conv, nn.BatchNorm2d(out_channels), nn.LeakyReLU(LEAKY_SLOPE, inplace=True)]


def global_average(maps: Tensor) -> Tensor:
    """(B, D, H, W) to (B, D)."""
    return maps.mean(dim=(2, 3))
