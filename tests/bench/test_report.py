"""The pages about speed say what was measured."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from manigraph.bench import profile, report
from manigraph.bench.settings import TINY
from manigraph.reports.pages import fill

ROOT = Path(__file__).parents[2]
RESULTS = [ROOT / "results" / name for name in ("bench.json",)]
PAGES = [ROOT / "docs" / name for name in ("speed.md", "scaling.md")]


def measured() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in RESULTS:
        found |= report.tables(json.loads(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"<!-- table (\w+) -->", text))
    assert names
    assert names <= set(measured())
    assert fill(text, measured()) == text


def test_every_table_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"<!-- table (\w+) -->", pages)) == set(measured())


def test_the_plot_is_that_of_the_results() -> None:
    figures = json.loads(RESULTS[0].read_text(encoding="utf-8"))["growth"]
    assert (ROOT / "docs" / "growth.svg").read_text(encoding="utf-8") == report.growth_plot(figures)


FIGURE = {"what": "a", "versus": "b", "setting": "here", "low": 1.0, "high": 3.0, "target": "≤ 3"}


@pytest.mark.parametrize(
    ("ratio", "reached", "expected"),
    [
        (2.0, True, "| a | b | here | 2.000 | 1 to 3 | ≤ 3 | reached |"),
        (33.353, False, "| a | b | here | 33.4 | 1 to 3 | ≤ 3 | **missed** |"),
        (0.5, None, "| a | b | here | 0.500 | 1 to 3 | ≤ 3 |  |"),
    ],
)
def test_a_ratio_is_a_line(ratio: float, reached: bool | None, expected: str) -> None:
    table = report.tables({"steps": [{**FIGURE, "ratio": ratio, "reached": reached}]})["steps"]
    assert table.splitlines()[2] == expected


def test_tables_go_between_their_marks() -> None:
    text = "<!-- table one -->\nold\n<!-- end -->\n<!-- table two -->\nkept\n<!-- end -->\n"
    once = fill(text, {"one": "| new |"})
    assert once == text.replace("old", "| new |")
    assert fill(once, {"one": "| new |"}) == once


def test_the_plot_has_all_points_higher_for_more() -> None:
    figures = [
        {"classes": classes, "milliseconds": 3.0 * classes, "extra_mib": 2.0 * classes}
        for classes in (10, 100, 1000)
    ]
    root = ElementTree.fromstring(report.growth_plot(figures))
    circles = [c for c in root if c.tag.endswith("circle")]
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles]
    assert len(places) == 6
    for line in (places[:3], places[3:]):
        assert [x for x, _ in line] == sorted(x for x, _ in line)
        assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    assert all(time[1] < memory[1] for time, memory in zip(places[:3], places[3:], strict=True))


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::mkldnn_convolution", "convolutions"),
        ("aten::convolution_backward", "convolutions"),
        ("aten::native_batch_norm_backward", "batch norm, with its activation where they are one"),
        ("_NormalisedActivationBackward", "batch norm, with its activation where they are one"),
        ("_WinogradBackward", "convolutions"),
        ("_PrototypeCrossEntropy", "classification of prototypes"),
        ("aten::addmm", "products of matrices"),
        ("aten::leaky_relu_", "other activations"),
        ("aten::linalg_vector_norm", profile.OTHER),
        ("Optimizer.step#SGD.step", profile.OTHER),
    ],
)
def test_kinds_of_operations(operation: str, kind: str) -> None:
    assert profile.kind_of(operation) == kind


def test_shares_of_time_add_up() -> None:
    shares = profile.measure_profile(TINY.job("pi_vat"), 1)
    assert set(shares) == {*profile.KINDS, profile.OTHER}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["convolutions"] > 0.05
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
