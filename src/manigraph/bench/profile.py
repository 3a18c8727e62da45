"""Where the time of a step goes, by kind of operation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.steps import StepSetting
from manigraph.bench.turns import Target
from manigraph.build import Job

KINDS = {
    "convolutions": ("convolution", "Winograd"),
    "batch norm, with its activation where they are one": ("batch_norm", "NormalisedActivation"),
    "other activations": ("leaky_relu",),
    "classification of prototypes": ("PrototypeCrossEntropy",),
    "products of matrices": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "linear"),
    "pooling": ("max_pool", "avg_pool"),
    "random numbers": ("random_", "normal_", "bernoulli_", "uniform_", "randint", "aten::lt"),
    "memory: copies, zeros, sums of gradients": ("copy_", "fill_", "zero_", "aten::add_", "aten::cat"),
}
OTHER = "other operations"


@dataclass(frozen=True)
class TimeShare:
    """The share of one kind of operation in the time of a step."""

    setting: str
    algorithm: str
    kind: str
    share: float


def kind_of(operation: str) -> str:
    """The first kind whose words are in the name."""
    return next((kind for kind, words in KINDS.items() if any(w in operation for w in words)), OTHER)


def measure_profile(job: Job, steps: int) -> dict[str, float]:
    """Shares that add up to 1, the largest first."""
    job.trainer.train_step(next(job.batches))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            job.trainer.train_step(next(job.batches))
    times = dict.fromkeys([*KINDS, OTHER], 0.0)
    events: Any = profiler.key_averages()
    for event in events:
        times[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(times.values())
    return {kind: time / total for kind, time in sorted(times.items(), key=lambda pair: -pair[1])}


def run_profile_benchmark(scale: float, tell: Callable[[str], None]) -> list[TimeShare]:
    """Π-VAT and Manifold Graph at the paper's width, a quarter of it and on digits; below scale 1 tiny."""
    networks: list[NetworkSetting | None] = [None, NetworkSetting(width=0.25), NetworkSetting()]
    shares = []
    for network in networks if scale >= 1 else [TINY]:
        setting = StepSetting(network, Target("at most", 1.0))
        steps = 20 if network is None else 2
        for algorithm in ("pi_vat", "manifold_graph"):
            tell(f"{algorithm}, {setting.name}")
            with torch.random.fork_rng():
                found = measure_profile(setting.job(algorithm), steps)
            shares += [TimeShare(setting.name, algorithm, k, round(s, 4)) for k, s in found.items()]
    return shares
