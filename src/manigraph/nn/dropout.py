"""Dropout masks that can be drawn twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
