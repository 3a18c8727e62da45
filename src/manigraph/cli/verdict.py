"""How the automatic choice and the verdict are shown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from manigraph.pair.verdict import Measured, Verdict
    from manigraph.recipes.reasons import Reason
    from manigraph.training.evaluation import Evaluation
    from manigraph.training.selection import Part

STYLES = {"helped": "bold green", "worse": "bold red", "unclear": "bold yellow"}


def reasons_table(reasons: "Sequence[Reason]") -> RenderableType:
    """What was chosen, and why."""
    table = Table(box=None, pad_edge=False)
    table.add_column("chosen", style="cyan", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("because")
    for reason in reasons:
        table.add_row(*(escape(text) for text in (reason.what, reason.value, reason.why)))
    return table


def print_verdict(
    verdict: "Verdict",
    evaluations: "dict[Part, Evaluation]",
    control_evaluations: "dict[Part, Evaluation]",
) -> None:
    """Errors of both, then what they say, then what to look at."""
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    others = [part for part in evaluations if part != verdict.part]
    table.add_column(f"{verdict.part} error", justify="right")
    table.add_column("95 % interval", justify="right")
    for part in others:
        table.add_column(f"{part} error", justify="right")
    for title, measured, of_parts in (
        ("with unlabelled images", verdict.with_unlabelled, evaluations),
        ("control, labels alone", verdict.control, control_evaluations),
    ):
        more = [f"{of_parts[part].error:.1f} %" for part in others]
        table.add_row(title, f"{measured.error:.1f} %", _interval(measured), *more)
    console.print(table)
    console.print(
        f"difference {verdict.difference:+.1f} points ({verdict.difference_low:+.1f} to "
        f"{verdict.difference_high:+.1f}), {_p(verdict.p)}: of {verdict.num_images} {verdict.part} images, "
        f"{verdict.only_run_wrong} wrong only with unlabelled, {verdict.only_control_wrong} only without",
        highlight=False,
    )
    if verdict.chosen_on_them:
        console.print("weights were chosen on these very images: both errors are too low", style="yellow")
    console.print(Text.assemble(("verdict: ", "bold"), (verdict.sentence, STYLES[verdict.outcome])))
    if verdict.advice:
        console.print("what to check:", highlight=False)
    for advice in verdict.advice:
        text = Text(f"{advice.seen}\n→ {advice.try_}")
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(" -", text)
        console.print(line)


def _interval(measured: "Measured") -> str:
    return f"{measured.low:.1f} to {measured.high:.1f} %"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
