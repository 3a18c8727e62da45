"""`manigraph train RECIPE|PATH [OPTIONS]`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.cli.targets import recipe_and_options
from manigraph.errors import UserError
from manigraph.options import parse

DEFAULT_ALGORITHM = "manifold_graph"

HELP = """\
usage: manigraph train RECIPE|PATH [--algorithm NAME] [--file CONFIG.json] [OPTIONS]

Train one method by a recipe, or on your own images, and write everything about it into a new run directory.

PATH is a folder with a folder for each class and a folder `unlabelled`, or with images and a CSV of
path,label (no label = unlabelled); images in a folder `test` are only for testing.

Settings come from the recipe, then from --file, then from the command line; the last one wins. The
config.json of a run can be given as --file to repeat that run.

  manigraph train photos/
  manigraph train digits
  manigraph train digits --algorithm pi_vat --data.labels 50 --seed 3
  manigraph train digits --file runs/digits-20-pi_vat-seed0/config.json

recipes: {recipes}
algorithms: {algorithms}

`manigraph train RECIPE --help` shows every option with the recipe's settings.
"""

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class TrainOptions(Generic[ConfigT]):
    """Train one method and write everything about it into a new run directory."""

    config: Annotated[ConfigT, tyro.conf.arg(name="")]
    """The configuration of the run."""
    runs: Path = Path("runs")
    """Folder in which the run directory is made."""
    name: str | None = None
    """Name of the run directory; by default made from data set, labels, algorithm and seed."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    file: Path | None = None
    """JSON file with settings, in the form of a run's config.json."""


def run(arguments: list[str]) -> int:
    """Train, with a live progress bar, and print the errors."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(recipes=", ".join(RECIPES), algorithms=", ".join(ALGORITHMS)), end="")
        return 0 if arguments else 2
    target, *rest = arguments
    recipe, extra = recipe_and_options(target)
    options = resolve(recipe, extra + rest, target=target)

    from manigraph.cli.display import TrainingDisplay, print_evaluation
    from manigraph.data.locations import Locations
    from manigraph.engine import train
    from manigraph.training.selection import CHOSEN_ON_TEST

    with TrainingDisplay() as display:
        trained, evaluations = train(
            options.config,
            options.runs,
            name=options.name,
            locations=Locations.default(options.data_dir),
            progress=display.data,
            on_start=display.start,
            on_step=display.step,
            on_evaluation=display.evaluation,
        )
    for part, evaluation in evaluations.items():
        print_evaluation(part, evaluation)
    selection = trained.read_json("selection.json")
    if selection["rule"] != "last":
        print(f"weights of step {selection['step']}, the best on {selection['rule']} images")
    if selection["rule"] == "test":
        print(CHOSEN_ON_TEST)
    print(f"run directory: {trained.path}")
    return 0


def resolve(recipe: str, arguments: list[str], *, target: str = "") -> "TrainOptions[Any]":
    """Recipe, file and command line, in this order of precedence, as options."""
    make_config = RECIPES.get(recipe)
    everything = _file_options(arguments) + arguments
    algorithm = _last_value(everything, "--algorithm") or DEFAULT_ALGORITHM
    config = make_config(algorithm)

    from manigraph.config import Config

    kind: Any = TrainOptions[Config[type(config.method)]]  # type: ignore[misc]
    options: TrainOptions[Any] = parse(
        kind,
        everything,
        program=f"manigraph train {target or recipe}",
        default=TrainOptions(config),
    )
    return options


def _file_options(arguments: list[str]) -> list[str]:
    """The settings of the file named by `--file`, as command-line options."""
    from manigraph.config import as_options

    name = _last_value(arguments, "--file")
    if name is None:
        return []
    try:
        values = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the configuration file '{name}': {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the configuration file '{name}' is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"the configuration file '{name}' must hold a JSON object")
    return as_options(values)


def _last_value(arguments: list[str], option: str) -> str | None:
    """The value of an option that decides how the other options are read."""
    value = None
    for position, argument in enumerate(arguments):
        name, _, attached = argument.partition("=")
        if name == option:
            following = arguments[position + 1 : position + 2]
            value = attached or (following[0] if following else None)
    return value
