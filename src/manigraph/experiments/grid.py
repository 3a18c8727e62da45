"""A grid of runs: measured cell by cell, written as they come, never measured twice.

A cell that was killed on the way goes on from its last checkpoint; one whose run is there is not trained
again.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import Config, deciding_settings, with_options
from manigraph.errors import Interrupted, UserError
from manigraph.experiments.engines import Engine
from manigraph.experiments.outsiders import OUTSIDERS
from manigraph.readout import ReadOutMethod, read_out
from manigraph.runs import RunDirectory, machine, provenance, write_bytes
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
    seconds: float | None
    """Of the whole cell; None if it was interrupted on the way."""
    commit: str | None
    validation_error: float | None = None
    """Per cent; None if the run holds out no validation images."""
    selected_on: SelectionRule = "last"
    """How the weights of the run were chosen; `test` is not honest and is marked in every table."""
    config: dict[str, Any] = field(default_factory=dict)
    """All settings that decide the result; results of before it was kept have none."""
    machine: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    time: str = ""

    def error(self, part: Literal["test", "validation"]) -> float:
        """The error on one part of the split."""
        error = self.test_error if part == "test" else self.validation_error
        assert error is not None, "a table on validation images holds some out"
        return error


@dataclass(frozen=True)
class Failure:
    """Why a cell has no result."""

    cell: Cell
    reason: str
    stopped: bool = False
    """Whether somebody asked to stop; to go on, ask for the same table again."""


@dataclass(frozen=True)
class CellTask:
    """How cells are measured; can be sent to another process or machine that sees the same folders."""

    runs: Path
    threads: int = 0
    """Of each cell, on a CPU; 0 means as many as torch finds right."""
    commit: str | None = None
    """The one whose code is running."""

    def __call__(self, cell: Cell) -> Result | Failure:
        """Measure a cell; whatever goes wrong, the other cells are still worth having."""
        try:
            return measure(cell, self.runs, self.commit, threads=self.threads)
        except Interrupted as error:
            return Failure(cell, str(error), stopped=True)
        except KeyboardInterrupt:
            return Failure(cell, "stopped", stopped=True)
        except Exception as error:
            prefix = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            return Failure(cell, f"{prefix}{error}")


def measure(cell: Cell, runs: Path, commit: str | None = None, *, threads: int = 0) -> Result:
    """Train and evaluate one cell, or go on with its run in `runs`.

    Args:
        cell: What to measure.
        runs: Folder that holds run directories.
        commit: The one whose code is running.
        threads: On a CPU; 0 means as many as torch finds right.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    config = cell.config()
    began = time.monotonic()
    if cell.algorithm in OUTSIDERS:
        dataset = load_dataset(config.data)
        split = split_dataset(config.data, dataset, cell.seed)
        error, calibration, digest = OUTSIDERS[cell.algorithm](dataset, split), None, split.digest
        validation_error = None
        in_one_go = True
    else:
        run, in_one_go = _trained(cell, runs, threads)
        final = {line["part"]: line for line in run.read_lines("evaluations.jsonl") if line["final"]}
        error, calibration = final["test"]["error"], final["test"]["calibration_error"]
        validation_error = final["validation"]["error"] if "validation" in final else None
        if cell.read_out:
            answers = {part: read_out(run, cell.read_out, part).evaluation for part in final}
            error, calibration = answers["test"].error, answers["test"].calibration_error
            validation_error = answers["validation"].error if "validation" in answers else None
        digest = run.read_json("split.json")["digest"]
    return Result(
        cell=cell,
        digest=cell.digest(),
        test_error=error,
        calibration_error=calibration,
        split=digest,
        seconds=round(time.monotonic() - began, 1) if in_one_go else None,
        commit=commit,
        validation_error=validation_error,
        selected_on=config.training.select,
        config=deciding_settings(config),
        machine=machine(),
        threads=torch.get_num_threads(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _trained(cell: Cell, runs: Path, threads: int) -> tuple[RunDirectory, bool]:
    """The finished run of a cell, and whether all of it was trained just now."""
    from manigraph.engine import resume, train
    from manigraph.training.execution import Execution

    name = f"{cell.config().run_name}-{cell.digest()[:8]}"
    execution = Execution(threads=threads)
    # A folder without its preprocessing is of a run that was killed before it was described.
    begun = sorted(path.parent for path in runs.glob(f"{name}*/preprocessing.json"))
    if not begun:
        run, _ = train(cell.config(), runs, name=name, execution=execution)
        return run, True
    run = RunDirectory.open(begun[-1])
    if run.status().state != "finished":
        resume(run.path, execution=execution)
    return run, False


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
        write_bytes(self.path, self._text().encode())

    def _text(self) -> str:
        """JSON with a line for each result, so that a change of the file shows what was measured."""
        head = json.dumps(provenance(), indent=2, ensure_ascii=False).removesuffix("\n}")
        lines = ",\n".join("    " + json.dumps(asdict(r), ensure_ascii=False) for r in self.results)
        return f'{head},\n  "results": [\n{lines}\n  ]\n}}\n'


def _cell(values: dict[str, Any]) -> Cell:
    return Cell(**{**values, "options": tuple(values.get("options", ()))})


def run_grid(
    cells: Iterable[Cell],
    results: ResultsFile,
    runs: Path,
    engine: Engine,
    *,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Failure]:
    """Measure what is not in `results` yet, and say what could not be measured."""
    missing = [cell for cell in cells if results.find(cell) is None]
    commit = provenance()["commit"]  # now: the tree may move on while the grid runs
    failures: list[Failure] = []
    for outcome in engine.outcomes(CellTask(runs, engine.threads, commit), missing):
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            results.add(outcome)
            on_result(outcome)
    return failures


def mean_and_spread(errors: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds (of the seeds themselves, not estimated: ddof 0)."""
    return statistics.fmean(errors), statistics.pstdev(errors)
