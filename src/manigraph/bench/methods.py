"""What a step of each method costs beyond a lean one: the same step in plain torch (`lean.py`).

Both take turns on one batch that is ready, so that neither pays for data. Ours also sees to it that loss and
gradient are finite, keeps what to go back to if they are not, and writes records; all else is too much.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from manigraph.bench.data import random_dataset
from manigraph.bench.lean import lean_step
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import Config
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.recipes.measured import finish

TARGET = Target("at most", 1.03)
VERSUS = "a lean step in plain torch"

POOL = 45_000
"""Unlabelled images of CIFAR-10 for which there must be room where something is remembered of each."""


@dataclass(frozen=True)
class MethodSetting:
    """A network and a batch."""

    width: float
    labelled: int
    unlabelled: int
    side: int

    @property
    def name(self) -> str:
        """In words."""
        images = f"{self.labelled} + {self.unlabelled} images of {self.side}x{self.side}"
        return f"CNN-13 at width {self.width:g}, {images}"


WHOLE = MethodSetting(width=0.25, labelled=32, unlabelled=64, side=32)
TINY = MethodSetting(width=1 / 16, labelled=10, unlabelled=20, side=8)


def time_method(
    algorithm: str, setting: MethodSetting, patience: Patience, on_round: Callable[[int], None]
) -> Ratio:
    """Our step by the lean one."""
    job = build(_config(algorithm, setting), dataset=random_dataset(4000, setting.side))
    job.trainer.algorithm.expect_images(POOL)
    batch = next(job.batches)
    seconds = take_turns(contenders(algorithm, job, batch), patience, on_round)
    return ratio_of(seconds, algorithm, VERSUS, setting=setting.name, target=TARGET)


def contenders(algorithm: str, job: Job, batch: Batch) -> dict[str, Work]:
    """The lean step and ours, both with the same batch again and again."""
    lean, trainer = lean_step(job), job.trainer

    def lean_work() -> None:
        lean(batch)
        finish(trainer.device)

    def our_work() -> None:
        trainer.train_step(batch)
        finish(trainer.device)

    return {VERSUS: lean_work, algorithm: our_work}


def _config(algorithm: str, setting: MethodSetting) -> Config[Any]:
    """The paper's recipe at the setting's size, with the graph on."""
    config = RECIPES.get("cifar10")(algorithm)
    if algorithm == "manifold_graph":
        config = replace(config, method=replace(config.method, warmup_fraction=0.0))
    return replace(
        config,
        data=replace(config.data, labels=1000, validation=0),
        preprocessing=replace(config.preprocessing, kind="standardise"),
        backbone=replace(config.backbone, width=setting.width),
        batch=BatchConfig(labelled=setting.labelled, unlabelled=setting.unlabelled),
    )


def run_methods_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All methods; below scale 1 with a tiny network, a quick look that says little about the ratios."""
    setting = WHOLE if scale >= 1 else TINY
    patience = Patience().scaled(scale)
    ratios = []
    for algorithm in ALGORITHMS:
        with torch.random.fork_rng():
            ratios.append(time_method(algorithm, setting, patience, _telling(tell, algorithm, setting)))
    return ratios


def _telling(tell: Callable[[str], None], algorithm: str, setting: MethodSetting) -> Callable[[int], None]:
    return lambda rounds: tell(f"{algorithm}, {setting.name}: round {rounds}")
