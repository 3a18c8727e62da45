"""Trains methods for some steps and writes the weights: alone, or as one of several processes.

torchrun --nproc-per-node 2 -m tests.processes.follow FOLDER TEST ...
"""

import argparse
import atexit
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.distributed
from torch import Tensor

from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.data.sources.arrays import from_arrays
from manigraph.data.sources.base import Dataset
from manigraph.training.execution import Execution
from manigraph.training.loop import StepRecord, TrainingConfig
from manigraph.training.processes import FabricProcesses, Processes, start_processes
from manigraph.training.schedule import SuperConvergence
from tests.helpers import Case, all_cases, average_of


def config_of(case: Case, backbone: str) -> Config[Any]:
    """Every part of the method is on, with dropout, augmentation, an average and balanced targets.

    The first steps of a run by the paper's schedule; the graph comes in at the tenth.
    """
    config = RECIPES.get("digits")(case.name)
    names = {field.name for field in dataclasses.fields(config.method)}
    settings = {"balance_memory": 64, **case.settings, "warmup_fraction": 0.02, "ramp_fraction": 0.0}
    return dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, **{k: v for k, v in settings.items() if k in names}),
        backbone=BackboneConfig(backbone, width=0.25, dropout=0.3),
        batch=BatchConfig(labelled=16, unlabelled=32),
        schedule=SuperConvergence(),
        seed=1,  # with 0, rounding to float32 decides something in SNTG on Mean Teacher
        training=TrainingConfig(steps=500, log_every=5, weight_decay=1e-3, **average_of(case.name)),  # type: ignore[arg-type]
    )


def images() -> Dataset:
    """Noise, the brighter the higher the class."""
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(10), 30)
    pixels = random.integers(0, 256, (300, 8, 8, 1)) + 8 * classes[:, None, None, None]
    return from_arrays(np.clip(pixels, 0, 255).astype(np.uint8), classes)


def as_double(batches: Iterator[Batch]) -> Iterator[Batch]:
    def doubled(views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: view.double() for name, view in views.items()}

    while True:
        torch.set_default_dtype(torch.float32)
        batch = next(batches)
        torch.set_default_dtype(torch.float64)
        yield dataclasses.replace(
            batch,
            labelled=doubled(batch.labelled),
            unlabelled=doubled(batch.unlabelled),
            class_images=None if batch.class_images is None else batch.class_images.double(),
        )


def train(
    case: Case, processes: Processes, *, double: bool, steps: int = 20, **execution: Any
) -> tuple[Job, list[StepRecord]]:
    """Some steps of a method.

    In float64 with a convolutional network, where a wrong formula shows among the rounding. In float32 with
    a network without maxima over pixels: there, two pixels that are equal up to rounding let gradients jump,
    the more often the more pixels there are, and a jump soon spreads over all weights.
    """
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        config = config_of(case, "small_cnn" if double else "mlp")
        job = build(config, dataset=images(), processes=processes, execution=Execution(**execution))
        batches = as_double(job.batches) if double else job.batches
        records = [job.trainer.train_step(next(batches)) for _ in range(steps)]
    finally:
        torch.set_default_dtype(torch.float32)
    return job, [record for record in records if record is not None]


def state(job: Job) -> dict[str, Tensor]:
    """Weights, buffers and the average."""
    snapshot = job.trainer.snapshot().tensors
    return {name: value for name, value in snapshot.items() if not name.startswith("random.")}


def traffic_of_the_power_step(processes: Processes, num_power_iterations: int) -> dict[str, Any]:
    """What a step of VAT sends: gradients that are averaged, and the sizes of everything else."""
    case = next(case for case in all_cases() if case.name == "vat")
    config = config_of(case, "small_cnn")
    method = dataclasses.replace(config.method, num_power_iterations=num_power_iterations, balance_memory=0)
    config = dataclasses.replace(config, method=method)
    job = build(config, dataset=images(), processes=processes)
    assert isinstance(processes, FabricProcesses)
    assert processes.parallel is not None
    averaged: list[int] = []
    sent: list[int] = []
    size = processes.shard.size
    real = torch.distributed.all_gather, torch.distributed.all_reduce

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations against private names
        averaged.append(bucket.buffer().numel())
        real[1](bucket.buffer())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer() / size)  # what holds the hook must not be held by it, unseen by gc
        return done

    processes.parallel.register_comm_hook(None, hook)

    def all_gather(parts: list[Tensor], own: Tensor, *rest: Any, **named: Any) -> Any:
        sent.append(own.numel())
        return real[0](parts, own, *rest, **named)

    def all_reduce(tensor: Tensor, *rest: Any, **named: Any) -> Any:
        sent.append(tensor.numel())
        return real[1](tensor, *rest, **named)

    torch.distributed.all_gather, torch.distributed.all_reduce = all_gather, all_reduce  # type: ignore[assignment]
    try:
        job.trainer.train_step(next(job.batches))
    finally:
        torch.distributed.all_gather, torch.distributed.all_reduce = real
    parameters = sum(p.numel() for p in job.trainer.algorithm.parameters())
    return {"averaged": averaged, "sent": sent, "parameters": parameters}


HELD: list[Job] = []
"""As in a script of its user, whose variables live until the interpreter ends."""


def write_threads(path: Path) -> None:
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    path.write_text(json.dumps(names), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("tests", nargs="+", help="names, as test_following has them")
    options = parser.parse_args()
    atexit.register(write_threads, options.folder / f"threads-{os.environ['RANK']}.json")  # the last to run
    processes = start_processes(Execution(threads=1))
    rank = processes.shard.rank
    for double, case in itertools.product((False, True), all_cases()):
        if any(name.endswith(f"[float{64 if double else 32}-{case}]") for name in options.tests):
            job, records = train(case, processes, double=double)
            HELD.append(job)
            path = options.folder / f"{case}-{double}-{rank}"
            safetensors.torch.save_file({k: v.contiguous() for k, v in state(job).items()}, path)
            losses = [record.terms for record in records]
            path.with_name(f"{path.name}.json").write_text(json.dumps(losses), encoding="utf-8")
    if "test_the_power_step_of_vat_averages_no_gradients" in options.tests:
        traffic = {n: traffic_of_the_power_step(processes, n) for n in (1, 3)}
        (options.folder / f"traffic-{rank}.json").write_text(json.dumps(traffic), encoding="utf-8")


if __name__ == "__main__":
    main()
