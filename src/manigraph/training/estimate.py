"""What a run will cost on this machine, from a few measured steps that leave no trace."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from manigraph.contract import Batch
from manigraph.data.batches import BatchStream
from manigraph.training.loop import Trainer

MEASURED_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    parameters: int
    seconds_per_step: float
    """Of those with images as they are."""
    seconds: float
    """All steps that are left, and all evaluations."""
    peak_bytes: int
    """Memory of the process, or of its GPU."""
    half_size_steps: int = 0
    """Steps of the run, before all others, with images of half their size."""
    seconds_per_half_size_step: float = 0.0

    def seconds_of(self, steps: int) -> float:
        """Of the first so many steps of the run."""
        small = min(steps, self.half_size_steps)
        return small * self.seconds_per_half_size_step + (steps - small) * self.seconds_per_step


def estimate_run(
    trainer: Trainer, batches: BatchStream, evaluate_some: Callable[[], int], evaluated_images: int
) -> Estimate:
    """Measure some steps, and put everything back as it was.

    Args:
        trainer: Before its first step, or wherever it is to go on.
        batches: Its batches.
        evaluate_some: Predicts a few images and returns how many.
        evaluated_images: Images of all evaluations of the run together.
    """
    before, place = trainer.snapshot(), batches.state_dict()
    try:
        return _measure(trainer, batches, evaluate_some, evaluated_images, trainer.step)
    finally:
        trainer.restore(before)
        batches.load_state_dict(place)


def _measure(
    trainer: Trainer,
    batches: BatchStream,
    evaluate_some: Callable[[], int],
    evaluated_images: int,
    first_step: int,
) -> Estimate:
    config = trainer.config
    trainer.algorithm.train()
    seconds_per_step = _seconds_per_step(trainer, batches)
    smaller = 0.0
    if config.half_size_steps:
        smaller = _seconds_per_step(trainer, (batch.half_size() for batch in batches))
    began = time.perf_counter()
    predicted = evaluate_some()
    _finish(trainer.device)
    seconds_per_image = (time.perf_counter() - began) / max(predicted, 1)
    estimate = Estimate(
        parameters=sum(parameter.numel() for parameter in trainer.algorithm.parameters()),
        seconds_per_step=seconds_per_step,
        seconds=evaluated_images * seconds_per_image,
        peak_bytes=_peak_bytes(trainer.device),
        half_size_steps=config.half_size_steps,
        seconds_per_half_size_step=smaller,
    )
    steps = estimate.seconds_of(config.steps) - estimate.seconds_of(first_step)
    return replace(estimate, seconds=estimate.seconds + steps)


def _seconds_per_step(trainer: Trainer, batches: Iterator[Batch]) -> float:
    seconds = []
    for _ in range(MEASURED_STEPS + 1):
        # The last step of the run has all of the method in it, and the smallest learning rate.
        trainer.step = trainer.config.steps - 1
        began = time.perf_counter()
        trainer.train_step(next(batches))
        _finish(trainer.device)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[1:])[MEASURED_STEPS // 2]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # what the process itself had; the figure below may be that of the process it was started from
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
