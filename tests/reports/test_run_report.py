"""What the page of a run says and shows."""

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from manigraph.errors import UserError
from manigraph.reports.facts import RunFacts
from manigraph.reports.figures import write_figures
from manigraph.reports.html import render
from manigraph.reports.run_report import PaperFigure, packed, run_page, unit_square
from manigraph.reports.sprites import sprite
from tests.reports.made_up import make_run

GOLD = Path(__file__).parent / "report.gold.html"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


def page_of(path: Path, **beside: Any) -> dict[str, Any]:
    return run_page(RunFacts.read(path), **beside)


def unpacked(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["type"]).newbyteorder("<"))


def scrubbed(html: str) -> str:
    """Without what is long, or differs between versions of Pillow: styles, script, pictures."""
    html = re.sub(r"(<style>).*?(</style>)", r"\1…\2", html, flags=re.DOTALL)
    html = re.sub(r"(<script>).*?(</script>)", r"\1…\2", html, flags=re.DOTALL)
    html = re.sub(r'"address": "[^"]*"', '"address": "…"', html)
    return re.sub(r"manigraph \d+\.\d+\.\d+", "manigraph VERSION", html)


def test_the_page_is_the_one_that_was_looked_at(run: Path) -> None:
    html = scrubbed(render(page_of(run, paper=PaperFigure(3.77, 0.07))))
    assert html == GOLD.read_text(encoding="utf-8"), (
        "look at the page; if it is right, write it to the gold file"
    )


def test_headline_says_error_interval_control_and_paper(run: Path, tmp_path: Path) -> None:
    control = RunFacts.read(make_run(tmp_path, "control", algorithm="supervised", error=45.0))
    headline = page_of(run, paper=PaperFigure(3.77, 0.07), control=control)["headline"]
    test = headline["errors"][0]
    assert test["part"] == "test"
    assert test["low"] < test["error"] < test["high"]
    assert headline["control"]["error"] == 45.0
    assert headline["paper"] == {"mean": 3.77, "deviation": 0.07}
    assert "last step" in headline["selected"]


def test_every_image_of_the_analysis_is_on_the_map_once(run: Path) -> None:
    figures = page_of(run)["figures"]
    facts = RunFacts.read(run)
    assert unpacked(figures["map"]["index"]).tolist() == facts.arrays["index"].tolist()
    assert len(set(facts.arrays["index"].tolist())) == 60
    places = unpacked(figures["map"]["after"]).reshape(-1, 2)
    assert places.shape == (60, 2)
    nodes = unpacked(figures["map"]["nodes"]["after"]).reshape(-1, 2)
    both = np.concatenate([places, nodes])
    assert both.min() >= 0
    assert both.max() <= 1
    original = np.concatenate([facts.arrays["places_after"], facts.arrays["node_places_after"]])
    ratio = np.ptp(both, axis=0) / np.ptp(original, axis=0)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-5)  # nothing is stretched


def test_rows_of_the_edges_sum_to_one(run: Path) -> None:
    edges = page_of(run)["figures"]["edges"]
    for name in ("images", "among", "by_class"):
        rows = unpacked(edges[name]["weights"]).reshape(edges[name]["shape"])
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)


def test_the_matrix_from_class_to_class_is_a_mean_of_rows(run: Path) -> None:
    edges, facts = page_of(run)["figures"]["edges"], RunFacts.read(run)
    shown = unpacked(edges["by_class"]["weights"]).reshape(edges["by_class"]["shape"])
    for c in range(3):
        members = facts.arrays["attention"][facts.arrays["class"] == c]
        expected = members.reshape(len(members), 3, 4).sum(axis=2).mean(axis=0)
        np.testing.assert_allclose(shown[c], expected, atol=1e-6)


def test_the_gallery_marks_unused_and_twins(run: Path) -> None:
    gallery = page_of(run)["gallery"]
    prototypes = [prototype for row in gallery["classes"] for prototype in row["prototypes"]]
    facts = RunFacts.read(run)
    usage, twin = facts.arrays["node_usage"] * 12, facts.arrays["node_twin"]
    assert [prototype["is_unused"] for prototype in prototypes] == (usage < 0.1).tolist()
    assert [prototype["is_twin"] for prototype in prototypes] == (twin > 0.99).tolist()
    assert gallery["unused"] == (usage < 0.1).sum() > 0
    assert gallery["twins"] == (twin > 0.99).sum() > 0
    assert prototypes[5]["nearest"][0]["tile"] == 15
    assert prototypes[5]["nearest"][0]["index"] == facts.arrays["gallery_index"][5, 0]


def test_mistakes_are_mistakes(run: Path) -> None:
    page, facts = page_of(run), RunFacts.read(run)
    names = facts.class_names
    for row in page["mistakes"]["rows"]:
        position = row["tile"]
        assert row["class"] != row["predicted"]
        assert row["class"] == names[facts.arrays["class"][position]]
        assert row["predicted"] == names[facts.arrays["logits"][position].argmax()]


def test_class_names_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    nasty = ("</script><script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "{{ 7 * 7 }}")
    html = render(page_of(make_run(tmp_path, class_names=nasty)))
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "49" not in re.findall(r"<strong>(.*?)</strong>", html)
    data = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert tuple(json.loads(data[1])["classes"]) == nasty


def test_a_run_that_failed_half_way_says_so(tmp_path: Path) -> None:
    path = make_run(tmp_path, state="failed", reason="the loss is not finite at step 21")
    page = page_of(path)
    html = render(page)
    assert "This run did not finish" in html
    assert "the loss is not finite at step 21" in html
    assert "step 20 of 40" in html
    assert page["headline"]["errors"] == []
    assert page["headline"]["on_the_way"]["error"] == 40.0
    assert not page["has_map"]


@pytest.mark.parametrize("missing", ["data", "check", "split", "metrics", "evaluations"])
def test_a_run_that_never_began_has_a_page(tmp_path: Path, missing: str) -> None:
    path = make_run(tmp_path, state="failed", reason="no room")
    for file in path.glob(f"{missing}.json*"):
        file.unlink()
    assert "did not finish" in render(page_of(path))


def test_a_run_without_analysis_has_a_page_without_map(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, with_analysis=False))
    html = render(page)
    assert 'id="map"' not in html
    assert 'href="#map"' not in html
    assert 'id="errors"' in html


def test_a_damaged_file_is_one_sentence(run: Path) -> None:
    (run / "analysis.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is damaged"):
        page_of(run)


def test_reports_need_no_torch(run: Path) -> None:
    program = f"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("no torch here")

sys.meta_path.insert(0, NoTorch())
from manigraph.cli.main import main
sys.exit(main(["report", {str(run)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").is_file()
    assert {path.name for path in (run / "figures").glob("*.png")} == {
        f"{name}.png"
        for name in ("manifold", "connectivity", "gallery", "curves", "confusion", "reliability")
    }


def test_curves_of_long_runs_are_thinned_to_the_end(tmp_path: Path) -> None:
    curves = page_of(make_run(tmp_path, steps=4000))["figures"]["curves"]
    assert 300 < len(curves["steps"]) <= 600
    assert curves["steps"][-1] == 4000
    assert "entropy" not in curves["terms"]  # never anything but 0


def test_large_runs_stay_below_ten_megabytes(tmp_path: Path) -> None:
    names = tuple(f"class {number}" for number in range(100))
    path = make_run(tmp_path, class_names=names, images=4000, per_class=20)
    assert len(render(page_of(path))) < 10e6


def test_a_sprite_has_every_picture_in_its_place() -> None:
    thumbnails = np.zeros((5, 3, 16, 16), dtype=np.uint8)
    for number in range(5):
        thumbnails[number, number % 3] = 60 + 40 * number
    found = sprite(thumbnails)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["address"].partition(",")[2]))))
    assert (found["columns"], found["rows"]) == (3, 2)
    for number in range(5):
        row, column = divmod(number, 3)
        tile = picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16].astype(int)
        assert tile[4:12, 4:12, number % 3].mean() == pytest.approx(60 + 40 * number, abs=12)


def test_numbers_are_packed_little_endian() -> None:
    assert unpacked(packed(np.array([1, 258], dtype=">i4"))).tolist() == [1, 258]


def test_one_point_is_in_the_middle() -> None:
    places, nodes = unit_square(np.array([[3.0, 4.0]]), None)
    np.testing.assert_allclose(places, [[0.5, 0.5]])
    assert len(nodes) == 0


def test_what_is_packed_is_what_was_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manigraph.reports.run_report.MOST_EDGES", 12 * 10)
    run = make_run(tmp_path)
    figures, facts = page_of(run)["figures"], RunFacts.read(run)
    arrays, shown = facts.arrays, figures["map"]
    assert unpacked(shown["predicted"]).tolist() == arrays["logits"].argmax(axis=1).tolist()
    assert unpacked(shown["predicted_before"]).tolist() == arrays["logits_before"].argmax(axis=1).tolist()
    together = np.concatenate([arrays["places_before"], arrays["node_places_before"]])
    low, size = together.min(axis=0), np.ptp(together, axis=0)
    drawn = np.concatenate([unpacked(shown["before"]), unpacked(shown["nodes"]["before"])]).reshape(-1, 2)
    expected = (together - low - size / 2) / size.max() + 0.5
    np.testing.assert_allclose(drawn, expected, atol=1e-6)
    edges = figures["edges"]
    rows = [int(index) - 100 for index in unpacked(edges["image_index"])]
    assert rows == [0, 7, 13, 20, 26, 33, 39, 46, 52, 59]  # evenly over all
    weights = unpacked(edges["images"]["weights"]).reshape(edges["images"]["shape"])
    np.testing.assert_allclose(weights, arrays["attention"][rows], atol=1e-6)
    among = unpacked(edges["among_by_class"]["weights"]).reshape(3, 3)
    by_class = arrays["attention_among"].reshape(12, 3, 4).sum(axis=2)
    np.testing.assert_allclose(among[1], by_class[4:8].mean(axis=0), atol=1e-6)
    counts = figures["confusion"]["counts"]
    taken = facts.predictions["logits"].argmax(axis=1)
    assert counts[0][1] == ((facts.predictions["class"] == 0) & (taken == 1)).sum()


def test_the_curve_of_errors_goes_forward_when_weights_were_selected(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "step": 20} if line["final"] else line) + "\n" for line in lines)
    (run / "evaluations.jsonl").write_text(text)
    (run / "selection.json").write_text('{"rule": "validation", "step": 20}')
    page = page_of(run)
    assert page["figures"]["curves"]["errors"]["validation"]["steps"] == [10, 20, 30, 40]
    assert "chose the weights" in render(page)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_have_a_page(run: Path, value: float) -> None:
    arrays = safetensors.numpy.load_file(run / "predictions.safetensors")
    arrays["logits"][3] = value
    safetensors.numpy.save_file(arrays, run / "predictions.safetensors")
    assert "did not finish" not in render(page_of(run))


def test_a_damaged_line_is_one_sentence(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(UserError, match="is damaged"):
        page_of(run)


def test_runs_on_features_are_not_beside_the_paper(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["data"]["features"] = "efficientnet_lite0"
    (run / "config.json").write_text(json.dumps(config))
    assert page_of(run)["headline"]["dataset"] == "blobs, features of efficientnet_lite0"


def test_names_of_classes_are_no_formulas(tmp_path: Path) -> None:
    path = make_run(tmp_path, class_names=("$\\bad$", "b", "c"))
    facts = RunFacts.read(path)
    assert write_figures(facts, run_page(facts), tmp_path / "figures")
