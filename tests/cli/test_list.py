"""`manigraph list`: names at once, and for recipes what they aim at and how long they take here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from manigraph.catalogue import RECIPES
from manigraph.cli.list import about, reproduced
from manigraph.cli.main import main
from manigraph.recipes import measured
from manigraph.recipes.measured import Measured, add_measured
from manigraph.recipes.parts import aim_of


def block(output: str, recipe: str) -> str:
    """What is said of one recipe, on one line."""
    after = output.split(f"\n{recipe} ")[1]
    return " ".join(re.split(r"\n(?=\S)", after)[0].split())


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of measurements in the place of the package's, and a machine half as fast as theirs."""
    path = tmp_path / "measured.json"
    monkeypatch.setattr(measured, "MEASURED", path)
    monkeypatch.setattr(measured, "calibration_seconds", lambda: 0.2)
    monkeypatch.setenv("COLUMNS", "200")
    return path


def figures(seconds: float, parameters: int) -> Measured:
    machine = {"system": "Linux", "processor": "Abacus", "cores": 2}
    return Measured(parameters, seconds, 0.1, "noise", machine, "abc", "2026-01-01")


def test_recipes_say_what_they_aim_at_and_how_long_they_take(
    known: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_measured(
        known,
        {
            "svhn": {"pi_vat": figures(10.0, 3_120_000), "manifold_graph": figures(11.0, 3_180_000)},
            "cifar10_small": {"pi_vat": figures(0.5, 200_000)},
        },
    )
    assert main(["list", "recipes"]) == 0
    output = capsys.readouterr().out
    svhn = block(output, "svhn")
    assert "aims at Table 1, SVHN: error 4.50 ± 0.24 % (Π-VAT), 3.35 ± 0.17 % (Manifold Graph)" in svhn
    assert "Table 2 with --data.labels 250 or 500" in svhn
    assert "steps: 282,000" in svhn
    assert "parameters: 3,120,000 (Π-VAT), 3,180,000 (Manifold Graph)" in svhn
    # 282,000 steps of 10 s, twice as long here: 5,640,000 s = 65.3 days; of 11 s: 71.8 days.
    assert "time here: about 65 days (Π-VAT), about 72 days (Manifold Graph)" in svhn
    small = block(output, "cifar10_small")
    assert "not in the paper" in small
    # 3,000 steps of 0.5 s, twice as long here: 3,000 s.
    assert "time here: about 50 min (Π-VAT), not measured (Manifold Graph)" in small
    assert "time here: not measured" in block(output, "digits")
    assert "Times are estimates" in output
    assert "Abacus, 2 cores" in output


def test_without_measurements_nothing_is_claimed(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    output = capsys.readouterr().out
    assert output.count("time here: not measured") == len(list(RECIPES))
    assert "about" not in output.replace("about a minute on two cores", "")
    assert "measure them with `manigraph bench --sections recipes`" in output


def test_every_recipe_has_its_facts_by_itself(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "recipes"])
    output = capsys.readouterr().out
    for name in RECIPES:
        assert reproduced(aim_of(RECIPES.get(name))) in block(output, name)
        assert "steps: " in block(output, name)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "about 0.4 s"),
        (59.6, "about 60 s"),
        (89, "about 89 s"),
        (91, "about 1.5 min"),
        (2400, "about 40 min"),
        (5399, "about 90 min"),
        (5400, "about 1.5 h"),
        (86_400, "about 24 h"),
        (172_800, "about 2 days"),
        (70.4 * 86_400, "about 70 days"),
        (1234 * 86_400, "about 1,200 days"),
    ],
)
def test_times_have_two_digits(seconds: float, expected: str) -> None:
    assert about(seconds) == expected


def test_only_recipes_need_torch() -> None:
    script = (
        "import sys; from manigraph.cli.main import main; "
        "codes = [main(['list', *kind]) for kind in (['algorithms'], ['datasets'], ['backbones'], [])]; "
        "assert codes == [0, 0, 0, 0], codes; "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "`manigraph list recipes` says what they reproduce and how long they take here" in result.stdout
    assert "time here" not in result.stdout
