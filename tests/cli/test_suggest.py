"""`manigraph suggest`, as a person types it, and what comes after it: labelling and training again."""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manigraph.cli.main import main
from manigraph.data.listing import list_images

QUICK = [
    *("--backbone.name", "small_cnn", "--backbone.width", "0.25", "--training.steps", "4"),
    *("--method.warmup_fraction", "0"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def make_photos(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name, count in {
        "cat, or so": 12,
        "dög": 12,
        "unlabelled": 30,
        "test/dög": 6,
        "test/cat, or so": 6,
    }.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number} ü.png")


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_suggest_label_train_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_photos(folder / "my photos")
    assert main(["train", "my photos", *QUICK, "--name", "first"]) == 0
    files = set((folder / "my photos").rglob("*"))
    capsys.readouterr()
    assert main(["suggest", "runs/first", "-n", "7"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("7 of 30 unlabelled images to label next: ")
    assert set((folder / "my photos").rglob("*")) == files
    table = folder / "runs/first/suggestions/suggestions.csv"
    rows = rows_of(table)
    asked, known = rows[:7], rows[7:]
    assert all(row["path"].startswith("unlabelled/") and row["label"] == "" for row in asked)
    assert [int(row["rank"]) for row in asked] == list(range(1, 8))
    before = list_images(folder / "my photos")
    assert {row["path"]: row["label"] for row in known} == {
        item.name: item.label for item in before.items if item.label is not None
    }
    # somebody labels all but one, in the table
    for row in asked[:6]:
        row["label"] = "dög"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    # and types the two commands
    copy, again = (shlex.split(line) for line in said.splitlines()[-2:])
    assert copy[0] == "cp"
    subprocess.run(copy, cwd=folder, check=True)
    assert main([*again[1:], *QUICK, "--name", "second"]) == 0
    after = list_images(Path(again[-1]))
    labels = {item.name: item.label for item in before.items}
    assert {item.name: item.label for item in after.items} == labels | {
        row["path"]: "dög" for row in asked[:6]
    }
    assert {item.name: item.part for item in after.items} == {item.name: item.part for item in before.items}
    assert not after.problems
    first, second = (
        json.loads((folder / "runs" / n / "split.json").read_text()) for n in ("first", "second")
    )
    count = {n: len(s["labelled"]) + len(s["validation"]) for n, s in (("first", first), ("second", second))}
    assert count["second"] == count["first"] + 6
    assert len(second["unlabelled"]) == 24
    # the next round asks for others, and its table gets a name beside the images that is free
    assert main(["suggest", "runs/second", "-n", "5"]) == 0
    assert "suggestions-2.csv" in capsys.readouterr().out
    next_rows = rows_of(folder / "runs/second/suggestions/suggestions.csv")
    assert not {row["path"] for row in next_rows[:5]} & {row["path"] for row in asked[:6]}
    assert sum(row["label"] == "dög" for row in next_rows) == 12 + 6 + 6


def test_the_real_command_on_digits(folder: Path) -> None:
    assert main(["train", "digits", *QUICK, "--name", "mine"]) == 0
    command = [sys.executable, "-m", "manigraph", "suggest", "runs/mine", "--count", "4"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "cp " not in result.stdout
    assert main(["suggest", "runs/mine", "-n", "4", "--strategy", "uncertain_and_far"]) == 0
    written = {path.name for path in (folder / "runs/mine/suggestions").iterdir()}
    assert written == {f"suggestions{n}.{kind}" for n in ("", "-2") for kind in ("csv", "png")}
    rows = rows_of(folder / "runs/mine/suggestions/suggestions.csv")
    unlabelled = json.loads((folder / "runs/mine/split.json").read_text())["unlabelled"]
    assert len(rows) == 4
    assert {int(row["index"]) for row in rows} <= set(unlabelled)


def test_bad_input_gets_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "--name", "mine"]) == 0
    Path("file").write_text("mine")
    run = "runs/mine"
    capsys.readouterr()
    for arguments, message in (
        (["nowhere"], "there is no run directory at 'nowhere'"),
        ([run, "-n", "0"], "--count must be at least 1, got 0"),
        ([run, "--seed", "-1"], "--seed must be from 0 to"),
        ([run, "--output", "file"], "'file' is a file: --output needs a folder"),
        ([run, "--strategy", "best"], "--strategy"),
    ):
        assert main(["suggest", *arguments]) == 2
        complaint = capsys.readouterr().err
        assert message in complaint
        assert len(complaint.splitlines()) == 1
    assert not Path("runs/mine/suggestions").exists()


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; from manigraph.cli.main import main\n"
        "try: main(['suggest', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--strategy" in result.stdout


def test_the_strategies_that_can_be_named_are_those_there_are() -> None:
    from typing import get_args

    from manigraph.cli.suggest import StrategyName, SuggestOptions
    from manigraph.inference.suggest import DEFAULT_STRATEGY, STRATEGIES

    assert {name.replace("_", " ") for name in get_args(StrategyName)} == set(STRATEGIES)
    assert SuggestOptions(Path()).strategy.replace("_", " ") == DEFAULT_STRATEGY
