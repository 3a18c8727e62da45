"""`manigraph report RUN [RUN…]`."""

import glob
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from manigraph.errors import UserError, shown
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.reports.facts import RunFacts
    from manigraph.reports.run_report import PaperFigure


@dataclass(frozen=True)
class ReportOptions:
    """Write a page about one run, or about several side by side: one HTML file that needs nothing else.

    With one run, figures for papers too (PNG and SVG). What needs the images (map, prototypes) was computed
    when the run ended; --analyse computes it for a run that has none.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories."""
    output: Path | None = None
    """HTML file; by default report.html in the run directory, or comparison.html here for several runs. It
    takes the place of the report of before."""
    figures: bool = True
    """Also draw the figures of one run, into a folder `figures` beside the page."""
    analyse: bool = False
    """Compute map, graph and gallery from the run's weights and images, even if they are there already."""
    data_dir: Path | None = None
    """With --analyse: folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""


def run(arguments: list[str]) -> int:
    """Read, render, write, and say where it is."""
    options: ReportOptions = parse(ReportOptions, arguments, program="manigraph report")
    if not options.runs:
        raise UserError("name a run directory, as in `manigraph report runs/NAME`")
    output = _output(options)

    from manigraph.reports.html import render
    from manigraph.runs import write_bytes

    if options.analyse:
        for path in options.runs:
            analyse(path, options.data_dir)

    from manigraph.reports.comparison import comparison_page
    from manigraph.reports.facts import RunFacts

    facts = [RunFacts.read(path) for path in options.runs]
    page = comparison_page(facts) if len(facts) > 1 else page_of(facts[0])
    write_bytes(output, render(page).encode())
    print(f"report: {output}")
    if len(facts) == 1 and options.figures:
        from manigraph.reports.figures import write_figures

        drawn = write_figures(facts[0], page, output.parent / "figures")
        if drawn:
            print(f"figures: {output.parent / 'figures'} ({', '.join(path.stem for path in drawn[::2])})")
    if len(facts) == 1 and not facts[0].arrays and (options.runs[0] / "model.safetensors").is_file():
        print(f"there is no map: `manigraph report {options.runs[0]} --analyse` computes it from the weights")
    return 0


def _output(options: ReportOptions) -> Path:
    default = options.runs[0] / "report.html" if len(options.runs) == 1 else Path("comparison.html")
    output = default if options.output is None else options.output
    if output.is_dir():
        raise UserError(f"'{output}' is a folder: name the file, as in --output {output / 'report.html'}")
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is an HTML file: call it '{output.with_suffix('.html')}'")
    if options.output is not None and not output.absolute().parent.is_dir():
        raise UserError(f"the folder of '{output}' does not exist")
    return output


def write_report(path: Path, data_dir: Path | None = None, *, say: bool = True) -> Path | None:
    """What a training ends with: the analysis of a run, and its page in the run directory.

    Args:
        path: The run directory.
        data_dir: Folder of the data sets; by default as in the environment.
        say: Print where the page is.

    Returns:
        The page; None, with a sentence on standard error, if there is none: the training went well, whatever
        becomes of its report.
    """
    from manigraph.reports.facts import RunFacts
    from manigraph.reports.html import render
    from manigraph.runs import write_bytes

    trouble, output = "", path / "report.html"
    try:
        analyse(path, data_dir)
    except Exception as error:  # there is still a page
        trouble = f" (without a map: {_one_line(error)})"
    try:
        write_bytes(output, render(page_of(RunFacts.read(path))).encode())
    except Exception as error:
        print(
            f"manigraph: the run is complete, its report is not: {_one_line(error)}; `manigraph report "
            f"{shown(str(path))}` tries again",
            file=sys.stderr,
        )
        return None
    if say or trouble:
        print(f"report: {output}{trouble}")
    return output


def _one_line(error: Exception) -> str:
    return shown(" ".join(str(error).split()) or type(error).__name__)


def analyse(path: Path, data_dir: Path | None = None) -> None:
    """Compute what a report shows of a run, from its weights and images."""
    from manigraph.cli.display import data_progress
    from manigraph.data.locations import Locations
    from manigraph.inference.analysis import write_analysis
    from manigraph.runs import RunDirectory

    with data_progress() as progress:
        write_analysis(RunDirectory.open(path), locations=Locations.default(data_dir), progress=progress)


def page_of(facts: "RunFacts") -> "dict[str, object]":
    """What the page of one run shows, beside its control and the paper."""
    from manigraph.reports.run_report import run_page

    return run_page(facts, paper=_in_the_paper(facts), control=_control_of(facts))


def _control_of(facts: "RunFacts") -> "RunFacts | None":
    """The run that was trained from the labels alone to compare this one with."""
    from manigraph.reports.facts import RunFacts
    from manigraph.runs import RunDirectory

    here = facts.run.path.resolve()
    for path in sorted(here.parent.glob(f"{glob.escape(here.name)}-control*")):
        try:
            choices = RunDirectory.open(path).read_json("choices.json")
            if choices.get("control_of", {}).get("id") == facts.run.id:
                return RunFacts.read(path)
        except (UserError, AttributeError):
            continue  # not one of ours, or damaged: this run's page is about this run
    return None


def _in_the_paper(facts: "RunFacts") -> "PaperFigure | None":
    """The paper's figure for the same data, labels and method."""
    from manigraph.published import printed_error
    from manigraph.reports.run_report import PaperFigure

    data = facts.config.get("data", {})
    if data.get("path") or data.get("features"):
        return None
    found = printed_error(facts.dataset, facts.num_labelled, facts.algorithm)
    return None if found is None else PaperFigure(*found)
