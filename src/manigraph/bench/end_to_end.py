"""Data and step together: our loop against a DataLoader of PIL images, two workers and a lean step.

The lean step is measured three times: with torch's own operations in the layout that is fast here (channels
last), plain as in `narrow.py`, and with our layers, as they are in ours. On the images of SVHN where they
are on this machine, else on noise of the same size. Each contender has a process of its own, of which only
the plain one gives its freed memory back to the system, as torch does by itself: `python -m
manigraph.bench.end_to_end SETTING CONTENDER`.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from manigraph.bench.data import PilImages, random_dataset
from manigraph.bench.lean import lean_step
from manigraph.bench.narrow import make_plain
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.bench.workers import in_processes, serve
from manigraph.build import Job, build, load_dataset
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.native import native
from manigraph.recipes.measured import finish
from manigraph.training.execution import Execution
from manigraph.training.memory import keep_freed_memory

TARGET = Target("at least", 1.5)
USUAL = "a DataLoader of PIL images, 2 workers, and a lean step in plain torch"
PLAIN = "the same in torch's usual layout, NCHW"
SAME = "the same with our layers in the lean step, which leaves only the data"
OURS = "ours"
ALGORITHM = "pi_vat"
SETTINGS = {"whole": NetworkSetting(width=0.25), "tiny": TINY}
STEPS_A_ROUND = 5
"""Workers prepare some batches ahead; a single step would not wait for its own."""


def images_of(setting: NetworkSetting) -> Dataset:
    """SVHN, or noise of its size where it is not at hand; noise for the tiny network."""
    if setting == TINY:
        return random_dataset(4000, setting.side)
    try:
        return load_dataset(replace(setting.config(ALGORITHM).data, name="svhn"))
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

    def __init__(self, job: Job, dataset: Dataset, batch: BatchConfig, layout: torch.memory_format) -> None:
        self._layout = layout
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
            name: view.contiguous(memory_format=self._layout) if view.ndim == 4 else view
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
def work_of(contender: str, setting: NetworkSetting) -> Iterator[Work]:
    """A few steps, batches made on the way."""
    config = setting.config(ALGORITHM)
    dataset = images_of(setting)
    job = build(config, dataset=dataset, execution=Execution(device="cpu"))

    def our_work() -> None:
        for _ in range(STEPS_A_ROUND):
            job.trainer.train_step(next(job.batches))
        finish(job.trainer.device)

    if contender == OURS:
        yield our_work
        return
    lean = lean_step(job)
    if contender == PLAIN:
        make_plain(lean.modules)
    layout = torch.contiguous_format if contender == PLAIN else torch.channels_last
    usual = UsualBatches(job, dataset, config.batch, layout)

    def usual_work() -> None:
        usual.resume()
        with native(contender == SAME):
            for _ in range(STEPS_A_ROUND):
                lean(next(usual))
        finish(job.trainer.device)
        usual.pause()

    try:
        yield usual_work
    finally:
        usual.close()


def run_end_to_end_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """Images per second of ours by those of the usual way: the ratio of times, the other way round."""
    which = "whole" if scale >= 1 else "tiny"
    with in_processes(__name__, {name: (which, name) for name in (OURS, USUAL, PLAIN, SAME)}) as work:
        patience = Patience(tolerance=0.02, most_seconds=240).scaled(scale)
        seconds = take_turns(work, patience, lambda rounds: tell(f"end to end: round {rounds}"))
    setting = SETTINGS[which]
    name = f"{STEPS_A_ROUND} steps of Π-VAT with their data ({images_of(setting).name}), {setting.name}"
    return [
        ratio_of(seconds, usual, OURS, setting=name, target=target)
        for usual, target in ((USUAL, TARGET), (PLAIN, None), (SAME, None))
    ]


if __name__ == "__main__":
    if sys.argv[2] != PLAIN:
        keep_freed_memory()
    with work_of(sys.argv[2], SETTINGS[sys.argv[1]]) as own_work:
        serve(own_work)
