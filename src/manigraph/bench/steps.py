"""How long a training step of each method takes by one of Π-VAT: what the graph costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.recipes.measured import finish
from manigraph.training.execution import Execution

BASELINE = "pi_vat"
GRAPH = ("pi_vat", "manifold_graph")


@dataclass(frozen=True)
class StepSetting:
    """Which methods are timed where, and what the graph may cost there."""

    network: NetworkSetting | None
    """None means the digits recipe."""
    target: Target | None
    algorithms: Sequence[str] = GRAPH
    only_whole: bool = False
    """Left out of a quick look."""

    @property
    def name(self) -> str:
        """In words."""
        return "digits recipe" if self.network is None else self.network.name

    def job(self, algorithm: str) -> Job:
        """Ready to train, with the graph on from the first step."""
        if self.network is not None:
            return self.network.job(algorithm)
        config = RECIPES.get("digits")(algorithm)
        if algorithm == "manifold_graph":
            config = replace(config, method=replace(config.method, warmup_fraction=0.0))
        return build(config, execution=Execution(device="cpu"))


SETTINGS = (
    StepSetting(None, Target("at most", 1.3)),
    StepSetting(None, None, tuple(name for name in ALGORITHMS if name not in GRAPH)),
    StepSetting(NetworkSetting(width=0.25), Target("at most", 1.15)),
    StepSetting(NetworkSetting(), Target("at most", 1.05), only_whole=True),
    StepSetting(NetworkSetting(classes=100), Target("at most", 1.10), only_whole=True),
)


def time_steps(setting: StepSetting, patience: Patience, on_round: Callable[[int], None]) -> list[Ratio]:
    """Each method by Π-VAT; batches are made in the step, as in training."""
    jobs = {name: setting.job(name) for name in (BASELINE, *setting.algorithms)}
    seconds = take_turns({name: _step(job) for name, job in jobs.items()}, patience, on_round)
    return [
        ratio_of(
            seconds,
            name,
            BASELINE,
            setting=setting.name,
            target=setting.target,
        )
        for name in setting.algorithms
        if name != BASELINE
    ]


def _step(job: Job) -> Work:
    def step() -> None:
        job.trainer.train_step(next(job.batches))
        finish(job.trainer.device)

    return step


def run_steps_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All settings; below scale 1 the small ones, CNN-13 as a tiny network."""
    ratios = []
    for setting in SETTINGS:
        if scale < 1 and setting.only_whole:
            continue
        if scale < 1 and setting.network is not None:
            setting = replace(setting, network=TINY)
        with torch.random.fork_rng():
            patience = Patience(most_seconds=250 if setting.only_whole else 100).scaled(scale)
            ratios += time_steps(setting, patience, _telling(tell, setting.name))
    return ratios


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"steps, {setting}: round {rounds}")
