"""How fast data reaches the network.

Measured against the way the field does it: one PIL image after the other in a `DataLoader` with 2 workers.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.contract import DataRequest
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig, BatchStream
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import ZCA, Preprocessing, Standardise
from manigraph.data.sources.arrays import from_arrays
from manigraph.data.sources.base import Dataset

BATCH = 160
"""The paper's 32 labelled and 128 unlabelled images."""

SHIFT = 2


@dataclass(frozen=True)
class DataTiming:
    """One figure of the data benchmark."""

    what: str
    milliseconds: float
    """For a batch of 160 images, or for a step."""
    ratio: float
    versus: str
    """What the ratio is taken against."""


def random_dataset(count: int, side: int = 32, num_classes: int = 10) -> Dataset:
    """Images of noise: what they show does not matter here."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    return from_arrays(images, torch.arange(count) % num_classes, name="noise")


# Augmentation: whole batches against one PIL image at a time


class PilImages(TorchDataset[Tensor]):
    """The usual way, image by image, step by step as the standard transforms do it.

    Pad and crop at random, mirror at random, to a tensor from 0 to 1, standardise; each step leaves its
    input alone and draws from torch's generator.
    """

    def __init__(self, images: npt.NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> None:
        self.images, self.mean, self.std = images, mean, std

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        image = Image.fromarray(self.images[index])
        for step in (self.random_crop, self.random_mirror):
            image = step(image)
        return self.standardise(self.to_tensor(image))

    def random_crop(self, image: Image.Image) -> Image.Image:
        padded = ImageOps.expand(image, SHIFT)
        top = int(torch.randint(0, 2 * SHIFT + 1, (1,)).item())
        left = int(torch.randint(0, 2 * SHIFT + 1, (1,)).item())
        return padded.crop((left, top, left + image.width, top + image.height))

    def random_mirror(self, image: Image.Image) -> Image.Image:
        return ImageOps.mirror(image) if torch.rand(1) < 0.5 else image

    def to_tensor(self, image: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div(255)

    def standardise(self, pixels: Tensor) -> Tensor:
        mean, std = (torch.as_tensor(figures).view(-1, 1, 1) for figures in (self.mean, self.std))
        return pixels.clone().sub_(mean).div_(std)


class LeanPilImages(PilImages):
    """The same as short as it can be written with PIL: Python's random numbers, no copies, no checks."""

    def __getitem__(self, index: int) -> Tensor:
        image = ImageOps.expand(Image.fromarray(self.images[index]), SHIFT)
        left, top = random.randint(0, 2 * SHIFT), random.randint(0, 2 * SHIFT)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        mean, std = (torch.tensor(figures).view(-1, 1, 1) for figures in (self.mean, self.std))
        return pixels.sub_(mean).div_(std)


def time_augmentation(rounds: int, batches_per_round: int, on_round: Callable[[], None]) -> list[DataTiming]:
    """Milliseconds for a batch of shifted, mirrored, standardised images, in turns."""
    dataset = random_dataset(BATCH * batches_per_round)
    fitted = Standardise.fit(dataset.images)
    mean, std = ([figure / 255 for figure in figures] for figures in (fitted.mean, fitted.std))
    arrays = dataset.images.permute(0, 2, 3, 1).contiguous().numpy()
    contenders: dict[str, Iterable[Any]] = {
        name: DataLoader(
            kind(arrays, mean, std), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True
        )
        for name, kind in (("usual", PilImages), ("lean", LeanPilImages))
    }
    stream = _labelled_stream(dataset, fitted)
    times: dict[str, list[float]] = {"usual": [], "lean": [], "ours": []}
    for turn in range(rounds + 1):
        for name in times:
            began = time.perf_counter()
            for _ in contenders.get(name) or itertools.islice(stream, batches_per_round):
                pass
            if turn > 0:  # in the first round the workers start
                times[name].append(1000 * (time.perf_counter() - began) / batches_per_round)
        on_round()
    titles = {
        "usual": "PIL by the standard transforms, DataLoader, 2 workers",
        "lean": "PIL in a lean loop, DataLoader, 2 workers",
    }
    ours = round(statistics.median(times["ours"]), 3)
    timings = []
    for name, title in titles.items():
        ratio = statistics.median(a / b for a, b in zip(times[name], times["ours"], strict=True))
        timings += [
            DataTiming(title, round(statistics.median(times[name]), 3), 1.0, title),
            DataTiming("  whole batches (manigraph) against it", ours, round(ratio, 1), title),
        ]
    return timings


def _labelled_stream(dataset: Dataset, preprocessing: Preprocessing) -> BatchStream:
    """Batches of 160 labelled images and nothing else."""
    return BatchStream(
        PreparedImages(dataset.images, preprocessing),
        dataset.classes,
        labelled=dataset.train,
        unlabelled=dataset.train,
        num_classes=dataset.num_classes,
        request=DataRequest(),
        batch=BatchConfig(labelled=BATCH),
        augmentation=AugmentationConfig(translation=SHIFT, flip=True),
        generator=torch.Generator().manual_seed(0),
    )


# The share of data in a training step


def time_data_share(rounds: int, width: float, on_round: Callable[[], None]) -> list[DataTiming]:
    """Time that the batches of a Π-VAT step take, as a share of the whole step."""
    dataset = random_dataset(10_000)
    job = _paper_job(dataset, width)
    streams: dict[str, Iterator[Any]] = {"standardised": job.batches}
    zca = ZCA.fit(dataset.images[:4000], regulariser=1e-9)
    streams["whitened, kept in memory"] = _like(job, dataset, PreparedImages(dataset.images, zca))
    streams["whitened batch by batch"] = _like(job, dataset, _WhitenedLate(dataset.images, zca))
    data: dict[str, list[float]] = {name: [] for name in streams}
    steps: list[float] = []
    for turn in range(rounds + 1):
        seconds = {}
        for name, stream in streams.items():
            next(stream)  # the step before has emptied the processor's caches for all but the first
            began = time.perf_counter()
            batch = next(stream)
            seconds[name] = time.perf_counter() - began
        began = time.perf_counter()
        job.trainer.train_step(batch)
        step = time.perf_counter() - began
        if turn > 0:
            steps.append(step)
            for name, taken in seconds.items():
                data[name].append(taken)
        on_round()
    whole = f"a step of Π-VAT, CNN-13 at width {width:g}, 32 + 128 images"
    return [
        DataTiming(whole, round(1000 * statistics.median(steps), 1), 1.0, whole),
        *(
            DataTiming(
                f"its batch, {name}",
                round(1000 * statistics.median(taken), 2),
                round(statistics.median(t / (t + s) for t, s in zip(taken, steps, strict=True)), 5),
                whole,
            )
            for name, taken in data.items()
        ),
    ]


class _WhitenedLate(PreparedImages):
    """Whitening that is done for every batch, as for a data set that would not fit into memory."""

    def __init__(self, images: Tensor, preprocessing: Preprocessing) -> None:
        super().__init__(images[:0], preprocessing)
        self._images = images
        self._whitened = None


def _paper_job(dataset: Dataset, width: float) -> Job:
    config = RECIPES.get("cifar10")("pi_vat")
    return build(
        replace(
            config,
            data=replace(config.data, labels=1000),
            preprocessing=replace(config.preprocessing, kind="standardise"),
            backbone=replace(config.backbone, width=width),
        ),
        dataset=dataset,
    )


def _like(job: Job, dataset: Dataset, images: PreparedImages) -> BatchStream:
    """The job's batches with other preprocessing."""
    return BatchStream(
        images,
        dataset.classes,
        labelled=job.split.labelled,
        unlabelled=job.split.unlabelled,
        num_classes=dataset.num_classes,
        request=job.trainer.algorithm.data_request(),
        batch=BatchConfig(),
        augmentation=AugmentationConfig(flip=True),
        generator=torch.Generator().manual_seed(0),
    )
