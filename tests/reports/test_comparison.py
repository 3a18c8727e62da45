"""The page of several runs."""

from pathlib import Path
from typing import Any

from manigraph.reports.comparison import comparison_page
from manigraph.reports.facts import RunFacts
from manigraph.reports.html import render
from tests.reports.made_up import make_run


def runs_of(folder: Path, errors: dict[tuple[str, int], list[float]]) -> list[RunFacts]:
    return [
        RunFacts.read(
            make_run(
                folder, f"{method}-{labels}-{seed}", algorithm=method, labels=labels, seed=seed, error=error
            )
        )
        for (method, labels), row in errors.items()
        for seed, error in enumerate(row)
    ]


def cells(page: dict[str, Any], method: str) -> list[Any]:
    (table,) = page["tables"]
    (row,) = [row for row in table["rows"] if row["method"] == method]
    found: list[Any] = row["cells"]
    return found


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    page = comparison_page(runs_of(tmp_path, {("pi_vat", 20): [10.0, 20.0], ("vat", 20): [30.0]}))
    (cell,) = cells(page, "Π-VAT")
    assert (cell["mean"], cell["deviation"], cell["seeds"]) == (15.0, 5.0, 2)
    assert cells(page, "VAT")[0]["seeds"] == 1


def test_the_best_is_marked_only_where_chance_would_not_do_it(tmp_path: Path) -> None:
    steady = {("pi_vat", 20): [10.0, 12.0, 11.0], ("vat", 20): [20.0, 22.1, 21.0]}
    page = comparison_page(runs_of(tmp_path / "a", steady))
    assert cells(page, "Π-VAT")[0]["is_best"]
    assert not cells(page, "VAT")[0]["is_best"]
    mixed = {("pi_vat", 20): [10.0, 30.0, 11.0], ("vat", 20): [20.0, 12.0, 21.0]}
    page = comparison_page(runs_of(tmp_path / "b", mixed))
    assert not any(cells(page, method)[0]["is_best"] for method in ("Π-VAT", "VAT"))
    assert "not significantly" in page["tables"][0]["remarks"][0]


def test_runs_of_different_splits_are_not_paired(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {("pi_vat", 20): [10.0, 12.0, 11.0]})
    for seed in (5, 6, 7):
        path = make_run(tmp_path, f"vat-{seed}", algorithm="vat", seed=seed, error=50.0)
        runs.append(RunFacts.read(path))
    page = comparison_page(runs)
    assert not cells(page, "Π-VAT")[0]["is_best"]
    assert "too few" in page["tables"][0]["remarks"][0]


def test_error_by_number_of_labels(tmp_path: Path) -> None:
    page = comparison_page(runs_of(tmp_path, {("vat", 20): [30.0, 32.0], ("vat", 50): [20.0]}))
    (line,) = page["figures"]["by_labels"]
    assert line["x"] == [20, 50]
    assert line["y"] == [31.0, 20.0]
    assert line["spread"] == [1.0, 0.0]
    assert 'data-chart="labels"' in render(page)


def test_with_one_number_of_labels_there_is_no_such_plot(tmp_path: Path) -> None:
    page = comparison_page(runs_of(tmp_path, {("vat", 20): [30.0], ("pi_vat", 20): [31.0]}))
    assert 'data-chart="labels"' not in render(page)


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {("vat", 20): [30.0]})
    runs.append(RunFacts.read(make_run(tmp_path, "half", state="failed", reason="killed")))
    page = comparison_page(runs)
    assert page["unfinished"] == ["half"]
    assert "half" in render(page)


def test_curves_of_all_runs_lie_over_one_another(tmp_path: Path) -> None:
    page = comparison_page(runs_of(tmp_path, {("vat", 20): [30.0, 31.0], ("pi_vat", 20): [29.0]}))
    loss = page["figures"]["overlaid"]["loss"]
    assert [line["name"] for line in loss] == ["vat-20-0", "vat-20-1", "pi_vat-20-0"]
    assert loss[0]["colour"] == loss[1]["colour"] != loss[2]["colour"]


def test_the_same_seed_with_other_settings_is_another_row(tmp_path: Path) -> None:
    runs = [
        RunFacts.read(make_run(tmp_path, f"vat-{steps}", algorithm="vat", steps=steps, error=float(steps)))
        for steps in (40, 60)
    ]
    page = comparison_page([*runs, runs[0]])
    (table,) = page["tables"]
    assert [row["method"] for row in table["rows"]] == ["VAT", "VAT, settings 2"]
    assert cells(page, "VAT")[0]["seeds"] == 1  # the same run twice is one


def test_a_method_that_is_worse_on_shared_seeds_is_not_the_best(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {("pi_vat", 20): [30.0, 31.0, 32.5], ("vat", 20): [20.0, 21.0, 22.0]})
    for seed in (7, 8, 9):
        path = make_run(tmp_path, f"more-{seed}", algorithm="pi_vat", seed=seed, error=1.0)
        runs.append(RunFacts.read(path))
    page = comparison_page(runs)
    assert cells(page, "Π-VAT")[0]["mean"] < cells(page, "VAT")[0]["mean"]
    assert not cells(page, "Π-VAT")[0]["is_best"]


def test_splits_that_differ_are_not_paired_though_seeds_agree(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {("pi_vat", 20): [10.0, 12.0, 11.0], ("vat", 20): [20.0, 22.1, 21.0]})
    for run in runs[:3]:
        (run.run.path / "split.json").write_text('{"digest": "another"}')
    again = [RunFacts.read(run.run.path) for run in runs]
    assert not cells(comparison_page(again), "Π-VAT")[0]["is_best"]


def test_intervals_are_wilsons(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, {("vat", 20): [50.0]})
    row = comparison_page([run])["runs"][0]
    assert 37 < row["low"] < 38  # 30 of 60
    assert 62 < row["high"] < 63
