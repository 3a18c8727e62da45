"""Train one configuration into a run directory, and read a trained model back."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import nn

from manigraph.build import Job, build, build_algorithm
from manigraph.catalogue import DATASETS
from manigraph.config import Config, as_dict, from_dict
from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import Dataset
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.runs import RunDirectory, write_atomically
from manigraph.training.evaluation import Evaluation, evaluate, predict_logits
from manigraph.training.loop import StepRecord

Part = Literal["validation", "test"]


def train(
    config: Config[Any],
    runs: Path,
    *,
    name: str | None = None,
    on_start: Callable[[RunDirectory, Job], None] = lambda run, job: None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> tuple[RunDirectory, dict[Part, Evaluation]]:
    """Train to the end in a new folder below `runs`.

    Args:
        config: What to compute.
        runs: Folder that holds run directories.
        name: Name of the new one; by default made from the configuration.
        on_start: Called once, when all is built and before the first step.
        on_step: Called with each record of metrics.

    Returns:
        The run directory, and the evaluations of the final weights.
    """
    with torch.random.fork_rng():
        job = build(config)
        run = RunDirectory.create(runs, name or config.run_name)
        try:
            _describe(run, config, job)
            on_start(run, job)

            def record_step(record: StepRecord) -> None:
                run.append_line("metrics.jsonl", asdict(record))
                on_step(record)

            job.trainer.run(job.batches, record_step)
            evaluations = _conclude(run, job)
        except NonFiniteLossError as error:
            run.set_status("failed", str(error))
            _save_weights(run, job.trainer.evaluated_algorithm())
            raise
        except KeyboardInterrupt:
            run.set_status("interrupted", f"stopped by hand at step {job.trainer.step}")
            _save_weights(run, job.trainer.evaluated_algorithm())
            raise
        except BaseException as error:
            run.set_status("failed", f"{type(error).__name__}: {error}")
            raise
        run.set_status("finished")
    return run, evaluations


def _describe(run: RunDirectory, config: Config[Any], job: Job) -> None:
    run.write_json("config.json", as_dict(config))
    run.write_json("split.json", {"digest": job.split.digest, **job.split.as_lists()})
    run.write_json("preprocessing.json", asdict(job.preprocessing))


def _conclude(run: RunDirectory, job: Job) -> dict[Part, Evaluation]:
    """Save the weights, evaluate them, and keep the predictions on the test images."""
    _save_weights(run, job.trainer.evaluated_algorithm())
    model = job.trainer.inference_model()
    evaluations: dict[Part, Evaluation] = {}
    parts: tuple[Part, ...] = ("validation", "test")
    for part in parts:
        indices = getattr(job.split, part)
        if len(indices) == 0:
            continue
        logits = predict_logits(model, job.images[indices])
        evaluations[part] = evaluate(logits, job.dataset.classes[indices])
        run.append_line(
            "evaluations.jsonl", {"part": part, "step": job.trainer.step, **asdict(evaluations[part])}
        )
        if part == "test":
            tensors = {"index": indices, "class": job.dataset.classes[indices], "logits": logits}
            _save(run.path / "predictions.safetensors", tensors)
    return evaluations


def _save_weights(run: RunDirectory, module: nn.Module) -> None:
    _save(run.path / "model.safetensors", module.state_dict())


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: safetensors.torch.save_file(whole, temporary))


@dataclass(frozen=True)
class TrainedRun:
    """What a run directory holds, ready to predict."""

    config: Config[Any]
    dataset: Dataset
    preprocessing: Standardise
    model: nn.Module
    """Preprocessed images to logits."""


def load(run: RunDirectory) -> TrainedRun:
    """Read a run's configuration, preprocessing and weights; nothing is unpickled."""
    config = from_dict(run.read_json("config.json"), source=str(run.path / "config.json"))
    dataset = DATASETS.get(config.data.name)()
    with torch.random.fork_rng():
        algorithm = build_algorithm(config, dataset)
    path = run.path / "model.safetensors"
    try:
        algorithm.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError:
        raise UserError(f"the run '{run.path}' has no weights yet: model.safetensors is missing") from None
    except (safetensors.SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise UserError(f"'{path}' does not hold the weights of this run: {reason}") from None
    figures = run.read_json("preprocessing.json")
    try:
        preprocessing = Standardise(tuple(figures["mean"]), tuple(figures["std"]))
    except (KeyError, TypeError):
        raise UserError(f"'{run.path / 'preprocessing.json'}' is damaged: no mean and std") from None
    return TrainedRun(config, dataset, preprocessing, algorithm.inference_model())


def evaluate_run(run: RunDirectory, part: Part) -> tuple[Dataset, Evaluation]:
    """Evaluate a run's saved weights on the validation or test images of its own split."""
    trained = load(run)
    indices = torch.tensor(run.read_json("split.json").get(part, []), dtype=torch.long)
    if len(indices) == 0:
        raise UserError(f"the run '{run.path}' has no {part} images")
    images = trained.preprocessing(trained.dataset.images[indices])
    classes = trained.dataset.classes[indices]
    return trained.dataset, evaluate(predict_logits(trained.model, images), classes)
