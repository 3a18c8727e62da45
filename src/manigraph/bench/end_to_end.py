"""Data and step together: our loop against a DataLoader of PIL images, two workers and a lean step.

On the images of SVHN where they are on this machine, else on noise of the same size.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from manigraph.bench.data import PilImages, random_dataset
from manigraph.bench.lean import lean_step
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build, load_dataset
from manigraph.config import Config
from manigraph.contract import Batch
from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.recipes.measured import finish

TARGET = Target("at least", 1.5)
USUAL = "a DataLoader of PIL images, 2 workers, and a lean step"
OURS = "ours"
ALGORITHM = "pi_vat"
STEPS_A_ROUND = 3
"""Workers prepare some batches ahead; a single step would not wait for its own."""


def images_of_svhn(config: Config[Any]) -> Dataset:
    """SVHN, or noise of its size where it is not at hand."""
    try:
        return load_dataset(replace(config.data, name="svhn"))
    except UserError:
        return random_dataset(73_257)


class _Labelled(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A view and the class."""

    def __init__(self, images: PilImages, classes: Tensor) -> None:
        self.images, self.classes = images, classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.classes[index])


class _TwoViews(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Two views of one image."""

    def __init__(self, images: PilImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.images[index]


def usual_batches(job: Job, dataset: Dataset, labelled: int, unlabelled: int) -> Iterator[Batch]:
    """What most training code has: image by image, made in two worker processes."""
    fitted = Standardise.fit(dataset.images[dataset.train[:4000]])
    mean, std = ([figure / 255 for figure in figures] for figures in (fitted.mean, fitted.std))

    def pil(indices: Tensor) -> PilImages:
        arrays = dataset.images[indices].permute(0, 2, 3, 1).contiguous().numpy()
        return PilImages(np.ascontiguousarray(arrays), mean, std)

    chosen = job.split.labelled
    with_labels = _Labelled(pil(chosen), dataset.classes[chosen])
    loaders = [
        DataLoader(
            images,
            batch_size=size,
            sampler=RandomSampler(images, replacement=True, num_samples=size * 1_000_000),
            num_workers=1,
            persistent_workers=True,
        )
        for images, size in ((with_labels, labelled), (_TwoViews(pil(job.split.unlabelled)), unlabelled))
    ]  # one worker each: two in all
    for (images, labels), (first, second) in zip(*loaders, strict=True):
        channels_last = partial(torch.Tensor.contiguous, memory_format=torch.channels_last)
        yield Batch(
            labelled={"image": channels_last(images)},
            labels=labels,
            unlabelled={"first": channels_last(first), "second": channels_last(second)},
        )


def contenders(setting: NetworkSetting) -> dict[str, Work]:
    """A few steps each, batches made on the way."""
    config = setting.config(ALGORITHM)
    dataset = random_dataset(4000, setting.side) if setting == TINY else images_of_svhn(config)
    job = build(config, dataset=dataset)
    lean = lean_step(job)
    usual = usual_batches(job, dataset, setting.labelled, setting.unlabelled)

    def our_work() -> None:
        for _ in range(STEPS_A_ROUND):
            job.trainer.train_step(next(job.batches))
        finish(job.trainer.device)

    def usual_work() -> None:
        for _ in range(STEPS_A_ROUND):
            lean(next(usual))
        finish(job.trainer.device)

    return {OURS: our_work, USUAL: usual_work}


def run_end_to_end_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """Images per second of ours by those of the usual way: the ratio of times, the other way round."""
    setting = NetworkSetting(width=0.25) if scale >= 1 else TINY
    with torch.random.fork_rng():
        seconds = take_turns(
            contenders(setting),
            Patience(tolerance=0.02).scaled(scale),
            lambda rounds: tell(f"end to end: round {rounds}"),
        )
    name = f"{STEPS_A_ROUND} steps of Π-VAT with their data, {setting.name}"
    return [ratio_of(seconds, USUAL, OURS, setting=name, target=TARGET)]
