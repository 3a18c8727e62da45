"""docs/predict.md: what it shows is run as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import manigraph.inference
from tests.inference.pictures import digits, save_digits
from tests.runs.test_passed_on import FORMAT_2

PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
SERVE = (Path(manigraph.inference.__file__).parent / "serve.py").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    shutil.copytree(FORMAT_2, tmp_path / "runs" / "digits")
    paths = save_digits(tmp_path / "photos" / "new", digits().test[:12])
    shutil.copy(paths[0], tmp_path / "one.png")
    return tmp_path


def test_the_commands_and_the_python_work(work: Path) -> None:
    commands = "\n".join(["set -eo pipefail", *blocks("bash")])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", commands],
        cwd=work,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"one\.png \d 0\.\d+\n$", result.stdout)
    lines = {name: len((work / name).read_text().splitlines()) for name in ("answers.csv", "listed.csv")}
    assert lines == {"answers.csv": 13, "listed.csv": 13}
    assert len(list((work / "sorted").rglob("*.png"))) == 12
    program = blocks("python")[0]
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=work, capture_output=True, text=True, check=True
    )
    assert len(result.stdout.splitlines()) == 12
    assert "NearNode(class_name=" in result.stdout


def test_the_example_that_is_shown_is_the_one_that_is_written() -> None:
    assert blocks("python")[1] == SERVE
    lines = [line for line in SERVE.splitlines() if line and "import" not in line]
    assert len(lines) <= 15
