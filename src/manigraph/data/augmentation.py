"""Random changes of whole batches, on the device the batch is on."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Padding = Literal["edge", "reflect", "zero"]


@dataclass(frozen=True)
class AugmentationConfig:
    """How a weakly augmented view is made."""

    translation: int = 2
    """Largest shift in whole pixels, in each direction."""
    padding: Padding = "edge"
    """What a shift brings in at the border: the edge repeated, the image mirrored, or zeros (after
    preprocessing, so the mean)."""
    flip: bool = False
    """Mirror half of the images left to right."""
    rotation: float = 0.0
    """Largest rotation in degrees, to either side."""
    scale: float = 0.0
    """Largest change of the sampling step, as a share: 0.1 shows the image at 91 to 111 %."""

    def __post_init__(self) -> None:
        if min(self.translation, self.rotation) < 0 or not 0 <= self.scale < 1:
            raise ValueError(
                f"translation and rotation must be at least 0 and scale from 0 to below 1, got "
                f"{self.translation}, {self.rotation} and {self.scale}"
            )


def augment(images: Tensor, config: AugmentationConfig, generator: torch.Generator) -> Tensor:
    """One random view of each image; vectors are left as they are."""
    if images.ndim != 4:
        return images
    images = rotate_and_scale(images, config.rotation, config.scale, generator)
    return shift_and_flip(images, config.translation, generator, mirror=config.flip, padding=config.padding)


def shift_and_flip(
    images: Tensor,
    max_pixels: int,
    generator: torch.Generator,
    *,
    mirror: bool = False,
    padding: Padding = "edge",
) -> Tensor:
    """Shift each image by up to `max_pixels` whole pixels, then mirror half of them left to right.

    One gather for the batch: each image has one list of source pixels, which its channels share.
    """
    if max_pixels == 0 and not mirror:
        return images
    B, C, H, W = images.shape
    if padding == "reflect" and max_pixels >= min(H, W):
        raise ValueError(
            f"mirrored borders need shifts below the image's {min(H, W)} pixels, got {max_pixels}"
        )
    device = images.device
    rows = torch.arange(H, device=device).expand(B, H)
    columns = torch.arange(W, device=device).expand(B, W)
    shift = torch.zeros(2, B, 1, dtype=torch.long, device=device)
    if max_pixels:
        shift = torch.randint(-max_pixels, max_pixels + 1, (2, B, 1), generator=generator, device=device)
    if mirror:
        mirrored = torch.rand((B, 1), generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, W - 1 - columns, columns)
    rows, columns = rows + shift[0], columns + shift[1]  # (B, H), (B, W); may point outside
    source = _inside(rows, H, padding).unsqueeze(2) * W + _inside(columns, W, padding).unsqueeze(1)
    shifted = images.reshape(B, C, H * W).gather(2, source.view(B, 1, H * W).expand(B, C, H * W))
    shifted = shifted.view(B, C, H, W)
    if padding == "zero":
        known = _is_inside(rows, H).unsqueeze(2) & _is_inside(columns, W).unsqueeze(1)  # (B, H, W)
        shifted = shifted * known.unsqueeze(1)
    return shifted


def _inside(positions: Tensor, size: int, padding: Padding) -> Tensor:
    """Positions brought back between 0 and size - 1: onto the edge, or mirrored at it."""
    if padding == "reflect":
        return (size - 1) - (size - 1 - positions.abs()).abs()
    return positions.clamp(0, size - 1)


def _is_inside(positions: Tensor, size: int) -> Tensor:
    return (positions >= 0) & (positions < size)


def rotate_and_scale(
    images: Tensor, max_degrees: float, max_scale: float, generator: torch.Generator
) -> Tensor:
    """Turn each image by up to ±`max_degrees` and scale it by 1 ± `max_scale`, bilinearly."""
    if max_degrees == 0 and max_scale == 0:
        return images
    B, _, H, W = images.shape
    draw = 2 * torch.rand((2, B), generator=generator, device=images.device) - 1
    angle = torch.deg2rad(max_degrees * draw[0])
    scale = 1 + max_scale * draw[1]
    cosine, sine, zero = scale * angle.cos(), scale * angle.sin(), torch.zeros_like(angle)
    # The grid runs from -1 to 1 along both sides, so what turns rows into columns carries their ratio.
    matrix = torch.stack([cosine, -sine * (H / W), zero, sine * (W / H), cosine, zero], dim=1)
    grid = F.affine_grid(matrix.view(B, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
