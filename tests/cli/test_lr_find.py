"""The learning-rate range test as a person calls it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from manigraph.catalogue import RECIPES
from manigraph.cli.lr_find import _plot, _save_figure
from manigraph.cli.main import main
from manigraph.training.lr_range import Proposal, RangeTestResult

SMALL = ["--algorithm", "supervised", "--backbone.width", "0.25", "--steps", "60"]
NAME = "lr-find-digits-20-supervised-seed0"


def find(*arguments: str, code: int = 0) -> None:
    assert main(["lr-find", *arguments]) == code


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_real_command_on_digits_draws_proposes_and_leaves_two_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manigraph", "lr-find", "digits", *SMALL]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert written == ["runs", f"runs/{NAME}.json", f"runs/{NAME}.png"]
    curve = read(tmp_path / "runs" / f"{NAME}.json")
    rate = curve["proposal"]["rate"]
    assert 0.005 < rate < 1
    assert f"use --schedule.max_learning_rate {rate:g} (the recipe has 0.1)" in result.stdout
    assert f"runs/{NAME}.png" in result.stdout
    assert "┊ recipe 0.1" in result.stdout
    assert len(curve["rates"]) == len(curve["losses"]) == len(curve["smoothed"]) <= 60
    assert curve["rates"][0] == pytest.approx(1e-4)
    assert curve["config"]["backbone"]["width"] == 0.25
    assert curve["command"][:3] == ["manigraph", "lr-find", "digits"]
    with Image.open(tmp_path / "runs" / f"{NAME}.png") as image:
        assert image.width > 1000


def test_random_numbers_and_older_files_stay_as_they_were(folder: Path) -> None:
    (folder / "runs").mkdir()
    (folder / "runs" / f"{NAME}.json").write_text("mine")
    (folder / "runs" / f"{NAME}-2.png").write_text("mine")
    before = torch.get_rng_state()
    find("digits", *SMALL, "--highest", "0.01")
    find("digits", *SMALL, "--highest", "0.01")
    assert torch.equal(torch.get_rng_state(), before)
    assert {path.name for path in (folder / "runs").iterdir()} == {
        f"{NAME}.json",
        f"{NAME}-2.png",
        f"{NAME}-3.json",
        f"{NAME}-3.png",
        f"{NAME}-4.json",
        f"{NAME}-4.png",
    }
    assert (folder / "runs" / f"{NAME}.json").read_text() == "mine"
    assert (folder / "runs" / f"{NAME}-2.png").read_text() == "mine"
    first, second = (read(folder / "runs" / f"{NAME}-{number}.json") for number in (3, 4))
    assert first["losses"] == second["losses"]


def test_without_a_climb_nothing_is_proposed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find("digits", *SMALL, "--highest", "0.03", "--output", "elsewhere")
    said = capsys.readouterr().out
    assert "no proposal: no learning rate up to 0.03 made the loss climb; try a higher --highest" in said
    assert "--schedule.max_learning_rate" not in said
    assert read(folder / "elsewhere" / f"{NAME}.json")["proposal"]["rate"] is None
    assert not (folder / "runs").exists()


def test_settings_come_from_recipe_file_and_command_line(folder: Path) -> None:
    (folder / "mine.json").write_text(
        json.dumps({"algorithm": "supervised", "seed": 7, "data": {"labels": 30}})
    )
    options = ["--file", "mine.json", "--data.labels", "50", "--steps=20", "--highest", "0.01"]
    find("digits", *options, "--backbone.width", "0.25")
    config = read(folder / "runs" / "lr-find-digits-50-supervised-seed7.json")["config"]
    assert config["data"]["labels"] == 50
    assert config["training"]["steps"] == RECIPES.get("digits")("supervised").training.steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "1"], "name a recipe or a folder of images first"),
        (["digit"], "did you mean 'digits'?"),
        (["digits", "--stepps", "30"], "did you mean '--steps'?"),
        (["digits", "--steps", "5"], "at least 20 steps, got 5"),
        (["digits", "--lowest", "1", "--highest", "0.1"], "lowest 1 and highest 0.1"),
        (["digits", "--algorithm", "pi-vat"], "did you mean 'pi_vat'?"),
        (["digits", "--algorithm"], "(see `manigraph lr-find digits --help`)"),
        (["digits", "--output", "file"], "'file' is a file"),
        (["digits", *SMALL, "--lowest", "1e30", "--highest", "1e38"], "not finite from the first steps on"),
    ],
)
def test_mistakes_get_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (folder / "file").write_text("")
    find(*arguments, code=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "runs").exists()


def test_help_names_its_options_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from manigraph.cli.main import main; "
        "assert main(['--help']) == 0 and main(['lr-find', '--help']) == 0; "
        "assert not {'torch', 'numpy', 'matplotlib', 'plotext'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "  lr-find      find how high" in result.stdout
    assert "usage: manigraph lr-find RECIPE|PATH" in result.stdout


def test_a_recipe_s_help_shows_options_of_the_test_and_of_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["lr-find", "digits", "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "manigraph lr-find digits" in said
    assert "--highest FLOAT" in said
    assert "--schedule.max_learning_rate" in said


# Drawings

CURVE = RangeTestResult(
    rates=tuple(10.0 ** (k / 10 - 4) for k in range(51)),
    losses=(3.0,) * 51,
    smoothed=(*(3 - k / 20 for k in range(50)), 6.0),
    ending="climbed",
    ended_at=10.0,
    proposal=Proposal(0.01, 0.03, "because"),
)


@pytest.mark.parametrize("width", [50, 80, 100])
def test_the_plot_fits_and_marks_rates_where_they_are(width: int) -> None:
    """From 1e-4 to 10 are five decades: 0.01 is at 2/5 of the width, 0.1 at 3/5."""
    legend, *lines = _plot(CURVE, 0.1, width, colour=False).splitlines()
    assert legend.endswith("┊ recipe 0.1   │ proposal 0.01")
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    row = lines[2]
    left, right = row.index("│"), row.rindex("│")
    assert (row.index("│", left + 1) - left) / (right - left) == pytest.approx(0.4, abs=0.04)
    assert (row.index("┊") - left) / (right - left) == pytest.approx(0.6, abs=0.04)
    assert {"0.0001", "0.001", "0.01", "0.1", "1", "10"} <= set(lines[-1].split())


def test_an_explosion_in_the_end_does_not_flatten_the_rest() -> None:
    exploding = replace(CURVE, smoothed=(*CURVE.smoothed[:-1], 1e6))
    assert _plot(exploding, 0.1, 80, colour=False).splitlines()[2].startswith("6.0┤")


def test_colour_is_for_terminals() -> None:
    assert "\x1b[" in _plot(CURVE, 0.1, 80, colour=True)


def test_a_recipe_s_rate_out_of_range_is_not_marked() -> None:
    assert "recipe" not in _plot(CURVE, 50.0, 80, colour=False)


def test_the_figure_is_drawn_without_pyplot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    _save_figure(tmp_path / "curve.png", "a title", CURVE, 0.1)
    with Image.open(tmp_path / "curve.png") as image:
        colours = image.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    found = {colour for _, colour in colours}
    assert (44, 160, 44) in found  # the proposal
    assert (31, 119, 180) in found  # the average
