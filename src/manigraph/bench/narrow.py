"""Narrow networks, which most first users will run on a CPU: a step of ours against a plain eager one.

The plain step is the lean one of `lean.py` on weights and images in torch's usual layout (NCHW), with torch's
own dropout and activations that keep what went in.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from manigraph.bench.lean import lean_step
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.contract import Batch
from manigraph.nn.dropout import Dropout
from manigraph.recipes.measured import finish
from manigraph.training.execution import Execution

TARGET = Target("at most", 0.75)
PLAIN = "a plain eager step, NCHW"
ALGORITHM = "pi_vat"


@dataclass(frozen=True)
class NarrowSetting:
    """A small network."""

    name: str
    make_job: Callable[[], Job]


def _digits_job() -> Job:
    """The digits recipe without what lean steps leave out."""
    config = RECIPES.get("digits")(ALGORITHM)
    method = replace(config.method, balance_memory=0, balance_weight=0.0, ramp_fraction=0.0, consistency="kl")
    config = replace(config, method=method, training=replace(config.training, ema_decay=0.0))
    return build(config, execution=Execution(device="cpu"))


SETTINGS = (
    NarrowSetting("digits CNN, 32 + 128 images of 8x8", _digits_job),
    *(
        NarrowSetting(network.name, lambda network=network: network.job(ALGORITHM))  # type: ignore[misc]
        for network in (NetworkSetting(width=1 / 8), NetworkSetting(width=1 / 4))
    ),
)


def contenders(job: Job) -> dict[str, Work]:
    """The plain step and ours, on the same batch again and again."""
    plain, trainer, batch = lean_step(job), job.trainer, next(job.batches)
    make_plain(plain.modules)
    usual = _contiguous(batch)

    def plain_work() -> None:
        plain(usual)
        finish(trainer.device)

    def our_work() -> None:
        trainer.train_step(batch)
        finish(trainer.device)

    return {PLAIN: plain_work, ALGORITHM: our_work}


def make_plain(module: nn.Module) -> None:
    """Turn our networks into what one would write without thinking of speed."""
    for parameter in module.parameters():
        # `contiguous` would leave 1x1 kernels as they are, whose strides say "channels last".
        parameter.data = torch.empty(parameter.shape).copy_(parameter.data)
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.LeakyReLU):
                child.inplace = False
            elif isinstance(child, Dropout):
                setattr(parent, name, nn.Dropout(child.p))


def _contiguous(batch: Batch) -> Batch:
    def usual(views: object) -> dict[str, Tensor]:
        assert isinstance(views, dict)
        return {name: view.contiguous() for name, view in views.items()}

    return replace(batch, labelled=usual(batch.labelled), unlabelled=usual(batch.unlabelled))


def run_narrow_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All settings; below scale 1 a tiny network."""
    settings = SETTINGS if scale >= 1 else (NarrowSetting(TINY.name, lambda: TINY.job(ALGORITHM)),)
    ratios = []
    for setting in settings:
        with torch.random.fork_rng():
            work = contenders(setting.make_job())
            patience = Patience().scaled(scale)
            seconds = take_turns(work, patience, _telling(tell, setting.name))
        ratios.append(ratio_of(seconds, ALGORITHM, PLAIN, setting=setting.name, target=TARGET))
    return ratios


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"narrow, {setting}: round {rounds}")
