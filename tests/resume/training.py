"""A training that can be begun, gone on with and killed at any moment, in a process of its own."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.data.batches import BatchConfig
from manigraph.engine import resume, train
from manigraph.runs import RunDirectory
from manigraph.session import Observer
from manigraph.training.execution import Execution
from manigraph.training.loop import TrainingConfig
from tests.helpers import average_of

STEPS = 90

KEEP_OFTEN = Execution(checkpoint_minutes=1e-9, threads=1)
"""A checkpoint after every step."""


def config(algorithm: str = "manifold_graph", **changes: Any) -> Config[Any]:
    """Whatever has a state is on: dropout, balanced targets, an average, the choice of the best weights."""
    recipe = RECIPES.get("digits")(algorithm)
    names = {field.name for field in dataclasses.fields(recipe.method)}
    settings = {key: value for key, value in {"warmup_fraction": 0.3}.items() if key in names}
    training = TrainingConfig(
        steps=STEPS,
        log_every=3,
        evaluate_every=7,
        select="validation",
        weight_decay=1e-3,
        **average_of(algorithm),  # type: ignore[arg-type]
    )
    return dataclasses.replace(
        recipe,
        method=dataclasses.replace(recipe.method, **settings),
        data=dataclasses.replace(recipe.data, validation=60),
        backbone=BackboneConfig("small_cnn", width=0.25),
        batch=BatchConfig(labelled=8, unlabelled=24),
        training=dataclasses.replace(training, **changes),
    )


def begun(folder: Path) -> RunDirectory | None:
    """The run in `folder`; one that was killed before it was described does not count."""
    runs = sorted(path.parent for path in folder.glob("*/preprocessing.json"))
    return RunDirectory(runs[-1]) if runs else None


def go_on(folder: Path, configuration: Config[Any], execution: Execution = KEEP_OFTEN) -> None:
    """Begin the run in `folder`, or go on with it."""
    torch.set_num_threads(1)
    run = begun(folder)
    if run is None:
        train(configuration, folder, execution=execution)
    else:
        resume(run.path, execution=execution)


def go_on_and_die(folder: Path, configuration: Config[Any], call: int) -> None:
    """Go on, and die by SIGKILL in the `call`-th call of one of the functions that write files for good."""
    with dying_in_writes(call):
        go_on(folder, configuration)


@contextmanager
def dying_in_writes(call: int) -> Iterator[None]:
    """A write is cut in half when its turn has come; the other calls die before they do their work."""
    seen = 0

    def turn() -> bool:
        nonlocal seen
        seen += 1
        return seen == call

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    real_write, real_replace, real_sync = Path.write_bytes, Path.replace, os.fsync
    real_unlink = Path.unlink

    def write_bytes(self: Path, content: Any) -> int:
        if turn():
            real_write(self, content[: len(content) // 2])
            die()
        return real_write(self, content)

    def replace(self: Path, target: Any) -> Path:
        if turn():
            die()
        return real_replace(self, target)

    def fsync(descriptor: Any) -> None:
        if turn():
            die()
        real_sync(descriptor)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.exists() and turn():
            die()
        real_unlink(self, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        patch.setattr(os, "fsync", fsync)
        yield


class Process:
    """A function in a process of its own, which starts in no time."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["tests.resume.training"])
        self.process = context.Process(target=function, args=arguments)
        self.process.start()

    def kill_after(self, seconds: float, since: Callable[[], bool] = lambda: True) -> None:
        """Send SIGKILL some time after something has become true."""
        while not since() and self.process.exitcode is None:
            time.sleep(0.002)
        time.sleep(seconds)
        self.process.kill()

    def exit_code(self) -> int:
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


def lines(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    """What does not depend on the machine's mood."""
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in run.read_lines(name)]


class Listening(Observer):
    """Remembers what it is told, and calls `on_step` at each record."""

    def __init__(self, on_step: Callable[[int], None] = lambda step: None) -> None:
        self.on_step = on_step
        self.warnings: list[str] = []
        self.first_step: int | None = None

    def start(self, run: Any, job: Any, estimate: Any, first_step: int) -> None:
        self.first_step = first_step
        self.estimate = estimate

    def step(self, record: Any) -> None:
        self.on_step(record.step)

    def warning(self, text: str) -> None:
        self.warnings.append(text)
