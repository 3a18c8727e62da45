"""How long one training step takes: ratios, measured interleaved in one process.

The machine may be shared and noisy, so no absolute time is worth much: every contender takes one
step in turn, again and again, and what is reported is the median over rounds of each round's ratio.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from manigraph.build import build
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import BackboneConfig, Config

BASELINE = "pi_vat"


@dataclass(frozen=True)
class Setting:
    """A network and a batch at which all methods are timed."""

    name: str
    backbone: BackboneConfig | None
    """None means the recipe's own."""
    rounds: int
    paper_graph: bool = False
    """Manifold Graph with the paper's K = 20 and every prototype refined in every image's graph."""


SETTINGS = (
    Setting("digits recipe", None, rounds=30),
    Setting(
        "CNN-13 at width 1/4 on 8x8 images, the paper's graph",
        BackboneConfig("cnn13", width=0.25),
        rounds=10,
        paper_graph=True,
    ),
)


@dataclass(frozen=True)
class Timing:
    """One line of the benchmark."""

    setting: str
    algorithm: str
    milliseconds: float
    """Median time of a step."""
    ratio: float
    """Median over rounds of: this method's step / the step of Π-VAT in the same round."""


def time_steps(setting: Setting, rounds: int, on_round: Callable[[], None]) -> list[Timing]:
    """Time one step of every method, in turns."""
    jobs = {name: build(_config(setting, name)) for name in ALGORITHMS}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 2):
        for name, job in jobs.items():
            began = time.perf_counter()
            job.trainer.train_step(next(job.batches))
            if turn >= 2:  # the first two steps pay for memory and kernels
                seconds[name].append(time.perf_counter() - began)
        on_round()
    return [
        Timing(
            setting=setting.name,
            algorithm=name,
            milliseconds=round(1000 * statistics.median(times), 2),
            ratio=round(statistics.median(a / b for a, b in zip(times, seconds[BASELINE], strict=True)), 3),
        )
        for name, times in seconds.items()
    ]


def _config(setting: Setting, algorithm: str) -> Config[Any]:
    """The recipe with the setting's network; the graph is on from the first step."""
    config = RECIPES.get("digits")(algorithm)
    if setting.backbone is not None:
        config = replace(config, backbone=setting.backbone)
    if algorithm == "manifold_graph":
        graph = {"prototypes_per_class": 20, "prototype_update": "per_image"} if setting.paper_graph else {}
        config = replace(config, method=replace(config.method, warmup_fraction=0.0, **graph))
    return config


def run_benchmark(scale: float, on_round: Callable[[], None]) -> list[Timing]:
    """All settings; `scale` multiplies the number of rounds."""
    with torch.random.fork_rng():
        return [
            timing
            for setting in SETTINGS
            for timing in time_steps(setting, scaled_rounds(setting, scale), on_round)
        ]


def scaled_rounds(setting: Setting, scale: float) -> int:
    """Rounds of a setting, at least one."""
    return max(1, round(scale * setting.rounds))
