"""Random changes of whole batches, on the device the batch is on."""

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.contract import NEUTRAL
from manigraph.sharding import ALONE, Shard

Padding = Literal["edge", "reflect"]


@dataclass(frozen=True)
class AugmentationConfig:
    """How a weakly augmented view is made."""

    translation: int = 2
    """Largest shift in whole pixels, in each direction."""
    padding: Padding = "edge"
    """What a shift brings in at the border: the edge repeated, or the image mirrored."""
    flip: bool = False
    """Mirror half of the images left to right."""
    rotation: float = 0.0
    """Largest rotation in degrees, to either side."""
    scale: float = 0.0
    """Largest change of the sampling step, as a share: 0.1 shows the image at 91 to 111 %."""
    neighbours: int = field(default=0, metadata=NEUTRAL)
    """Vectors: a view lies on the way to one of so many nearest ones, up to half of it; 0 means no views."""

    def __post_init__(self) -> None:
        if min(self.translation, self.rotation) < 0 or not 0 <= self.scale < 1:
            raise ValueError(
                f"translation and rotation must be at least 0 and scale from 0 to below 1, got "
                f"{self.translation}, {self.rotation} and {self.scale}"
            )
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be at least 0, got {self.neighbours}")


def augment(
    images: Tensor,
    config: AugmentationConfig,
    generator: torch.Generator,
    shard: Shard = ALONE,
) -> Tensor:
    """One random view of each image; vectors are left as they are.

    Args:
        images: (B, C, H, W), this process's part of the batch.
        config: Which changes, and how strong.
        generator: Source of randomness, which agrees in all processes.
        shard: Which part of the batch the images are; random numbers are drawn for all of it.
    """
    if images.ndim != 4:
        return images
    images = rotate_and_scale(images, config.rotation, config.scale, generator, shard)
    return shift_and_flip(
        images, config.translation, generator, mirror=config.flip, padding=config.padding, shard=shard
    )


def shift_and_flip(
    images: Tensor,
    max_pixels: int,
    generator: torch.Generator,
    *,
    mirror: bool = False,
    padding: Padding = "edge",
    shard: Shard = ALONE,
) -> Tensor:
    """Shift each image by up to `max_pixels` whole pixels, then mirror half of them left to right.

    Rows get a border on both sides; a shifted row is then a window of consecutive pixels, and whole rows
    are copied.
    """
    if max_pixels == 0 and not mirror:
        return images
    B, C, H, W = images.shape
    if padding == "reflect" and max_pixels >= min(H, W):
        raise ValueError(
            f"mirrored borders need shifts below the image's {min(H, W)} pixels, got {max_pixels}"
        )
    device, border = images.device, max_pixels
    down = right = torch.zeros((B, 1), dtype=torch.long, device=device)
    if border:
        whole = (2, B * shard.size, 1)
        draws = torch.randint(-border, border + 1, whole, generator=generator, device=device)
        down, right = (shard.own(draw) for draw in draws)
    if mirror:
        # Mirrored first and then shifted the other way, which is the same. Choosing whole images from both
        # kinds takes a tenth of the time of `torch.where` on bytes.
        mirrored = shard.own(torch.rand((B * shard.size, 1), generator=generator, device=device)) < 0.5
        right = torch.where(mirrored, -right, right)
        both = torch.cat([images, images.flip(3)])
        images = both.index_select(0, torch.arange(B, device=device) + B * mirrored.view(B))
    if border == 0:
        return images
    wide = _with_borders(images, border, padding)  # (B, C, H, W + 2 border)
    rows = _inside(torch.arange(H, device=device) + down, H, padding)  # (B, H)
    row_starts = rows * wide.shape[3] + (right + border)
    plane_starts = (torch.arange(B * C, device=device) * wide[0, 0].numel()).view(B, C, 1)
    windows = wide.view(-1).as_strided((wide.numel() - W + 1, W), (1, 1))
    return windows.index_select(0, (row_starts.unsqueeze(1) + plane_starts).view(-1)).view(B, C, H, W)


def _with_borders(images: Tensor, border: int, padding: Padding) -> Tensor:
    """Images with `border` more columns on either side."""
    B, C, H, W = images.shape
    wide = images.new_empty(B, C, H, W + 2 * border)
    wide[..., border:-border] = images
    for distance in range(1, border + 1):  # column by column: three times as fast as all at once
        inward = 0 if padding == "edge" else distance
        wide[..., border - distance] = images[..., inward]
        wide[..., border + W - 1 + distance] = images[..., W - 1 - inward]
    return wide


def _inside(rows: Tensor, size: int, padding: Padding) -> Tensor:
    """Row numbers brought back between 0 and size - 1: onto the edge, or mirrored at it."""
    if padding == "reflect":
        return (size - 1) - (size - 1 - rows.abs()).abs()
    return rows.clamp(0, size - 1)


def rotate_and_scale(
    images: Tensor,
    max_degrees: float,
    max_scale: float,
    generator: torch.Generator,
    shard: Shard = ALONE,
) -> Tensor:
    """Turn each image by up to ±`max_degrees` and scale it by 1 ± `max_scale`, bilinearly."""
    if max_degrees == 0 and max_scale == 0:
        return images
    B, _, H, W = images.shape
    draws = 2 * torch.rand((2, B * shard.size), generator=generator, device=images.device) - 1
    turn, stretch = (shard.own(draw) for draw in draws)
    angle = torch.deg2rad(max_degrees * turn)
    scale = 1 + max_scale * stretch
    cosine, sine, zero = scale * angle.cos(), scale * angle.sin(), torch.zeros_like(angle)
    # The grid runs from -1 to 1 along both sides, so what turns rows into columns carries their ratio.
    matrix = torch.stack([cosine, -sine * (H / W), zero, sine * (W / H), cosine, zero], dim=1)
    grid = F.affine_grid(matrix.view(B, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
