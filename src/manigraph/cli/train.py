"""`manigraph train RECIPE|PATH [OPTIONS]`."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import tyro

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.cli.targets import recipe_and_options
from manigraph.errors import Interrupted, UserError
from manigraph.options import parse
from manigraph.training.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Callable

    from manigraph.config import Config
    from manigraph.data.batches import BatchConfig
    from manigraph.runs import RunDirectory
    from manigraph.training.evaluation import Evaluation
    from manigraph.training.selection import Part

    Trained = tuple[RunDirectory, dict[Part, Evaluation]]

DEFAULT_ALGORITHM = "manifold_graph"

HELP = """\
usage: manigraph train RECIPE|PATH [--algorithm NAME] [--file CONFIG.json] [OPTIONS]
       manigraph train --resume RUN [OPTIONS]

Train one method by a recipe, or on your own images, and write everything about it into a new run directory.
Ctrl-C and SIGTERM stop a run so that --resume goes on as if it had never stopped; a run that was killed goes
on from its last checkpoint.

PATH is a folder with a folder for each class and a folder `unlabelled`, or with images and a CSV of
path,label (no label = unlabelled); images in a folder `test` are only for testing.

Settings come from the recipe, then from --file, then from the command line; the last one wins. The
config.json of a run can be given as --file to repeat that run.

  manigraph train photos/
  manigraph train digits
  manigraph train digits --algorithm pi_vat --data.labels 50 --seed 3
  manigraph train digits --file runs/digits-20-pi_vat-seed0/config.json
  manigraph train --resume runs/digits-20-pi_vat-seed0
  manigraph train cifar10 --processes 4          (4 GPUs, or 4 processes on a CPU)

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
    execution: Annotated[Execution, tyro.conf.arg(name="")] = field(default_factory=Execution)
    """Where and how it is computed."""
    runs: Path = Path("runs")
    """Folder in which the run directory is made."""
    name: str | None = None
    """Name of the run directory; by default made from data set, labels, algorithm and seed."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    file: Path | None = None
    """JSON file with settings, in the form of a run's config.json."""


def run(arguments: list[str]) -> int:
    """Train, with a live display, and print the errors."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(recipes=", ".join(RECIPES), algorithms=", ".join(ALGORITHMS)), end="")
        return 0 if arguments else 2
    # What torch's C++ code warns of is not for the person at the keyboard.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    taken_up = _last_value(arguments, "--resume")
    if taken_up is None and "--resume" in arguments:
        raise UserError("--resume needs a run directory, as in `manigraph train --resume runs/NAME`")
    if taken_up is not None:
        return _resume(Path(taken_up), _without(arguments, "--resume"))
    target, *rest = arguments
    recipe, extra = recipe_and_options(target)
    options = resolve(recipe, extra + rest, target=target)

    from manigraph.data.locations import Locations
    from manigraph.engine import train

    def go(**how: Any) -> "Trained":
        return train(
            options.config,
            options.runs,
            name=options.name,
            locations=Locations.default(options.data_dir),
            **how,
        )

    return _show(go, options.config.batch, options.execution)


def _resume(path: Path, arguments: list[str]) -> int:
    """Go on with a run; other settings than its own are refused."""
    from manigraph.config import as_dict, from_dict
    from manigraph.data.locations import Locations
    from manigraph.engine import resume, stored_execution
    from manigraph.runs import RunDirectory

    run = RunDirectory.open(path)
    config = from_dict(run.read_json("config.json"), source=str(path / "config.json"))
    if arguments and not arguments[0].startswith("-"):
        recipe, extra = recipe_and_options(arguments[0])
        execution = stored_execution(run)
        options = resolve(recipe, extra + arguments[1:], target=arguments[0], execution=execution)
    else:
        options = _parse(
            config, arguments, program="manigraph train --resume", execution=stored_execution(run)
        )
    if options.name is not None:
        raise UserError(f"a run keeps its name when it is resumed: leave out --name {options.name}")
    changed = _differences(as_dict(config), as_dict(options.config))
    if changed:
        name, old, new = changed[0]
        raise UserError(
            f"a run is resumed with the settings it was begun with: {name} is {old} in '{path}', not {new}; "
            f"leave the option out, or begin a new run"
        )

    def go(**how: Any) -> "Trained":
        return resume(path, locations=Locations.default(options.data_dir), **how)

    return _show(go, options.config.batch, options.execution)


def _show(go: "Callable[..., Trained]", batch: "BatchConfig", execution: Execution) -> int:
    """Train in front of somebody: a display on the way, the errors in the end."""
    from manigraph.build import check_parts
    from manigraph.cli.display import TrainingDisplay, print_evaluation
    from manigraph.training.processes import start_processes
    from manigraph.training.selection import CHOSEN_ON_TEST

    check_parts(batch, execution.processes * execution.nodes, execution.accumulate)  # before they are started
    if execution.processes > 1 and "LOCAL_RANK" not in os.environ:  # not one of those that are started
        print(f"starting {execution.processes} processes, which takes some seconds", flush=True)
    processes = start_processes(execution)
    try:
        with TrainingDisplay(silent=not processes.is_first) as display:
            trained, evaluations = go(
                progress=display.data,
                execution=execution,
                processes=processes,
                observer=display,
                estimate=True,
            )
    except Interrupted:
        if processes.is_first:
            raise
        return 0  # the first process says it
    if not processes.is_first:
        return 0
    for part, evaluation in evaluations.items():
        print_evaluation(part, evaluation)
    selection = trained.read_json("selection.json")
    if selection["rule"] != "last":
        print(f"weights of step {selection['step']}, the best on {selection['rule']} images")
    if selection["rule"] == "test":
        print(CHOSEN_ON_TEST)
    print(f"run directory: {trained.path}")
    return 0


def resolve(
    recipe: str, arguments: list[str], *, target: str = "", execution: Execution | None = None
) -> "TrainOptions[Any]":
    """Recipe, file and command line, in this order of precedence, as options."""
    make_config = RECIPES.get(recipe)
    everything = _file_options(arguments) + arguments
    algorithm = _last_value(everything, "--algorithm") or DEFAULT_ALGORITHM
    config = make_config(algorithm)

    return _parse(config, everything, program=f"manigraph train {target or recipe}", execution=execution)


def _parse(
    config: "Config[Any]", arguments: list[str], *, program: str, execution: Execution | None = None
) -> "TrainOptions[Any]":
    from manigraph.config import Config

    kind: Any = TrainOptions[Config[type(config.method)]]  # type: ignore[misc]
    default = TrainOptions(config, execution or Execution())
    options: TrainOptions[Any] = parse(kind, arguments, program=program, default=default)
    return options


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Settings that are not the same: name, old and new value."""
    found: list[tuple[str, Any, Any]] = []
    for name in old | new:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append((prefix + name, before, after))
    return found


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


def _without(arguments: list[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    rest: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == option:
            skip = True
        elif not argument.startswith(f"{option}="):
            rest.append(argument)
    return rest
