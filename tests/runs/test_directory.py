import fcntl
import json
import subprocess
from pathlib import Path

import pytest

from manigraph.errors import UserError
from manigraph.runs import RunDirectory, can_be_written, write_atomically, write_json


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    paths = [RunDirectory.create(tmp_path, "run").path for _ in range(3)]
    assert [path.name for path in paths] == ["run", "run-2", "run-3"]


def test_a_new_run_says_where_it_comes_from(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run")
    record = run.read_json("provenance.json")
    assert record["command"][0] == "manigraph"
    assert record["packages"]["torch"]
    assert record["machine"]["cores"] >= 1
    assert run.read_json("status.json") == {"state": "running", "reason": ""}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"old": True})

    def fail(temporary: Path) -> None:
        temporary.write_text("half of a f")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


def test_lines_are_appended_and_read_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run")
    assert run.read_lines("metrics.jsonl") == []
    run.journal("metrics.jsonl").append({"step": 1})
    run.journal("metrics.jsonl").append({"step": 2})
    assert run.read_lines("metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run")
    run.journal("metrics.jsonl").append({"step": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.read_lines("metrics.jsonl") == [{"step": 1}]


def make_run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "run")
    run.write_json("config.json", {})
    return run


def test_opening_what_is_not_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run directory"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"has no config\.json"):
        RunDirectory.open(tmp_path)


def test_a_run_of_another_format_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_json(run.path / "provenance.json", {"format": 99})
    with pytest.raises(UserError, match="written in run format 99"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ("[]", "does not hold a JSON object"), (None, "missing")]
)
def test_damaged_files_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    run = make_run(tmp_path)
    if text is not None:
        (run.path / "split.json").write_text(text)
    with pytest.raises(UserError, match=message):
        run.read_json("split.json")


def test_a_lock_that_is_let_go_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    """As by a child of a killed process that has not come to its own program yet."""
    run = make_run(tmp_path)
    with (run.path / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(["sleep", "0.1"], pass_fds=[file.fileno()])
    assert run.status().state == "interrupted"
    child.wait()
    with run.held():
        assert run.status().state == "running"


def test_where_files_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert can_be_written(tmp_path)
    assert can_be_written(tmp_path / "not" / "there" / "yet")
    assert not can_be_written(tmp_path / "file")
    assert not can_be_written(tmp_path / "file" / "below")
    assert not can_be_written(tmp_path / ("x" * 300))
