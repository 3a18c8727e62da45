"""The one place where a configuration becomes objects."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from manigraph.algorithms.base import Algorithm
from manigraph.catalogue import ALGORITHMS, BACKBONES, DATASETS
from manigraph.config import Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig, BatchStream
from manigraph.data.cache import Progress, silent
from manigraph.data.check import Check, check_batches, check_brightness, check_data
from manigraph.data.features import Encoder, encoder, with_features
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import Preprocessing, fit_preprocessing
from manigraph.data.sources.base import MAX_NATURAL_SIDE, Dataset, SourceRequest
from manigraph.data.split import Split, draw_split, read_split
from manigraph.errors import UserError
from manigraph.nn import Classifier, Layers, Passes
from manigraph.nn.backbones.base import SMALLEST_IMAGE
from manigraph.nn.compiling import compile_backbone
from manigraph.training.execution import Execution, choose_device
from manigraph.training.loop import Precision, Trainer
from manigraph.training.processes import Processes


@dataclass(frozen=True)
class Job:
    """All that one run needs."""

    dataset: Dataset
    split: Split
    check: Check
    preprocessing: Preprocessing
    images: PreparedImages
    trainer: Trainer
    batches: BatchStream


def load_dataset(
    config: DataConfig, locations: Locations | None = None, progress: Progress = silent
) -> Dataset:
    """The images that a configuration names, or the features of them that it asks for."""
    locations = locations or Locations.default()
    if not config.features:
        return _images(config, locations, progress)
    network = encoder(config.features)
    return with_features(_images(config, locations, progress, network), network, locations.cache, progress)


def load_images(
    config: DataConfig, locations: Locations | None = None, progress: Progress = silent
) -> Dataset:
    """The images themselves, of the size in which they are learned from or in which features look at them."""
    network = encoder(config.features) if config.features else None
    return _images(config, locations or Locations.default(), progress, network)


def _images(
    config: DataConfig, locations: Locations, progress: Progress, network: Encoder | None = None
) -> Dataset:
    if config.name != "folder" and config.path:
        raise UserError(f"data.path is for your own images (data.name folder), not for {config.name}")
    request = SourceRequest(
        locations=locations,
        path=Path(config.path) if config.path else None,
        image_size=config.image_size,
        largest_side=MAX_NATURAL_SIDE if network is None else network.image_size,
        progress=progress,
    )
    return DATASETS.get(config.name)(request)


def split_dataset(config: DataConfig, dataset: Dataset, seed: int) -> Split:
    """The split that a configuration asks for: read from a file or drawn."""
    if config.split:
        return read_split(Path(config.split), dataset)
    return draw_split(
        dataset,
        num_labels=config.labels,
        num_validation=config.validation,
        seed=seed,
        stratify=config.stratify,
        num_test=config.test,
    )


def check_dataset(
    config: DataConfig, dataset: Dataset, seed: int, *, needs_unlabelled: bool = True
) -> tuple[Split | None, Check]:
    """The split, if there can be one, and what is to be said about it and the images."""
    split, problem = None, ""
    try:
        split = split_dataset(config, dataset, seed)
    except UserError as error:
        problem = str(error)
    pooled = needs_unlabelled and not config.labelled_in_pool
    return split, check_data(dataset, split, split_problem=problem, needs_unlabelled=pooled)


def build_algorithm(
    config: Config[Any], input_shape: tuple[int, ...], num_classes: int, *, to_train: bool = False
) -> Algorithm[Any]:
    """The method with its network, weights drawn from torch's global generator.

    Args:
        config: What to build.
        input_shape: Of one image or vector.
        num_classes: C.
        to_train: Whether training is to begin with these weights; those of a trained run are read afterwards.
    """
    method = ALGORITHMS.get(config.algorithm)
    network = BACKBONES.get(config.backbone.name)
    try:
        backbone = network(input_shape, width=config.backbone.width, dropout=config.backbone.dropout)
        if to_train:
            backbone.begin()
        algorithm = method(config.method, backbone, num_classes)
    except ValueError as error:
        raise UserError(str(error)) from error
    # CPUs convolve faster in this layout; the same in training and prediction, since others round otherwise.
    return algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def build(
    config: Config[Any],
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
    execution: Execution | None = None,
    processes: Processes | None = None,
    preprocessing: Preprocessing | None = None,
) -> Job:
    """Data, split, model, optimiser and batches of one run.

    Refuses data that would make training wrong. Seeds torch's global generator, from which weights and
    dropout masks are drawn: call it inside `torch.random.fork_rng` to leave the caller's random numbers
    alone.

    Args:
        config: What to compute.
        dataset: Images in memory, in the place of those that the configuration names.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read and prepared.
        execution: Where and how to compute; by default on the best device there is.
        processes: All processes of the training; by default this one alone.
        preprocessing: That of a run which is taken up again; by default measured on the images.
    """
    execution = Execution() if execution is None else execution
    processes = Processes(choose_device(execution.device)) if processes is None else processes
    _check_average(config)
    check_parts(config.batch, processes.shard.size, execution.accumulate)
    if dataset is None:
        with processes.one_after_the_other():  # the first decodes, the others find it in the cache
            dataset = load_dataset(config.data, locations, progress)
    needs_unlabelled = ALGORITHMS.get(config.algorithm).uses_unlabelled
    split, check = check_dataset(config.data, dataset, config.seed, needs_unlabelled=needs_unlabelled)
    if split is None or check.errors:
        raise UserError(_refusal(check))
    _check_shifts(config.augmentation, dataset.input_shape)
    seen = torch.cat([split.labelled, split.unlabelled])
    pool = seen if config.data.labelled_in_pool else split.unlabelled
    sizes = check_batches(split, config.batch, pool=len(pool), uses_unlabelled=needs_unlabelled)
    check = replace(check, findings=(*check.findings, *sizes))
    if preprocessing is None:
        preprocessing = fit_preprocessing(config.preprocessing, dataset.images, seen)
    images = PreparedImages(dataset.images, preprocessing, progress, white=dataset.white)

    torch.manual_seed(config.seed)
    algorithm = build_algorithm(config, dataset.input_shape, dataset.num_classes, to_train=True)
    if config.training.half_size_steps:
        _check_half_size(config.backbone.name, algorithm, dataset.input_shape)
    if "strong" in (config.batch.labelled_view, *algorithm.data_request().unlabelled.values()):
        if not preprocessing.is_pixelwise:
            raise UserError(
                "whitening blows up what strong views bring in that no image has: use "
                "--preprocessing.kind standardise with them"
            )
        check = replace(check, findings=(*check.findings, *check_brightness(dataset)))
    # Dropout masks do not depend on how many random numbers the weights took.
    torch.manual_seed(_derived_seed(config.seed, 3))
    algorithm.expect_images(len(pool))
    place_algorithm(algorithm, config.training.precision, execution, processes)
    noise = torch.Generator(processes.device).manual_seed(_derived_seed(config.seed, 1))
    training = config.training.for_labels(len(split.labelled))
    trainer = Trainer(algorithm, config.schedule, training, noise, processes)
    return Job(
        dataset=dataset,
        split=split,
        check=check,
        preprocessing=preprocessing,
        images=images,
        trainer=trainer,
        batches=BatchStream(
            images,
            dataset.classes,
            labelled=split.labelled,
            unlabelled=pool,
            num_classes=dataset.num_classes,
            request=algorithm.data_request(),
            batch=config.batch,
            augmentation=config.augmentation,
            strong=config.strong,
            generator=torch.Generator().manual_seed(_derived_seed(config.seed, 2)),
            shard=processes.shard,
            device=processes.device,
        ),
    )


def place_algorithm(
    algorithm: Algorithm[Any], precision: Precision, execution: Execution, processes: Processes
) -> None:
    """Put a method where it is to be computed, in the way it is to be computed."""
    algorithm.to(processes.device)
    algorithm.distribute(processes.shard)
    passes = Passes(dtype=getattr(torch, precision), parts=execution.accumulate)
    for module in algorithm.modules():
        if isinstance(module, Layers):
            module.recompute = execution.recompute
        if isinstance(module, Classifier):
            module.passes = passes
            if execution.compile:
                compile_backbone(module.backbone)


def check_parts(batch: BatchConfig, processes: int, parts: int) -> None:
    """Every process, and every part of a batch in it, must have equally many images of each kind."""
    parts *= processes
    for name, size in (("labelled", batch.labelled), ("unlabelled", batch.unlabelled)):
        if size % parts:
            raise UserError(
                f"batch.{name} {size} cannot be divided among {parts} parts ({processes} processes times "
                f"--accumulate): use --batch.{name} {max(1, size // parts) * parts}"
            )


def _check_average(config: Config[Any]) -> None:
    if ALGORITHMS.get(config.algorithm).needs_weight_average and config.training.swa_fraction == 0:
        raise UserError(
            f"{config.algorithm} is an average of weights and none is kept: use --training.ema_decay 0 "
            f"--training.swa_fraction 0.6875 --training.swa_every 0.00625"
        )


def _check_shifts(augmentation: AugmentationConfig, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) == 3 and augmentation.translation >= min(input_shape[1:]):
        raise UserError(
            f"augmentation.translation {augmentation.translation} would shift images of "
            f"{input_shape[2]}x{input_shape[1]} pixels out of sight: lower it"
        )


def _check_half_size(network: str, algorithm: Algorithm[Any], input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3:
        raise UserError("vectors have no size that could be halved: leave out training.half_size_fraction")
    if not algorithm.model.backbone.takes_any_size:
        raise UserError(
            f"the backbone {network!r} takes images of one size only: leave out training.half_size_fraction, "
            f"or use --backbone.name cnn13"
        )
    if algorithm.data_request().images_per_class:
        raise UserError("labelled images as nodes have one size: leave out training.half_size_fraction")
    if any(side % 2 or side // 2 < SMALLEST_IMAGE for side in input_shape[1:]):
        raise UserError(
            f"images of {input_shape[2]}x{input_shape[1]} pixels cannot be halved, sides must be even and at "
            f"least {2 * SMALLEST_IMAGE}: leave out training.half_size_fraction"
        )


def _refusal(check: Check) -> str:
    first, *others = check.errors
    more = f" ({len(others)} more: see `manigraph check`)" if others else ""
    return f"{check.dataset} cannot be trained on: {first.message}; {first.suggestion}{more}"


def _derived_seed(seed: int, purpose: int) -> int:
    """Another seed for each purpose of one seed."""
    return 1_000_003 * (seed + 1) + purpose
