"""A trained run as one file that needs neither manigraph nor, for ONNX, torch.

Images go in as decoders give them, (images, height, width, channels) bytes from 0 to 255; runs on vectors
take (vectors, size) float32. Out come `probabilities` and `logits`. Preprocessing, a pretrained network and
the class nodes of the graph are constants inside; what only training needs is left out.
"""

import copy
import itertools
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manigraph import __version__
from manigraph.build import load_images
from manigraph.data.cache import Progress, silent
from manigraph.data.features import as_bytes
from manigraph.data.locations import Locations
from manigraph.data.sources.base import Dataset
from manigraph.engine import dataset_of
from manigraph.errors import UserError
from manigraph.inference.files import as_stored, encoder_of, find_images, intake_of, read_batches
from manigraph.inference.predictions import refuse
from manigraph.inference.predictor import Predictor
from manigraph.runs import FORMAT_VERSION

TOLERANCE = 1e-5
"""Largest difference of a probability between the run and what was exported."""
MOST_IMAGES = 256
"""That are compared."""
LARGEST_ONNX = 2_000_000_000
"""Bytes: one ONNX file holds no more."""

ONNX, TORCH, EXAMPLE = "model.onnx", "model.pt2", "serve.py"
INSTALL = "pip install 'manigraph[export]'"


class Deployed(nn.Module):
    """A trained run with all that comes before and after its network.

    Args:
        predictor: The run; its model is copied.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        trained = predictor.trained
        self.takes_images = trained.image_shape is not None or len(trained.input_shape) == 3
        self.white = trained.white
        self.encoder = None if trained.image_shape is None else encoder_of(trained)
        # A module has its weights exported with it, a plain object has not.
        self.encoding_network = None if self.encoder is None else self.encoder.network
        self.preprocessing = trained.preprocessing
        # Of its own, in torch's usual order: parts of one tensor would be stored twice.
        self.model = _contiguous(copy.deepcopy(predictor.over_views or predictor.model))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and logits, (B, C) each."""
        stored = images
        if self.takes_images:
            stored = images.permute(0, 3, 1, 2)
            if self.encoder is not None and self.encoding_network is not None:
                stored = self.encoding_network(self.encoder.prepared(stored))
            else:
                stored = as_stored(stored, self.white)
        logits = self.model(self.preprocessing(stored))
        return logits.softmax(dim=1), logits


def _contiguous(model: nn.Module) -> nn.Module:
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
    return model


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    sizes: Mapping[str, int]
    """Bytes of each file."""
    shape: tuple[int, ...]
    """Of one input: (height, width, channels), or (size,) of vectors."""
    num_images: int
    """That were compared."""
    differences: Mapping[str, float]
    """Largest difference of a probability from the run's own, for each file."""


def export_run(
    predictor: Predictor, output: Path, images: Tensor, *, tolerance: float = TOLERANCE
) -> Exported:
    """Write model.onnx, model.pt2 and, for images, serve.py into a new folder.

    Both are run on `images` first; if a probability differs too much from the run's own, nothing is written.

    Args:
        predictor: The run.
        output: The folder, which does not exist yet.
        images: Real ones to compare on: (B, channels, height, width) bytes, or (B, size) vectors.
        tolerance: How far a probability may be from the run's own.
    """
    onnxruntime = _onnxruntime()
    check_new_folder(output)
    deployed = Deployed(predictor)
    inputs = images.permute(0, 2, 3, 1).contiguous() if deployed.takes_images else images
    expected = _own_probabilities(predictor, images)
    temporary = Path(tempfile.mkdtemp(prefix=".export-", dir=output.parent))
    try:
        facts = facts_of(predictor, tuple(inputs.shape[1:]))
        with _quiet():
            program = _program(deployed, inputs)
            _write_onnx(program, temporary / ONNX, facts)
            torch.export.save(program, temporary / TORCH, extra_files={"manigraph.json": json.dumps(facts)})
        session = onnxruntime.InferenceSession(temporary / ONNX, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        with torch.no_grad():
            by_torch = program.module()(inputs)[0].numpy()
        answers = {ONNX: session.run(["probabilities"], {name: inputs.numpy()})[0], TORCH: by_torch}
        differences = {
            file: float(np.abs(answer - expected.numpy()).max()) for file, answer in answers.items()
        }
        _check(differences, len(images), tolerance)
        if deployed.takes_images:
            shutil.copyfile(Path(__file__).with_name(EXAMPLE), temporary / EXAMPLE)
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(output, sizes, tuple(inputs.shape[1:]), len(images), differences)


def check_new_folder(output: Path) -> None:
    """Refuse a folder that cannot be made, before any work is done."""
    if os.path.lexists(output):
        raise UserError(f"--output '{output}' exists: name another folder, or remove it")
    parent = output.absolute().parent
    if not parent.is_dir():
        raise UserError(f"there is no folder '{parent}' for --output: make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"the folder '{parent}' cannot be written to: give --output another one")


def facts_of(predictor: Predictor, shape: tuple[int, ...]) -> dict[str, Any]:
    """What whoever uses the exported model must know about it."""
    vectors = len(shape) == 1
    return {
        "class_names": list(predictor.class_names),
        "shape": list(shape),
        "layout": "vectors, values" if vectors else "images, height, width, channels",
        "input": "float32" if vectors else "uint8 from 0 to 255",
        "algorithm": predictor.trained.config.algorithm,
        "views": predictor.over_views is not None,
        "run": predictor.run.id,
        "format": FORMAT_VERSION,
        "manigraph": __version__,
    }


def images_of_run(
    predictor: Predictor, *, locations: Locations | None = None, progress: Progress = silent
) -> Tensor:
    """Some of the images that the run was tested on or, if there are none, trained on.

    Returns:
        (B, channels, height, width) bytes, or (B, size) vectors.
    """
    run, trained = predictor.run, predictor.trained
    split = run.read_json("split.json")
    parts: list[list[int]] = [split.get(part) or [] for part in ("test", "validation", "labelled")]
    indices = next((part for part in parts if part), [])
    try:
        dataset = _pixels(predictor, locations, progress)
        chosen = torch.tensor(indices[:MOST_IMAGES], dtype=torch.long)
        images = dataset.images.index_select(0, chosen)
    except (UserError, OSError, IndexError, TypeError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the images of the run cannot be compared on ({error}): give some with --images"
        ) from None
    if len(images) == 0:
        raise UserError("the run has no images to compare on: give some with --images")
    return as_bytes(images, trained.white) if images.ndim == 4 else images


def _pixels(predictor: Predictor, locations: Locations | None, progress: Progress) -> Dataset:
    """The run's data set, with its pixels if it learned from features."""
    trained = predictor.trained
    if trained.image_shape is None:
        return dataset_of(predictor.run, trained, locations=locations, progress=progress)
    dataset = load_images(trained.config.data, locations, progress)
    if dataset.input_shape != trained.image_shape:
        raise UserError(f"{dataset.name} has other images now")
    return dataset


def images_of_files(predictor: Predictor, places: list[str]) -> Tensor:
    """The first images of files and folders, (B, channels, height, width) bytes."""
    files = itertools.islice(find_images(places), MOST_IMAGES)
    batch = next(read_batches(files, intake_of(predictor.trained).shape, batch_size=MOST_IMAGES), None)
    if batch is not None and batch.problems and not batch.paths:
        refuse(batch.problems[0])
    if batch is None or not batch.paths:
        raise UserError(
            f"there are no images in '{places[0]}': give --images files, or folders that hold some"
        )
    return batch.images


def _own_probabilities(predictor: Predictor, images: Tensor) -> Tensor:
    """What `manigraph predict` says."""
    if images.ndim == 4:
        images = intake_of(predictor.trained).stored(images)
    return predictor(images).probabilities


def _program(deployed: Deployed, inputs: Tensor) -> torch.export.ExportedProgram:
    example = torch.cat([inputs[:2], inputs[:2]])[:3]  # a batch of one would be taken for a fixed size
    with torch.no_grad():
        deployed(example)  # constants that are made at the first use must not be made while tracing
        program = torch.export.export(deployed, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: Mapping[str, Any]) -> None:
    import onnx

    is_images = len(facts["shape"]) == 3
    converted = torch.onnx.export(
        program,
        (),
        dynamo=True,
        verbose=False,
        input_names=["images" if is_images else "vectors"],
        output_names=["probabilities", "logits"],
    )
    if converted is None:
        raise UserError("torch wrote no ONNX model")
    proto = converted.model_proto
    _plain(proto)
    onnx.helper.set_model_props(proto, {key: json.dumps(value) for key, value in facts.items()})
    proto.producer_name, proto.producer_version = "manigraph", __version__
    if proto.ByteSize() > LARGEST_ONNX:
        raise UserError("an ONNX file holds at most 2 GB, this model is larger: train a smaller one")
    onnx.checker.check_model(proto)
    onnx.save(proto, path)


def _plain(proto: Any) -> None:
    """Without what the exporter notes about where operations come from; the open size is called batch."""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    first = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if first and size.dim_param == first:
                size.dim_param = "batch"


def _check(differences: Mapping[str, float], num_images: int, tolerance: float) -> None:
    for file, difference in differences.items():
        if not difference <= tolerance:
            raise UserError(
                f"{file} is not what the run computes: on {num_images} images a probability differs by "
                f"{difference:.1e}, more than {tolerance:.0e}; nothing was written (is it near enough? then "
                f"raise --tolerance)"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell a lot that helps nobody here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _onnxruntime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"exporting needs {error.name}, which is not installed: {INSTALL}") from None
    return onnxruntime
