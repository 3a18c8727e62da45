"""What the inner loops in C bring: a step with them by the same step with torch's own operations."""

from collections.abc import Callable

import torch

from manigraph import native
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.steps import StepSetting
from manigraph.bench.turns import Patience, Ratio, Work, ratio_of, take_turns
from manigraph.build import Job
from manigraph.errors import UserError
from manigraph.recipes.measured import finish

OURS, TORCH = "with inner loops in C", "torch's own operations"
ALGORITHMS = ("pi_vat", "manifold_graph")
NETWORKS = (None, NetworkSetting(width=1 / 8), NetworkSetting(width=1 / 4), NetworkSetting())
"""None means the digits recipe."""


def contenders(job: Job) -> dict[str, Work]:
    """A step on the same batch again and again, either way."""
    batch = next(job.batches)

    def step(use: bool) -> Work:
        def work() -> None:
            with native.native(use):
                job.trainer.train_step(batch)
            finish(job.trainer.device)

        return work

    return {TORCH: step(False), OURS: step(True)}


def run_native_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All networks; below scale 1 a tiny one.

    Raises:
        UserError: There are no inner loops here.
    """
    if native.library() is None:
        raise UserError("the inner loops in C are not here: install manigraph again where there is gcc")
    ratios = []
    for network in NETWORKS if scale >= 1 else (TINY,):
        for algorithm in ALGORITHMS:
            setting = StepSetting(network, None)
            with torch.random.fork_rng():
                work = contenders(setting.job(algorithm))
                patience = Patience(tolerance=0.02).scaled(scale)
                seconds = take_turns(work, patience, _telling(tell, setting.name))
            name = f"{algorithm}, {setting.name}"
            ratios.append(ratio_of(seconds, OURS, TORCH, setting=name))
    return ratios


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"inner loops, {setting}: round {rounds}")
