"""`manigraph figures`, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manigraph.cli.main import main

TRAIN = [
    *("--data.validation", "60", "--backbone.width", "0.25", "--training.steps", "6"),
    *("--training.log_every", "3"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_real_command_draws_a_run(tmp_path: Path) -> None:
    def manigraph(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "manigraph", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    trained = manigraph("train", "digits", *TRAIN, "--method.warmup_fraction", "0", "--name", "mine")
    assert trained.returncode == 0, trained.stderr
    result = manigraph("figures", "runs/mine")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    written = {path.name for path in (tmp_path / "runs" / "mine" / "figures").iterdir()}
    kinds = {f"{name}.{suffix}" for name in ("manifold", "connectivity") for suffix in ("png", "svg")}
    assert written == kinds | {"figures.json"}
    text = (tmp_path / "runs" / "mine" / "figures" / "figures.json").read_text()
    assert str(tmp_path) not in text
    data = json.loads(text)
    assert (data["run"], data["algorithm"], data["part"]) == ("mine", "manifold_graph", "validation")
    assert len(data["images"]["index"]) == 60
    assert "manifold_graph on digits with 20 labels, seed 0: error " in result.stdout
    assert "runs/mine/figures/connectivity.svg" in result.stdout


def test_a_method_without_a_graph_gets_the_map_and_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--algorithm", "supervised", *TRAIN, "--name", "mine"]) == 0
    assert main(["figures", "runs/mine", "--output", "drawn/here", "--part", "test"]) == 0
    written = sorted(path.name for path in (folder / "drawn" / "here").iterdir())
    assert written == ["figures.json", "manifold.png", "manifold.svg"]
    said = capsys.readouterr().out
    assert "% of 500 test images. There is only the map: supervised has no graph." in said
    (folder / "file").write_text("mine")
    assert main(["figures", "runs/mine", "--output", "file"]) == 2
    assert "'file' is a file: --output needs a folder" in capsys.readouterr().err
    assert (folder / "file").read_text() == "mine"


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; from manigraph.cli.main import main\n"
        "try: main(['figures', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'numpy', 'matplotlib', 'openTSNE'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--output" in result.stdout


def test_not_a_run_is_said_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "nowhere"]) == 2
    assert capsys.readouterr().err == "manigraph: there is no run directory at 'nowhere'\n"
