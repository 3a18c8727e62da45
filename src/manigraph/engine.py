"""Train one configuration into a run directory, take a run up again, and read a trained model back."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from manigraph.build import Job, build, load_dataset
from manigraph.config import Config, as_dict, as_options
from manigraph.data.cache import Progress, silent
from manigraph.data.features import encoder
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.sources.base import Dataset
from manigraph.data.split import split_as_json
from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.runs import RunDirectory, write_bytes
from manigraph.session import Observer, Session, Silence
from manigraph.trained import TrainedRun as TrainedRun
from manigraph.trained import load as load
from manigraph.trained import stored_config, stored_data, stored_preprocessing
from manigraph.training.checkpoint import Checkpoints, tensor_bytes
from manigraph.training.evaluation import Evaluation, evaluate, predict_logits
from manigraph.training.execution import Execution
from manigraph.training.processes import Processes, start_processes
from manigraph.training.selection import Part, part_looked_at


def train(
    config: Config[Any],
    runs: Path,
    *,
    name: str | None = None,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
    execution: Execution | None = None,
    processes: Processes | None = None,
    observer: Observer | None = None,
    estimate: bool = False,
    notes: Mapping[str, Any] | None = None,
) -> tuple[RunDirectory, dict[Part, Evaluation]]:
    """Train to the end in a new folder below `runs`.

    SIGTERM and Ctrl-C write a checkpoint and raise `Interrupted`; `resume` goes on from there, or from the
    last checkpoint of a run that was killed.

    Args:
        config: What to compute.
        runs: Folder that holds run directories.
        name: Name of the new one; by default made from the configuration.
        dataset: Images in memory, in the place of those that the configuration names.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read and prepared.
        execution: Where and how to compute.
        processes: All processes of the training, if they are started already.
        observer: Is told what happens.
        estimate: Measure a few steps first, to say what the run will take.
        notes: Further JSON files of the run by their names, written before the first step.

    Returns:
        The run directory, and the evaluations of the final weights.
    """
    execution = Execution() if execution is None else execution
    processes = start_processes(execution) if processes is None else processes
    with torch.random.fork_rng():
        job = build(
            config,
            dataset=dataset,
            locations=locations,
            progress=progress,
            execution=execution,
            processes=processes,
        )
        _check_evaluations(config, job)
        path = ""
        if processes.is_first:
            run = RunDirectory.create(runs, name or config.run_name)
            try:
                _describe(run, config, execution, job, in_memory=dataset is not None)
                for file, value in (notes or {}).items():
                    run.write_json(file, value)
            except BaseException:
                shutil.rmtree(run.path)  # nothing is in it yet that could be gone on with
                raise
            path = str(run.path)
        run = RunDirectory(Path(processes.first_says(path)))
        session = Session(run, job, execution, observer or Silence())
        return run, session.carry_out(None, taken_up=False, wants_estimate=estimate)


def resume(
    path: Path,
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
    execution: Execution | None = None,
    processes: Processes | None = None,
    observer: Observer | None = None,
    estimate: bool = False,
) -> tuple[RunDirectory, dict[Part, Evaluation]]:
    """Go on with a run that was interrupted or killed; the result is that of one that never was.

    Args:
        path: The run directory.
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read and prepared.
        execution: Where and how to compute; by default as before.
        processes: All processes of the training, if they are started already.
        observer: Is told what happens.
        estimate: Measure a few steps first, to say what the run will take.
    """
    run = RunDirectory.open(path)
    if run.status().state == "finished":
        raise UserError(f"the run '{path}' is finished: there is nothing to go on with")
    config = stored_config(run)
    execution = stored_execution(run) if execution is None else execution
    processes = start_processes(execution) if processes is None else processes
    snapshot = Checkpoints(path / "checkpoints", run.id).read()
    data = run.read_json("data.json")
    if data.get("in_memory") and dataset is None:
        raise UserError(f"the run '{path}' was trained on arrays in memory: resume it from Python")
    with torch.random.fork_rng():
        job = build(
            config,
            dataset=dataset,
            locations=locations,
            progress=progress,
            execution=execution,
            processes=processes,
            preprocessing=stored_preprocessing(run, stored_data(run).input_shape),
        )
        if job.dataset.digest != data.get("digest"):
            raise UserError(
                f"{job.dataset.name} holds other images now than when '{path}' was trained: put the same "
                f"ones in place"
            )
        if job.split.digest != run.read_json("split.json").get("digest"):
            raise UserError(
                f"the split of '{path}' cannot be drawn again with this version of manigraph: use the one "
                f"named in its provenance.json"
            )
        session = Session(run, job, execution, observer or Silence())
        return run, session.carry_out(snapshot, taken_up=True, wants_estimate=estimate)


def stored_execution(run: RunDirectory) -> Execution:
    """Where and how a run was computed."""
    execution: Execution = parse(
        Execution,
        as_options(run.read_json("execution.json")),
        program=str(run.path / "execution.json"),
    )
    return execution


def _check_evaluations(config: Config[Any], job: Job) -> None:
    part = part_looked_at(config.training.select)
    if config.training.evaluate_every and len(getattr(job.split, part)) == 0:
        raise UserError(
            f"training.evaluate_every needs {part} images and there are none: set data.validation, or "
            f"training.evaluate_every 0"
        )


def _describe(
    run: RunDirectory, config: Config[Any], execution: Execution, job: Job, *, in_memory: bool
) -> None:
    """Everything that is known before the first step."""
    dataset = job.dataset
    run.write_json("config.json", as_dict(config))
    run.write_json("execution.json", asdict(execution))
    run.write_json(
        "data.json",
        {
            "name": dataset.name,
            "class_names": list(dataset.class_names),
            "input_shape": list(dataset.input_shape),
            "white": dataset.white,
            "image_shape": None if dataset.image_shape is None else list(dataset.image_shape),
            "encoder": _encoder(config, dataset),
            "num_images": len(dataset.images),
            "digest": dataset.digest,
            "in_memory": in_memory,
        },
    )
    run.write_json("split.json", split_as_json(job.split, dataset))
    run.write_json("check.json", job.check.as_dict())
    values, tensors = job.preprocessing.state()
    if tensors:
        write_bytes(run.path / "preprocessing.safetensors", tensor_bytes(tensors))
    run.write_json("preprocessing.json", values)


def _encoder(config: Config[Any], dataset: Dataset) -> dict[str, str] | None:
    """Which network computed the features that are learned from; with other weights they would be others."""
    if not config.data.features or dataset.image_shape is None:
        return None
    with torch.random.fork_rng():  # its first weights are drawn: those of the run must not depend on that
        network = encoder(config.data.features)
    return {"name": network.name, "digest": network.digest}


def indices_of(run: RunDirectory, part: Literal["labelled", "unlabelled", "validation", "test"]) -> Tensor:
    """The images of one part of a run's split; there may be no unlabelled ones."""
    indices = stored_indices(run, part)
    if len(indices) == 0 and part != "unlabelled":
        raise UserError(f"the run '{run.path}' has no {part} images")
    return indices


def stored_indices(run: RunDirectory, part: str) -> Tensor:
    """The images of one part of a run's split, of which there may be none; all are in its data set."""
    values, count = run.read_json("split.json").get(part, []), run.read_json("data.json").get("num_images")
    if type(count) is not int:
        raise UserError(f"'{run.path / 'data.json'}' is damaged: num_images is no whole number")
    if not isinstance(values, list) or not all(type(i) is int and 0 <= i < count for i in values):
        raise UserError(
            f"'{run.path / 'split.json'}' is damaged: {part} is no list of places among the {count:,} images "
            f"of the run"
        )
    return torch.tensor(values, dtype=torch.long)


def dataset_of(
    run: RunDirectory,
    trained: TrainedRun,
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> Dataset:
    """The images a run was trained on, and no others; `dataset` if they are in memory."""
    data = run.read_json("data.json")
    if dataset is None:
        if data.get("in_memory"):
            raise UserError(f"the run '{run.path}' was trained on arrays in memory: evaluate it from Python")
        dataset = load_dataset(trained.config.data, locations, progress)
    if dataset.digest != data.get("digest") or len(dataset.images) != data.get("num_images"):
        raise UserError(
            f"{dataset.name} holds other images now than when '{run.path}' was trained: put the same ones "
            f"in place"
        )
    return dataset


def evaluate_run(
    run: RunDirectory,
    part: Part,
    *,
    views: bool = False,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> tuple[TrainedRun, Evaluation]:
    """Evaluate a run's saved weights on the validation or test images of its own split.

    Args:
        run: A run with trained weights.
        part: Which images of its split.
        views: Whether answers are averaged over shifted and mirrored views.
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read.
    """
    trained, indices = load(run), indices_of(run, part)
    model = trained.over_views() if views else trained.model
    dataset = dataset_of(run, trained, dataset=dataset, locations=locations, progress=progress)
    images = PreparedImages(dataset.images.index_select(0, indices), trained.preprocessing)
    logits = predict_logits(model, images, torch.arange(len(indices)))
    return trained, evaluate(logits, dataset.classes[indices])
