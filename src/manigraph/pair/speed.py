"""Facts about a data set, and how fast a configuration and its control are on this machine."""

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from manigraph.build import build
from manigraph.config import Config
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.recipes.automatic import Facts, Speed, control_of
from manigraph.training.estimate import estimate_run
from manigraph.training.evaluation import predict_logits
from manigraph.training.execution import Execution
from manigraph.training.processes import Processes

SOME_IMAGES = 128
"""Images that are predicted to see how long that takes."""


def facts_about(dataset: Dataset) -> Facts:
    """What the automatic choice wants to know."""
    classes = dataset.classes[dataset.train]
    known = classes != UNLABELLED
    counts = classes[known].bincount(minlength=dataset.num_classes)
    singles = known & ~dataset.has_copy[dataset.train]
    without_copy = classes[singles].bincount(minlength=dataset.num_classes)
    holdable = torch.minimum(without_copy, (counts - 1).clamp_min(0))
    return Facts(
        shape=tuple(dataset.input_shape),
        labels=tuple(counts.tolist()),
        holdable=int(holdable.sum()),
        unlabelled=int((~known).sum()),
        validation=len(dataset.validation),
        test=len(dataset.test),
        file_side=_file_side(dataset.original_formats, dataset.input_shape),
    )


def _file_side(formats: Mapping[str, int], shape: tuple[int, ...]) -> int | None:
    """Shorter side of a typical file; None if all files have the size of the images."""
    sizes = {name.split(" ")[0] for name in formats}
    if len(shape) != 3 or sizes <= {f"{shape[2]}x{shape[1]}"}:
        return None
    sides = [
        min(int(side) for side in name.split(" ")[0].split("x"))
        for name, count in formats.items()
        for _ in range(count)
    ]
    return statistics.median_low(sides)


def measured_speed(
    config: Config[Any], dataset: Dataset, execution: Execution, processes: Processes
) -> Speed:
    """A few steps of the run and of its control, on the real images; nothing is kept of them.

    All processes get the figures of the first, so that all choose alike.
    """
    step, evaluation = _measure(config, dataset, execution, processes)
    control_step, _ = _measure(control_of(config), dataset, execution, processes)
    said = processes.first_says(f"{step!r} {control_step!r} {evaluation!r}")
    return Speed(*map(float, said.split()))


def _measure(
    config: Config[Any], dataset: Dataset, execution: Execution, processes: Processes
) -> tuple[float, float]:
    """Seconds of a step, on average, and of predicting all images that are held out."""
    with torch.random.fork_rng():
        job = build(config, dataset=dataset, execution=execution, processes=processes)
        held_out = torch.cat([job.split.validation, job.split.test])

        def predict_some() -> int:
            some = held_out[:SOME_IMAGES]
            if len(some):
                model = job.trainer.evaluated_algorithm().inference_model()
                predict_logits(model, job.images, some, shard=processes.shard)
            return len(some)

        estimate = estimate_run(job.trainer, job.batches, predict_some, len(held_out))
    steps = config.training.steps
    training = estimate.seconds_of(steps)
    return training / steps, max(estimate.seconds - training, 0.0)
