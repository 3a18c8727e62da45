"""A grid of runs: measured cell by cell, written as they come, never measured twice.

A cell that was killed on the way goes on from its last checkpoint; one whose run is there is not trained
again.
"""

import fcntl
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import Config, deciding_settings, with_options
from manigraph.errors import Interrupted, UserError
from manigraph.experiments.engines import Engine, Lost
from manigraph.experiments.outsiders import OUTSIDERS
from manigraph.readout import ReadOutMethod, read_out
from manigraph.runs import RunDirectory, can_be_written, machine, provenance, write_bytes
from manigraph.training.evaluation import Evaluation
from manigraph.training.execution import Execution
from manigraph.training.selection import Part, SelectionRule

WayToAsk = ReadOutMethod | Literal["", "views"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    recipe: str
    algorithm: str
    labels: int
    seed: int
    options: tuple[str, ...] = ()
    """Changes to the recipe, as on the command line of `manigraph train`."""
    read_out: WayToAsk = ""
    """How the trained run is asked, if not as usual. `views`: the mean over shifted and mirrored ones; others
    are graphs over its features that answer in the place of its linear layer."""

    def config(self) -> Config[Any]:
        """The run's configuration; an outsider takes data and split from the supervised one."""
        return _config(self)

    def digest(self) -> str:
        """Changes whenever any setting of the run does."""
        cell = {name: value for name, value in asdict(self).items() if value not in ((), "")}
        text = json.dumps({"cell": cell, "config": deciding_settings(self.config())}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache  # reading options takes some milliseconds, and a table asks for its cells again and again
def _config(cell: Cell) -> Config[Any]:
    algorithm = "supervised" if cell.algorithm in OUTSIDERS else cell.algorithm
    config = RECIPES.get(cell.recipe)(algorithm)
    config = replace(config, seed=cell.seed, data=replace(config.data, labels=cell.labels))
    return with_options(config, cell.options, program=f"manigraph train {cell.recipe}")


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
    cpu_seconds: float | None = None
    """Of all threads of the process, in the whole cell; None likewise, and where it was not measured yet."""
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
    checkpoint_minutes: float = 5.0
    """Time between two checkpoints."""

    def __call__(self, cells: Sequence[Cell]) -> list[Result | Failure]:
        """Measure cells of one run; whatever goes wrong, those of other runs are still worth having."""
        outcomes: list[Result | Failure] = []
        for cell in cells:
            failed = next((one for one in outcomes if isinstance(one, Failure)), None)
            outcomes.append(self._outcome(cell) if failed is None else replace(failed, cell=cell))
        return outcomes

    def _outcome(self, cell: Cell) -> Result | Failure:
        try:
            return measure(
                cell,
                self.runs,
                self.commit,
                threads=self.threads,
                checkpoint_minutes=self.checkpoint_minutes,
            )
        except Interrupted as error:
            return Failure(cell, str(error), stopped=True)
        except KeyboardInterrupt:
            return Failure(cell, "stopped", stopped=True)
        except Exception as error:
            return Failure(cell, _reason(error))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def measure(
    cell: Cell,
    runs: Path,
    commit: str | None = None,
    *,
    threads: int = 0,
    checkpoint_minutes: float = 5.0,
) -> Result:
    """Train and evaluate one cell, or go on with its run in `runs`.

    Args:
        cell: What to measure.
        runs: Folder that holds run directories.
        commit: The one whose code is running.
        threads: On a CPU; 0 means as many as torch finds right.
        checkpoint_minutes: Time between two checkpoints.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    config = cell.config()
    origin: dict[str, Any] = {"commit": commit, "machine": machine()}
    began, cpu_began = time.monotonic(), time.process_time()
    spent: tuple[float, float] | None = None
    if cell.algorithm in OUTSIDERS:
        dataset = load_dataset(config.data)
        split = split_dataset(config.data, dataset, cell.seed)
        error, calibration, digest = OUTSIDERS[cell.algorithm](dataset, split), None, split.digest
        validation_error = None
        spent = _since(began, cpu_began)
    else:
        execution = Execution(threads=threads, checkpoint_minutes=checkpoint_minutes)
        run, in_one_go = _trained(cell, runs, execution)
        if in_one_go:
            spent = _since(began, cpu_began)  # asking a run in another way is no part of it
        else:
            origin = run.read_json("provenance.json")
        final = {line["part"]: line for line in run.read_lines("evaluations.jsonl") if line["final"]}
        error, calibration = final["test"]["error"], final["test"]["calibration_error"]
        validation_error = final["validation"]["error"] if "validation" in final else None
        if cell.read_out:
            answers = {part: _asked(run, cell.read_out, part) for part in final}
            error, calibration = answers["test"].error, answers["test"].calibration_error
            validation_error = answers["validation"].error if "validation" in answers else None
        digest = run.read_json("split.json")["digest"]
    return Result(
        cell=cell,
        digest=cell.digest(),
        test_error=error,
        calibration_error=calibration,
        split=digest,
        seconds=None if spent is None else spent[0],
        commit=origin["commit"],
        validation_error=validation_error,
        cpu_seconds=None if spent is None else spent[1],
        selected_on=config.training.select,
        config=json.loads(json.dumps(deciding_settings(config))),  # as it is read back
        machine=origin["machine"],
        threads=torch.get_num_threads(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _since(began: float, cpu_began: float) -> tuple[float, float]:
    return round(time.monotonic() - began, 1), round(time.process_time() - cpu_began, 1)


def _asked(run: RunDirectory, how: ReadOutMethod | Literal["views"], part: Part) -> Evaluation:
    from manigraph.engine import evaluate_run

    if how == "views":
        return evaluate_run(run, part, views=True)[1]
    return read_out(run, how, part).evaluation


def _trained(cell: Cell, runs: Path, execution: Execution) -> tuple[RunDirectory, bool]:
    """The finished run of a cell, and whether all of it was trained just now."""
    from manigraph.engine import resume, train

    with _claimed(runs, run_name(cell)):
        begun = _begun(runs, run_name(cell))
        if not begun:
            run, _ = train(cell.config(), runs, name=run_name(cell), execution=execution)
            return run, True
        run = next((run for run in begun if run.status().state == "finished"), begun[-1])
        _wait_for_others(run)
        if run.status().state != "finished":
            resume(run.path, execution=execution)
        return run, False


@contextmanager
def _claimed(runs: Path, name: str) -> Iterator[None]:
    """Nobody else looks whether there is this run, or begins it, until it is there.

    Whoever is killed claims nothing any more; the file that is left is no claim by itself.
    """
    runs.mkdir(parents=True, exist_ok=True)
    path, end = runs / f".{name}.claim", time.monotonic() + PATIENCE
    while True:
        with path.open("ab") as file:
            if _is_ours(file):
                if not _is_still(path, file):
                    continue  # whoever had it took it away just now
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() > end:
            raise UserError(
                f"the run '{runs / name}' is being trained by another process: wait for it, or stop it"
            )
        time.sleep(0.2)


def _is_ours(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_still(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def run_of(cell: Cell, runs: Path) -> RunDirectory | None:
    """The finished run of a cell in a folder of runs; None if there is none, or the cell is no run."""
    if cell.algorithm in OUTSIDERS:
        return None
    begun = _begun(runs, run_name(cell))
    return next((run for run in begun if run.status().state == "finished"), None)


def run_name(cell: Cell) -> str:
    """Of the run behind a cell: the same for all ways to ask it."""
    return f"{cell.config().run_name}-{replace(cell, read_out='').digest()[:8]}"


def _begun(runs: Path, name: str) -> list[RunDirectory]:
    """Runs of this name, the oldest first.

    A folder without its preprocessing is of a run that was killed before it was described.
    """
    paths = [path.parent for path in runs.glob(f"{name}*/preprocessing.json")]
    return [RunDirectory.open(path) for path in sorted(paths, key=lambda path: (len(path.name), path.name))]


def _wait_for_others(run: RunDirectory) -> None:
    """A process whose grid was killed ends after its step; whoever takes longer is another grid."""
    end = time.monotonic() + PATIENCE
    while run.status().state == "running" and time.monotonic() < end:
        time.sleep(0.2)


PATIENCE = 60.0
"""Seconds to wait for a run that another process holds."""


class ResultsFile:
    """Results on disk: one JSON file, rewritten atomically after each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise UserError(f"'{path}' is a folder: name a results file")
        self.results = self._read()

    def find(self, cell: Cell) -> Result | None:
        """The result of a cell, if it was measured with the settings it has today."""
        digest = cell.digest()
        return next((r for r in self.results if r.cell == cell and r.digest == digest), None)

    def check_writable(self) -> None:
        """Before anything is measured: raises `UserError` if results could not be kept."""
        if not can_be_written(self.path.parent):
            raise UserError(f"cannot write '{self.path}': name another file with --results")

    def add(self, result: Result) -> None:
        """Keep a result, in the place of an older one of the same cell; what others added meanwhile stays."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(self.path.parent):
            known = {r.cell: r for r in (*self.results, *self._read(), result)}
            self.results = sorted(known.values(), key=lambda r: tuple(asdict(r.cell).values()))
            write_bytes(self.path, self._text().encode("utf-8", "backslashreplace"))

    def _read(self) -> list[Result]:
        if not self.path.is_file():
            return []
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            return [_result(value) for value in values["results"]]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"'{self.path}' is damaged or not a results file: mend it, move it away or name another"
            ) from None

    def _text(self) -> str:
        """JSON with a line for each result, so that a change of the file shows what was measured."""
        return results_text(provenance(), self.results)


def results_text(head: Mapping[str, Any], results: Iterable[Any]) -> str:
    """A results file: where it comes from, then one line for each result (of any dataclass)."""
    start = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join("    " + json.dumps(asdict(result), ensure_ascii=False) for result in results)
    return f'{start},\n  "results": [\n{lines}\n  ]\n}}\n'


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One grid at a time; there may be several in the same file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _result(values: dict[str, Any]) -> Result:
    result = Result(**{**values, "cell": _cell(values["cell"])})
    errors = [error for error in (result.test_error, result.validation_error) if error is not None]
    if not (errors and all(0 <= error < math.inf for error in errors)):  # NaN is not, either
        raise ValueError(f"errors are numbers from 0, got {errors}")
    if not all(isinstance(number, int) for number in (result.cell.labels, result.cell.seed)):
        raise TypeError("numbers of labels and seeds are whole")
    return result


def _cell(values: dict[str, Any]) -> Cell:
    return Cell(**{**values, "options": tuple(values.get("options", ()))})


def left_to_measure(cells: Iterable[Cell], results: ResultsFile) -> tuple[list[Cell], list[Failure]]:
    """Cells that are not in `results` yet, and those whose settings cannot be."""
    missing: list[Cell] = []
    failures: list[Failure] = []
    for cell in cells:
        try:
            if results.find(cell) is None:
                missing.append(cell)
        except UserError as error:
            failures.append(Failure(cell, _reason(error)))
    return missing, failures


def of_one_run(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Cells that ask the same run side by side, so that it is trained once, for the one asked as usual."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(run_name(cell), []).append(cell)
    return [tuple(sorted(group, key=lambda cell: cell.read_out != "")) for group in groups.values()]


def run_grid(
    cells: Iterable[Cell],
    results: ResultsFile,
    runs: Path,
    engine: Engine,
    *,
    on_result: Callable[[Result], None] = lambda result: None,
    on_failure: Callable[[Failure], None] = lambda failure: None,
) -> list[Failure]:
    """Measure what is not in `results` yet, and say what could not be measured.

    Raises `Interrupted` if somebody asked to stop; what was measured until then is in `results`.
    """
    missing, failures = left_to_measure(cells, results)
    for failure in failures:
        on_failure(failure)
    commit = provenance()["commit"]  # now: the tree may move on while the grid runs
    task = CellTask(runs.absolute(), engine.threads, commit)
    with closing(engine.outcomes(task, of_one_run(missing))) as answers:
        for answer in answers:
            for outcome in _lost(answer) if isinstance(answer, Lost) else answer:
                if isinstance(outcome, Result):
                    results.add(outcome)
                    on_result(outcome)
                else:
                    failures.append(outcome)
                    on_failure(outcome)
    return failures


def _lost(answer: Lost[tuple[Cell, ...]]) -> list[Result | Failure]:
    return [Failure(cell, answer.reason) for cell in answer.thing]


def mean_and_spread(errors: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds (of the seeds themselves, not estimated: ddof 0)."""
    return statistics.fmean(errors), statistics.pstdev(errors)
