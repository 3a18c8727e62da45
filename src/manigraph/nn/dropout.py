"""Dropout masks that can be drawn twice, and by several processes as by one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from manigraph.sharding import ALONE, Shard


class RandomState:
    """The state of torch's own random numbers on one device, to draw the same ones again.

    Dropout layers of any network take their masks from there. VAT compares predictions of one and
    the same network, so its passes must share their masks: otherwise the noise of the masks, not
    the image, decides the adversarial direction.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._state = self._read()

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw again what was drawn after this state was taken; go on afterwards as if not."""
        present = self._read()
        self._write(self._state)
        try:
            yield
        finally:
            self._write(present)

    def _read(self) -> torch.Tensor:
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.get_rng_state()

    def _write(self, state: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


STEPS = 1 << 16
"""Random numbers that decide whether a value is kept are this many, so rates are multiples of its inverse."""


class Dropout(nn.Dropout):
    """Dropout whose mask is a part of the mask of the whole batch, if this process holds a part of it.

    On most CPUs torch draws one value of a mask at a time on one core, at the cost of the batch norm of those
    values, forward and backward. A quarter of a random word is plenty to decide one.
    """

    shard: Shard = ALONE

    def forward(self, values: Tensor) -> Tensor:
        kept = round((1 - self.p) * STEPS)
        if not self.training or kept in (0, STEPS):
            return super().forward(values)
        mask = _batch_like(values, self.shard.size)
        _draw(mask, kept)
        return values * self.shard.own(mask).mul_(STEPS / kept)


def _batch_like(values: Tensor, times: int) -> Tensor:
    """Memory for a batch of so many times the images, in the order in which `values` are."""
    as_pixels = values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last)
    return torch.empty(
        (len(values) * times, *values.shape[1:]),
        dtype=values.dtype,
        device=values.device,
        memory_format=torch.channels_last if as_pixels else torch.contiguous_format,
    )


def _draw(mask: Tensor, kept: int) -> None:
    """Fill with ones, `kept` of `STEPS` on average, and zeros."""
    words = torch.empty(-(-mask.numel() // 4), dtype=torch.int64, device=mask.device)
    words.random_(-(1 << 63), None)
    quarters = words.view(torch.int16)[: mask.numel()]
    in_memory_order = mask.as_strided((mask.numel(),), (1,))
    torch.lt(quarters, kept - STEPS // 2, out=in_memory_order)


@contextmanager
def dropout_of(module: nn.Module, shard: Shard) -> Iterator[None]:
    """Draw masks as if this process held that part of the batch."""
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout)]
    before = [layer.shard for layer in layers]
    for layer in layers:
        layer.shard = shard
    try:
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.shard = old
