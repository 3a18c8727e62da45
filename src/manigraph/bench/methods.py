"""What a step of each method costs beyond a lean one: the same step in plain torch (`lean.py`).

Both take turns on one batch that is ready, so that neither pays for data. Ours also sees to it that loss and
gradient are finite, keeps what to go back to if they are not, and writes records; all else is too much.
"""

from collections.abc import Callable

import torch

from manigraph.bench.lean import lean_step
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job
from manigraph.catalogue import ALGORITHMS
from manigraph.contract import Batch
from manigraph.recipes.measured import finish

TARGET = Target("at most", 1.03)
VERSUS = "a lean step in plain torch"

POOL = 45_000
"""Unlabelled images of CIFAR-10 for which there must be room where something is remembered of each."""


WHOLE = NetworkSetting(width=0.25, unlabelled=64)


def time_method(
    algorithm: str, setting: NetworkSetting, patience: Patience, on_round: Callable[[int], None]
) -> Ratio:
    """Our step by the lean one."""
    job = setting.job(algorithm)
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


def run_methods_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All methods; below scale 1 with a tiny network, a quick look that says little about the ratios."""
    setting = WHOLE if scale >= 1 else TINY
    patience = Patience(most_seconds=40).scaled(scale)
    ratios = []
    for algorithm in ALGORITHMS:
        with torch.random.fork_rng():
            ratios.append(time_method(algorithm, setting, patience, _telling(tell, algorithm, setting)))
    return ratios


def _telling(tell: Callable[[str], None], algorithm: str, setting: NetworkSetting) -> Callable[[int], None]:
    return lambda rounds: tell(f"{algorithm}, {setting.name}: round {rounds}")
