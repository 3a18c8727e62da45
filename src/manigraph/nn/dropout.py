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


class Dropout(nn.Dropout):
    """Dropout whose mask is a part of the mask of the whole batch, if this process holds a part of it."""

    shard: Shard = ALONE

    def forward(self, values: Tensor) -> Tensor:
        shard = self.shard
        # On a GPU torch's own kernel maps random numbers to values in another order.
        is_alone = shard.size == 1 and not values.is_cuda
        if is_alone or not self.training or self.p == 0:
            return super().forward(values)
        as_pixels = values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last)
        mask = torch.empty(
            (len(values) * shard.size, *values.shape[1:]),
            dtype=values.dtype,
            device=values.device,
            memory_format=torch.channels_last if as_pixels else torch.contiguous_format,
        )
        keep = 1 - self.p
        return values * shard.own(mask.bernoulli_(keep)) / keep


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
