"""What the documentation shows is run as it stands."""

import doctest
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manigraph.estimator import classifier, graph

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/estimator.md", "exec"), names)
    digits, moons, head = names["digits"], names["moons"], names["head"]
    assert names["model"].score(names["images"], digits.target) > 0.3
    assert moons.score(names["X"], names["truth"]) > 0.8
    assert head.transform(names["embeddings"]).shape == names["embeddings"].shape
    assert names["search"].best_estimator_.classes_.tolist() == ["lower", "upper"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [classifier, graph])
def test_examples_in_the_code(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 5
    assert found.failed == 0


def test_the_page_shows_what_was_measured() -> None:
    results = json.loads((ROOT / "results" / "estimator.json").read_text(encoding="ascii"))
    methods = ("supervised", "label_spreading", "manifold_graph")
    for name, rows in results.items():
        cells = (f"{np.mean(rows[m]):.1f} ± {np.std(rows[m]):.1f}" for m in methods)
        assert f"| {name} | {' | '.join(cells)} |" in PAGE.replace("**", "")
