"""`manigraph list [KIND]`."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from manigraph.catalogue import ALGORITHMS, BACKBONES, DATASETS, ENCODERS, RECIPES
from manigraph.errors import UnknownNameError
from manigraph.registry import Registry

if TYPE_CHECKING:
    from manigraph.recipes.parts import Aim

KINDS: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "recipes": RECIPES,
    "datasets": DATASETS,
    "backbones": BACKBONES,
    "encoders": ENCODERS,
}

HELP = f"""\
usage: manigraph list [{"|".join(KINDS)}]

Name everything of one kind, or of all kinds, with one line each. `manigraph list recipes` also says what
of the paper each recipe reproduces, and about how long it takes on this machine.
"""

TIMED = {"pi_vat": "Π-VAT", "manifold_graph": "Manifold Graph"}
"""The algorithms whose figures are told, and what they are called."""

NOT_MEASURED = "not measured"


def run(arguments: list[str]) -> int:
    """Print one table for each kind asked for."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP, end="")
        return 0
    for name in arguments:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS)
    console = Console()
    for name in arguments or KINDS:
        # What is known of recipes needs torch, so it is told only to those who ask for recipes.
        facts, remark = _recipe_facts() if arguments and name == "recipes" else ({}, "")
        table = Table(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what it is")
        for entry_name, entry in KINDS[name].entries.items():
            table.add_row(entry_name, "\n".join([entry.summary, *facts.get(entry_name, [])]))
        console.print(table)
        console.print(remark, highlight=False)
    if not arguments:
        console.print("`manigraph list recipes` says what they reproduce and how long they take here")
    return 0


def _recipe_facts() -> tuple[dict[str, list[str]], str]:
    """For every recipe a few lines, and a sentence about them all."""
    from manigraph.recipes.measured import calibration_seconds, read_measured
    from manigraph.recipes.parts import aim_of

    measured = read_measured()
    here = calibration_seconds() if measured else 0.0
    facts = {}
    for name in RECIPES:
        recipe = RECIPES.get(name)
        known = measured.get(name, {})
        steps = {algorithm: recipe(algorithm).training.steps for algorithm in TIMED}
        facts[name] = [
            reproduced(aim_of(recipe)),
            "steps: " + _each({a: f"{n:,}" for a, n in steps.items()}),
            "parameters: "
            + _each({a: f"{known[a].parameters:,}" if a in known else NOT_MEASURED for a in TIMED}),
            "time here: "
            + _each(
                {
                    a: about(known[a].seconds_here(n, here)) if a in known else NOT_MEASURED
                    for a, n in steps.items()
                }
            ),
            "",
        ]
    if not measured:
        return facts, "no times are known: measure them with `manigraph bench --sections recipes`\n"
    everything = [figures for known in measured.values() for figures in known.values()]
    machines = {f"{m.machine['processor']}, {m.machine['cores']} cores" for m in everything}
    return facts, (
        f"Times are estimates: steps as measured on another day ({'; '.join(sorted(machines))}), times how "
        f"much longer a short calibration takes here and now.\n"
    )


def reproduced(aim: "Aim | None") -> str:
    """What of the paper a recipe aims at."""
    if aim is None:
        return "not in the paper"
    errors = {a: "{:.2f} ± {:.2f} %".format(*aim.errors[a]) for a in TIMED if a in aim.errors}
    further = f"; {aim.further}" if aim.further else ""
    return f"aims at {aim.place}: error {_each(errors)}{further}"


def about(seconds: float) -> str:
    """A time to two digits in a unit that suits it."""
    for unit, length, limit in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < limit * length:
            return f"about {_two_digits(seconds / length)} {unit}"
    return f"about {_two_digits(seconds / 86_400)} days"


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,g}"


def _each(texts: dict[str, str]) -> str:
    """One text for each algorithm, or a single one if they agree."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({TIMED[algorithm]})" for algorithm, text in texts.items())
