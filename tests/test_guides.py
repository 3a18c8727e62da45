"""The guides, run as they are written: shell blocks line by line, Python blocks one after the other."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

GUIDES = Path(__file__).parent.parent / "docs" / "guides"


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    return found


def run_commands(guide: str, folder: Path) -> dict[str, str]:
    """What each command printed; all must succeed."""
    said = {}
    for line in "".join(blocks(guide, "sh")).splitlines():
        program, *arguments = line.partition("#")[0].split()
        assert program == "manigraph"
        command = [sys.executable, "-m", "manigraph", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        said[line] = done.stdout
    return said


def make_photographs(folder: Path) -> None:
    """Pieces of two real photographs, a temple and a flower."""
    random = np.random.default_rng(0)
    for name, picture in (
        ("temple", load_sample_image("china.jpg")),
        ("flower", load_sample_image("flower.jpg")),
    ):
        for number in range(44):
            top, left = random.integers(0, picture.shape[0] - 96), random.integers(0, picture.shape[1] - 96)
            piece = Image.fromarray(picture[top : top + 96, left : left + 96])
            part = "photos/unlabelled" if number < 30 else f"photos/{name}" if number < 42 else "new"
            path = folder / part / f"{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            piece.save(path)
    (folder / "new" / "flower43.png").rename(folder / "new" / "first.png")


def test_photographs(tmp_path: Path) -> None:
    make_photographs(tmp_path)
    said = run_commands("photographs", tmp_path)
    assert any("unlabelled images" in text for text in said.values())
    assert (tmp_path / "runs/photos/report.html").is_file()
    rows = (tmp_path / "answers.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 4
    assert sum(path.is_file() for path in (tmp_path / "sorted").rglob("*.png")) == 4


def test_reproduce(tmp_path: Path) -> None:
    run_commands("reproduce", tmp_path)
    assert (tmp_path / "runs/digits/figures/connectivity.png").is_file()


def test_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    plain, with_pieces = blocks("pieces", "python")
    assert 30 <= len(plain.splitlines()) <= 50
    names: dict[str, object] = {}
    exec(plain, names)
    exec(with_pieces, names)
    said = capsys.readouterr().out
    alone, helped = (float(number) for number in re.findall(r"([\d.]+) % error", said))
    assert helped < alone
