"""Own images from the command line, in real processes, as a person types the commands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from manigraph.cli import train
from manigraph.cli.main import main
from manigraph.cli.reproduce import print_results
from manigraph.cli.targets import OWN_IMAGES, recipe_and_options
from manigraph.errors import UserError
from manigraph.experiments.grid import Result, ResultsFile
from manigraph.experiments.tables import DIGITS_TABLES
from tests.data.pictures import photo_folder, picture, write_files

QUICK = ["--training.steps", "4", "--backbone.width", "0.1", "--batch.unlabelled", "8"]


def manigraph(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manigraph", *arguments]
    environment = {**os.environ, "MANIGRAPH_CACHE": str(cwd / "cache"), "COLUMNS": "200"}
    environment.pop("MANIGRAPH_DATA", None)
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def test_a_folder_is_checked_trained_on_and_evaluated(tmp_path: Path) -> None:
    photo_folder(tmp_path / "my photos", per_class=20, unlabelled=40)
    before = sorted((tmp_path / "my photos").rglob("*"))
    report = manigraph("check", "my photos", "--montage", "montage.png", cwd=tmp_path).stdout
    for text in (
        "84 images of 12x10x3",
        "32 labelled, 40 unlabelled, 8 validation, 4 test",
        "ready to train",
    ):
        assert text in report
    with Image.open(tmp_path / "montage.png") as montage:
        assert montage.size == (130 + 10 * (12 * 6 + 3), 2 * (10 * 6 + 3))
    output = manigraph("train", "my photos", *QUICK, cwd=tmp_path).stdout
    run = tmp_path / "runs" / "my_photos-all-manifold_graph-seed0"
    assert f"run directory: runs/{run.name}" in output
    assert f"control: runs/{run.name}-control" in output
    assert "validation error" in output
    evaluated = manigraph("evaluate", f"runs/{run.name}", cwd=tmp_path).stdout
    assert Path(json.loads((run / "config.json").read_text())["data"]["path"]).is_absolute()
    assert "cat" in evaluated
    assert sorted((tmp_path / "my photos").rglob("*")) == before  # nothing is written there
    assert {path.name for path in tmp_path.iterdir()} == {"my photos", "cache", "montage.png", "runs"}


Call = Callable[..., str]


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """A command in this process, which saves the seconds in which another one would start; its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MANIGRAPH_REPORT", "False")
    threads = torch.get_num_threads()

    def call(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    yield call
    torch.set_num_threads(threads)


def test_the_choice_is_shown_and_kept_and_what_is_set_wins(tmp_path: Path, called: Call) -> None:
    photo_folder(tmp_path / "photos", per_class=20, unlabelled=40)
    output = called("train", "photos", *QUICK, "--minutes", "1")
    run = tmp_path / "runs" / "photos-all-manifold_graph-seed0"
    config, choices = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "choices"))
    shown = {line["what"]: (line["value"], line["why"]) for line in choices["choices"]}
    assert shown["steps"] == ("4", "as you set it")
    assert shown["network"] == ("small_cnn, width 0.1", "as you set it")
    assert shown["batch"] == ("32 labelled + 8 not", "as you set it")
    assert shown["images"] == ("12x10 colour", "as the files are")
    assert shown["validation"] == ("8 of 40 labels", "a fifth, to measure the error on")
    for what, (value, why) in shown.items():
        assert re.search(rf"^{what} +{re.escape(value)} +{re.escape(why)}", output, re.MULTILINE)
    assert (config["training"]["steps"], config["backbone"]["width"], config["data"]["validation"]) == (
        4,
        0.1,
        8,
    )
    assert output.index("1 of 2, with unlabelled images") < output.index("2 of 2, the control")
    verdict = json.loads((run / "verdict.json").read_text())
    assert f"verdict: {verdict['sentence']}" in output
    assert verdict["num_images"] == 8
    assert verdict["outcome"] == "unclear"  # eight images are too few for anything
    # The same command line goes on with a run, as with a recipe; here there is nothing left.
    with pytest.raises(UserError, match="and its control are finished"):
        train.run(["--resume", str(run), "photos", *QUICK])


def test_a_control_can_be_left_away_and_be_had_with_a_recipe(tmp_path: Path, called: Call) -> None:
    photo_folder(tmp_path / "photos", per_class=20, unlabelled=40)
    alone = called("train", "photos", *QUICK, "--control", "False")
    assert "verdict" not in alone
    assert "validation error" in alone
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["photos-all-manifold_graph-seed0"]
    recipe = ["train", "digits", "--algorithm", "pi_model", *QUICK[:4], "--runs", "digits"]
    output = called(*recipe, "--control")
    assert "verdict: " in output
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == [
        "digits-20-pi_model-seed0", "digits-20-pi_model-seed0-control"
    ]  # fmt: skip
    plain = called(*recipe[:-1], "plain")
    assert "verdict" not in plain
    (run,) = (tmp_path / "plain").iterdir()
    assert not (run / "choices.json").exists()
    # Both have the weights of a run without any of this.
    for name in ("config.json", "model.safetensors"):
        first, second = (tmp_path / where / run.name / name for where in ("digits", "plain"))
        assert first.read_bytes() == second.read_bytes()


def test_a_recipe_gets_as_many_steps_as_fit_into_the_time(tmp_path: Path, called: Call) -> None:
    arguments = ["train", "digits", "--algorithm", "supervised", "--backbone.width", "0.1"]
    output = called(*arguments, "--minutes", "0.02")
    fitting = re.search(r"^steps +([\d,]+) +what fits into 0\.02 min", output, re.MULTILINE)
    assert fitting
    assert re.search(r"^control +none +this is supervised training itself", output, re.MULTILINE)
    (run,) = (tmp_path / "runs").iterdir()
    steps = json.loads((run / "config.json").read_text())["training"]["steps"]
    assert steps == int(fitting[1].replace(",", ""))


def test_images_that_cannot_be_compared_on_get_no_control(tmp_path: Path, called: Call) -> None:
    photo_folder(tmp_path / "photos", per_class=1, unlabelled=12, test=0)
    output = called("train", "photos", *QUICK)
    assert re.search(r"^control +none +no image can be held out to compare both on", output, re.MULTILINE)
    assert "verdict" not in output


@pytest.mark.parametrize("minutes", ["0", "0.02"])
def test_without_held_out_images_settings_that_are_given_get_no_control_either(
    minutes: str, tmp_path: Path, called: Call
) -> None:
    photo_folder(tmp_path / "photos", per_class=3, unlabelled=12, test=0)
    target = ["photos"] if minutes == "0" else ["folder_features", "--data.path", "photos", "--control"]
    options = ["--data.validation", "0", "--minutes", minutes, *QUICK[:2], "--batch.labelled", "2"]
    output = called("train", *target, *options, "--batch.unlabelled", "4")
    said = "no control is trained: no image is held out on which both could be compared"
    assert output.count(said) == 1
    assert "verdict" not in output
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_csv_of_labels_works_as_well(tmp_path: Path) -> None:
    lines = ["path,label"]
    for i in range(30):
        write_files(tmp_path / "all", [(f"{i}.png", picture(i))])
        lines.append(f"{i}.png,{('cat', 'dog', '')[i % 3]}")
    (tmp_path / "all" / "labels.csv").write_text("\n".join(lines))
    for target in ("all", "all/labels.csv"):
        report = json.loads(manigraph("check", target, "--json", cwd=tmp_path).stdout)
        assert report["can_train"]
        assert report["parts"] == {"labelled": 16, "unlabelled": 10, "validation": 4, "test": 0}
    assert "validation error" in manigraph("train", "all/labels.csv", *QUICK, cwd=tmp_path).stdout


def test_data_that_cannot_be_trained_on_ends_with_code_1_and_says_why(tmp_path: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    write_files(
        root, [("dog/broken.jpg", b"no image"), ("test/cat/x.png", (root / "dog/1.png").read_bytes())]
    )
    write_files(root, [("dog/2.png", (root / "dog/1.png").read_bytes())])
    result = manigraph("check", "photos", cwd=tmp_path, code=1)
    assert "error: 1 of 5 test images are exact copies of labelled ones" in result.stdout
    assert re.search(r"test/cat/x\.png = dog/[12]\.png", result.stdout)
    assert "dog/broken.jpg (not an image that can be read)" in result.stdout
    assert "training would be wrong" in result.stdout
    report = json.loads(manigraph("check", "photos", "--json", cwd=tmp_path, code=1).stdout)
    assert not report["can_train"]
    kinds = {finding["kind"]: finding["severity"] for finding in report["findings"]}
    assert kinds["copies_labelled_test"] == "error"
    assert kinds["unreadable_files"] == "warning"
    refused = manigraph("train", "photos", *QUICK, cwd=tmp_path, code=2)
    assert refused.stderr.startswith("manigraph: photos cannot be trained on: 1 of 5 test images are exact")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_check_ends_with_code_1_where_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = manigraph("check", "empty", cwd=tmp_path, code=1)
    assert "error: there are no images in" in result.stdout
    report = json.loads(manigraph("check", "empty", "--json", cwd=tmp_path, code=1).stdout)
    assert [finding["kind"] for finding in report["findings"]] == ["no_data"]


def test_any_name_can_be_a_class(tmp_path: Path) -> None:
    """Brackets mean something to the terminal library, and not all names are UTF-8."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "photos") + b"\xff"))
    names = [f"{c}/{i}.png" for c in ("[red]x", "[bold]y[", "unlabelled") for i in range(8)]
    write_files(folder, ((name, picture(seed)) for seed, name in enumerate(names)))
    report = manigraph("check", str(folder), cwd=tmp_path).stdout
    assert "[red]x" in report
    assert "[bold]y[" in report
    assert "run directory" in manigraph("train", str(folder), *QUICK, cwd=tmp_path).stdout
    control, run = sorted((tmp_path / "runs").iterdir(), reverse=True)
    assert control.name == f"{run.name}-control"
    assert "[red]x" in manigraph("evaluate", str(run), "--part", "validation", cwd=tmp_path).stdout


def test_warnings_are_shown_before_training_starts(tmp_path: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    write_files(root, [("dog/broken.jpg", b"no image")])
    assert (
        "warning: 1 of 37 files could not be used"
        in manigraph("train", "photos", *QUICK, cwd=tmp_path).stdout
    )


def test_hyphens_in_the_name_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_and_options("svhn-30min") == ("svhn_30min", [])
    (tmp_path / "svhn-30min").mkdir()  # whoever has a folder of that name means it
    assert recipe_and_options("svhn-30min")[0] == OWN_IMAGES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere/at/all"], "there is no folder or file 'nowhere/at/all'"),
        (["check", "svhm"], "unknown recipe or folder 'svhm': did you mean 'svhn'?"),
        (["train", "labels.csv"], "there is no folder or file 'labels.csv'"),
        (["train", "."], "there are no images in "),
        (["train", "x" * 300], "cannot be opened: File name too long"),
        (["train", "digits", "--seed", "99999999999999999999"], "seed must be from 0 to 4294967295"),
        (["train", "svhn"], "manigraph data get svhn"),
        (["train", "svhn", "--data_dir", "here"], "here"),
        (["train", "digits", "--data.image_size", "3"], "image_size"),
        (["train", "digits", "--data.path", "x"], "data.path is for your own images"),
        (["train", "digits", "--data.split", "none.json"], "cannot read the split file 'none.json'"),
        (["train", "digits", "--training.select", "test"], "above 0 to select the best weights"),
        (["train", "digits", "--minutes", "-1"], "--minutes must be a time from 0 on, got -1"),
        (["train", "digits", "--minutes", "nan"], "--minutes must be a time from 0 on, got nan"),
    ],
)
def test_bad_input_gets_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MANIGRAPH_DATA", raising=False)
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.splitlines()) == 1


def test_a_result_chosen_on_test_is_marked_wherever_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--training.evaluate_every", "2", "--training.select", "test", "--training.steps", "4"]
    arguments = ["train", "digits", "--algorithm", "supervised", *options]
    mark = "chosen on test images"
    assert mark in manigraph(*arguments, cwd=tmp_path).stdout
    run = "runs/digits-20-supervised-seed0"
    assert mark in manigraph("evaluate", run, cwd=tmp_path).stdout
    assert json.loads(manigraph("evaluate", run, "--json", cwd=tmp_path).stdout)["selected_on"] == "test"
    # and in tables
    table = DIGITS_TABLES["digits"]
    results = ResultsFile(tmp_path / "results.json")
    for row in table.rows:
        for column in table.columns:
            for seed in table.seeds:
                cell = table.cell(row, column, seed)
                rule = "test" if row.algorithm == "vat" and column.labels == 50 and seed == 3 else "last"
                results.results.append(
                    Result(cell, cell.digest(), 5.0, None, "split", 1.0, None, selected_on=rule)  # type: ignore[arg-type]
                )
    print_results(results, table)
    output = capsys.readouterr().out
    (marked,) = [line for line in output.splitlines() if "‡" in line and "│" in line]
    assert "VAT" in marked
    assert marked.count("‡") == 1
    assert f"‡ {mark}" in output
    honest = manigraph("train", "digits", "--algorithm", "supervised", *QUICK[:2], cwd=tmp_path).stdout
    assert mark not in honest
