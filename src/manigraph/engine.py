"""Train one configuration into a run directory, and read a trained model back."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.build import Job, build, build_algorithm, load_dataset
from manigraph.config import Config, as_dict, from_dict
from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import Preprocessing, preprocessing_from_state
from manigraph.data.sources.base import Dataset
from manigraph.data.split import split_as_json
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.runs import RunDirectory, write_atomically
from manigraph.training.evaluation import Evaluation, evaluate, predict_logits
from manigraph.training.loop import StepRecord
from manigraph.training.selection import Selection

Part = Literal["validation", "test"]


def train(
    config: Config[Any],
    runs: Path,
    *,
    name: str | None = None,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
    on_start: Callable[[RunDirectory, Job], None] = lambda run, job: None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
    on_evaluation: Callable[[Part, int, Evaluation], None] = lambda part, step, evaluation: None,
) -> tuple[RunDirectory, dict[Part, Evaluation]]:
    """Train to the end in a new folder below `runs`.

    Args:
        config: What to compute.
        runs: Folder that holds run directories.
        name: Name of the new one; by default made from the configuration.
        dataset: Images in memory, in the place of those that the configuration names.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read and prepared.
        on_start: Called once, when all is built and before the first step.
        on_step: Called with each record of metrics.
        on_evaluation: Called with the part, the step and each evaluation on the way.

    Returns:
        The run directory, and the evaluations of the final weights.
    """
    with torch.random.fork_rng():
        job = build(config, dataset=dataset, locations=locations, progress=progress)
        selection = Selection(config.training.select)
        part: Part = "test" if selection.rule == "test" else "validation"
        if config.training.evaluate_every and len(getattr(job.split, part)) == 0:
            raise UserError(
                f"training.evaluate_every needs {part} images and there are none: set data.validation, or "
                f"training.evaluate_every 0"
            )
        run = RunDirectory.create(runs, name or config.run_name)
        try:
            _describe(run, config, job, in_memory=dataset is not None)
            on_start(run, job)

            def record_step(record: StepRecord) -> None:
                run.append_line("metrics.jsonl", asdict(record))
                on_step(record)

            def evaluate_on_the_way() -> None:
                algorithm = job.trainer.evaluated_algorithm()
                evaluation, _ = _measure(job, algorithm.inference_model(), part)
                _record(run, part, job.trainer.step, evaluation, final=False)
                if selection.rule != "last":
                    selection.consider(job.trainer.step, evaluation.error, algorithm)
                on_evaluation(part, job.trainer.step, evaluation)

            job.trainer.run(job.batches, record_step, evaluate_on_the_way)
            evaluations = _conclude(run, job, selection)
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


def _describe(run: RunDirectory, config: Config[Any], job: Job, *, in_memory: bool) -> None:
    """Everything that is known before the first step."""
    dataset = job.dataset
    run.write_json("config.json", as_dict(config))
    run.write_json(
        "data.json",
        {
            "name": dataset.name,
            "class_names": list(dataset.class_names),
            "input_shape": list(dataset.input_shape),
            "num_images": len(dataset.images),
            "digest": dataset.digest,
            "in_memory": in_memory,
        },
    )
    run.write_json("split.json", split_as_json(job.split, dataset))
    run.write_json("check.json", job.check.as_dict())
    values, tensors = job.preprocessing.state()
    run.write_json("preprocessing.json", values)
    if tensors:
        _save(run.path / "preprocessing.safetensors", tensors)


def _conclude(run: RunDirectory, job: Job, selection: Selection) -> dict[Part, Evaluation]:
    """Save the weights that count, evaluate them, and keep the predictions on the test images."""
    algorithm = selection.chosen(job.trainer.evaluated_algorithm())
    step = job.trainer.step if selection.step is None else selection.step
    _save_weights(run, algorithm)
    run.write_json("selection.json", {"rule": selection.rule, "step": step})
    evaluations: dict[Part, Evaluation] = {}
    parts: tuple[Part, ...] = ("validation", "test")
    for part in parts:
        indices = getattr(job.split, part)
        if len(indices) == 0:
            continue
        evaluations[part], logits = _measure(job, algorithm.inference_model(), part)
        _record(run, part, step, evaluations[part], final=True)
        if part == "test":
            tensors = {"index": indices, "class": job.dataset.classes[indices], "logits": logits}
            _save(run.path / "predictions.safetensors", tensors)
    return evaluations


def _measure(job: Job, model: nn.Module, part: Part) -> tuple[Evaluation, Tensor]:
    indices = getattr(job.split, part)
    logits = predict_logits(model, job.images, indices)
    return evaluate(logits, job.dataset.classes[indices]), logits


def _record(run: RunDirectory, part: Part, step: int, evaluation: Evaluation, *, final: bool) -> None:
    run.append_line("evaluations.jsonl", {"part": part, "step": step, "final": final, **asdict(evaluation)})


def _save_weights(run: RunDirectory, module: Algorithm[Any]) -> None:
    _save(run.path / "model.safetensors", module.state_dict())


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: safetensors.torch.save_file(whole, temporary))


@dataclass(frozen=True)
class TrainedRun:
    """What a run directory holds, ready to predict; the images it was trained on are not needed."""

    config: Config[Any]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    preprocessing: Preprocessing
    model: nn.Module
    """Preprocessed images to logits."""


def load(run: RunDirectory) -> TrainedRun:
    """Read a run's configuration, preprocessing and weights; nothing is unpickled."""
    config = from_dict(run.read_json("config.json"), source=str(run.path / "config.json"))
    data = run.read_json("data.json")
    try:
        class_names, input_shape = tuple(data["class_names"]), tuple(data["input_shape"])
    except (KeyError, TypeError):
        raise UserError(f"'{run.path / 'data.json'}' is damaged: no class names and input shape") from None
    with torch.random.fork_rng():
        algorithm = build_algorithm(config, input_shape, len(class_names))
    weights = _load(run, "model.safetensors", "weights")
    try:
        algorithm.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise UserError(
            f"'{run.path / 'model.safetensors'}' does not hold the weights of this run: {reason}"
        ) from None
    return TrainedRun(config, class_names, input_shape, _load_preprocessing(run), algorithm.inference_model())


def _load_preprocessing(run: RunDirectory) -> Preprocessing:
    values = run.read_json("preprocessing.json")
    tensors = {}
    if (run.path / "preprocessing.safetensors").is_file():
        tensors = _load(run, "preprocessing.safetensors", "whitening")
    try:
        return preprocessing_from_state(values, tensors)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"'{run.path / 'preprocessing.json'}' is damaged: it does not say how pixels are prepared"
        ) from None


def _load(run: RunDirectory, name: str, what: str) -> dict[str, Tensor]:
    path = run.path / name
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"the run '{run.path}' has no {what} yet: {name} is missing") from None
    except safetensors.SafetensorError as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise UserError(f"'{path}' does not hold the {what} of this run: {reason}") from None


def evaluate_run(
    run: RunDirectory, part: Part, *, locations: Locations | None = None, progress: Progress = silent
) -> tuple[TrainedRun, Evaluation]:
    """Evaluate a run's saved weights on the validation or test images of its own split."""
    trained = load(run)
    indices = torch.tensor(run.read_json("split.json").get(part, []), dtype=torch.long)
    if len(indices) == 0:
        raise UserError(f"the run '{run.path}' has no {part} images")
    data = run.read_json("data.json")
    if data.get("in_memory"):
        raise UserError(f"the run '{run.path}' was trained on arrays in memory: evaluate it from Python")
    dataset = load_dataset(trained.config.data, locations, progress)
    if dataset.digest != data.get("digest"):
        raise UserError(
            f"{dataset.name} holds other images now than when '{run.path}' was trained: put the same ones "
            f"in place"
        )
    images = PreparedImages(dataset.images.index_select(0, indices), trained.preprocessing)
    logits = predict_logits(trained.model, images, torch.arange(len(indices)))
    return trained, evaluate(logits, dataset.classes[indices])
