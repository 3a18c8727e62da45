"""Cells are measured once, whoever is killed on the way; results stay what they are in the file."""

import fcntl
import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from manigraph.errors import UserError
from manigraph.experiments import grid
from manigraph.experiments.engines import LocalEngine, Lost
from manigraph.experiments.grid import (
    Cell,
    CellTask,
    Failure,
    Result,
    ResultsFile,
    measure,
    of_one_run,
    run_grid,
)
from manigraph.runs import RunDirectory, machine
from manigraph.training.checkpoint import Checkpoints
from tests.experiments.cells import CELL, QUICK, STEPS, measure_and_die, measure_and_keep_often, measured
from tests.resume.training import Process

ROOT = Path(__file__).parents[2]
RUN = f"{CELL.config().run_name}-{CELL.digest()[:8]}"

INCIDENTAL = ("seconds", "cpu_seconds", "time", "commit")

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class InThisProcess:
    """The simplest engine."""

    jobs: int = 1
    threads: int = 1
    gpus: int = 0

    def outcomes(
        self, function: Callable[[Thing], Answer], things: Sequence[Thing]
    ) -> Generator[Answer | Lost[Thing], None, None]:
        for thing in things:
            yield function(thing)


def same(result: Result) -> dict[str, Any]:
    """What must not depend on what happened on the way."""
    return {name: value for name, value in asdict(result).items() if name not in INCIDENTAL}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Runs with one finished one, and its result."""
    runs = tmp_path_factory.mktemp("runs")
    return runs, measure(CELL, runs, "the commit", threads=1)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with one that was killed after some checkpoints."""
    runs = tmp_path_factory.mktemp("killed")
    process = Process(measure_and_keep_often, runs)
    kept = Checkpoints(runs / RUN / "checkpoints", "")
    process.kill_after(0, since=lambda: len(kept.steps()) == 2)
    assert process.exit_code() == -signal.SIGKILL
    return runs


# Cells


def test_a_cell_that_nobody_disturbs(uninterrupted: tuple[Path, Result]) -> None:
    runs, result = uninterrupted
    assert [path.name for path in runs.iterdir()] == [RUN]
    (evaluation,) = RunDirectory(runs / RUN).read_lines("evaluations.jsonl")
    assert result.test_error == evaluation["error"]
    assert (result.commit, result.threads, result.machine) == ("the commit", 1, machine())
    assert result.seconds is not None
    assert result.cpu_seconds is not None
    assert 0.1 < result.cpu_seconds < time.process_time()
    assert result.config["training"]["steps"] == STEPS


def test_a_cell_that_was_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, killed: Path, uninterrupted: tuple[Path, Result]
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    run = RunDirectory(tmp_path / RUN)
    assert run.status().state == "interrupted"
    result = measure(CELL, tmp_path, "another commit", threads=1)
    assert same(result) == same(uninterrupted[1])
    assert result.seconds is result.cpu_seconds is None, "how long it took is not known"
    assert result.commit == run.read_json("provenance.json")["commit"]
    (resumed,) = run.read_lines("resumes.jsonl")
    assert 0 < resumed["step"] < STEPS
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


def test_a_finished_run_is_read_and_not_trained_again(uninterrupted: tuple[Path, Result]) -> None:
    runs, expected = uninterrupted
    before = files(runs)
    result = measure(CELL, runs, threads=1)
    assert same(result) == same(expected)
    assert result.seconds is result.cpu_seconds is None
    assert files(runs) == before


def test_a_run_that_was_killed_before_it_was_described_is_left_behind(
    tmp_path: Path, uninterrupted: tuple[Path, Result]
) -> None:
    process = Process(measure_and_die, tmp_path, 10)  # in the third file: provenance, status, configuration
    assert process.exit_code() == -signal.SIGKILL
    assert not (tmp_path / RUN / "preprocessing.json").exists()
    left_behind = files(tmp_path / RUN)
    assert {path.name for path in left_behind} >= {"provenance.json", "status.json"}
    assert same(measure(CELL, tmp_path, threads=1)) == same(uninterrupted[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [RUN, f"{RUN}-2"]
    assert files(tmp_path / RUN) == left_behind
    before = files(tmp_path)
    assert same(measure(CELL, tmp_path, threads=1)) == same(uninterrupted[1])
    assert files(tmp_path) == before


def test_a_finished_run_is_preferred_to_a_later_one(
    tmp_path: Path, uninterrupted: tuple[Path, Result]
) -> None:
    runs, expected = uninterrupted
    for name in (RUN, f"{RUN}-2", f"{RUN}-10"):
        shutil.copytree(runs / RUN, tmp_path / name)
        if name != f"{RUN}-2":
            RunDirectory(tmp_path / name).set_status("interrupted")
    before = files(tmp_path)
    assert same(measure(CELL, tmp_path, threads=1)) == same(expected)
    assert files(tmp_path) == before


def test_a_process_that_is_about_to_end_is_waited_for(
    tmp_path: Path, killed: Path, uninterrupted: tuple[Path, Result]
) -> None:
    """As an orphan does that still writes its checkpoint."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    run = RunDirectory(tmp_path / RUN)
    found: list[Result | Failure] = []
    measuring = threading.Thread(target=lambda: found.extend(CellTask(tmp_path, 1)([CELL])))
    with run.held():
        run.set_status("running")
        measuring.start()
        measuring.join(timeout=3)
        assert measuring.is_alive()
    measuring.join()
    assert isinstance(found[0], Result), found
    assert same(found[0]) == same(uninterrupted[1])


def test_two_who_begin_the_same_cell_train_it_once(
    tmp_path: Path, uninterrupted: tuple[Path, Result]
) -> None:
    """As two people with the same command: neither finds the run of the other, which is not described yet."""
    twice = LocalEngine(2).outcomes(CellTask(tmp_path, 1), [[CELL], [CELL]])
    found = [outcome for outcomes in twice if isinstance(outcomes, list) for outcome in outcomes]
    results = [outcome for outcome in found if isinstance(outcome, Result)]
    assert [same(result) for result in results] == 2 * [same(uninterrupted[1])]
    assert sorted(result.seconds is None for result in results) == [False, True]
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


def test_the_claim_of_a_killed_process_is_none(tmp_path: Path, uninterrupted: tuple[Path, Result]) -> None:
    claim = tmp_path / f".{RUN}.claim"
    claim.touch()
    with claim.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (outcome,) = _in_no_time(CellTask(tmp_path, 1))
        assert isinstance(outcome, Failure)
        assert "is being trained by another process: wait for it, or stop it" in outcome.reason
    assert same(measure(CELL, tmp_path, threads=1)) == same(uninterrupted[1])
    assert not claim.exists()


def _in_no_time(task: CellTask) -> list[Result | Failure]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "PATIENCE", 0.1)
        return task([CELL])


def test_whoever_takes_longer_is_named(tmp_path: Path, killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "PATIENCE", 0.1)
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    run = RunDirectory(tmp_path / RUN)
    with run.held():
        run.set_status("running")
        (outcome,) = CellTask(tmp_path, 1)([CELL])
    assert isinstance(outcome, Failure)
    assert "is being trained by another process: wait for it, or stop it" in outcome.reason


# Grids


def test_what_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    good = Cell("digits", "label_spreading", 20, 0)
    wrong_option = Cell("digits", "supervised", 20, 0, ("--training.stepz", "3"))
    too_many_labels = Cell("digits", "supervised", 5000, 0, QUICK)
    results = ResultsFile(tmp_path / "results.json")
    told: list[Failure] = []
    failures = run_grid(
        [wrong_option, too_many_labels, good], results, tmp_path, InThisProcess(), on_failure=told.append
    )
    assert told == failures
    assert [failure.cell for failure in failures] == [wrong_option, too_many_labels]
    assert "did you mean '--training.steps'?" in failures[0].reason
    assert "5000" in failures[1].reason
    assert [result.cell for result in results.results] == [good]


def test_a_grid_measures_only_what_is_not_there(tmp_path: Path) -> None:
    cells = [Cell("digits", "label_spreading", 20, seed) for seed in range(3)]
    results = ResultsFile(tmp_path / "results.json")
    results.add(replace(measured(77.0), cell=cells[1], digest=cells[1].digest()))
    results.add(replace(measured(88.0), cell=cells[2], digest="of other settings"))
    new: list[Result] = []
    assert run_grid(cells, results, tmp_path, InThisProcess(), on_result=new.append) == []
    assert [result.cell for result in new] == [cells[0], cells[2]]
    again = ResultsFile(tmp_path / "results.json")
    assert [again.find(cell) is not None for cell in cells] == [True, True, True]
    assert [result.test_error for result in again.results] == [11.0, 77.0, 6.4]


def test_processes_measure_what_this_one_does(tmp_path: Path, uninterrupted: tuple[Path, Result]) -> None:
    results = ResultsFile(tmp_path / "results.json")
    assert run_grid([CELL], results, tmp_path / "runs", LocalEngine(1)) == []
    (result,) = results.results
    assert same(result) == same(uninterrupted[1])


SHARED = replace(CELL, seed=1)


def test_cells_of_one_run_are_measured_side_by_side(tmp_path: Path) -> None:
    """However many could be at the same time, and whichever comes first in the table."""
    cells = [replace(SHARED, read_out="views"), CELL, SHARED]
    assert of_one_run(cells) == [(SHARED, cells[0]), (CELL,)]
    results = ResultsFile(tmp_path / "results.json")
    assert run_grid(cells, results, tmp_path / "runs", LocalEngine(3)) == []
    names = {f"{cell.config().run_name}-{cell.digest()[:8]}" for cell in (SHARED, CELL)}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    plain, averaged = results.find(SHARED), results.find(cells[0])
    assert plain is not None
    assert averaged is not None
    assert plain.cpu_seconds is not None, "it is the one that is trained"
    assert averaged.cpu_seconds is averaged.seconds is None
    assert averaged.calibration_error != plain.calibration_error


def test_the_time_of_a_cell_is_that_of_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of asking the run several times, which other cells have for nothing."""
    asked, pause = grid._asked, 3.0

    def slowly(*arguments: Any) -> Any:
        end = time.process_time() + pause
        while time.process_time() < end:
            pass
        return asked(*arguments)

    began = time.process_time()
    monkeypatch.setattr(grid, "_asked", slowly)
    result = measure(replace(SHARED, read_out="views"), tmp_path, threads=1)
    assert result.cpu_seconds is not None
    assert result.cpu_seconds < time.process_time() - began - pause + 0.1


def test_a_run_that_fails_is_not_tried_again_by_cells_that_share_it(tmp_path: Path) -> None:
    wrong = replace(SHARED, labels=5000)
    cells = [wrong, replace(wrong, read_out="views"), Cell("digits", "label_spreading", 20, 0)]
    results = ResultsFile(tmp_path / "results.json")
    tried: list[Cell] = []

    class Counting(CellTask):
        def _outcome(self, cell: Cell) -> Result | Failure:
            tried.append(cell)
            return super()._outcome(cell)

    first, second = Counting(tmp_path, 1)(cells[:2])
    assert tried == cells[:1]
    assert isinstance(first, Failure)
    assert second == replace(first, cell=cells[1])
    failures = run_grid(cells, results, tmp_path, InThisProcess())
    assert [failure.cell for failure in failures] == cells[:2]
    assert [result.cell for result in results.results] == cells[2:]


def test_all_cells_of_a_lost_run_are_lost(tmp_path: Path) -> None:
    class Dying(InThisProcess):
        def outcomes(
            self, function: Callable[[Thing], Answer], things: Sequence[Thing]
        ) -> Generator[Answer | Lost[Thing], None, None]:
            for thing in things:
                yield Lost(thing, "gone")

    cells = [SHARED, replace(SHARED, read_out="views")]
    failures = run_grid(cells, ResultsFile(tmp_path / "results.json"), tmp_path, Dying())
    assert failures == [Failure(cell, "gone") for cell in cells]


# The results file


def test_a_line_for_each_result(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    results = ResultsFile(path)
    assert not path.parent.exists(), "looking leaves no trace"
    later, earlier = measured(seed=1), measured(4.5, seed=0, validation_error=3.0, threads=2)
    results.add(later)
    results.add(earlier)
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if '"cell"' in line]
    assert [json.loads(line.strip().rstrip(","))["cell"]["seed"] for line in lines] == [0, 1]
    values = json.loads(text)
    assert values["command"][0] == "manigraph"
    assert values["machine"] == machine()
    assert values["results"] == [json.loads(json.dumps(asdict(result))) for result in (earlier, later)]
    assert text.endswith("\n  ]\n}\n")
    assert ResultsFile(path).results == [earlier, later]
    assert list(path.parent.iterdir()) == [path]


def test_what_was_measured_comes_back(tmp_path: Path, uninterrupted: tuple[Path, Result]) -> None:
    ResultsFile(tmp_path / "results.json").add(uninterrupted[1])
    assert ResultsFile(tmp_path / "results.json").results == [uninterrupted[1]]


def test_options_and_read_outs_come_back(tmp_path: Path) -> None:
    cell = replace(CELL, read_out="label_spreading")
    result = replace(measured(), cell=cell, digest=cell.digest())
    ResultsFile(tmp_path / "results.json").add(result)
    assert ResultsFile(tmp_path / "results.json").find(cell) == result


def test_a_new_result_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "results.json")
    results.add(measured(7.0, digest="of other settings"))
    assert results.find(measured().cell) is None
    results.add(measured(8.0))
    assert ResultsFile(tmp_path / "results.json").results == [measured(8.0)]


def test_two_grids_can_write_into_one_file(tmp_path: Path) -> None:
    one, other = ResultsFile(tmp_path / "results.json"), ResultsFile(tmp_path / "results.json")
    one.add(measured(seed=0))
    other.add(measured(seed=1))
    one.add(measured(seed=2))
    kept = ResultsFile(tmp_path / "results.json").results
    assert [result.cell.seed for result in kept] == [0, 1, 2]


def add_many(path: Path, labels: int) -> None:
    for seed in range(5):
        ResultsFile(path).add(measured(labels=labels, seed=seed))


def test_at_the_same_moment_too(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    processes = [Process(add_many, path, labels) for labels in (20, 30, 40)]
    assert [process.exit_code() for process in processes] == [0, 0, 0]
    assert len(ResultsFile(path).results) == 15


@pytest.mark.parametrize("name", ["digits", "digits-choices", "digits-methods", "digits-tuning"])
def test_committed_results_can_be_read(name: str) -> None:
    path = ROOT / "results" / f"{name}.json"
    values = json.loads(path.read_text(encoding="utf-8"))["results"]
    results = ResultsFile(path).results
    assert [result.digest for result in results] == [value["digest"] for value in values]
    assert [result.test_error for result in results] == [value["test_error"] for value in values]
    assert [list(result.cell.options) for result in results] == [value["cell"]["options"] for value in values]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"results": [3]}',
        b'{"results": [{"cell": {}}]}',
        b'{"results": [{"cell": null, "test_error": 3}]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(
        UserError, match="' is damaged or not a results file: mend it, move it away or name another"
    ):
        ResultsFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("error", [None, "low", math.nan, math.inf, -5.0])
def test_an_error_that_is_none_is_refused(error: Any, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": [asdict(measured(test_error=error))]}))
    with pytest.raises(UserError, match="not a results file"):
        ResultsFile(path)


def test_a_seed_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    result = asdict(measured())
    path.write_text(json.dumps({"results": [{**result, "cell": {**result["cell"], "seed": "x"}}]}))
    with pytest.raises(UserError, match="not a results file"):
        ResultsFile(path)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    ResultsFile(path).add(measured())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="not a results file"):
        ResultsFile(path)


def test_a_folder_is_no_results_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder: name a results file"):
        ResultsFile(tmp_path)
