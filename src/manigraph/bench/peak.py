"""How near a step comes to what the machine can multiply: the physical limit."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.build import Job

SIDE = 2048
"""Of the matrices whose product is the limit."""


@dataclass(frozen=True)
class PeakShare:
    """A training step against products of large matrices, in turns."""

    setting: str
    algorithm: str
    peak_gigaflops: float
    """Multiplications and additions per second of a product of matrices, in 10⁹."""
    step_gigaflops: float
    """The same of all convolutions and products of a step."""
    share: float
    step_seconds: float


def operations_of_a_step(job: Job) -> int:
    """Multiplications and additions of convolutions and products, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        job.trainer.train_step(next(job.batches))
    return int(counter.get_total_flops())


def measure_peak_share(
    algorithm: str, setting: NetworkSetting, rounds: int, on_round: Callable[[int], None]
) -> PeakShare:
    """Median over rounds of the share."""
    job = setting.job(algorithm)
    operations = operations_of_a_step(job)
    left, right = (torch.randn(SIDE, SIDE) for _ in range(2))
    out = left @ right
    peaks, steps = [], []
    for turn in range(rounds):
        began = time.perf_counter()
        for _ in range(5):
            torch.mm(left, right, out=out)
        peaks.append(5 * 2 * SIDE**3 / (time.perf_counter() - began))
        began = time.perf_counter()
        job.trainer.train_step(next(job.batches))
        steps.append(time.perf_counter() - began)
        on_round(turn + 1)
    shares = [operations / seconds / peak for seconds, peak in zip(steps, peaks, strict=True)]
    return PeakShare(
        setting=setting.name,
        algorithm=algorithm,
        peak_gigaflops=round(median(peaks) / 1e9, 1),
        step_gigaflops=round(operations / median(steps) / 1e9, 1),
        share=round(median(shares), 3),
        step_seconds=round(median(steps), 3),
    )


def run_peak_benchmark(scale: float, tell: Callable[[str], None]) -> list[PeakShare]:
    """The paper's width and narrow ones; below scale 1 a tiny network."""
    settings = [NetworkSetting(width=width) for width in (1.0, 1 / 4, 1 / 8)] if scale >= 1 else [TINY]
    shares = []
    for setting in settings:
        rounds = max(1, round(scale * (5 if setting.width == 1 else 10)))
        with torch.random.fork_rng():
            shares.append(measure_peak_share("pi_vat", setting, rounds, _telling(tell, setting.name)))
    return shares


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"peak, {setting}: round {rounds}")
