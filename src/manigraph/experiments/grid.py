"""A grid of runs: measured cell by cell, written as they come, never measured twice."""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import Config, deciding_settings, with_options
from manigraph.errors import UserError
from manigraph.experiments.outsiders import OUTSIDERS
from manigraph.readout import ReadOutMethod, read_out
from manigraph.runs import provenance, write_json
from manigraph.training.selection import SelectionRule


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    recipe: str
    algorithm: str
    labels: int
    seed: int
    options: tuple[str, ...] = ()
    """Changes to the recipe, as on the command line of `manigraph train`."""
    read_out: ReadOutMethod | Literal[""] = ""
    """A graph over the features of the trained run that answers in the place of its linear layer."""

    def config(self) -> Config[Any]:
        """The run's configuration; an outsider takes data and split from the supervised one."""
        algorithm = "supervised" if self.algorithm in OUTSIDERS else self.algorithm
        config = RECIPES.get(self.recipe)(algorithm)
        config = replace(config, seed=self.seed, data=replace(config.data, labels=self.labels))
        return with_options(config, self.options, program=f"manigraph train {self.recipe}")

    def digest(self) -> str:
        """Changes whenever any setting of the run does."""
        cell = {name: value for name, value in asdict(self).items() if value not in ((), "")}
        text = json.dumps({"cell": cell, "config": deciding_settings(self.config())}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """What was measured in one cell."""

    cell: Cell
    digest: str
    test_error: float
    """Per cent."""
    calibration_error: float | None
    """Per cent, on the test images; None for outsiders."""
    split: str
    """Digest of the split."""
    seconds: float
    commit: str | None
    validation_error: float | None = None
    """Per cent; None if the run holds out no validation images."""
    selected_on: SelectionRule = "last"
    """How the weights of the run were chosen; `test` is not honest and is marked in every table."""

    def error(self, part: Literal["test", "validation"]) -> float:
        """The error on one part of the split."""
        error = self.test_error if part == "test" else self.validation_error
        assert error is not None, "a table on validation images holds some out"
        return error


def measure(cell: Cell, runs: Path, commit: str | None = None) -> Result:
    """Train and evaluate one cell; `commit` is the one whose code is running."""
    config = cell.config()
    began = time.monotonic()
    if cell.algorithm in OUTSIDERS:
        dataset = load_dataset(config.data)
        split = split_dataset(config.data, dataset, cell.seed)
        error, calibration, digest = OUTSIDERS[cell.algorithm](dataset, split), None, split.digest
        validation_error = None
    else:
        from manigraph.engine import train

        run, evaluations = train(config, runs)
        if cell.read_out:
            evaluations = {part: read_out(run, cell.read_out, part).evaluation for part in evaluations}
        error, calibration = evaluations["test"].error, evaluations["test"].calibration_error
        validation_error = evaluations["validation"].error if "validation" in evaluations else None
        digest = run.read_json("split.json")["digest"]
    return Result(
        cell=cell,
        digest=cell.digest(),
        test_error=error,
        calibration_error=calibration,
        split=digest,
        seconds=round(time.monotonic() - began, 1),
        commit=commit,
        validation_error=validation_error,
        selected_on=config.training.select,
    )


class ResultsFile:
    """Results on disk: one JSON file, rewritten atomically after each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: list[Result] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise UserError(f"'{path}' is a folder: name a results file")
        if path.is_file():
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
                self.results = [
                    Result(**{**value, "cell": _cell(value["cell"])}) for value in values["results"]
                ]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"'{path}' is not a results file: move it away or name another") from None

    def find(self, cell: Cell) -> Result | None:
        """The result of a cell, if it was measured with the settings it has today."""
        digest = cell.digest()
        return next((r for r in self.results if r.cell == cell and r.digest == digest), None)

    def add(self, result: Result) -> None:
        """Keep a result, in the place of an older one of the same cell."""
        self.results = [r for r in self.results if r.cell != result.cell] + [result]
        self.results.sort(key=lambda r: tuple(asdict(r.cell).values()))
        write_json(self.path, {**provenance(), "results": [asdict(r) for r in self.results]})


def _cell(values: dict[str, Any]) -> Cell:
    return Cell(**{**values, "options": tuple(values.get("options", ()))})


def run_grid(
    cells: Iterable[Cell],
    results: ResultsFile,
    runs: Path,
    *,
    jobs: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> None:
    """Measure what is not in `results` yet, `jobs` cells at a time with one thread each."""
    missing = [cell for cell in cells if results.find(cell) is None]
    commit = provenance()["commit"]  # now: the tree may move on while the grid runs
    failures: list[Exception] = []
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        for future in as_completed([pool.submit(measure, cell, runs, commit) for cell in missing]):
            try:
                result = future.result()
            except Exception as error:  # the other cells are still worth having
                failures.append(error)
                continue
            results.add(result)
            on_result(result)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if failures:
        raise failures[0]


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def mean_and_spread(errors: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds (of the seeds themselves, not estimated: ddof 0)."""
    return statistics.fmean(errors), statistics.pstdev(errors)
