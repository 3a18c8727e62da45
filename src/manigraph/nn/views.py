"""A trained model, asked about several views of each image."""

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class AveragedViews(nn.Module):
    """The mean of what a model says about an image, its neighbours a pixel away, and all of them mirrored.

    Args:
        model: Images to logits.
        shift: Whether to look at the image shifted by one pixel up, down, left and right.
        mirror: Whether to look at each of these mirrored left to right too.
        padding: What a shift brings in at the border: the edge repeated, or the image mirrored.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        shift: bool = True,
        mirror: bool = False,
        padding: Literal["edge", "reflect"] = "edge",
    ) -> None:
        super().__init__()
        self.model = model
        self.shift = shift
        self.mirror = mirror
        self.padding = padding

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logarithms of the mean probabilities."""
        log_probs = torch.stack([self.model(view).log_softmax(dim=1) for view in self._views(images)])
        return log_probs.logsumexp(dim=0) - math.log(len(log_probs))

    def _views(self, images: Tensor) -> Iterator[Tensor]:
        H, W = images.shape[2:]
        places = [(1, 1)]
        if self.shift:
            places += [(0, 1), (2, 1), (1, 0), (1, 2)]
            mode = "replicate" if self.padding == "edge" else "reflect"
            wide = F.pad(images, (1, 1, 1, 1), mode=mode)
        for top, left in places:
            view = wide[:, :, top : top + H, left : left + W] if self.shift else images
            yield view
            if self.mirror:
                yield view.flip(3)
