"""What every pretrained network looks like from outside."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.errors import UserError

PART = 32
"""Images that go through the network at once: what they become on the way then stays in the processor's
cache. Twice as many took a fifth longer."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen, pretrained network that turns photographs into vectors.

    Images are looked at in their own size if it is between `smallest_size` and `image_size`, else in the
    nearest of these: what was shrunk to 32 pixels does not become sharper at 224, only slower.
    """

    name: str
    """As in `--data.features`."""
    network: nn.Module
    """(B, 3, H, W) float, standardised, to (B, D)."""
    digest: str
    """Of its weights: others would give other features."""
    feature_size: int
    """D."""
    image_size: int
    """Longer side of the largest images it looks at; larger ones are best decoded at this size."""
    smallest_size: int
    """Shorter side of the smallest images it looks at; smaller ones are enlarged."""
    mean: Sequence[float]
    """Of each channel, for pixels from 0 to 255."""
    std: Sequence[float]

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features of images.

        Args:
            images: (B, 3, H, W) uint8; a single channel is taken for grey.

        Returns:
            (B, D) float32, on the CPU.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UserError(
                f"'{self.name}' looks at images of bytes (images, 1 or 3 channels, height, width), got "
                f"{images.dtype} {tuple(images.shape)}"
            )
        features = torch.empty(len(images), self.feature_size)
        for start in range(0, len(images), PART):
            part = slice(start, start + PART)
            features[part] = self.network(self.prepared(images[part]))
        return features

    def prepared(self, images: Tensor) -> Tensor:
        """(B, 1 or 3, H, W) bytes to what the network takes."""
        pixels = images.float().expand(-1, 3, -1, -1)
        size = self.size_for(images.shape[2], images.shape[3])
        if size != tuple(images.shape[2:]):
            smaller = size[0] < images.shape[2]
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=smaller)
        mean, std = (torch.tensor(list(figures)).view(1, 3, 1, 1) for figures in (self.mean, self.std))
        return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """The height and width in which an image of this size is looked at."""
        factor = 1.0
        if min(height, width) < self.smallest_size:
            factor = self.smallest_size / min(height, width)
        if factor * max(height, width) > self.image_size:
            factor = self.image_size / max(height, width)
        return math.ceil(height * factor - 1e-9), math.ceil(width * factor - 1e-9)


class BothWays(nn.Module):
    """Mean of the features of an image and of its mirror image: for what looks the same from either side."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, D)."""
        mean: Tensor = (self.network(images) + self.network(images.flip(3))) / 2
        return mean


def weights_digest(network: nn.Module) -> str:
    """SHA-256 of all weights."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


EncoderFamily = Callable[[str], Encoder]
"""From what follows the colon in a name (`timm:NAME`) to an encoder; empty if there is no colon."""
