"""Random changes of whole batches, on the device the batch is on."""

import torch
import torch.nn.functional as F
from torch import Tensor


def translate(images: Tensor, max_pixels: int, generator: torch.Generator) -> Tensor:
    """Shift each image by a whole number of pixels up to `max_pixels`, edges repeated.

    One gather for the batch: row and column indices per image, clamped to the edge.
    """
    if max_pixels == 0:
        return images
    B, C, H, W = images.shape
    device = images.device
    shift = torch.randint(-max_pixels, max_pixels + 1, (2, B, 1), generator=generator, device=device)
    rows = (torch.arange(H, device=device) + shift[0]).clamp(0, H - 1)  # (B, H)
    columns = (torch.arange(W, device=device) + shift[1]).clamp(0, W - 1)  # (B, W)
    batch = torch.arange(B, device=device).view(B, 1, 1, 1)
    channel = torch.arange(C, device=device).view(1, C, 1, 1)
    return images[batch, channel, rows.view(B, 1, H, 1), columns.view(B, 1, 1, W)]


def rotate_and_scale(
    images: Tensor, max_degrees: float, max_scale: float, generator: torch.Generator
) -> Tensor:
    """Turn each image by up to ±`max_degrees` and scale it by 1 ± `max_scale`, bilinearly."""
    if max_degrees == 0 and max_scale == 0:
        return images
    B = len(images)
    draw = 2 * torch.rand((2, B), generator=generator, device=images.device) - 1
    angle = torch.deg2rad(max_degrees * draw[0])
    scale = 1 + max_scale * draw[1]
    cosine, sine, zero = scale * angle.cos(), scale * angle.sin(), torch.zeros_like(angle)
    matrix = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).view(B, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    mirrored = torch.rand((len(images), 1, 1, 1), generator=generator, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)
