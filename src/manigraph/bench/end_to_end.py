"""Data and step together: our loop against a DataLoader of PIL images, two workers and a lean step.

On the images of SVHN where they are on this machine, else on noise of the same size.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from manigraph.bench.data import PilImages, random_dataset
from manigraph.bench.lean import lean_step
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build, load_dataset
from manigraph.config import Config
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.recipes.measured import finish
from manigraph.training.execution import Execution

TARGET = Target("at least", 1.5)
USUAL = "a DataLoader of PIL images, 2 workers, and a lean step"
OURS = "ours"
ALGORITHM = "pi_vat"
STEPS_A_ROUND = 5
"""Workers prepare some batches ahead; a single step would not wait for its own."""


def images_of_svhn(config: Config[Any]) -> Dataset:
    """SVHN, or noise of its size where it is not at hand."""
    try:
        return load_dataset(replace(config.data, name="svhn"))
    except UserError:
        return random_dataset(73_257)


class _Steps(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Whole batches of a step, image by image."""

    def __init__(
        self, labelled: PilImages, classes: Tensor, unlabelled: PilImages, batch: BatchConfig
    ) -> None:
        self.labelled, self.classes, self.unlabelled, self.batch = labelled, classes, unlabelled, batch

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        chosen = torch.randint(len(self.labelled), (self.batch.labelled,))
        others = torch.randint(len(self.unlabelled), (self.batch.unlabelled,)).tolist()
        return {
            "image": torch.stack([self.labelled[i] for i in chosen.tolist()]),
            "labels": self.classes[chosen],
            "first": torch.stack([self.unlabelled[i] for i in others]),
            "second": torch.stack([self.unlabelled[i] for i in others]),
        }


class UsualBatches(Iterator[Batch]):
    """What most training code has: images one by one, in two worker processes.

    The workers go on while the training step computes, and stand still between `pause` and `resume`, so that
    they take nothing from others.
    """

    def __init__(self, job: Job, dataset: Dataset, batch: BatchConfig) -> None:
        fitted = Standardise.fit(dataset.images[dataset.train[:4000]])
        mean, std = ([figure / 255 for figure in figures] for figures in (fitted.mean, fitted.std))

        def pil(indices: Tensor) -> PilImages:
            arrays = dataset.images[indices].permute(0, 2, 3, 1).contiguous().numpy()
            return PilImages(np.ascontiguousarray(arrays), mean, std)

        chosen = job.split.labelled
        steps = _Steps(pil(chosen), dataset.classes[chosen], pil(job.split.unlabelled), batch)
        before = {child.pid for child in active_children()}
        self._loader = iter(DataLoader(steps, batch_size=None, num_workers=2))
        self.workers = [child for child in active_children() if child.pid not in before]

    def __next__(self) -> Batch:
        views = {
            name: view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view
            for name, view in next(self._loader).items()
        }
        return Batch(
            labelled={"image": views["image"]},
            labels=views["labels"],
            unlabelled={"first": views["first"], "second": views["second"]},
        )

    def pause(self) -> None:
        """Let the workers stand still."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the workers, which would not end while they stand still."""
        self.resume()
        del self._loader

    def _signal(self, number: signal.Signals) -> None:
        for worker in self.workers:
            assert worker.pid is not None
            os.kill(worker.pid, number)


@contextmanager
def contenders(setting: NetworkSetting) -> Iterator[dict[str, Work]]:
    """A few steps each, batches made on the way."""
    config = setting.config(ALGORITHM)
    dataset = random_dataset(4000, setting.side) if setting == TINY else images_of_svhn(config)
    job = build(config, dataset=dataset, execution=Execution(device="cpu"))
    lean = lean_step(job)
    usual = UsualBatches(job, dataset, config.batch)

    def our_work() -> None:
        for _ in range(STEPS_A_ROUND):
            job.trainer.train_step(next(job.batches))
        finish(job.trainer.device)

    def usual_work() -> None:
        usual.resume()
        for _ in range(STEPS_A_ROUND):
            lean(next(usual))
        finish(job.trainer.device)
        usual.pause()

    try:
        yield {OURS: our_work, USUAL: usual_work}
    finally:
        usual.close()


def run_end_to_end_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """Images per second of ours by those of the usual way: the ratio of times, the other way round."""
    setting = NetworkSetting(width=0.25) if scale >= 1 else TINY
    with torch.random.fork_rng(), contenders(setting) as work:
        seconds = take_turns(
            work,
            Patience(tolerance=0.02).scaled(scale),
            lambda rounds: tell(f"end to end: round {rounds}"),
        )
    name = f"{STEPS_A_ROUND} steps of Π-VAT with their data, {setting.name}"
    return [ratio_of(seconds, USUAL, OURS, setting=name, target=TARGET)]
