"""`manigraph predict` and `manigraph export` as people type them."""

import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from manigraph.cli.main import main
from manigraph.inference.predictor import Predictor
from tests.inference.pictures import digits, save_digits
from tests.runs.test_passed_on import FORMAT_2, change

RUN = str(FORMAT_2)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with ten images and a file that is none."""
    save_digits(tmp_path / "photos" / "new", digits().test[:10].sort().values)
    (tmp_path / "photos" / "new" / "bad.png").write_bytes(b"nothing")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manigraph(
    *arguments: str, cwd: Path, given: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "manigraph", *arguments]
    env = {**os.environ, **(environment or {})}
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, check=False, env=env)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def expected(paths: Sequence[Path]) -> list[tuple[str, str]]:
    return [(str(answer.path), answer.class_name) for answer in Predictor.load(RUN).predict_files(paths)]


# predict


def test_a_table_is_printed_and_bad_files_are_listed(work: Path) -> None:
    result = manigraph("predict", RUN, "photos", cwd=work, environment={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 3
    rows = rows_of(result.stdout.decode())
    paths = sorted(Path("photos/new").glob("[0-9]*.png"))
    assert [(row["path"], row["class"]) for row in rows] == expected(paths)
    assert list(rows[0]) == [
        *("path", "class", "probability", *(f"p_{number}" for number in range(10))),
        *(f"nearest_{place}{what}" for place in (1, 2, 3) for what in ("", "_weight")),
    ]
    for row in rows:
        assert float(row["probability"]) == float(row[f"p_{row['class']}"])
        assert sum(float(row[f"p_{number}"]) for number in range(10)) == pytest.approx(1, abs=1e-4)
    first, last = result.stderr.decode().splitlines()
    assert first == "manigraph: cannot read 'photos/new/bad.png': not an image that can be read"
    assert last.startswith("manigraph: 10 images in ")
    assert last.endswith("; 1 could not be read")


def test_a_run_that_is_not_finished_is_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FORMAT_2, work / "run")
    (work / "run/status.json").write_text('{"state": "stopped", "reason": ""}')
    assert main(["predict", "run", "photos"]) == 3
    assert "the run is not finished (stopped)" in capsys.readouterr().err
    assert main(["predict", RUN, "photos"]) == 3
    assert "not finished" not in capsys.readouterr().err


def test_a_list_on_standard_input(work: Path) -> None:
    paths = sorted(Path("photos/new").glob("[0-9]*.png"))[:4]
    result = manigraph("predict", RUN, "-", cwd=work, given="\n".join(map(str, paths)).encode())
    assert result.returncode == 0
    assert [(row["path"], row["class"]) for row in rows_of(result.stdout.decode())] == expected(paths)


def test_who_has_read_enough_ends_it_without_a_word(work: Path) -> None:
    shutil.copytree("photos/new", "photos/again", ignore=shutil.ignore_patterns("bad.png"))
    command = f"{sys.executable} -m manigraph predict {RUN}{' photos/again' * 60}"  # more than a pipe holds
    result = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines()[0].startswith("path,class,")
    assert result.stdout.splitlines()[1] == "141"
    assert "Traceback" not in result.stderr
    assert "Broken pipe" not in result.stderr


@pytest.mark.usefixtures("work")
def test_tables_are_written_to_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", RUN, "photos", "--output", "answers.parquet"]) == 3
    assert main(["predict", RUN, "photos", "--output", "answers.csv", "--nearest", "1"]) == 3
    assert capsys.readouterr().out == ""
    by_parquet = pq.read_table("answers.parquet").to_pylist()
    by_csv = rows_of(Path("answers.csv").read_text())
    assert [(row["path"], row["class"]) for row in by_parquet] == [
        (row["path"], row["class"]) for row in by_csv
    ]
    assert "nearest_3" in by_parquet[0]
    assert "nearest_2" not in by_csv[0]
    before = Path("answers.csv").read_bytes()
    assert main(["predict", RUN, "photos/new/bad.png", "--output", "answers.csv"]) == 2
    assert "exists: name another file, or add --overwrite" in capsys.readouterr().err
    assert main(["predict", RUN, "photos/new/bad.png", "--output", "answers.csv", "--overwrite"]) == 3
    assert Path("answers.csv").read_bytes() == before  # there was nothing to put in its place
    assert main(["predict", RUN, "photos", "--output", "answers.csv", "--overwrite"]) == 3


@pytest.mark.usefixtures("work")
def test_images_are_sorted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", RUN, "photos", "--label_folder", "sorted"]) == 3
    rows = rows_of(capsys.readouterr().out)
    found = {(path.parent.name, path.name) for path in Path("sorted").rglob("*.png")}
    assert found == {(row["class"], Path(row["path"]).name) for row in rows}
    assert main(["predict", RUN, "photos", "--label-folder", "unsure", "--sure", "1", "--how", "link"]) == 3
    assert {path.parent.name for path in Path("unsure").rglob("*.png")} == {"unsure"}
    assert all(path.is_symlink() for path in Path("unsure").rglob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "photos"], "there is no run directory at 'nowhere'"),
        ([RUN], "name images to predict: files, folders, or - for a list on standard input"),
        ([RUN, "empty"], "there are no images in 'empty': give files, or folders that hold some"),
        ([RUN, "photos", "--output", "answers.xlsx"], "must end with .csv or .parquet"),
        ([RUN, "photos", "--output", "no/answers.csv"], "there is no folder 'no' for --output"),
        ([RUN, "photos", "--nearest", "-1"], "--nearest must be at least 0, got -1"),
        ([RUN, "photos", "--sure", "90"], "--sure is a probability from 0 to 1, got 90.0"),
        ([RUN, "photos", "--sure", "0.9"], "--sure is about sorting images: add --label_folder DIR"),
        ([RUN, "photos", "--how", "link"], "--how is about sorting images: add --label_folder DIR"),
        ([RUN, "photos", "--label_folder", "photos/sorted"], "whose images are to be sorted"),
        ([RUN, "photos/new", "--label_folder", "photos"], "'photos/new' lies in a folder of --label_folder"),
        ([RUN, "photos/n*/*.png", "--label_folder", "photos"], "lies in a folder of --label_folder"),
        ([RUN, "photos/new/*.png", "--label_folder", "photos/new/bad.png/x"], "Not a directory"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], message: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "empty").mkdir()
    before = sorted(work.rglob("*"))
    assert main(["predict", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize("place", ["nowhere", "photos/new/bad.png", "photos/*/bad.png"])
def test_files_of_which_not_one_can_be_read_are_bad_files(
    place: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(work.rglob("*"))
    assert main(["predict", RUN, place, "--output", "answers.csv"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("manigraph: cannot read '")
    assert last == f"manigraph: no image could be read of '{place}': see above"
    assert sorted(work.rglob("*")) == before


def test_nobody_needs_standard_input_but_for_a_list(work: Path) -> None:
    command = f"{sys.executable} -m manigraph predict {RUN}"
    for place, code in (("photos/new/bad.png", 3), ("photos", 3), ("-", 2)):
        result = subprocess.run(
            ["bash", "-c", f"{command} {place} <&-"], cwd=work, capture_output=True, text=True, check=False
        )
        assert result.returncode == code, result.stderr
        assert "unexpected" not in result.stderr
    assert result.stderr == (
        "manigraph: standard input is closed, so that there is no list to read: give files or folders\n"
    )


def test_names_that_a_terminal_would_obey_are_shown(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(FORMAT_2, work / "run")
    change(run / "data.json", "class_names", to=[f"\x1b[2J[red]{number}\x07\u202e" for number in range(10)])
    (work / "photos" / "new" / "bad.png").rename(work / "photos" / "new" / "\x1b]0;title\x07.png")
    assert main(["predict", str(run), "photos", "--label_folder", "sorted"]) == 3
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert r"\x1b[2J[red]" in captured.out
    assert r"\x1b]0;title\x07.png" in captured.err
    change(run / "config.json", "algorithm", to="\x1b[2J" + "x" * 100_000)
    assert main(["predict", str(run), "photos"]) == 2
    message = capsys.readouterr().err
    assert "\x1b" not in message
    assert r"\x1b[2J" in message
    assert len(message) < 3000


def test_in_a_terminal_of_80_columns(work: Path) -> None:
    """Progress is drawn over and gone in the end; the last line says what happened."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "manigraph", "predict", RUN, "photos", "--output", "answers.csv"]
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(command, cwd=work, stderr=slave, stdout=slave, stdin=slave, env=env) as process:
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
    os.close(master)
    assert process.returncode == 3
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    assert any(
        line.endswith("cannot read 'photos/new/bad.png': not an image that can be read") for line in lines
    )
    assert "manigraph: 10 images in " in lines[-1]


# export


def test_export_says_how_far_it_is_from_the_run(work: Path) -> None:
    result = manigraph("export", RUN, "--images", "photos/new", "--output", "model", cwd=work)
    assert result.returncode == 0, result.stderr.decode()
    lines = result.stdout.decode().splitlines()
    assert result.stderr == b""
    assert lines[0] == "model: images (batch, 8, 8, 1) to probabilities of 10 classes"
    assert [line.split()[0] for line in lines[1:4]] == ["model.onnx", "model.pt2", "serve.py"]
    assert all(float(line.split()[3]) <= 1e-5 for line in lines[1:3])
    assert lines[4:] == [
        "(largest difference of a probability, on 10 images)",
        "try: python model/serve.py IMAGE",
    ]
    assert max(map(len, lines)) < 80
    again = manigraph("export", RUN, "--images", "photos/new", "--output", "model", cwd=work)
    assert again.returncode == 2
    assert again.stderr == b"manigraph: --output 'model' exists: name another folder, or remove it\n"


def test_export_without_images_names_the_way_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(FORMAT_2, work / "run")
    assert main(["export", str(run)]) == 2
    assert "split.json is missing" in capsys.readouterr().err
    (run / "split.json").write_text(json.dumps({"test": [1, 2]}))
    change(run / "data.json", "digest", to="other")
    assert main(["export", str(run)]) == 2
    assert capsys.readouterr().err.endswith("put the same ones in place): give some with --images\n")
    assert not (run / "export").exists()
