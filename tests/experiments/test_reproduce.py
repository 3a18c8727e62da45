"""`manigraph reproduce` as a person uses it: asked for parts, stopped, killed, and asked again."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from manigraph import build
from manigraph.cli.main import main
from manigraph.cli.reproduce import ReproduceOptions, chosen_table, print_results
from manigraph.errors import UserError
from manigraph.experiments.grid import Cell, ResultsFile, measure, run_name
from manigraph.experiments.paper import PAPER_TABLES, Scale, paper_table
from manigraph.experiments.tables import Column, Row, Table
from manigraph.options import parse
from manigraph.published import PUBLISHED
from manigraph.recipes import measured as measured_steps
from manigraph.runs import RunDirectory
from tests.experiments.calls import ask_when, wait_until
from tests.experiments.cells import measured

STEPS = 200
LOGGED_EVERY = 20
FIRST = ["digits", "--rows", "supervised", "--jobs", "2", "--first_steps", str(STEPS)]
STOPPED = r"manigraph: stopped after \d of \d cells?; the same command goes on from there\n"


def environment(cwd: Path) -> dict[str, str]:
    return {**os.environ, "MARK": str(cwd), "COLUMNS": "200", "MANIGRAPH_CACHE": str(cwd / "cache")}


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command as the leader of a group, as a shell starts it; nothing is left of it in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "manigraph", "reproduce", *arguments],
        cwd=cwd,
        env=environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def marked(cwd: Path) -> list[int]:
    """All living processes that were started there."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            if entry.name.isdecimal() and f"MARK={cwd}" in variables:
                found.append(int(entry.name))
    return found


def options(*arguments: str) -> ReproduceOptions:
    found: ReproduceOptions = parse(ReproduceOptions, arguments, program="manigraph reproduce")
    return found


# Stopped and killed


def test_a_table_that_is_killed_and_stopped_is_finished_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By SIGKILL, by Ctrl-C in a terminal, by SIGTERM; each time in the middle of training."""
    runs = tmp_path / "runs" / "reproduce" / "first-steps"

    def lines_logged() -> int:
        return sum(len(path.read_text().splitlines()) for path in runs.glob("*/metrics.jsonl"))

    def wait_for_steps() -> None:
        before = lines_logged()
        wait_until(lambda: lines_logged() > before, "some steps")

    with started(*FIRST, cwd=tmp_path) as process:
        wait_for_steps()
        process.kill()
        _, complaint = process.communicate()  # which ends with the last process that could write there
        assert (process.returncode, complaint) == (-signal.SIGKILL, "")
        wait_until(lambda: not marked(tmp_path), "the end of all processes")

    with started(*FIRST, cwd=tmp_path) as process:
        wait_for_steps()
        os.killpg(process.pid, signal.SIGINT)
        _, complaint = process.communicate()
        assert process.returncode == 130
        assert re.fullmatch(STOPPED, complaint), complaint
        assert not marked(tmp_path)

    monkeypatch.chdir(tmp_path)
    before = lines_logged()
    ask_when(lambda: lines_logged() > before, os.getpid, signal.SIGTERM)
    assert main(["reproduce", *FIRST]) == 143
    assert re.fullmatch(STOPPED, capfd.readouterr().err)

    assert main(["reproduce", *FIRST]) == 0
    out, complaint = capfd.readouterr()
    assert complaint == ""
    assert f"the first {STEPS} steps of 2 cells work" in out

    results = ResultsFile(runs / "digits.json").results
    cells = chosen_table(options(*FIRST)).cells()
    assert {result.cell for result in results} == set(cells)
    assert len(results) == len(cells) == 2
    run_directories = [path.parent for path in runs.glob("*/preprocessing.json")]  # that were trained at all
    assert len(run_directories) == 2, "no cell is begun twice"
    resumed: list[int] = []
    for path in run_directories:
        run = RunDirectory(path)
        assert run.status().state == "finished"
        (final,) = [line for line in run.read_lines("evaluations.jsonl") if line["final"]]
        assert final["error"] in {result.test_error for result in results}
        logged = [line["step"] for line in run.read_lines("metrics.jsonl")]
        assert logged == list(range(LOGGED_EVERY, STEPS + 1, LOGGED_EVERY))
        steps = [line["step"] for line in run.read_lines("resumes.jsonl")]
        resumed += steps
        assert steps == sorted(steps), "what was trained on the way is not thrown away"
    assert len([step for step in resumed if step > 0]) >= 3
    assert not (tmp_path / "results").exists(), "first steps are kept apart"
    undisturbed = measure(results[0].cell, tmp_path / "undisturbed", threads=1)
    assert results[0].test_error == undisturbed.test_error


# What fails


def test_a_cell_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    damaged = tmp_path / "runs" / "reproduce" / run_name(Cell("digits", "supervised", 20, 0))
    damaged.mkdir(parents=True)
    (damaged / "preprocessing.json").write_text("{")
    rows = ["--rows", "label_spreading", "supervised", "--labels", "20", "--seeds", "1", "--jobs", "1"]
    assert main(["reproduce", "digits", *rows]) == 1
    out, complaint = capfd.readouterr()
    assert complaint.startswith("manigraph: there is no report of the runs: ")
    assert "is not a run directory: it has no config.json" in complaint
    assert "2 cells, 0 done before, 2 to measure; results in results/digits.json" in out
    (failed,) = [line for line in out.splitlines() if line.startswith("failed")]
    assert failed.startswith("failed: supervised only, digits, 20 labels, seed 0: ")
    assert re.search(r"LabelSpreading.*│ +11\.00 │", out)
    assert re.search(r"supervised only *│ +– │", out)
    assert out.endswith("1 of 2 cells could not be measured: the same command tries again\n")
    (result,) = json.loads((tmp_path / "results" / "digits.json").read_text())["results"]
    assert result["cell"]["algorithm"] == "label_spreading"


def test_a_cost_of_which_nothing_is_known_is_not_said_to_be_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_DATA", str(tmp_path))
    monkeypatch.setattr(measured_steps, "read_measured", dict)
    # Two ways to ask each run.
    assert main(["reproduce", "30min", "--plan", "--rows", "fixmatch"]) == 0
    assert (
        "How long it will take is not known before the first of them is measured." in capsys.readouterr().out
    )


@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_too_few_images_for_a_split_are_told_before_anything_is_measured(
    plan: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load = Mock(wraps=build.load_dataset)
    monkeypatch.setattr(build, "load_dataset", load)
    rows = ["--rows", "label_spreading", "--labels", "5000", "6000", "--seeds", "2", *plan]
    assert main(["reproduce", "digits", *rows]) == (0 if plan else 1)
    assert load.call_count == 1, "images are read once for all splits"
    out = capsys.readouterr().out
    assert out.count("2 cells cannot be measured: digits has 1297 training images") == 2
    assert "fewer than the 5000 labels asked for: lower data.labels" in out
    assert not (tmp_path / "runs").exists()


def test_without_images_there_is_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_DATA", "overwritten, and put back in the end")
    arguments = ["reproduce", "svhn-labels", "--rows", "vat", "--data_dir", "nowhere"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert f"9 cells cannot be measured: no files of svhn in {tmp_path / 'nowhere'}" in out
    assert "manigraph data get svhn" in out
    assert "9 of 9 cells could not be measured" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--labels", "20", "-3"], "--labels must be at least 1, got -3"),
        (["--threads", "-1"], "--threads must be at least 0, got -1"),
        (["--first_steps", "-1"], "--first_steps must be at least 0, got -1"),
        (["--hours", "0"], "--hours must be above 0, got 0"),
        (["--rows", "VAR"], "unknown row 'VAR': did you mean 'VAT'?"),
        (["--rows", "manifold_graf"], "unknown row 'manifold_graf': did you mean 'manifold_graph'?"),
        (["--rows", "Π-vat"], "unknown row 'Π-vat': did you mean 'Π-VAT'?"),
        (["--results", "."], "'.' is a folder: name a results file"),
    ],
)
def test_wrong_options(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "digits", "--plan", *arguments]) == 2
    assert capsys.readouterr().err == f"manigraph: {sentence}\n"


def test_what_could_not_be_kept_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for option, name in (("--results", "file/r.json"), ("--runs", "file/runs")):
        assert main(["reproduce", "digits", "--rows", "supervised", "--seeds", "1", option, name]) == 2
        said = capsys.readouterr().err
        assert f"cannot write {'runs in ' if option == '--runs' else ''}'{name}'" in said
        assert f"with {option}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_the_papers_scale_is_for_the_papers_tables() -> None:
    with pytest.raises(
        UserError, match=r"--scale paper is for the paper's tables \(main, .*\), not for 30min"
    ):
        chosen_table(ReproduceOptions("30min", scale="paper"))


# Parts of a table


def test_the_whole_table_by_default() -> None:
    table = chosen_table(options("main"))
    assert table == paper_table("main", "small")
    assert chosen_table(options("main", "--scale", "paper")) == paper_table("main", "paper")
    assert len(table.cells()) == 12 * 3 * 3


@pytest.mark.parametrize(
    "rows", [["pi_vat", "fixmatch"], ["Π-VAT", "FixMatch"], ["pi_vat", "FixMatch", "Π-VAT"]]
)
def test_rows_by_algorithm_or_title(rows: list[str]) -> None:
    assert [row.title for row in chosen_table(options("main", "--rows", *rows)).rows] == ["Π-VAT", "FixMatch"]


def test_an_algorithm_means_all_its_rows_and_a_title_one() -> None:
    by_algorithm = chosen_table(options("ablation", "--rows", "manifold_graph")).rows
    assert by_algorithm == chosen_table(options("ablation")).rows
    (by_title,) = chosen_table(options("ablation", "--rows", "without either")).rows
    assert by_title.options == ("--method.anchor_weight", "0", "--method.divergence_weight", "0")


def test_seeds_are_counted() -> None:
    for count, seeds in ((1, (0,)), (3, (0, 1, 2)), (5, (0, 1, 2, 3, 4))):
        assert chosen_table(options("main", "--seeds", str(count))).seeds == seeds
    assert chosen_table(options("digits-choices", "--seeds", "5")).seeds == (10, 12, 13, 14, 15)


def test_labels_of_one_data_set_are_free() -> None:
    table = chosen_table(options("svhn-labels", "--labels", "100", "500", "100"))
    assert table.columns == (
        Column("SVHN 100 labels", "svhn_16px", 100),
        Column("SVHN 500 labels", "svhn_16px", 500),
    )
    assert ("Π-VAT", "SVHN 500 labels") in table.published
    assert [c.labels for c in chosen_table(options("digits", "--labels", "30")).columns] == [30]


def test_labels_of_several_data_sets_choose_among_them() -> None:
    (column,) = chosen_table(options("main", "--labels", "4000")).columns
    assert column.recipe == "cifar10_16px"
    with pytest.raises(UserError, match="--labels of this table can be 1000, 4000, 10000, got 4000, 7"):
        chosen_table(options("main", "--labels", "4000", "7"))


def test_cells_have_the_first_seed_first() -> None:
    cells = list(chosen_table(options("digits", "--rows", "vat", "pi_vat", "--seeds", "2")).cells())
    assert [cell.seed for cell in cells] == [0, 0, 0, 0, 1, 1, 1, 1]


# Every table, at every scale


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("title", ["FixMatch", "Mean Teacher"])
def test_the_graph_on_another_method_has_its_consistency_term(scale: Scale, title: str) -> None:
    table = paper_table("svhn-labels", scale)
    rows = {row.title: row for row in table.rows}
    cells = [table.cell(rows[name], table.columns[0], 0) for name in (title, f"Manifold Graph on {title}")]
    alone, combined = (vars(cell.config().method) for cell in cells)
    if title == "FixMatch":  # which compares classes
        combined |= {"consistency": None}
        alone = alone | {"consistency": None}
    assert {name: combined[name] for name in alone} == alone
    assert combined["comparison"] == rows[title].algorithm


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", list(PAPER_TABLES))
def test_every_cell_of_the_paper_has_a_configuration(name: str, scale: str) -> None:
    table = chosen_table(options(name, "--scale", scale, "--seeds", "1"))
    digests = {cell.digest() for cell in table.cells()}
    assert len(digests) == len(table.rows) * len(table.columns)
    for cell in table.cells():
        config = cell.config()
        assert config.data.labels == cell.labels
        if scale == "paper":
            assert (config.training.steps, config.backbone.width) == (282_000, 1.0)
    for row, column in PUBLISHED:
        if column in {c.title for c in table.columns} and name != "ablation":
            assert row in {r.title for r in table.rows}, "no figure of the paper is left out"


# First steps


@pytest.mark.parametrize("name", ["main", "digits", "digits-methods"])
def test_first_steps_are_those_of_every_cell_and_of_one_seed(name: str) -> None:
    few = chosen_table(options(name, "--first_steps", "7", "--seeds", "3"))
    rows = {row.title: row for row in few.rows}
    assert few.seeds == (0,)
    for cell, row in few.cells().items():
        assert rows[row.title].options[-2:] == ("--training.steps", "7")
        assert cell.config().training.steps == 7
        assert cell.config().data.test == 100


def test_first_steps_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    real = chosen_table(options("digits"))
    results = ResultsFile(tmp_path / "mine.json")
    for cell in real.cells():
        results.add(replace(measured(), cell=cell, digest=cell.digest()))
    before = (tmp_path / "mine.json").read_bytes()
    arguments = ["reproduce", "digits", "--results", "mine.json", "--plan"]
    assert main(arguments) == 0
    assert "60 cells, 60 done before, 0 to measure; results in mine.json" in capsys.readouterr().out
    assert main([*arguments, "--first_steps", "5"]) == 0
    first = "12 cells, 0 done before, 12 to measure; results in runs/reproduce/first-steps/mine.json"
    assert first in capsys.readouterr().out
    assert (tmp_path / "mine.json").read_bytes() == before


# The plan


def test_a_plan_says_what_would_be_measured_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rows = ["--rows", "pi_vat", "vat", "--seeds", "2", "--jobs", "2", "--threads", "1"]
    assert main(["reproduce", "digits", *rows, "--plan"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "8 cells, 0 done before, 8 to measure; results in results/digits.json"
    assert re.fullmatch(
        r"It will take about [\d.,]+ (s|min|h|days) on this machine, 2 at a time with 1 thread each; "
        r"4 cells without a figure counted as long as the longest known of the recipe\.",
        lines[1],
    )
    assert "Digits, equal steps: seeds to measure, of 0, 1" in " ".join(out.split())
    assert [line.count(" 2 │") for line in lines if "VAT" in line] == [2, 2]
    assert list(tmp_path.iterdir()) == []


def test_a_plan_counts_what_is_done_and_needs_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_DATA", str(tmp_path / "nowhere"))
    done = chosen_table(options("svhn-labels", "--rows", "vat", "--labels", "250"))
    results = ResultsFile(tmp_path / "results.json")
    for cell in done.cells():
        results.add(replace(measured(), cell=cell, digest=cell.digest()))
    arguments = ["reproduce", "svhn-labels", "--rows", "vat", "--results", "results.json", "--plan"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "9 cells, 3 done before, 6 to measure; results in results.json" in out
    assert "6 cells cannot be measured: no files of svhn in" in out
    assert "on this machine" in out
    assert re.search(r"VAT +│ +– │ +3 │ +3 │", out)


# The table in the end

TABLE = Table(
    "Two methods",
    (Column("SVHN 250 labels", "svhn_small", 250), Column("CIFAR-10 500 labels", "cifar10_small", 500)),
    (Row("Π-VAT", "pi_vat"), Row("Manifold Graph", "manifold_graph"), Row("MixMatch", "mixmatch")),
    seeds=(0, 1, 2),
    published={
        ("Π-VAT", "SVHN 250 labels"): (7.26, 1.73),
        ("Manifold Graph", "SVHN 250 labels"): (3.77, 0.07),
    },
)


def results_of(errors: dict[tuple[int, int], list[float]]) -> ResultsFile:
    """Row and column to the errors of the first seeds."""
    results = ResultsFile(Path("nowhere.json"))
    for (row, column), values in errors.items():
        for seed, error in zip(TABLE.seeds, values, strict=False):
            cell = TABLE.cell(TABLE.rows[row], TABLE.columns[column], seed)
            results.results.append(replace(measured(error), cell=cell, digest=cell.digest()))
    return results


ERRORS = {(0, 0): [8.0, 10.0, 12.0], (1, 0): [4.0, 5.0], (1, 1): [20.5]}
# Mean 10, squares of the differences 4, 0 and 4: √(8/3) = 1.633. Mean 4.5, differences ½: 0.5.


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_results(results_of(ERRORS), TABLE)
    return [" ".join(line.replace("│", "|").split()) for line in capsys.readouterr().out.splitlines()]


def test_the_papers_figures_are_beside_those_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(140, monkeypatch, capsys)
    assert lines[0] == "Two methods: test error %, mean ± standard deviation over seeds 0, 1, 2"
    assert "┃ method ┃ SVHN 250 labels ┃ the paper ┃ CIFAR-10 500 labels ┃" in lines
    assert "| Π-VAT | 10.00 ± 1.63 | 7.26 ± 1.73 | – |" in lines
    assert "| Manifold Graph | 4.50 ± 0.50 (2) | 3.77 ± 0.07 | 20.50 (1) |" in lines
    assert "| MixMatch | – | | – |" in lines
    assert lines[-1] == "(n): only n seeds are measured"


def test_one_seed_has_no_mean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_results(results_of(ERRORS), replace(TABLE, seeds=(1,)))
    assert capsys.readouterr().out.splitlines()[0].strip() == "Two methods: test error %, seed 1"


def test_a_narrow_terminal_has_one_column_below_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(70, monkeypatch, capsys)
    assert "┃ method ┃ measured ┃ the paper ┃" in lines
    start = lines.index("| SVHN 250 labels | | |")
    assert lines[start + 1] == "| Π-VAT | 10.00 ± 1.63 | 7.26 ± 1.73 |"
    start = lines.index("| CIFAR-10 500 labels | | |")
    assert lines[start + 2] == "| Manifold Graph | 20.50 (1) | |"
    assert not any("…" in line for line in lines)


def test_results_of_other_settings_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    results = results_of(ERRORS)
    results.results = [replace(result, digest="of other settings") for result in results.results]
    print_results(results, TABLE)
    assert "±" not in capsys.readouterr().out.partition("Π-VAT")[2].splitlines()[0].partition("7.26")[0]
