"""Strong views of whole batches: the RandAugment and Cutout of FixMatch, on the device the batch is on.

K. Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS
2020; E. D. Cubuk et al., "RandAugment", 2020; T. DeVries and G. W. Taylor, "Cutout", 2017.

Every image draws operations from a list, each with a magnitude of its own, and then a square is cut out.
Images are treated as bytes from 0 to 255, and operations are those of Pillow, of which there are three kinds:

| kind | operations | how |
|---|---|---|
| table | autocontrast, brightness, contrast, equalise, posterise, solarise | bytes are looked up in a table |
| mixture | colour, sharpness | mixed with the grey or the smoothed image |
| movement | rotate, shear, translate | each pixel is the one nearest to where an affine map points |

Agreement with Pillow: all operations but these are the same to the bit. Autocontrast is computed in whole
numbers, where Pillow's rounding now and then gives one grey level less. Pillow rotates and shears with
coordinates of 16 binary places, so that in one of some thousand pixels a neighbour is taken.

What differs: the list and the ranges are those of the paper's table, of which the paper's code differs (each
operation is left out half of the time, some ranges are wider, the square always has 16 pixels a side).
As in that code, what a movement leaves empty is grey, while other implementations have it black. Ranges can
be narrowed by one number, `magnitude`, for which autocontrast and equalise are mixed with the image.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.preprocessing import full_scale
from manigraph.sharding import ALONE, Shard


@dataclass(frozen=True)
class StrongAugmentationConfig:
    """How a strongly augmented view is made."""

    operations: int = 2
    """Operations done to each image, drawn independently from the list of FixMatch."""
    magnitude: float = 1.0
    """Share of FixMatch's ranges that is used: 0 changes nothing, 1 is the paper's."""
    cutout: float = 0.5
    """Largest side of the square that is cut out, as a share of the image's shorter side; for vectors, the
    largest share of the entries that are set to 0."""
    fill: float = 0.5
    """Grey of the square and of what a movement leaves empty, from 0 (black) to 1 (white)."""

    def __post_init__(self) -> None:
        if self.operations < 0:
            raise ValueError(f"operations must be at least 0, got {self.operations}")
        for name in ("magnitude", "cutout", "fill"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


class Range(NamedTuple):
    """Amounts of an operation."""

    neutral: float
    """The amount that changes nothing."""
    low: float
    high: float


RANGES: Mapping[str, Range] = {
    "identity": Range(0, 0, 0),
    "autocontrast": Range(0, 1, 1),  # share of the change; the paper has no magnitude for it
    "brightness": Range(1, 0.05, 0.95),  # share of the image, the rest being black
    "contrast": Range(1, 0.05, 0.95),  # the rest being its mean grey
    "equalise": Range(0, 1, 1),  # as autocontrast
    "posterise": Range(8, 4, 9),  # bits that are kept, rounded down: 4 to 8
    "solarise": Range(256, 0, 256),  # bytes from here on are inverted
    "colour": Range(1, 0.05, 0.95),  # share of the image, the rest being its grey version
    "sharpness": Range(1, 0.05, 0.95),  # the rest being a smoothed version
    "rotate": Range(0, -30, 30),  # degrees
    "shear_x": Range(0, -0.3, 0.3),  # pixels sideways for each pixel down
    "shear_y": Range(0, -0.3, 0.3),
    "translate_x": Range(0, -0.3, 0.3),  # share of the image's width
    "translate_y": Range(0, -0.3, 0.3),
}
"""The operations of FixMatch, tables, mixtures and movements in turn, and the ranges of their amounts."""

OPERATIONS = tuple(RANGES)


def strongly_augment(
    images: Tensor,
    config: StrongAugmentationConfig,
    generator: torch.Generator,
    shard: Shard = ALONE,
    *,
    scale: float | None = None,
) -> Tensor:
    """One strong view of each image, with the dtype and the shape of `images`.

    Images are rounded to 256 levels of grey. They must be pixels: whitening comes after this. A vector has
    random entries set to 0, each with the same probability, which is drawn for the vector. 0 is their mean
    once vectors are standardised, so for them preprocessing comes before this.

    Args:
        images: (B, C, H, W) from 0 to `scale`, or (B, D) vectors; this process's part of the batch. Three
            channels are red, green and blue; otherwise all are alike, and grey is their mean.
        config: Which changes, and how strong.
        generator: Source of randomness on the device of the images, which agrees in all processes.
        shard: Which part of the batch the images are; random numbers are drawn for all of it.
        scale: The value of white; by default 255 for bytes and 1 for floats.
    """
    if images.ndim not in (2, 4):
        raise ValueError(
            f"expected images (B, C, H, W) or vectors (B, D), got the shape {tuple(images.shape)}"
        )
    whole, device = len(images) * shard.size, images.device
    if images.ndim == 2:
        size = (whole, images.shape[1] + 1)
        draws = shard.own(torch.rand(size, generator=generator, device=device, dtype=torch.float32))
        return images.masked_fill(draws[:, 1:] < config.cutout * draws[:, :1], 0)
    size = (whole, 2 * config.operations + 3)
    draws = shard.own(torch.rand(size, generator=generator, device=device, dtype=torch.float32))
    which, levels, square = draws.split([config.operations, config.operations, 3], dim=1)
    kinds = (which * len(OPERATIONS)).long()  # (B, operations)
    ranges = draws.new_tensor(list(RANGES.values()))[kinds]  # (B, operations, 3)
    neutral, low, high = ranges.unbind(dim=2)
    amounts = neutral + config.magnitude * (low + (high - low) * levels - neutral)

    scale = full_scale(images) if scale is None else scale
    fill = round(255 * config.fill)
    view = _to_bytes(images, scale)
    for kind, amount in zip(kinds.unbind(dim=1), amounts.unbind(dim=1), strict=True):
        view = apply_operations(view, kind, amount, fill)
    inside = _squares(square, view, config.cutout).to(torch.uint8)
    view.mul_(1 - inside).add_(fill * inside)  # a tenth of the time of `masked_fill_` on bytes
    return _from_bytes(view, images.dtype, scale)


def _to_bytes(images: Tensor, scale: float) -> Tensor:
    """A copy of the images with `scale` as 255."""
    if images.dtype == torch.uint8 and scale == 255:
        return images.clone()
    levels = (images.float() * (255 / scale)).round_()
    if levels.numel():
        darkest, brightest = levels.aminmax()
        if not (darkest >= 0 and brightest <= 255):
            raise ValueError(
                f"strong views are made of pixels from 0 to {scale:g}, got {images.min().item():g} to "
                f"{images.max().item():g}: make them before whitening, and give `scale`"
            )
    return levels.to(torch.uint8)


def _from_bytes(view: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype.is_floating_point:
        return view.to(dtype).mul_(scale).div_(255)
    return view if scale == 255 else (view.float() * (scale / 255)).round_().to(dtype)


def _squares(draws: Tensor, images: Tensor, largest: float) -> Tensor:
    """(B, 1, H, W), true in a square with its centre anywhere in the image, clipped at the border.

    Its side is from 0 to `largest` of the shorter side, every number of pixels as likely.
    """
    H, W = images.shape[2:]
    longest = int(largest * min(H, W))
    side, row, column = (draws * draws.new_tensor([longest + 1, H, W])).long().split(1, dim=1)  # (B, 1) each

    def covered(centre: Tensor, length: int) -> Tensor:
        place = torch.arange(length, device=draws.device) - (centre - side // 2)  # (B, length)
        return torch.logical_and(place >= 0, place < side)

    return (covered(row, H).unsqueeze(2) & covered(column, W).unsqueeze(1)).unsqueeze(1)


def apply_operations(images: Tensor, kinds: Tensor, amounts: Tensor, fill: int) -> Tensor:
    """Each image changed by one operation.

    Args:
        images: (B, C, H, W) bytes.
        kinds: (B,) numbers in OPERATIONS.
        amounts: (B,) in the units of RANGES.
        fill: Byte for places that come from outside.
    """
    # Images with the same operation are put side by side, so that each operation is done to a slice.
    order = kinds.argsort(stable=True)
    counts = kinds.bincount(minlength=len(OPERATIONS)).tolist()
    groups = zip(images.index_select(0, order).split(counts), amounts[order].split(counts), strict=True)
    drawn = dict(zip(OPERATIONS, groups, strict=True))

    same, _ = drawn["identity"]
    pixels = torch.cat([drawn[name][0] for name in TABLES])
    tables = torch.cat([table(*drawn[name]) for name, table in TABLES.items()])  # (n, C, 256)
    looked_up = tables.gather(2, pixels.flatten(2).long()).view(pixels.shape)
    mixed = [_mixed(other(drawn[name][0]), *drawn[name]) for name, other in MIXTURES.items()]
    moves = torch.block_diag(*(drawn[name][1].unsqueeze(1) for name in MOVEMENTS))  # (n, 5)
    moved = _moved(torch.cat([drawn[name][0] for name in MOVEMENTS]), moves, fill)
    return torch.cat([same, looked_up, *mixed, moved]).index_select(0, order.argsort())


def _mixed(other: Tensor, image: Tensor, share: Tensor) -> Tensor:
    """The mixture other + share (image - other), rounded down as Pillow does."""
    other = other.float()
    share = share.view(-1, *[1] * (image.ndim - 1))
    return (other + share * (image.float() - other)).to(torch.uint8)


# Tables: (n, C, H, W) bytes and (n,) amounts to (n, C, 256) bytes


def _values(images: Tensor) -> Tensor:
    """0 to 255 for each image and channel: the table that changes nothing, (n, C, 256)."""
    return torch.arange(256, device=images.device).expand(*images.shape[:2], 256)


def _autocontrast_table(images: Tensor, share: Tensor) -> Tensor:
    """Each channel stretched to go from 0 to 255, unless it is all the same."""
    values, darkest = _values(images), images.amin(dim=(2, 3)).long().unsqueeze(2)
    width = images.amax(dim=(2, 3)).long().unsqueeze(2) - darkest  # (n, C, 1)
    stretched = ((values - darkest) * 255 // width.clamp_min(1)).clamp(0, 255)
    return _mixed(values, torch.where(width > 0, stretched, values), share)


def _brightness_table(images: Tensor, share: Tensor) -> Tensor:
    return (share.view(-1, 1, 1) * _values(images)).to(torch.uint8)


def _contrast_table(images: Tensor, share: Tensor) -> Tensor:
    grey = _grey(images)
    H, W = grey.shape[2:]
    mean = (2 * grey.sum(dim=(2, 3)) + H * W) // (2 * H * W)  # (n, 1), rounded
    return _mixed(mean.unsqueeze(2), _values(images), share)


def _equalise_table(images: Tensor, share: Tensor) -> Tensor:
    """All values as frequent as can be; Pillow's rule changes nothing in images of less than 256 pixels."""
    values, pixels = _values(images), images.flatten(2).long()  # (n, C, H·W)
    counts = torch.zeros_like(values).scatter_add_(2, pixels, torch.ones_like(pixels))
    darker = counts.cumsum(dim=2) - counts  # how many pixels are darker than each value
    step = darker.gather(2, pixels.amax(dim=2, keepdim=True)) // 255
    equal = ((step // 2 + darker) // step.clamp_min(1)).clamp_max(255)
    return _mixed(values, torch.where(step > 0, equal, values), share)


def _posterise_table(images: Tensor, bits: Tensor) -> Tensor:
    values = _values(images)
    kept = bits.long().clamp(max=8).view(-1, 1, 1)  # the largest draw is rounded up to 9
    return (values - values % 2 ** (8 - kept)).to(torch.uint8)


def _solarise_table(images: Tensor, threshold: Tensor) -> Tensor:
    values = _values(images)
    return torch.where(values < threshold.view(-1, 1, 1), values, 255 - values).to(torch.uint8)


TABLES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast_table,
    "brightness": _brightness_table,
    "contrast": _contrast_table,
    "equalise": _equalise_table,
    "posterise": _posterise_table,
    "solarise": _solarise_table,
}


# Mixtures: (n, C, H, W) bytes to what they are mixed with


def _grey(images: Tensor) -> Tensor:
    """(n, 1, H, W): luma of red, green and blue by ITU-R 601 in whole numbers, or the channels' mean."""
    channels = images.int().split(1, dim=1)
    if len(channels) != 3:
        return torch.cat(channels, dim=1).sum(dim=1, keepdim=True) // len(channels)
    red, green, blue = channels
    grey: Tensor = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return grey


def _smooth(images: Tensor) -> Tensor:
    """A weighted mean of 3×3 pixels, the middle counting 5 and its neighbours 1; the border stays."""
    smooth = images.short()
    across = smooth[..., :-2] + smooth[..., 1:-1] + smooth[..., 2:]
    total = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :] + 4 * smooth[..., 1:-1, 1:-1]
    smooth[..., 1:-1, 1:-1] = (2 * total + 13) // 26  # of 13ths, rounded; at most 6,643, so 16 bits do
    return smooth


MIXTURES: Mapping[str, Callable[[Tensor], Tensor]] = {"colour": _grey, "sharpness": _smooth}


# Movements

MOVEMENTS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def _moved(images: Tensor, moves: Tensor, fill: int) -> Tensor:
    """Images turned about their centre, sheared from their upper left corner and shifted.

    Args:
        images: (n, C, H, W).
        moves: (n, 5), one amount for each of MOVEMENTS.
        fill: Value of what comes from outside.
    """
    H, W = images.shape[2:]
    y = torch.arange(H, dtype=moves.dtype, device=moves.device).view(H, 1) + 0.5  # centres of pixels
    x = torch.arange(W, dtype=moves.dtype, device=moves.device) + 0.5
    degrees, shear_x, shear_y, shift_x, shift_y = moves.view(-1, 5, 1, 1).unbind(dim=1)
    angle = degrees * (math.pi / 180)
    cosine, sine, right, down = angle.cos(), angle.sin(), x - W / 2, y - H / 2
    column = (cosine * right - sine * down + W / 2 + shear_x * y + shift_x * W).floor()  # (n, H, W)
    row = (sine * right + cosine * down + H / 2 + shear_y * x + shift_y * H).floor()
    # A border of one pixel stands for all that is outside.
    bordered = F.pad(images, (1, 1, 1, 1), value=fill).flatten(2)
    source = (row.clamp_(-1, H).long() + 1) * (W + 2) + column.clamp_(-1, W).long() + 1
    source = source.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)  # (n, C, H·W)
    return bordered.gather(2, source).view(images.shape)
