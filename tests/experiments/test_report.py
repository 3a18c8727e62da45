"""The page of results says what was measured, and marks what chance would rarely do."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manigraph.experiments import report
from manigraph.experiments.grid import Cell, Result, ResultsFile
from manigraph.experiments.half_hour import HALF_HOUR_TABLES
from manigraph.experiments.paper import ABLATION, CONTENDERS, OTHERS
from manigraph.experiments.report import DATA_SETS, Measured
from manigraph.experiments.small import SMALL_TABLES
from manigraph.reports.drawing import save
from manigraph.reports.pages import fill, names_of_tables
from tests.experiments.cells import measured
from tests.experiments.made_up import CIFAR10, made_up, made_up_result, results_file

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "results" / "small.json"


def lines(text: str) -> dict[str, str]:
    """First entry of each line to the line."""
    return {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line}


def svhn(folder: Path, *groups: list[Result]) -> dict[str, str]:
    return lines(report.error_table(Measured(results_file(folder, *groups)), "svhn-labels"))


# Errors


def test_mean_and_spread_with_the_paper_beside_them(tmp_path: Path) -> None:
    table = svhn(
        tmp_path,
        made_up("Π-VAT", 250, [4.0, 5.0, 6.0]),  # spread √(2/3)
        made_up("Π-VAT", 1000, [3.0, 4.0]),  # spread 1/2
        made_up("VAT", 1000, [7.0]),
    )
    assert table["method"] == "| method | 250 labels | paper | 1,000 labels | paper |"
    assert table["Π-VAT"] == "| Π-VAT | 5.00 ± 0.82 | 7.26 ± 1.73 | 3.50 ± 0.50 (2) | 4.50 ± 0.24 |"
    assert table["VAT"] == "| VAT | – | – | 7.00 (1) | 3.96 ± 0.22 |"
    assert table["MixMatch"] == "| MixMatch | – | – | – | – |"
    titles = [row.title for row in (*CONTENDERS, *OTHERS)]
    assert list(table) == ["method", "---", *titles]


def test_without_results_all_columns_are_there_and_empty(tmp_path: Path) -> None:
    table = svhn(tmp_path)
    assert table["method"] == "| method | 250 labels | paper | 500 labels | paper | 1,000 labels | paper |"
    assert table["supervised only"] == "| supervised only | – | – | – | – | – | – |"


def test_other_numbers_of_labels_have_a_column_in_their_place(tmp_path: Path) -> None:
    groups = [made_up("FixMatch", labels, [float(labels)]) for labels in (500, 100, 1000)]
    table = svhn(tmp_path, *groups, made_up("FixMatch", 2000, [1.0], recipe=CIFAR10))
    assert table["method"] == "| method | 100 labels | 500 labels | paper | 1,000 labels | paper |"
    assert table["FixMatch"] == "| FixMatch | 100.00 (1) | 500.00 (1) | – | 1000.00 (1) | – |"


def test_rows_with_one_seed_are_told_what_the_others_have_on_it(tmp_path: Path) -> None:
    full = (made_up("Π-VAT", 250, [4.0, 5.0, 6.0]), made_up("Π-VAT", 1000, [3.0, 4.0, 5.0]))
    two = (made_up("FixMatch", 250, [4.0, 5.0]), made_up("FixMatch", 1000, [4.0, 5.0, 6.0]))

    def remark(*groups: list[Result]) -> str:
        return report.error_table(Measured(results_file(tmp_path, *full, *groups)), "svhn-labels")

    sentence = "\n\nOn seed 0 alone, which is that of rows with (1): Π-VAT 4.00, 3.00."
    assert "On seed" not in remark(*two)
    assert remark(*two, made_up("VAT", 250, [7.0])).endswith(sentence)


def test_seeds_of_other_tables_do_not_count(tmp_path: Path) -> None:
    table = svhn(tmp_path, made_up("VAT", 250, [1.0, 1.0, 1.0, 9.0]))
    assert table["VAT"] == "| VAT | 1.00 ± 0.00 | – |"


def test_results_of_other_settings_are_no_results(tmp_path: Path) -> None:
    table = svhn(tmp_path, made_up("VAT", 250, [1.0, 2.0], digest="of before"), made_up("Π-VAT", 250, [3.0]))
    assert table["VAT"] == "| VAT | – | – |"
    assert table["Π-VAT"] == "| Π-VAT | 3.00 (1) | 7.26 ± 1.73 |"


@pytest.mark.parametrize(
    ("second", "marked"),
    [
        ([13.0, 24.0, 35.0], True),  # differences 3, 4, 5: p = 0.02
        ([11.0, 22.0, 33.0], False),  # differences 1, 2, 3: p = 0.07
        ([11.0, 21.0, 31.0], False),  # always 1: no spread to compare with
        ([13.0, 24.0], False),  # p = 0.09
        ([24.0], False),
    ],
)
def test_the_best_is_marked_only_if_the_next_differs(
    second: list[float], marked: bool, tmp_path: Path
) -> None:
    table = svhn(
        tmp_path,
        made_up("supervised only", 250, [70.0, 80.0, 90.0]),
        made_up("Π-VAT", 250, second),
        made_up("Manifold Graph", 250, [10.0, 20.0, 30.0]),
        made_up("FixMatch", 500, [50.0, 51.0, 52.0]),
    )
    expected = "**20.00** ± 8.16" if marked else "20.00 ± 8.16"
    assert table["Manifold Graph"] == f"| Manifold Graph | {expected} | 3.77 ± 0.07 | – | 3.53 ± 0.08 |"
    assert "".join(table.values()).count("**") == (2 if marked else 0)  # alone in a column is not the best


def test_weights_that_were_chosen_on_test_images_are_marked(tmp_path: Path) -> None:
    chosen = [replace(result, selected_on="test") for result in made_up("VAT", 250, [1.0, 1.0, 1.0])]
    text = report.error_table(Measured(results_file(tmp_path, chosen)), "svhn-labels")
    assert "| VAT | 1.00 ± 0.00 ‡ |" in text
    assert text.endswith("\n\n‡ chosen on test images: too good, not an estimate for new images")


def test_the_ablation_has_the_figures_of_the_papers_column(tmp_path: Path) -> None:
    file = results_file(
        tmp_path,
        made_up("without either", 250, [4.0, 6.0, 8.0]),
        made_up("without either", 1000, [9.0], recipe=CIFAR10),
        made_up("without either", 1000, [5.0]),
    )
    table = lines(report.ablation_table(Measured(file)))
    assert table["without either"] == "| without either | 6.00 ± 1.63 | 9.00 (1) | 8.49 ± 0.36 |"
    assert table["Manifold Graph"] == "| Manifold Graph | – | – | 8.27 ± 0.19 |"
    assert len(table) == 2 + len(ABLATION)


# Comparisons


def compared(folder: Path, *groups: list[Result]) -> list[str]:
    return report.comparison_table(Measured(results_file(folder, *groups))).splitlines()


def test_differences_on_the_same_splits(tmp_path: Path) -> None:
    text = compared(
        tmp_path,
        made_up("Manifold Graph", 250, [10.0, 20.0, 30.0]),
        made_up("Π-VAT", 250, [13.0, 24.0, 35.0]),
        made_up("VAT", 250, [12.0, 22.0, 32.0]),
    )
    reach = 4.302653 / math.sqrt(3)
    low, high = f"−{4 + reach:.2f}", f"−{4 - reach:.2f}"
    where = "SVHN 250 labels | 3"
    assert f"| Manifold Graph | Π-VAT | {where} | −4.00 | {low} to {high} | 0.0202 | **lower** |" in text
    low, high = f"−{reach - 2:.2f}", f"+{2 + reach:.2f}"
    assert f"| Π-VAT | VAT | {where} | +2.00 | {low} to {high} | 0.0742 | not significant |" in text
    assert "| Π-VAT | supervised only | – | 0 | – | – | – | not measured |" in text
    assert text[-1].startswith("2 tests: if no method differed from any other, about 0.1 of them")


def test_higher_is_said_too_and_one_pair_is_too_few(tmp_path: Path) -> None:
    text = compared(
        tmp_path,
        made_up("FixMatch", 250, [13.0, 24.0, 35.0]),
        made_up("Manifold Graph", 250, [10.0, 20.0, 30.0]),
        made_up("without either", 250, [9.0]),
    )
    (line,) = (line for line in text if line.startswith("| FixMatch | Manifold Graph |"))
    assert line.endswith("| 0.0202 | **higher** |")
    single = (
        "| without either | Manifold Graph | SVHN 250 labels | 1 | −1.00 | – | – | too few pairs to tell |"
    )
    assert single in text


def test_all_columns_together_are_ratios(tmp_path: Path) -> None:
    text = compared(
        tmp_path,
        made_up("Π-VAT", 250, [2.0, 16.0, 16.0]),
        made_up("Π-VAT", 500, [8.0, 8.0], recipe=CIFAR10),
        made_up("VAT", 250, [1.0, 2.0, 1.0]),
        made_up("VAT", 500, [1.0, 2.0], recipe=CIFAR10),
    )
    ours = [line for line in text if line.startswith("| Π-VAT | VAT |")]
    # Exponents of 2 are 1, 3, 4 and 3, 2.
    mean = 100 * (2 ** (13 / 5) - 1)
    assert [line.split(" | ")[2:4] for line in ours] == [
        ["SVHN 250 labels", "3"],
        ["CIFAR-10 500 labels", "2"],
        ["all", "5 (5)"],
    ]
    assert ours[-1].split(" | ")[4] == f"+{mean:.2f} %"


def test_every_comparison_that_was_asked_for_is_there(tmp_path: Path) -> None:
    text = compared(tmp_path)
    asked = [tuple(line.removeprefix("| ").split(" | ")[:2]) for line in text[2:]]
    assert asked == list(report.COMPARISONS)
    assert {("Manifold Graph", "Π-VAT"), ("Π-VAT", "VAT"), ("Π-VAT", "supervised only")} <= set(asked)
    assert {(row.title, "Manifold Graph") for row in ABLATION[:-1]} <= set(asked)
    assert all(title in report.ROWS for pair in asked for title in pair)


def test_different_splits_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="different splits"):
        compared(
            tmp_path, made_up("Π-VAT", 250, [1.0], split="another"), made_up("Manifold Graph", 250, [2.0])
        )


# Compute


def test_time_is_summed_by_method_and_machine(tmp_path: Path) -> None:
    file = results_file(
        tmp_path,
        made_up("VAT", 250, [1.0, 2.0], seconds=1800.0, threads=2),  # 2 hours
        made_up("VAT", 500, [1.0], seconds=None, commit="fedcba9876543210+changes"),
        made_up("MixUp", 250, [1.0], digest="of before", machine={}, commit=None),  # 1 hour
    )
    other = ResultsFile(tmp_path / "looks.json")
    other.add(made_up_result(Cell("digits", "vat", 20, 0), 1.0, seconds=1800.0, threads=1))
    nothing = ResultsFile(tmp_path / "none.json")
    table = lines(report.compute_table(Measured(file), {"looks": other, "none": nothing}))
    of_three = "3 | 2.0 | 1 | 01234567, fedcba98+ |"
    assert table["VAT"] == f"| VAT | {of_three}"
    assert "MixUp" not in table
    assert table[report.OTHER_SETTINGS] == f"| {report.OTHER_SETTINGS} | 1 | 1.0 | 0 | – |"
    assert table["on a processor, 2 cores"] == f"| on a processor, 2 cores | {of_three}"
    assert table["on an unknown machine"] == "| on an unknown machine | 1 | 1.0 | 0 | – |"
    assert table["all of these"] == "| all of these | 4 | 3.0 | 1 | 01234567, fedcba98+ |"
    assert table["looks"].startswith("| looks | 1 | 0.5 | 0 |")
    assert "none" not in table


# Plots


def test_the_plot_has_a_line_with_bars_for_each_method(tmp_path: Path) -> None:
    file = results_file(
        tmp_path,
        made_up("Π-VAT", 250, [4.0, 5.0, 6.0]),
        made_up("Π-VAT", 1000, [2.0, 2.0, 5.0]),  # spread √2
        made_up("Manifold Graph on FixMatch", 1000, [1.0]),
        made_up("VAT", 500, [1.0], digest="of before"),
    )
    (axes,) = report.plot(Measured(file), "SVHN", "svhn-labels").axes
    drawn = {bars.get_label(): bars for bars in axes.containers}
    assert set(drawn) == {"Π-VAT", "Manifold Graph on FixMatch"}
    line, _, (bars,) = drawn["Π-VAT"].lines
    assert line.get_xdata().tolist() == [250, 1000]
    assert line.get_ydata() == pytest.approx([5, 3])
    lows_and_highs = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert lows_and_highs[0] == pytest.approx([5 - math.sqrt(2 / 3), 5 + math.sqrt(2 / 3)])
    assert lows_and_highs[1] == pytest.approx([3 - math.sqrt(2), 3 + math.sqrt(2)])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(drawn)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["250", "1,000"]


def test_errors_that_are_close_have_ticks_too(tmp_path: Path) -> None:
    file = results_file(tmp_path, made_up("VAT", 250, [46.0]), made_up("VAT", 1000, [41.0]))
    (axes,) = report.plot(Measured(file), "SVHN", "svhn-labels").axes
    low, high = axes.get_ylim()
    assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) > 2


def test_every_method_looks_different() -> None:
    titles = [row.title for row in (*CONTENDERS, *OTHERS)]
    bases = {title.removeprefix("Manifold Graph on ") for title in titles}
    assert bases <= set(report._STYLES)
    colours, marks = zip(*report._STYLES.values(), strict=True)
    assert len(set(colours)) == len(set(marks)) == len(report._STYLES)


def test_without_results_there_is_no_plot(tmp_path: Path) -> None:
    assert report.plot(Measured(results_file(tmp_path)), "SVHN", "svhn-labels") is None


def test_one_number_of_labels_makes_no_line(tmp_path: Path) -> None:
    file = results_file(tmp_path, made_up("VAT", 1000, [1.0, 2.0]), made_up("Π-VAT", 1000, [3.0]))
    assert report.plot(Measured(file), "SVHN", "svhn-labels") is None


def test_plots_are_the_same_file_whenever_they_are_drawn(tmp_path: Path) -> None:
    results = made_up("VAT", 250, [1.0, 2.0]), made_up("VAT", 1000, [1.0])
    measured = Measured(results_file(tmp_path, *results))
    for name in ("one", "two"):
        save(report.plot(measured, "SVHN", "svhn-labels"), tmp_path / f"{name}.svg")
    one, two = ((tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"<dc:date>" not in one


# Settings that were tried


def test_a_line_for_each_setting_that_was_tried(tmp_path: Path) -> None:
    table = SMALL_TABLES["16px-tuning"]
    (first, row), (second, other), *_ = table.cells().items()
    file = ResultsFile(tmp_path / "looks.json")
    assert report.tried_table(file, table) == "–"
    file.add(replace(measured(50.0, validation_error=12.345), cell=second, digest=second.digest()))
    file.add(replace(measured(60.0, validation_error=2.5), cell=first, digest="of other settings"))
    assert report.tried_table(file, table).splitlines()[2:] == [f"| {other.title} | 250 | 12.35 |"]
    assert row.title != other.title


def test_a_column_for_each_draw_on_which_settings_were_tried(tmp_path: Path) -> None:
    table = SMALL_TABLES["graph-tuning"]
    (column,), row = table.columns, table.rows[1]
    file = ResultsFile(tmp_path / "looks.json")
    for seed, error in zip((10, 11, 12), (20.0, 30.0, 40.0), strict=True):
        cell = table.cell(row, column, seed)
        file.add(replace(measured(50.0, validation_error=error), cell=cell, digest=cell.digest()))
    assert table.seeds == (10,), "the others are more than the table has"
    lines = report.tried_table(file, table).splitlines()
    assert lines[0] == "| setting | labels | draw 10 | draw 11 | draw 12 |"
    assert lines[2:] == [f"| {row.title} | 250 | 20.00 | 30.00 | 40.00 |"]


def test_looks_are_read_from_the_files_beside_the_results(tmp_path: Path) -> None:
    for mark, name in report.TRIED.items():
        shutil.copy(RESULTS.with_name(f"{name}.json"), tmp_path)
        text = report.tables(results_file(tmp_path), PAGE)[mark]
        looks = ResultsFile(tmp_path / f"{name}.json").results
        assert text.count("\n") == 1 + len({replace(result.cell, seed=0) for result in looks})


# Half an hour


def test_half_an_hour_says_how_far_it_is_below_the_best_single_method(tmp_path: Path) -> None:
    table = HALF_HOUR_TABLES["30min"]
    svhn, _ = table.columns
    file = ResultsFile(tmp_path / "30min.json")
    assert "by the best" not in report.half_hour_table(file)
    measured = ([5.0, 7.0, 3.0], [9.0, 7.0], [7.5], [4.0, 8.0, 9.0], [1.0])
    for row, errors in zip(table.rows, measured, strict=False):
        for seed, error in enumerate(errors):
            machine = {"processor": "AMD EPYC" if seed == 2 else "Intel(R) Xeon(R) Processor @ 2.50GHz"}
            result = made_up_result(
                table.cell(row, svhn, seed), error, cpu_seconds=1800.0 + 60 * seed, machine=machine
            )
            file.add(result)
    lines = report.half_hour_table(file).splitlines()
    assert lines[2] == f"| {table.rows[0].title} | 5.00 ± 1.63 | 32.0 (EPYC) / 30.5 (Xeon) | – | – |"
    assert lines[3] == "| FixMatch | 8.00 ± 1.00 (2) | 30.5 (Xeon) | – | – |"
    # (5 + 7) / 2 by (9 + 7) / 2: the third seed has no pair, nor have two the Π-VAT with the lower error.
    # Differences −4 and 0: t = −1.
    gain = "−25.00 %, 2 seeds, p = 0.500 (SVHN 250 labels)"
    assert lines[-5] == f"All combined by the best single method: {gain}."
    # 5 by 7; differences 1, −1 and −6: t = −2 / √(13 / 3).
    gain = "−28.57 %, 3 seeds, p = 0.438 (SVHN 250 labels)"
    assert lines[-3] == f"All combined by the best one, averaged over views too: {gain}."
    # 1 by 7.5, the better one of two with one seed each.
    gain = "−86.67 %, 1 seed (SVHN 250 labels)"
    assert lines[-1] == f"Combined, one view, by the best single method: {gain}."


@pytest.mark.parametrize(
    ("processor", "kind"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", "Xeon"),
        ("AMD EPYC", "EPYC"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", "Core"),
        ("x86_64", "x86_64"),
    ],
)
def test_times_are_of_a_kind_of_processor(processor: str, kind: str) -> None:
    cell = Cell("svhn_30min", "fixmatch", 250, 0)
    both = [
        made_up_result(cell, 1.0, cpu_seconds=seconds, machine={"processor": name})
        for seconds, name in ((600.0, processor), (1200.0, f"{processor} v2"))
    ]
    assert report._cpu_minutes(both) == f"15.0 ({kind})"


def test_the_best_single_method_is_the_best_of_the_seeds_that_are_compared(tmp_path: Path) -> None:
    table = HALF_HOUR_TABLES["30min"]
    svhn, _ = table.columns
    file = ResultsFile(tmp_path / "30min.json")
    for row, errors in zip(table.rows, ([5.0], [5.0, 9.0, 9.0], [7.0, 7.0, 7.0]), strict=False):
        for seed, error in enumerate(errors):
            file.add(made_up_result(table.cell(row, svhn, seed), error))
    assert "by the best single method: 0.00 %, 1 seed (SVHN" in report.half_hour_table(file)


# The page


def test_the_command_fills_the_page_and_again_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    file = results_file(tmp_path, made_up("VAT", 250, [1.0, 2.0]), made_up("Π-VAT", 1000, [3.0]))
    command = [sys.executable, "-m", "manigraph.experiments.report", str(file.path), str(page)]
    subprocess.run(command, check=True)
    text = page.read_text(encoding="utf-8")
    assert "| VAT | 1.50 ± 0.50 (2) | – |" in text
    assert "](results-svhn.svg)" in text
    assert "](results-cifar10.svg)" not in text
    assert (tmp_path / "results-svhn.svg").is_file()
    assert not (tmp_path / "results-cifar10.svg").exists()
    drawing = (tmp_path / "results-svhn.svg").read_bytes()
    report.main(file.path, page)
    assert page.read_text(encoding="utf-8") == text
    assert (tmp_path / "results-svhn.svg").read_bytes() == drawing


def test_figures_of_a_run_are_shown_with_what_is_behind_them(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    assert report.tables(results_file(tmp_path), page)["figures"] == "–"
    data: dict[str, Any] = {
        "algorithm": "manifold_graph",
        "data": "svhn",
        "labels": 1000,
        "seed": 0,
        "part": "validation",
        "nodes": {"kind": "prototypes"},
        "adjacency": {},
        "summary": {
            "images": 1000,
            "error": 7.1,
            "error_before": 7.9,
            "image_own_class": 0.614,
            "image_own_class_by_chance": 0.1,
            "prototype_own_class": 0.8,
            "prototype_own_class_by_chance": 0.0955,
        },
    }
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "figures.json").write_text(json.dumps(data))
    text = report.tables(results_file(tmp_path), page)["figures"]
    assert "](figures/manifold.png)" in text
    assert "](figures/connectivity.png)" in text
    assert text.endswith(
        "manifold_graph on svhn with 1,000 labels, seed 0: error 7.10 % of 1000 validation images, 7.90 % if "
        "the graph is left out. Images give 61 % of their weight to their own class (by chance 10 %); "
        "prototypes among themselves 80 % of their weight to their own class (by chance 10 %)."
    )
    data |= {"nodes": None, "adjacency": None, "without_graph": "pi_vat has no graph"}
    (tmp_path / "figures" / "figures.json").write_text(json.dumps(data))
    text = report.tables(results_file(tmp_path), page)["figures"]
    assert "connectivity" not in text
    assert text.endswith("There is only the map: pi_vat has no graph.")


def test_every_table_is_on_the_page(tmp_path: Path) -> None:
    names = names_of_tables(PAGE.read_text(encoding="utf-8"))
    assert sorted(names) == sorted(report.tables(results_file(tmp_path), PAGE))


def _being_measured() -> bool:
    """Whether any results differ from the committed ones, so that the page may be behind them."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", str(RESULTS.parent)]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    return status.returncode == 0 and status.stdout != ""


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    if _being_measured():
        pytest.skip("results are being measured: write the page when it is committed")
    file, text = ResultsFile(RESULTS), PAGE.read_text(encoding="utf-8")
    assert fill(text, report.tables(file, PAGE)) == text
    for mark, (data, table) in DATA_SETS.items():
        written = report.plot_path(PAGE, mark)
        figure = report.plot(Measured(file), data, table)
        assert written.is_file() == (figure is not None)
        if figure is not None:
            save(figure, tmp_path / written.name)
            assert written.read_bytes() == (tmp_path / written.name).read_bytes()
