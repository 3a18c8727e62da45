"""How long a step of each recipe takes where that was measured, and how fast this machine is against it.

`manigraph bench --sections recipes --measured FILE` writes the figures; `manigraph list recipes` reads them.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manigraph.nn.convolution import Convolution
from manigraph.nn.normalised_activation import Chain
from manigraph.runs import write_json
from manigraph.training.execution import choose_device

MEASURED = Path(__file__).with_name("measured.json")
"""The figures that come with the package."""


@dataclass(frozen=True)
class Measured:
    """One recipe with one algorithm, on the machine that is named."""

    parameters: int
    seconds_per_step: float
    calibration_seconds: float
    """`calibration_seconds` of that machine, in the same minute."""
    images: str
    """What it was measured on."""
    machine: dict[str, Any]
    commit: str | None
    time: str

    def seconds_here(self, steps: int, calibration_here: float) -> float:
        """Expected time of a run on a machine with another calibration."""
        return steps * self.seconds_per_step * calibration_here / self.calibration_seconds


Measurements = dict[str, dict[str, Measured]]
"""Recipe to algorithm to figures."""


def read_measured(path: Path | None = None) -> Measurements:
    """The figures of a file, by default those of the package; none if there is no such file."""
    path = path or MEASURED
    if not path.is_file():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {
        recipe: {algorithm: Measured(**figures) for algorithm, figures in algorithms.items()}
        for recipe, algorithms in values.items()
    }


def add_measured(path: Path, new: Measurements) -> None:
    """Put new figures into a file; those of other recipes and algorithms stay."""
    everything = read_measured(path)
    for recipe, algorithms in new.items():
        everything[recipe] = {**everything.get(recipe, {}), **algorithms}
    write_json(
        path,
        {
            recipe: {algorithm: asdict(figures) for algorithm, figures in algorithms.items()}
            for recipe, algorithms in everything.items()
        },
    )


def calibration_seconds(device: torch.device | None = None, passes: int = 5) -> float:
    """Time of one pass, forward and backward, through layers as CNN-13 has them.

    The fastest of a few, since whatever else the machine does can only make a pass slower. Takes about half
    a second on two idle cores, and leaves the caller's random numbers alone.
    """
    device = device or choose_device("auto")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Chain(
            Convolution(128, 128, 3, padding=1, bias=False),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(2),
            Convolution(128, 256, 3, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(0.1),
        )
        network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in build.py
        images = torch.randn(6, 128, 32, 32).to(device, memory_format=torch.channels_last)
    seconds = []
    for number in range(passes + 1):
        network.zero_grad(set_to_none=True)
        began = time.perf_counter()
        network(images).square().mean().backward()
        finish(device)
        if number > 0:  # the first pass pays for memory and kernels
            seconds.append(time.perf_counter() - began)
    return min(seconds)


def finish(device: torch.device) -> None:
    """Wait for what an accelerator still has to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
