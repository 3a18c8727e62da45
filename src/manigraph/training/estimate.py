"""What a run will cost on this machine, from a few measured steps that leave no trace."""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from manigraph.data.batches import BatchStream
from manigraph.training.loop import Trainer

MEASURED_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    parameters: int
    seconds_per_step: float
    seconds: float
    """All steps that are left, and all evaluations."""
    peak_bytes: int
    """Memory of the process, or of its GPU."""


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
        return _measure(
            trainer, batches, evaluate_some, evaluated_images, trainer.config.steps - trainer.step
        )
    finally:
        trainer.restore(before)
        batches.load_state_dict(place)


def _measure(
    trainer: Trainer,
    batches: BatchStream,
    evaluate_some: Callable[[], int],
    evaluated_images: int,
    steps_left: int,
) -> Estimate:
    seconds = []
    trainer.algorithm.train()
    for _ in range(MEASURED_STEPS + 1):
        # The last step of the run has all of the method in it, and the smallest learning rate.
        trainer.step = trainer.config.steps - 1
        began = time.perf_counter()
        trainer.train_step(next(batches))
        _finish(trainer.device)
        seconds.append(time.perf_counter() - began)
    seconds_per_step = sorted(seconds[1:])[MEASURED_STEPS // 2]
    began = time.perf_counter()
    predicted = evaluate_some()
    _finish(trainer.device)
    seconds_per_image = (time.perf_counter() - began) / max(predicted, 1)
    return Estimate(
        parameters=sum(parameter.numel() for parameter in trainer.algorithm.parameters()),
        seconds_per_step=seconds_per_step,
        seconds=steps_left * seconds_per_step + evaluated_images * seconds_per_image,
        peak_bytes=_peak_bytes(trainer.device),
    )


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
