"""Tables and plots of docs/results.md, from the results file of the small scale and those beside it.

`python -m manigraph.experiments.report RESULTS PAGE` puts each table between its marks in the page, and the
plots beside it. What was not measured, or with other settings than today's, is a dash.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from manigraph.experiments.grid import Cell, Result, ResultsFile, mean_and_spread
from manigraph.experiments.half_hour import COMBINATION, HALF_HOUR_TABLES, ONE_VIEW, SINGLE_METHODS
from manigraph.experiments.paper import ABLATION, CONTENDERS, OTHERS, PAPER_TABLES, paper_table
from manigraph.experiments.significance import Pair, difference_test, pairs, ratio_test
from manigraph.experiments.small import SMALL_TABLES
from manigraph.experiments.tables import Column, Row, Table
from manigraph.reports.manifold import in_words
from manigraph.reports.pages import fill, markdown_table
from manigraph.significance import SIGNIFICANT, PairedTest
from manigraph.training.selection import CHOSEN_ON_TEST

NOTHING = "–"
ABLATION_IN_THE_PAPER = "CIFAR-10 4000 labels"

DATA_SETS = {"svhn": ("SVHN", "svhn-labels"), "cifar10": ("CIFAR-10", "cifar10-labels")}
"""Mark on the page to the data set's name and its table."""

TRIED = {
    "tuning_16px": "16px-tuning",
    "tuning_small": "small-tuning",
    "tuning_graph": "graph-tuning",
    "cifar10_epsilon": "cifar10-epsilon",
    "tuning_30min": "30min-tuning",
    "tuning_30min_cifar10": "30min-tuning-cifar10",
}
"""Mark on the page to the table of settings that were tried; its results file has the table's name."""

TIMED = {
    "half_hour_muon": "30min-muon",
    "half_hour_limit": "30min-limit",
    "half_hour_fast": "30min-fast",
}
"""Likewise of half an hour, with the time of each row."""

OTHER_FILES = ("30min", *TIMED.values(), *TRIED.values())
"""Results files whose time is on the page too."""

COMPARISONS = (
    ("Manifold Graph", "Π-VAT"),
    ("Π-VAT", "VAT"),
    ("Π-VAT", "supervised only"),
    *((row.title, "Manifold Graph") for row in ABLATION if row.title != "Manifold Graph"),
    ("FixMatch", "Manifold Graph"),
    ("Manifold Graph on FixMatch", "FixMatch"),
    ("Manifold Graph on Mean Teacher", "Mean Teacher"),
)
"""Titles of rows: whose error, against whose."""

ROWS = {row.title: row for row in (*CONTENDERS, *OTHERS, *ABLATION)}


class Measured:
    """What a results file says about the rows of tables, with the settings they have today."""

    def __init__(self, results: ResultsFile) -> None:
        self.results = results.results
        self._file = results
        self._cells = {result.cell for result in results.results}
        self._found: dict[Cell, Result | None] = {}

    def find(self, cell: Cell) -> Result | None:
        """The result of a cell, looked up once."""
        if cell not in self._cells:
            return None
        if cell not in self._found:
            self._found[cell] = self._file.find(cell)
        return self._found[cell]

    def of(self, table: Table, row: Row, column: Column) -> list[Result]:
        """One for each seed of the table that was measured."""
        found = (self.find(table.cell(row, column, seed)) for seed in table.seeds)
        return [result for result in found if result is not None]

    def columns(self, table: Table) -> tuple[Column, ...]:
        """Those of one data set's table that have any result; any number of labels may have been asked for.

        All of the table's if there are no results at all.
        """
        one = table.columns[0]
        data = one.title.removesuffix(f" {one.labels} labels")
        numbers = sorted({cell.labels for cell in self._cells})
        columns = (replace(one, title=f"{data} {n} labels", labels=n) for n in numbers)
        return self._with_results(table, columns) or table.columns

    def all_columns(self) -> tuple[Column, ...]:
        """Of all tables, each data set and number of labels with any result once."""
        names = dict.fromkeys([*(name for _, name in DATA_SETS.values()), *PAPER_TABLES])
        found: dict[Column, None] = {}
        for table in (paper_table(name, "small") for name in names):
            of_one_data_set = len({column.recipe for column in table.columns}) == 1
            columns = self.columns(table) if of_one_data_set else table.columns
            found |= dict.fromkeys(self._with_results(table, columns))
        return tuple(found)

    def _with_results(self, table: Table, columns: Iterable[Column]) -> tuple[Column, ...]:
        return tuple(column for column in columns if any(self.of(table, row, column) for row in table.rows))


# Errors


def error_table(measured: Measured, name: str) -> str:
    """A row for each method, a column for each number of labels and one for the paper's figures beside it."""
    table = paper_table(name, "small")
    columns = measured.columns(table)
    header, cells = ["method"], [[row.title] for row in table.rows]
    for column in columns:
        header.append(_labels(column))
        _extend(cells, _summaries(measured, table, column))
        if any((row.title, column.title) in table.published for row in table.rows):
            header.append("paper")
            _extend(cells, [_published(table, row, column.title) for row in table.rows])
    lines = [markdown_table(header, cells), *_same_seed(measured, table, columns)]
    return "\n".join([*lines, *_remarks(measured, table, columns)])


def _same_seed(measured: Measured, table: Table, columns: Sequence[Column]) -> list[str]:
    """What rows with all seeds have on the first one, where others have that one alone: draws differ."""
    first = replace(table, seeds=table.seeds[:1])
    complete, alone = [], False
    for row in table.rows:
        number = {len(measured.of(table, row, column)) for column in columns}
        found = [measured.of(first, row, column) for column in columns]
        if number == {len(table.seeds)}:
            complete.append(f"{row.title} {', '.join(f'{one.test_error:.2f}' for (one,) in found)}")
        alone = alone or (len(table.seeds) > 1 and 1 in number)
    if not (complete and alone):
        return []
    return ["", f"On seed {table.seeds[0]} alone, which is that of rows with (1): {'; '.join(complete)}."]


def ablation_table(measured: Measured) -> str:
    """A column for each data set, and what the paper has with 4,000 labels of CIFAR-10."""
    table = paper_table("ablation", "small")
    header, cells = ["", *(column.title for column in table.columns)], [[row.title] for row in table.rows]
    for column in table.columns:
        _extend(cells, _summaries(measured, table, column))
    header.append(f"paper, {ABLATION_IN_THE_PAPER}")
    _extend(cells, [_published(table, row, ABLATION_IN_THE_PAPER) for row in table.rows])
    return "\n".join([markdown_table(header, cells), *_remarks(measured, table, table.columns)])


def half_hour_table(results: ResultsFile) -> str:
    """Errors and CPU time of half an hour, and how far the combination is below the single methods."""
    measured, table = Measured(results), HALF_HOUR_TABLES["30min"]
    asked_once = [row for row in SINGLE_METHODS if not row.read_out]
    lines = []
    for what, ours, singles in (
        ("All combined by the best single method", COMBINATION, asked_once),
        ("All combined by the best one, averaged over views too", COMBINATION, SINGLE_METHODS),
        ("Combined, one view, by the best single method", ONE_VIEW, asked_once),
    ):
        gains = [
            f"{gain} ({column.title})"
            for column in table.columns
            if (gain := _gain(*(measured.of(table, row, column) for row in (ours, *singles))))
        ]
        if gains:
            lines += ["", f"{what}: {'; '.join(gains)}."]
    return "\n".join([timed_table(measured, table), *lines])


def timed_table(measured: Measured, table: Table) -> str:
    """Errors, and how long the training took."""
    header, cells = ["method"], [[row.title] for row in table.rows]
    for column in table.columns:
        header += [column.title, "CPU-minutes"]
        _extend(cells, _summaries(measured, table, column))
        _extend(cells, [_cpu_minutes(measured.of(table, row, column)) for row in table.rows])
    return markdown_table(header, cells)


def _gain(ours: Sequence[Result], *singles: Sequence[Result]) -> str:
    """Of our mean error by that of the best single method, over the seeds that ours and it have."""
    shared = [found for single in singles if (found := pairs(ours, single))]
    if not shared:
        return ""
    most = max(map(len, shared))
    # Of methods with fewer seeds than others nobody knows whether they are the best.
    best = min((found for found in shared if len(found) == most), key=lambda found: _means(found)[1])
    own, other = _means(best)
    test, number = difference_test(best), "1 seed" if most == 1 else f"{most} seeds"
    chance = "" if test.p is None else f", p = {test.p:.3f}"
    return f"{_signed(100 * (own / other - 1))} %, {number}{chance}"


def _means(found: Sequence[Pair]) -> tuple[float, float]:
    ours, theirs = zip(*found, strict=True)
    return mean_and_spread(_errors(ours))[0], mean_and_spread(_errors(theirs))[0]


def _cpu_minutes(results: Sequence[Result]) -> str:
    """The mean on each kind of processor, of which one may take three times as long as another."""
    known: dict[str, list[float]] = {}
    for result in results:
        if result.cpu_seconds:
            kind = _family(result.machine.get("processor", "unknown"))
            known.setdefault(kind, []).append(result.cpu_seconds / 60)
    return (
        " / ".join(f"{sum(all_) / len(all_):.1f} ({kind})" for kind, all_ in sorted(known.items())) or NOTHING
    )


def _family(processor: str) -> str:
    """Of a processor, without its maker and model: Xeon of "Intel(R) Xeon(R) Processor @ 2.50GHz"."""
    words = [word.partition("(")[0] for word in processor.split()]
    names = (word for word in words if word not in _MAKERS and not word[:1].isdigit())
    return next(names, processor)


_MAKERS = {"AMD", "Intel", "Genuine", "Gen", "Apple"}


def _extend(rows: Sequence[list[str]], texts: Sequence[str]) -> None:
    for row, text in zip(rows, texts, strict=True):
        row.append(text)


def _labels(column: Column) -> str:
    return f"{column.labels:,} labels"


def _summaries(measured: Measured, table: Table, column: Column) -> list[str]:
    """Mean ± spread of every row; the best is bold if it is significantly better than the next."""
    results = {row.title: measured.of(table, row, column) for row in table.rows}
    marked = best(results)
    return [_summary(results[row.title], len(table.seeds), bold=row.title == marked) for row in table.rows]


def best(results: Mapping[str, Sequence[Result]]) -> str | None:
    """The row with the lowest mean, if it differs significantly from the row with the next lowest."""
    means = {title: mean_and_spread(_errors(found))[0] for title, found in results.items() if found}
    if len(means) < 2:
        return None
    first, second = sorted(means, key=means.__getitem__)[:2]
    shared = pairs(results[first], results[second])
    return first if shared and difference_test(shared).is_significant else None


def _errors(results: Iterable[Result]) -> list[float]:
    return [result.test_error for result in results]


def _summary(results: Sequence[Result], num_seeds: int, *, bold: bool) -> str:
    if not results:
        return NOTHING
    mean, spread = mean_and_spread(_errors(results))
    figure = f"**{mean:.2f}**" if bold else f"{mean:.2f}"
    deviation = f" ± {spread:.2f}" if len(results) > 1 else ""
    few = f" ({len(results)})" if len(results) < num_seeds else ""
    return f"{figure}{deviation}{few}{' ‡' if _is_dishonest(results) else ''}"


def _published(table: Table, row: Row, column: str) -> str:
    if (row.title, column) not in table.published:
        return NOTHING
    mean, spread = table.published[row.title, column]
    return f"{mean:.2f} ± {spread:.2f}"


def _is_dishonest(results: Iterable[Result]) -> bool:
    return any(result.selected_on == "test" for result in results)


def _remarks(measured: Measured, table: Table, columns: Sequence[Column]) -> list[str]:
    shown = (measured.of(table, row, column) for row in table.rows for column in columns)
    return ["", f"‡ {CHOSEN_ON_TEST}"] if any(map(_is_dishonest, shown)) else []


def tried_table(results: ResultsFile, table: Table) -> str:
    """All settings of one table that were tried on validation images; a column for each label draw.

    With `--seeds`, some settings are tried on more draws than the table has.
    """
    measured = Measured(results)
    (column,) = table.columns
    seeds = sorted({*table.seeds, *(result.cell.seed for result in results.results)})
    lines = []
    for row in table.rows:
        found = [measured.find(table.cell(row, column, seed)) for seed in seeds]
        errors = [NOTHING if result is None else f"{result.error(table.part):.2f}" for result in found]
        if any(found):
            lines.append([row.title, str(row.labels or column.labels), *errors])
    draws = ["validation error %"] if len(seeds) == 1 else [f"draw {seed}" for seed in seeds]
    header = ["setting", "labels", *draws]
    return markdown_table(header, lines) if lines else NOTHING


# Comparisons


def comparison_table(measured: Measured) -> str:
    """Two methods on the same splits: for each data set and number of labels, and over all of them."""
    table = paper_table("main", "small")  # for its seeds
    columns = measured.all_columns()
    lines, tests = [], 0
    for ours, theirs in COMPARISONS:
        found = {
            column: pairs(measured.of(table, ROWS[ours], column), measured.of(table, ROWS[theirs], column))
            for column in columns
        }
        found = {column: shared for column, shared in found.items() if shared}
        for column, shared in found.items():
            test = difference_test(shared)
            tests += test.p is not None
            lines.append([ours, theirs, column.title, str(len(shared)), *_verdict(test, "")])
        if len(found) > 1:
            together = [pair for shared in found.values() for pair in shared]
            test = ratio_test(together)
            tests += test.p is not None
            lines.append([ours, theirs, "all", f"{len(together)} ({test.size})", *_verdict(test, " %")])
        if not found:
            lines.append([ours, theirs, NOTHING, "0", NOTHING, NOTHING, NOTHING, "not measured"])
    header = ["error of", "by that of", "where", "pairs", "difference", "95 %", "p", ""]
    chance = (
        f"{tests} tests: if no method differed from any other, about {SIGNIFICANT * tests:.1f} of them "
        f"would be significant by chance."
    )
    return "\n".join([markdown_table(header, lines), *(["", chance] if tests else [])])


def _verdict(test: PairedTest, unit: str) -> list[str]:
    """Difference, interval, p and what they mean."""
    if test.low is None or test.high is None or test.p is None:
        return [f"{_signed(test.mean)}{unit}", NOTHING, NOTHING, "too few pairs to tell"]
    p = "< 0.0001" if test.p < 0.0001 else f"{test.p:.4f}"
    verdict = "not significant"
    if test.is_significant:
        verdict = "**lower**" if test.mean < 0 else "**higher**"
    return [f"{_signed(test.mean)}{unit}", f"{_signed(test.low)} to {_signed(test.high)}{unit}", p, verdict]


def _signed(value: float) -> str:
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")


# Compute


def compute_table(measured: Measured, others: Mapping[str, ResultsFile]) -> str:
    """Time of all runs in the results file, by method; by machine; then of other files, by what they hold."""
    titles = _titles(measured)
    groups: dict[str, list[Result]] = {title: [] for title in (*ROWS, OTHER_SETTINGS)}
    for result in measured.results:
        groups[titles.get(result.cell, OTHER_SETTINGS)].append(result)
    machines: dict[str, list[Result]] = {}
    for result in measured.results:
        machines.setdefault(_machine(result), []).append(result)
    header = ["", "runs", "core-hours", "runs of unknown time", "commits"]
    rows = [_used(title, results) for title, results in groups.items() if results]
    rows += [_used(f"on {machine}", results) for machine, results in machines.items()]
    rows.append(_used("all of these", measured.results))
    rows += [_used(name, file.results) for name, file in others.items() if file.results]
    return markdown_table(header, rows)


OTHER_SETTINGS = "settings that are in no table any more"


def _titles(measured: Measured) -> dict[Cell, str]:
    """Cell to the title of its row, for cells with a result."""
    table = paper_table("main", "small")
    return {
        result.cell: row.title
        for column in measured.all_columns()
        for row in ROWS.values()
        for result in measured.of(table, row, column)
    }


def _used(title: str, results: Sequence[Result]) -> list[str]:
    hours = sum(result.seconds * result.threads for result in results if result.seconds is not None) / 3600
    unknown = sum(result.seconds is None for result in results)
    commits = sorted({_short(result.commit) for result in results if result.commit})
    known = f"{hours:.1f}" if unknown < len(results) else NOTHING
    return [title, str(len(results)), known, str(unknown), ", ".join(commits) or NOTHING]


def _short(commit: str) -> str:
    """The first digits of a commit, with a + if something was changed since."""
    digits, plus, _ = commit.partition("+")
    return digits[:8] + plus


def _machine(result: Result) -> str:
    machine = result.machine
    if not machine:
        return "an unknown machine"
    return f"{machine.get('processor')}, {machine.get('cores')} cores"


# Plots

_STYLES = {
    "supervised only": ("#000000", "o"),
    "Π-VAT": ("#0072b2", "s"),
    "Manifold Graph": ("#d55e00", "D"),
    "FixMatch": ("#009e73", "^"),
    "Π-model": ("#56b4e9", "v"),
    "VAT": ("#cc79a7", "P"),
    "Mean Teacher": ("#e69f00", "X"),
    "Pseudo-Label": ("#999933", "<"),
    "MixUp": ("#882255", ">"),
    "MixMatch": ("#332288", "h"),
}
"""Colour (Okabe and Ito 2008, then Tol 2021) and mark; Manifold Graph on X is X, dashed."""

WIDE = {"Π-VAT", "Manifold Graph"}


def plot(measured: Measured, data: str, table_name: str) -> Any:
    """Error against the number of labels, a line for each method; None if that would be no line."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    from manigraph.reports.drawing import STYLE

    table = paper_table(table_name, "small")
    columns = measured.columns(table)
    lines = {}
    for row in table.rows:
        points = [
            (column.labels, *mean_and_spread(_errors(results)))
            for column in columns
            if (results := measured.of(table, row, column))
        ]
        if points:
            lines[row.title] = points
    if len({labels for points in lines.values() for labels, *_ in points}) < 2:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        # In the legend from the worst to the best, as the lines end.
        for title in sorted(lines, key=lambda title: (-lines[title][-1][0], -lines[title][-1][1])):
            base = title.removeprefix("Manifold Graph on ")
            colour, mark = _STYLES.get(base, ("#777777", "*"))
            labels, means, spreads = zip(*lines[title], strict=True)
            axes.errorbar(
                labels,
                means,
                yerr=spreads,
                label=title,
                color=colour,
                marker=mark,
                linestyle="-" if base == title else "--",
                linewidth=2.0 if title in WIDE else 1.2,
                markersize=5.5 if title in WIDE else 4.5,
                markerfacecolor=colour if base == title else "white",
                elinewidth=0.8,
                capsize=2.0,
                zorder=4 if title in WIDE else 3,
            )
        numbers = [column.labels for column in columns]
        axes.set_xlim(numbers[0] / 1.15, numbers[-1] * 1.15)
        axes.xaxis.set_major_locator(FixedLocator(numbers))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        low, high = axes.get_ylim()
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axes.yaxis.set_major_locator(FixedLocator(ticks) if len(ticks) > 2 else MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("labels")
        axes.set_ylabel("test error, %")
        axes.set_title(f"{data}: mean ± standard deviation over seeds", loc="left", fontsize=9)
        axes.grid(color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5)
    return figure


_TICKS = [digit * 10**power for power in (-1, 0, 1) for digit in (1, 1.5, 2, 3, 4, 5, 7)] + [100]


# The figures of one run


def figures_in_words(folder: Path, linked: str) -> str:
    """The two figures and what is behind them, if `manigraph figures` was called; else a dash."""
    if not (folder / "figures.json").is_file():
        return NOTHING
    data = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    drawn = {"manifold": "Map of the features"}
    if data["adjacency"] is not None:
        drawn["connectivity"] = "Learned edges"
    links = [f"![{title}]({linked}/{name}.png)" for name, title in drawn.items()]
    return "\n\n".join([*links, in_words(data)])


# The page


def tables(results: ResultsFile, page: Path) -> dict[str, str]:
    """Mark to what belongs there."""
    measured = Measured(results)
    found = {mark: error_table(measured, table) for mark, (_, table) in DATA_SETS.items()}
    for mark, (data, table) in DATA_SETS.items():
        drawn = plot(measured, data, table) is not None
        link = f"![Error on {data} against the number of labels]({plot_path(page, mark).name})"
        found[f"{mark}_plot"] = link if drawn else NOTHING
    looks = {**SMALL_TABLES, **HALF_HOUR_TABLES}
    for mark, name in TRIED.items():
        found[mark] = tried_table(ResultsFile(results.path.with_name(f"{name}.json")), looks[name])
    return found | {
        "ablation": ablation_table(measured),
        "comparisons": comparison_table(measured),
        "half_hour": half_hour_table(ResultsFile(results.path.with_name("30min.json"))),
        **{
            mark: timed_table(
                Measured(ResultsFile(results.path.with_name(f"{name}.json"))), HALF_HOUR_TABLES[name]
            )
            for mark, name in TIMED.items()
        },
        "compute": compute_table(
            measured,
            {f"`{name}`": ResultsFile(results.path.with_name(f"{name}.json")) for name in OTHER_FILES},
        ),
        "figures": figures_in_words(page.parent / "figures", "figures"),
    }


def plot_path(page: Path, mark: str) -> Path:
    """Beside the page."""
    return page.with_name(f"{page.stem}-{mark}.svg")


def draw(results: ResultsFile, page: Path) -> list[Path]:
    """Write the plots that there is something for."""
    from manigraph.reports.drawing import save

    written = []
    for mark, (data, table) in DATA_SETS.items():
        if (figure := plot(Measured(results), data, table)) is not None:
            save(figure, plot_path(page, mark))
            written.append(plot_path(page, mark))
    return written


def main(results: Path, page: Path) -> None:
    """Rewrite the page, and the plots beside it."""
    file = ResultsFile(results)
    page.write_text(fill(page.read_text(encoding="utf-8"), tables(file, page)), encoding="utf-8")
    draw(file, page)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
