"""The one place where a configuration becomes objects."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.catalogue import ALGORITHMS, BACKBONES, DATASETS
from manigraph.config import Config
from manigraph.contract import Batch
from manigraph.data.batches import batches
from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import Dataset
from manigraph.data.split import Split, draw_split
from manigraph.errors import UserError
from manigraph.training.loop import Trainer


@dataclass(frozen=True)
class Job:
    """All that one run needs."""

    dataset: Dataset
    split: Split
    preprocessing: Standardise
    images: Tensor
    """All images, preprocessed."""
    trainer: Trainer
    batches: Iterator[Batch]


def build_algorithm(config: Config[Any], dataset: Dataset) -> Algorithm[Any]:
    """The method with its network, weights drawn from torch's global generator."""
    method = ALGORITHMS.get(config.algorithm)
    network = BACKBONES.get(config.backbone.name)
    try:
        backbone = network(dataset.input_shape, width=config.backbone.width, dropout=config.backbone.dropout)
        return method(config.method, backbone, dataset.num_classes)
    except ValueError as error:
        raise UserError(str(error)) from error


def build(config: Config[Any]) -> Job:
    """Data, split, model, optimiser and batches of one run.

    Seeds torch's global generator, from which weights and dropout masks are drawn: call it inside
    `torch.random.fork_rng` to leave the caller's random numbers alone.
    """
    dataset = DATASETS.get(config.data.name)()
    split = draw_split(
        dataset,
        num_labels=config.data.labels,
        num_validation=config.data.validation,
        seed=config.seed,
    )
    preprocessing = Standardise.fit(dataset.images[torch.cat([split.labelled, split.unlabelled])])
    images = preprocessing(dataset.images)

    torch.manual_seed(config.seed)
    algorithm = build_algorithm(config, dataset)
    # The layout in which CPUs convolve faster.
    algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in its stub
    trainer = Trainer(algorithm, config.schedule, config.training, _generator(config.seed, 1))
    return Job(
        dataset=dataset,
        split=split,
        preprocessing=preprocessing,
        images=images,
        trainer=trainer,
        batches=batches(
            images,
            dataset.classes,
            labelled=split.labelled,
            unlabelled=split.unlabelled,
            num_classes=dataset.num_classes,
            request=algorithm.data_request(),
            batch=config.batch,
            augmentation=config.augmentation,
            generator=_generator(config.seed, 2),
        ),
    )


def _generator(seed: int, purpose: int) -> torch.Generator:
    """Independent random numbers for each purpose of one seed."""
    return torch.Generator().manual_seed(1_000_003 * (seed + 1) + purpose)
