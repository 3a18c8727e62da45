"""Read a trained model out of a run directory, which anybody may have sent.

Such a directory can hold anything. So nothing in it is executed or unpickled, sizes are compared with the
file of the weights before memory is taken for them, and whatever is wrong is one sentence.
"""

import contextlib
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from manigraph.algorithms.base import Algorithm
from manigraph.build import build_algorithm
from manigraph.config import Config, from_dict
from manigraph.data.preprocessing import Preprocessing, preprocessing_from_state
from manigraph.errors import UserError
from manigraph.nn import load_trained_state
from manigraph.nn.memory import Memory, trained_state
from manigraph.nn.prototypes import PrototypeGenerator
from manigraph.nn.views import AveragedViews
from manigraph.runs import RunDirectory, check_file

LARGEST_IMAGE = 1 << 24
"""Values of one image: three channels of 2364×2364 pixels."""
LARGEST_HEADER = 16 << 20
"""Bytes in which a file of weights may say what it holds: some 100,000 tensors."""
WHITE_OF_OLD_DIGITS = 16.0
"""Runs of format 2.0 do not say how bright images are stored; of all data sets only digits was not 255."""

DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What they are called in a file."""


@dataclass(frozen=True)
class TrainedRun:
    """What a run directory holds, ready to predict; the images it was trained on are not needed."""

    config: Config[Any]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    preprocessing: Preprocessing
    model: nn.Module
    """Preprocessed images to logits."""
    white: float = 255.0
    """The stored value of full brightness."""
    image_shape: tuple[int, ...] | None = None
    """If it learned from features: the shape of the images they were computed from."""
    encoder: tuple[str, str] | None = None
    """If it learned from features: the name and the digest of the network; None before format 2.2."""

    def over_views(self) -> AveragedViews:
        """The model's mean answer over shifted and mirrored views, of the kinds that it was trained on."""
        views = self.config.augmentation
        if len(self.input_shape) != 3 or not (views.translation or views.flip):
            raise UserError(
                "the run learned from images that were neither shifted nor mirrored, so there are no views "
                "to average: leave views out"
            )
        shift = views.translation > 0
        return AveragedViews(self.model, shift=shift, mirror=views.flip, padding=views.padding)


def load(run: RunDirectory) -> TrainedRun:
    """Read a run's configuration, preprocessing and weights; nothing is unpickled."""
    config, data = stored_config(run), stored_data(run)
    preprocessing = stored_preprocessing(run, data.input_shape)
    algorithm = trained_algorithm(run, config, data.input_shape, len(data.class_names))
    return TrainedRun(
        config=config,
        class_names=data.class_names,
        input_shape=data.input_shape,
        preprocessing=preprocessing,
        model=algorithm.inference_model(),
        white=data.white,
        image_shape=data.image_shape,
        encoder=data.encoder,
    )


class StoredData(NamedTuple):
    """What a run remembers of its data set."""

    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    image_shape: tuple[int, ...] | None
    white: float
    encoder: tuple[str, str] | None


def stored_data(run: RunDirectory) -> StoredData:
    """What `data.json` says about images and classes."""
    data = run.read_json("data.json")
    usual = WHITE_OF_OLD_DIGITS if data.get("name") == "digits" else 255.0
    try:
        return StoredData(
            class_names=_class_names(data["class_names"]),
            input_shape=_shape(data["input_shape"]),
            image_shape=None if data.get("image_shape") is None else _shape(data["image_shape"]),
            white=_positive(data.get("white", usual)),
            encoder=None if data.get("encoder") is None else _encoder(data["encoder"]),
        )
    except KeyError as error:
        raise UserError(f"'{run.path / 'data.json'}' is damaged: {error.args[0]} is missing") from None
    except ValueError as error:
        raise UserError(f"'{run.path / 'data.json'}' is damaged: {error}") from None


def stored_config(run: RunDirectory) -> Config[Any]:
    """What a run computes, or computed."""
    path = run.path / "config.json"
    values = run.read_json("config.json")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a setting called `help` would print it
            return from_dict(values, source=str(path))
    except (UserError, RecursionError, SystemExit) as error:
        reason = "it does not hold settings" if not isinstance(error, UserError) else str(error)
        newer = run.newer_writer
        way_out = f"; it was written by a newer version: use {newer}" if newer else ""
        raise UserError(f"'{path}' cannot be used: {reason}{way_out}") from None


def stored_preprocessing(run: RunDirectory, input_shape: tuple[int, ...]) -> Preprocessing:
    """How a run makes network input of its images."""
    path = run.path / "preprocessing.json"
    values = run.read_json("preprocessing.json")
    tensors: dict[str, Tensor] = {}
    try:
        if values["kind"] in ("zca", "pca"):
            size, name = math.prod(input_shape), "preprocessing.safetensors"
            if not (run.path / name).exists():
                raise KeyError(name)
            wanted = {
                "mean": torch.empty(size, device="meta"),
                "matrix": torch.empty(size, size, device="meta"),
            }
            tensors = read_tensors(run, name, "whitening", wanted)
            if values["kind"] == "zca":
                _positive(values["scale"])
        elif values["kind"] == "standardise":
            if not len(values["mean"]) == len(values["std"]) == input_shape[0]:
                raise ValueError
            for figure in [*values["std"], *(abs(figure) + 1 for figure in values["mean"])]:
                _positive(figure)
        else:
            raise ValueError
        return preprocessing_from_state(values, tensors)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError):
        raise UserError(f"'{path}' is damaged: it does not say how pixels are prepared") from None


def trained_algorithm(
    run: RunDirectory, config: Config[Any], input_shape: tuple[int, ...], num_classes: int
) -> Algorithm[Any]:
    """The trained method. It is built without memory, which it gets only for what the file really holds."""
    path = run.path / "model.safetensors"
    with _opened(run, path.name, "weights") as file:
        num_tensors = len(file.keys())
    try:
        with torch.device("meta"), _at_most_parameters(4 * num_tensors + 100), torch.random.fork_rng():
            algorithm = build_algorithm(config, input_shape, num_classes)
    except UserError as error:
        raise UserError(f"'{run.path / 'config.json'}' cannot be used: {error}") from None
    except (RuntimeError, ArithmeticError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise _not_the_weights(path, "weights", error) from None
    _check_prototypes(path, algorithm)
    weights = read_tensors(run, path.name, "weights", trained_state(algorithm), others=_memories(algorithm))
    load_trained_state(algorithm, weights, assign=True)
    # CPUs convolve faster in this layout; the same in training and prediction, since others round otherwise.
    return algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@contextlib.contextmanager
def _at_most_parameters(most: int) -> Iterator[None]:
    """Stop building a network that has far more parameters than there are tensors for it."""
    count = 0

    def counted(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise RuntimeError("config.json describes a larger network")

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


def _check_prototypes(path: Path, algorithm: Algorithm[Any]) -> None:
    """Prototypes are more than what they are made from: K·C of them from K + C rows."""
    for module in algorithm.modules():
        if isinstance(module, PrototypeGenerator):
            last = module.mlp[-1]
            assert isinstance(last, nn.Linear)
            _check_memory(path, 16 * module.num_classes * module.prototypes_per_class * last.out_features)


def _memories(algorithm: Algorithm[Any]) -> tuple[str, ...]:
    """How names begin that only training needs; older runs may have stored some."""
    return tuple(f"{name}." for name, child in algorithm.named_modules() if isinstance(child, Memory))


def read_tensors(
    run: RunDirectory, name: str, what: str, wanted: Mapping[str, Tensor], *, others: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Tensors of just these names, shapes and types, all finite; nothing is read if the file holds others.

    Args:
        run: The run.
        name: The file.
        what: It is, in words.
        wanted: What must be in it; tensors without memory will do.
        others: How names begin that may be there too and are not read.
    """
    path = run.path / name
    with _opened(run, name, what) as file:
        found = {key for key in file.keys() if not (others and key.startswith(others))}  # noqa: SIM118
        if found != wanted.keys():
            missing, strange = sorted(wanted.keys() - found), sorted(found - wanted.keys())
            reason = f"'{missing[0]}' is missing" if missing else f"'{strange[0][:80]}' does not belong there"
            raise _not_the_weights(path, what, reason)
        for key, tensor in wanted.items():
            stored = file.get_slice(key)
            shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
            if shape != tuple(tensor.shape) or dtype != DTYPES[tensor.dtype]:
                raise _not_the_weights(
                    path,
                    what,
                    f"'{key}' is {dtype} {shape} instead of {DTYPES[tensor.dtype]} {tuple(tensor.shape)}",
                )
        _check_memory(path, sum(tensor.numel() * tensor.itemsize for tensor in wanted.values()))
        # Copies: what is mapped from a file would change or vanish with it.
        tensors = {key: file.get_tensor(key).clone() for key in wanted}
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise _not_the_weights(path, what, f"'{key}' holds numbers that are not finite")
    return tensors


@contextlib.contextmanager
def _opened(run: RunDirectory, name: str, what: str) -> Iterator[Any]:
    """A file of tensors, of which only the names, shapes and types are read yet."""
    path = run.path / name
    try:
        check_file(path)
        _check_memory(path, path.stat().st_size)
        with path.open("rb") as start:
            if int.from_bytes(start.read(8), "little") > LARGEST_HEADER:
                raise _not_the_weights(path, what, "its header is too large")
        with safetensors.safe_open(path, "pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(
            f"the run '{run.path}' has no {what} yet: {name} is missing (was it killed? then go on with "
            f"`manigraph train --resume {run.path}`)"
        ) from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except (safetensors.SafetensorError, RuntimeError) as error:  # torch says so if it cannot map the file
        raise _not_the_weights(path, what, error) from None


def _not_the_weights(path: Path, what: str, reason: object) -> UserError:
    first = (str(reason).splitlines() or [type(reason).__name__])[0].rstrip(":")[:200]
    return UserError(f"'{path}' does not hold the {what} of this run: {first}")


def _check_memory(path: Path, size: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UserError(
            f"'{path}' is of a model that takes {size / 2**30:,.0f} GB, this machine has "
            f"{memory / 2**30:,.0f}: use a larger one, or train a smaller model"
        )


def _class_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(name, str) for name in value):
        raise ValueError("class_names is no list of at least two names")
    return tuple(value)


def _shape(value: Any) -> tuple[int, ...]:
    """Of an image (channels, height, width) or a vector (size,)."""
    if not isinstance(value, list) or len(value) not in (1, 3) or not all(type(n) is int for n in value):
        raise ValueError("a shape is no list of one or three whole numbers")
    if min(value) < 1 or math.prod(value) > LARGEST_IMAGE:
        raise ValueError(f"a shape has sizes below 1 or more than {LARGEST_IMAGE:,} values in all")
    return tuple(value)


def _encoder(value: Any) -> tuple[str, str]:
    name, digest = (value.get(key) if isinstance(value, dict) else None for key in ("name", "digest"))
    if not isinstance(name, str) or not isinstance(digest, str):
        raise ValueError("encoder does not say the name and the digest of a network")
    return name, digest


def _positive(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e30:
        raise ValueError("brightness (white) is no positive number")
    return float(value)
