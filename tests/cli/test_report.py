"""`manigraph report` and `watch`, as people type them, and the report that a training ends with."""

from pathlib import Path

import pytest

from manigraph.cli.main import main
from tests.reports.made_up import make_run


def test_a_training_ends_with_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--training.steps", "4", "--backbone.width", "0.25", "--data.validation", "40"]
    options += ["--method.warmup_fraction", "0", "--report", "True", "--control", "True"]
    assert main(["train", "digits", "--runs", str(tmp_path), "--name", "run", *options]) == 0
    page = tmp_path / "run" / "report.html"
    assert f"report: {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert 'id="map"' in text
    assert 'id="gallery"' in text
    assert "labelled images alone" in text  # the control
    assert (tmp_path / "run" / "analysis.safetensors").is_file()
    assert (tmp_path / "run-control" / "report.html").is_file()


def test_a_training_can_do_without(tmp_path: Path) -> None:
    options = ["--training.steps", "2", "--backbone.width", "0.25", "--report", "False"]
    assert main(["train", "digits", "--runs", str(tmp_path), "--name", "run", *options]) == 0
    assert not (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "analysis.json").exists()
    assert main(["report", str(tmp_path / "run"), "--analyse", "True", "--figures", "False"]) == 0
    assert 'id="map"' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_training_whose_report_fails_went_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise OSError("no space left")

    monkeypatch.setattr("manigraph.reports.html.render", broken)
    monkeypatch.setattr("manigraph.inference.analysis.analyse", broken)
    options = ["--training.steps", "2", "--backbone.width", "0.25", "--report", "True"]
    assert main(["train", "digits", "--runs", str(tmp_path), "--name", "run", *options]) == 0
    said = capsys.readouterr()
    assert "run directory" in said.out
    assert said.err.count("the run is complete, its report is not: no space left") == 1


def test_another_run_of_the_same_name_is_no_control(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run")
    make_run(tmp_path, "run-control", error=77.0)
    assert main(["report", str(run), "--figures", "False"]) == 0
    assert "labelled images alone" not in (run / "report.html").read_text(encoding="utf-8")


def test_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_run(tmp_path))
    assert main(["report", ".", "--figures", "False"]) == 0


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert f"report: {tmp_path / 'page.html'}" in said
    assert "manifold, connectivity, gallery" in said
    assert (tmp_path / "figures" / "connectivity.svg").stat().st_size > 10_000


def test_a_run_without_map_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, with_analysis=False)
    (run / "model.safetensors").touch()
    assert main(["report", str(run), "--figures", "False"]) == 0
    assert f"manigraph report {run} --analyse" in capsys.readouterr().out


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [str(make_run(tmp_path, f"run{seed}", seed=seed)) for seed in range(3)]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *runs]) == 0
    assert "3 runs on blobs" in (tmp_path / "comparison.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "runs"),
        (["nowhere"], "there is no run directory at 'nowhere'"),
        (["RUN", "--output", "page.pdf"], "a report is an HTML file"),
        (["RUN", "--output", "gone/page.html"], "the folder of 'gone/page.html' does not exist"),
        (["RUN", "--output", "."], "is a folder"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    make_run(tmp_path, "RUN")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no run directory"),
        (["RUN", "--host", "example.org"], "--host needs an address"),
    ],
)
def test_watching_needs_a_run_and_an_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    make_run(tmp_path, "RUN")
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *arguments]) == 2
    assert said in capsys.readouterr().err
