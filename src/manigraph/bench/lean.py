"""Lean steps: what a step of ours is measured against.

Each is the method in plain torch, written inline as for a paper (`lean_steps.py`), on copies of our networks:
no repeated pass, no gradient that nobody needs, no check of any number, no record. Settings are those of the
paper's recipes; what these leave out (balanced targets, mixed precision, several processes) is left out here,
and a run that asks for it is refused. Random numbers are drawn as our steps draw them, so that all weights
and memories stay equal to ours up to rounding, which `tests/bench/test_lean.py` sees to.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.bench import lean_steps
from manigraph.bench.lean_parts import Step, Update
from manigraph.build import Job
from manigraph.catalogue import ALGORITHMS
from manigraph.contract import Batch

LEAN: Mapping[str, Callable[[Any, Update], Step]] = {
    "supervised": lean_steps.supervised,
    "pseudo_label": lean_steps.pseudo_label,
    "pi_model": lean_steps.pi_model,
    "vat": lean_steps.vat,
    "pi_vat": lean_steps.pi_vat,
    "mean_teacher": lean_steps.mean_teacher,
    "temporal_ensembling": lean_steps.temporal_ensembling,
    "sntg": lean_steps.sntg,
    "mixup": lean_steps.mixup,
    "mixmatch": lean_steps.mixmatch,
    "fixmatch": lean_steps.fixmatch,
    "fast_swa": lean_steps.fast_swa,
    "deep_cotraining": lean_steps.deep_cotraining,
    "memory": lean_steps.memory,
    "compact_clustering": lean_steps.compact_clustering,
    "manifold_graph": lean_steps.manifold_graph,
}
"""Method to the function that makes its lean step, from the modules that the step may change."""


@dataclass(frozen=True)
class LeanStep:
    """Call it with a batch to make a step."""

    step: Step
    modules: Algorithm[Any]
    """Where the step keeps its weights, running statistics and memories; nothing else of it is used."""
    average: list[Tensor]
    """The averaged weights of fast-SWA, in the order of the parameters; else empty."""

    def __call__(self, batch: Batch) -> None:
        self.step(batch)


def lean_step(job: Job) -> LeanStep:
    """The lean step of a job's method, from where the job is now; the job itself is left alone.

    Raises:
        ValueError: The job has settings that lean steps do without.
    """
    trainer = job.trainer
    (name,) = (name for name in ALGORITHMS if ALGORITHMS.get(name) is type(trainer.algorithm))
    _check_settings(job)
    modules = copy.deepcopy(trainer.algorithm)
    update = Update(modules, trainer)
    return LeanStep(LEAN[name](modules, update), modules, update.average)


FIXED = ("num_power_iterations", "num_views", "num_heads")
"""Numbers that are written into the lean steps."""


def _check_settings(job: Job) -> None:
    """Choices, and what is off by default, are written into the lean steps."""
    trainer, config = job.trainer, job.trainer.algorithm.config
    for field in dataclasses.fields(config):
        is_fixed = isinstance(field.default, str) or not field.default or field.name in FIXED
        if is_fixed and getattr(config, field.name) != field.default:
            raise ValueError(
                f"lean steps are made for {field.name} {field.default}, got {getattr(config, field.name)}"
            )
    if getattr(config, "warmup_fraction", 0.0) > 0:
        raise ValueError(f"lean steps have no warm-up, got warmup_fraction {config.warmup_fraction}")
    if trainer.config.precision != "float32" or trainer.config.ema_decay > 0:
        raise ValueError(
            f"lean steps are made for precision float32 and ema_decay 0, got {trainer.config.precision} and "
            f"{trainer.config.ema_decay}"
        )
    is_averaged = trainer.config.swa_fraction > 0
    if is_averaged and not (trainer.algorithm.needs_weight_average and trainer.config.swa_every > 0):
        raise ValueError(
            f"lean steps average weights for fast_swa alone, every now and then, got swa_fraction "
            f"{trainer.config.swa_fraction} and swa_every {trainer.config.swa_every}"
        )
    if trainer.processes.shard.size > 1:
        raise ValueError(f"lean steps are made for one process, got {trainer.processes.shard.size}")
