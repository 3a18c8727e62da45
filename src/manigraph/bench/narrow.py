"""Narrow networks, which most first users will run on a CPU: a step of ours against a plain eager one.

The plain step is the lean one of `lean.py` on weights and images in torch's usual layout (NCHW), with
torch's own operations, dropout and activations that keep what went in. Each step has a process of its own,
of which only ours keeps its freed memory, as training does. `python -m manigraph.bench.narrow SETTING
CONTENDER` is such a process.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from manigraph.bench.lean import lean_step
from manigraph.bench.settings import TINY, NetworkSetting, use_usual_layout
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.bench.workers import in_processes, serve
from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.contract import Batch
from manigraph.native import native
from manigraph.nn.dropout import Dropout
from manigraph.recipes.measured import finish
from manigraph.training.execution import Execution
from manigraph.training.memory import keep_freed_memory

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


QUICK = NarrowSetting(TINY.name, lambda: TINY.job(ALGORITHM))
SETTINGS = (
    QUICK,
    NarrowSetting("digits CNN, 32 + 128 images of 8x8", _digits_job),
    *(
        NarrowSetting(network.name, lambda network=network: network.job(ALGORITHM))  # type: ignore[misc]
        for network in (NetworkSetting(width=1 / 8), NetworkSetting(width=1 / 4))
    ),
)


def work_of(contender: str, job: Job) -> Work:
    """The plain step or ours, on the same batch again and again."""
    trainer, batch = job.trainer, next(job.batches)
    if contender == PLAIN:
        plain, usual = lean_step(job), _contiguous(batch)
        make_plain(plain.modules)

    def work() -> None:
        if contender == PLAIN:
            with native(False):
                plain(usual)
        else:
            trainer.train_step(batch)
        finish(trainer.device)

    return work


def make_plain(module: nn.Module) -> None:
    """Turn our networks into what one would write without thinking of speed."""
    use_usual_layout(module)
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
    ratios = []
    for number, setting in enumerate(SETTINGS):
        if (setting is QUICK) == (scale >= 1):
            continue
        processes = {contender: (str(number), contender) for contender in (PLAIN, ALGORITHM)}
        with in_processes(__name__, processes) as contenders:
            patience = Patience().scaled(scale)
            seconds = take_turns(contenders, patience, _telling(tell, setting.name))
        ratios.append(ratio_of(seconds, ALGORITHM, PLAIN, setting=setting.name, target=TARGET))
    return ratios


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"narrow, {setting}: round {rounds}")


if __name__ == "__main__":
    if sys.argv[2] != PLAIN:
        keep_freed_memory()
    serve(work_of(sys.argv[2], SETTINGS[int(sys.argv[1])].make_job()))
