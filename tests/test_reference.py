"""The API reference is built from docstrings, without a warning."""

import subprocess
import sys
from pathlib import Path

PUBLIC = (
    *("manigraph.functional", "manigraph.nn", "manigraph.estimator", "manigraph.engine"),
    *("manigraph.inference.predictor", "manigraph.data.sources.arrays", "manigraph.config"),
)


def test_it_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "pdoc", "-d", "google", "-o", str(tmp_path)]
    done = subprocess.run([*command, *PUBLIC], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    page = (tmp_path / "manigraph" / "functional.html").read_text(encoding="utf-8")
    assert "virtual_adversarial_perturbation" in page
