"""`manigraph train PATH` on folders that are made of benchmarks."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manigraph.build import load_dataset
from manigraph.config import DataConfig
from manigraph.errors import UserError
from manigraph.experiments.own_images import (
    FOLDERS,
    Folder,
    main,
    measure,
    read_results,
    table,
    write_folder,
    write_results,
)


def test_a_folder_is_as_a_person_would_have_it(tmp_path: Path) -> None:
    dataset = load_dataset(DataConfig(name="digits"))
    counts = write_folder(dataset, Folder("digits", 3, unlabelled=20), tmp_path, seed=0)
    assert counts == (30, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"class {digit}" for digit in range(10)),
        "test",
        "unlabelled",
    ]
    files = {part: {int(p.stem) for p in (tmp_path / part).rglob("*.png")} for part in ("test", "unlabelled")}
    labelled = {int(path.stem): path for path in tmp_path.glob("class */*.png")}
    assert files["test"] <= set(dataset.test.tolist())
    assert not files["unlabelled"] & (files["test"] | set(labelled))
    for index, path in labelled.items():
        assert path.parent.name == f"class {int(dataset.classes[index])}"
        pixels = np.asarray(Image.open(path)).astype(float)
        np.testing.assert_allclose(pixels, dataset.images[index, 0].numpy() * (255 / 16), atol=0.5)


def test_the_command_is_called_and_its_verdict_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measure("digits", 0, 0.05, tmp_path / "work")
    assert (result.labels, result.unlabelled) == (100, 1197)
    assert result.verdict["num_images"] == 500
    assert 0 < result.verdict["with_unlabelled"]["error"] < 100
    file = tmp_path / "results.json"
    write_results(file, [result])
    assert read_results(file) == [result]
    assert "| digits, seed 0 | 100 | 1,197 | 0.05 min | as it is, small_cnn, width 1 |" in table([result])
    # What is known is not measured again.
    main(["digits", "--minutes", "0.05", "--results", str(file), "--folder", str(tmp_path / "work")])
    assert table([result]) in capsys.readouterr().out
    with pytest.raises(UserError, match="exists already"):
        measure("digits", 0, 0.05, tmp_path / "work")


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder 'cats': choose among digits"):
        main(["cats", "--results", str(tmp_path / "none.json")])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match="is not a results file"):
        read_results(tmp_path / "bad.json")
    assert "digits" in FOLDERS
