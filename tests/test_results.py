"""Figures in the documentation are those of the committed result files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manigraph.catalogue import ALGORITHMS
from manigraph.experiments import graph_use, own_images, report
from manigraph.experiments.features import FEATURE_TABLES
from manigraph.experiments.grid import mean_and_spread
from manigraph.experiments.half_hour import COMBINATION, HALF_HOUR_TABLES, SINGLE_METHODS
from manigraph.experiments.paper import PAPER_TABLES, paper_table
from manigraph.experiments.small import SMALL_TABLES
from manigraph.experiments.tables import DIGITS_TABLES, Row, Table

ROOT = Path(__file__).parent.parent


def results(name: str) -> dict[str, Any]:
    """Digest to result."""
    values = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return {result["digest"]: result for result in values["results"]}


def figures(name: str, row: Row) -> list[str]:
    """Mean ± spread of a row, for each number of labels; every cell was measured with today's settings."""
    table: Table = DIGITS_TABLES[name]
    measured = results(name)
    texts = []
    for column in table.columns:
        cells = [measured[table.cell(row, column, seed).digest()] for seed in table.seeds]
        key = "test_error" if table.part == "test" else "validation_error"
        mean, spread = mean_and_spread([cell[key] for cell in cells])
        texts.append(f"{mean:.2f} ± {spread:.2f}")
    return texts


def plain(path: str) -> str:
    """A page without what makes figures bold."""
    return (ROOT / path).read_text(encoding="utf-8").replace("**", "")


@pytest.mark.parametrize(("name", "page"), [("digits", "README.md"), ("digits", "docs/digits.md")])
def test_rows_of_the_first_table(name: str, page: str) -> None:
    for row in DIGITS_TABLES[name].rows:
        assert f"| {row.title} | {' | '.join(figures(name, row))} |" in plain(page)


def test_half_an_hour_on_the_first_page() -> None:
    table, measured = HALF_HOUR_TABLES["30min"], results("30min")
    gains = []
    for column in table.columns:
        means = {}
        for row in (COMBINATION, *SINGLE_METHODS):
            errors = [measured[table.cell(row, column, seed).digest()]["test_error"] for seed in table.seeds]
            means[row], spread = mean_and_spread(errors)
            if row == COMBINATION:
                assert f"{means[row]:.2f} ± {spread:.2f} % with" in plain("README.md")
        others = [mean for row, mean in means.items() if not row.read_out]
        gains.append(f"{100 * (1 - means[COMBINATION] / min(others)):.1f}")
    assert f"{' and '.join(gains)} % less than FixMatch" in plain("README.md")


@pytest.mark.parametrize("row", DIGITS_TABLES["digits-methods"].rows, ids=lambda row: row.title)
def test_rows_of_all_methods(row: Row) -> None:
    expected = figures("digits-methods", row)
    assert f"| {row.title} | {' | '.join(expected)} |" in plain("docs/digits.md")
    if row.algorithm in ALGORITHMS:
        card = plain(f"docs/methods/{row.algorithm}.md")
        assert all(figure in card for figure in expected)


@pytest.mark.parametrize("row", DIGITS_TABLES["digits-tuning"].rows, ids=lambda row: row.title)
def test_every_setting_that_was_tried_is_on_record(row: Row) -> None:
    (figure,) = figures("digits-tuning", row)
    method, _, setting = row.title.partition(": ")
    rows = [
        line for line in plain("docs/digits.md").splitlines() if line.startswith(f"| {method} | {setting} |")
    ]
    assert len(rows) == 1
    assert rows[0].endswith(f"| {figure} |")


@pytest.mark.parametrize("name", report.TRIED.values())
def test_no_look_is_on_record_that_no_table_has(name: str) -> None:
    table, measured = {**SMALL_TABLES, **HALF_HOUR_TABLES}[name], results(name)
    draws = tuple({result["cell"]["seed"] for result in measured.values()})
    known = {cell.digest() for cell in replace(table, seeds=draws).cells()}
    assert set(measured) <= known, "results of settings that are no longer in the table"


@pytest.mark.parametrize("row", FEATURE_TABLES["features"].rows, ids=lambda row: row.title)
def test_rows_of_pretrained_features(row: Row) -> None:
    table, measured = FEATURE_TABLES["features"], results("features")
    texts = []
    for column in table.columns:
        digests = [table.cell(row, column, seed).digest() for seed in table.seeds]
        errors = [measured[digest]["test_error"] for digest in digests if digest in measured]
        mean, spread = mean_and_spread(errors) if errors else (0.0, 0.0)
        some = f" ({len(errors)})" if len(errors) < len(digests) else ""
        texts.append(f"{mean:.2f} ± {spread:.2f}{some}" if errors else "–")
    assert f"| {row.title} | {' | '.join(texts)} |" in plain("docs/features.md")


@pytest.mark.parametrize("row", FEATURE_TABLES["features-tuning"].rows, ids=lambda row: row.title)
def test_settings_that_were_tried_on_features(row: Row) -> None:
    table, measured = FEATURE_TABLES["features-tuning"], results("features-tuning")
    texts = []
    for column in table.columns:
        cells = [measured[table.cell(row, column, seed).digest()] for seed in table.seeds]
        mean, spread = mean_and_spread([cell["validation_error"] for cell in cells])
        texts.append(f"{mean:.2f} ± {spread:.2f}")
    assert f"| {row.title} | {' | '.join(texts)} |" in plain("docs/features.md")


@pytest.mark.parametrize("name", ["graph-use", "graph-use-30min"])
def test_what_the_graph_does(name: str) -> None:
    values = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    found = [graph_use.GraphUse(**value) for value in values["results"]]
    assert f"\n{graph_use.table(found)}\n\n" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_what_the_command_says_on_folders() -> None:
    measured = own_images.read_results(ROOT / "results/own-images.json")
    assert own_images.table(measured) in (ROOT / "docs/own-images.md").read_text(encoding="utf-8")


def test_the_first_steps_of_every_cell_of_the_papers_scale_were_taken() -> None:
    def facts(cell: dict[str, Any]) -> tuple[Any, ...]:
        few = ["--data.test", "100", "--training.steps", "2"]
        assert cell["options"][-4:] == few
        return cell["recipe"], cell["algorithm"], cell["labels"], (*cell["options"][:-4],)

    measured = {facts(result["cell"]) for result in results("paper-first-steps").values()}
    tables = [paper_table(name, "paper") for name in PAPER_TABLES]
    cells = {cell for table in tables for cell in table.cells() if cell.seed == 0}
    assert measured == {(cell.recipe, cell.algorithm, cell.labels, cell.options) for cell in cells}
    assert f"all its {len(cells)} cells" in plain("docs/results.md")


def test_labelled_images_with_the_views_of_the_student() -> None:
    table = replace(SMALL_TABLES["small-tuning"], seeds=(10, 11, 12))
    measured = results("small-tuning")
    rows = [row for row in table.rows if row.algorithm == "fixmatch"]
    assert len(rows) == 2
    for row in rows:
        cells = [table.cell(row, table.columns[0], seed) for seed in table.seeds]
        mean, spread = mean_and_spread([measured[cell.digest()]["validation_error"] for cell in cells])
        assert f"{mean:.2f} ± {spread:.2f} %" in plain("docs/speed.md")
