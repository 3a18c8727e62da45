"""Cells of a second or two, and ways to measure them in processes that are killed."""

from dataclasses import replace
from pathlib import Path

import torch

from manigraph.experiments.grid import Cell, Result, measure
from tests.resume.training import dying_in_writes

STEPS = 30
QUICK = ("--backbone.width", "0.25", "--batch.unlabelled", "16", "--training.steps", str(STEPS))
CELL = Cell("digits", "pi_model", 20, 0, QUICK)


def measured(
    error: float = 5.0, algorithm: str = "supervised", labels: int = 20, seed: int = 0, **changes: object
) -> Result:
    """A result that nobody had to train for."""
    cell = Cell("digits", algorithm, labels, seed)
    result = Result(cell, cell.digest(), error, 1.0, "split", 10.0, "commit")
    return replace(result, **changes)  # type: ignore[arg-type]


def measure_and_keep_often(runs: Path) -> None:
    """A checkpoint after every step."""
    torch.set_num_threads(1)
    measure(CELL, runs, threads=1, checkpoint_minutes=1e-9)


def measure_and_die(runs: Path, call: int) -> None:
    """Die by SIGKILL in the `call`-th call of one of the functions that write files for good."""
    with dying_in_writes(call):
        measure_and_keep_often(runs)
