"""`manigraph train RECIPE|PATH [OPTIONS]`."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import tyro

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.cli.targets import OWN_IMAGES, recipe_and_options
from manigraph.cli.verdict import print_verdict, reasons_table
from manigraph.errors import Interrupted, UserError
from manigraph.options import parse
from manigraph.training.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Callable

    from manigraph.cli.display import TrainingDisplay
    from manigraph.config import Config
    from manigraph.data.locations import Locations
    from manigraph.pair.training import Order, Outcome
    from manigraph.training.processes import Processes

DEFAULT_ALGORITHM = "manifold_graph"

DEFAULT_MINUTES = 10.0
"""For own images."""

NO_CONTROL = (
    "no control is trained: no image is held out on which both could be compared (add a folder 'test', or "
    "set --data.validation)"
)

HELP = """\
usage: manigraph train RECIPE|PATH [--algorithm NAME] [--file CONFIG.json] [OPTIONS]
       manigraph train --resume RUN [OPTIONS]

Train one method by a recipe, or on your own images, and write everything about it into a new run directory.
Ctrl-C and SIGTERM stop a run so that --resume goes on as if it had never stopped; a run that was killed goes
on from its last checkpoint.

PATH is a folder with a folder for each class and a folder `unlabelled`, or with images and a CSV of
path,label (no label = unlabelled); images in a folder `test` are only for testing. Image size, network and
steps are chosen from the images and the time (--minutes 10); a control is trained on the labelled images
alone, and in the end you read whether the unlabelled images helped. What you set wins over what is chosen.

Settings come from the recipe, then from --file, then from the command line; the last one wins. The
config.json of a run can be given as --file to repeat that run.

  manigraph train photos/ --minutes 30
  manigraph train digits
  manigraph train digits --control               (by a recipe, and a control)
  manigraph train digits --algorithm pi_vat --data.labels 50 --seed 3
  manigraph train digits --file runs/digits-20-pi_vat-seed0/config.json
  manigraph train --resume runs/digits-20-pi_vat-seed0
  manigraph train cifar10 --processes 4          (4 GPUs, or 4 processes on a CPU)

recipes: {recipes}
algorithms: {algorithms}

`manigraph train RECIPE --help` shows every option with the recipe's settings.
"""

ConfigT = TypeVar("ConfigT")


def wants_report() -> bool:
    """Whether a run writes its report unless told otherwise."""
    return os.environ.get("MANIGRAPH_REPORT", "True") != "False"


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
    minutes: float = 0.0
    """Time for training and the control, on which the number of steps and, for own images, their size and the
    network depend. 0 leaves all as the recipe has it."""
    control: bool = False
    """Train a control from the labelled images alone too, and say whether the unlabelled ones helped."""
    report: bool = field(default_factory=wants_report)
    """Write report.html in the end, and what it shows of images and prototypes; MANIGRAPH_REPORT=False
    changes the default."""
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

    from manigraph.pair.training import train_both

    def go(display: "TrainingDisplay", processes: "Processes", **how: Any) -> "Outcome":
        order = _order(options, recipe, extra + rest, display, processes)
        return train_both(order, options.runs, name=options.name, processes=processes, **how)

    return _show(go, options)


def _resume(path: Path, arguments: list[str]) -> int:
    """Go on with a run; other settings than its own are refused."""
    from manigraph.config import as_dict, from_dict
    from manigraph.engine import stored_execution
    from manigraph.pair.training import CHOICES_FILE, main_run, resume_both

    run = main_run(path)
    config = from_dict(run.read_json("config.json"), source=str(run.path / "config.json"))
    program, execution = "manigraph train --resume", stored_execution(run)
    if arguments and not arguments[0].startswith("-"):
        recipe, extra = recipe_and_options(arguments[0])
        if (run.path / CHOICES_FILE).is_file():  # what was chosen is in no recipe
            options = _parse(config, extra + arguments[1:], program=program, execution=execution)
        else:
            options = resolve(recipe, extra + arguments[1:], target=arguments[0], execution=execution)
    else:
        options = _parse(config, arguments, program=program, execution=execution)
    if options.name is not None:
        raise UserError(f"a run keeps its name when it is resumed: leave out --name {options.name}")
    changed = _differences(as_dict(config), as_dict(options.config))
    if changed:
        name, old, new = changed[0]
        raise UserError(
            f"a run is resumed with the settings it was begun with: {name} is {old} in '{run.path}', not "
            f"{new}; leave the option out, or begin a new run"
        )

    def go(display: "TrainingDisplay", **how: Any) -> "Outcome":
        return resume_both(path, **how)

    return _show(go, options)


def _order(
    options: "TrainOptions[Any]",
    recipe: str,
    arguments: list[str],
    display: "TrainingDisplay",
    processes: "Processes",
) -> "Order":
    """What is to be trained: as it was set, or chosen for the time there is."""
    from manigraph.pair.choice import choose_for
    from manigraph.pair.training import Order, holds_images_out
    from manigraph.recipes.automatic import control_of

    locations = _locations(options)
    control, is_own = options.control, recipe == OWN_IMAGES
    if options.minutes == 0:
        control = control and ALGORITHMS.get(options.config.algorithm).uses_unlabelled
    # Where settings of own images are chosen, the choice finds that out, and says it.
    if control and not (is_own and options.minutes > 0):
        control = holds_images_out(options.config, processes, locations=locations, progress=display.data)
        if not control:
            display.show(NO_CONTROL)
    if options.minutes == 0:
        return Order(options.config, control_of(options.config) if control else None)
    everything = _file_options(arguments) + arguments
    order = choose_for(
        options.config,
        is_own=is_own,
        minutes=options.minutes,
        control=control,
        given=_names(everything),
        settle=lambda config: _parse(config, everything, program="manigraph train").config,
        locations=locations,
        progress=display.data,
        execution=options.execution,
        processes=processes,
    )
    display.show(reasons_table(order.reasons))
    return order


def _show(go: "Callable[..., Outcome]", options: "TrainOptions[Any]") -> int:
    """Train in front of somebody: a display on the way, the errors in the end."""
    from manigraph.build import check_parts
    from manigraph.cli.display import TrainingDisplay
    from manigraph.training.processes import start_processes

    execution = options.execution
    if options.minutes == 0:  # before they are started
        check_parts(options.config.batch, execution.processes * execution.nodes, execution.accumulate)
    if execution.processes > 1 and "LOCAL_RANK" not in os.environ:  # not one of those that are started
        print(f"starting {execution.processes} processes, which takes some seconds", flush=True)
    processes = start_processes(execution)
    try:
        with TrainingDisplay(silent=not processes.is_first) as display:
            outcome = go(
                display=display,
                stage=display.stage,
                locations=_locations(options),
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
    if processes.is_first:
        _print_outcome(outcome)
        if options.report:
            _write_reports(outcome, options)
    return 0


def _write_reports(outcome: "Outcome", options: "TrainOptions[Any]") -> None:
    from manigraph.cli.report import write_report

    for run in (outcome.run, outcome.control):
        if run is not None:
            write_report(run.path, options.data_dir, say=run is outcome.run)


def _print_outcome(outcome: "Outcome") -> None:
    from manigraph.cli.display import print_evaluation
    from manigraph.pair.training import final_evaluations
    from manigraph.training.selection import CHOSEN_ON_TEST

    evaluations = final_evaluations(outcome.run)
    if outcome.verdict is not None and outcome.control is not None:
        print_verdict(outcome.verdict, evaluations, final_evaluations(outcome.control))
    else:
        for part, evaluation in evaluations.items():
            print_evaluation(part, evaluation)
    selection = outcome.run.read_json("selection.json")
    if selection["rule"] != "last":
        print(f"weights of step {selection['step']}, the best on {selection['rule']} images")
    if selection["rule"] == "test":
        print(CHOSEN_ON_TEST)
    print(f"run directory: {outcome.run.path}")
    if outcome.control is not None:
        print(f"control: {outcome.control.path}")


def _locations(options: "TrainOptions[Any]") -> "Locations":
    from manigraph.data.locations import Locations

    return Locations.default(options.data_dir)


def resolve(
    recipe: str, arguments: list[str], *, target: str = "", execution: Execution | None = None
) -> "TrainOptions[Any]":
    """Recipe, file and command line, in this order of precedence, as options."""
    make_config = RECIPES.get(recipe)
    everything = _file_options(arguments) + arguments
    algorithm = _last_value(everything, "--algorithm") or DEFAULT_ALGORITHM
    config = make_config(algorithm)

    program, own = f"manigraph train {target or recipe}", recipe == OWN_IMAGES
    return _parse(config, everything, program=program, execution=execution, automatic=own)


def _parse(
    config: "Config[Any]",
    arguments: list[str],
    *,
    program: str,
    execution: Execution | None = None,
    automatic: bool = False,
) -> "TrainOptions[Any]":
    from manigraph.config import Config

    kind: Any = TrainOptions[Config[type(config.method)]]  # type: ignore[misc]
    minutes = DEFAULT_MINUTES if automatic else 0.0
    default = TrainOptions(config, execution or Execution(), minutes=minutes, control=automatic)
    options: TrainOptions[Any] = parse(kind, arguments, program=program, default=default)
    if not 0 <= options.minutes < float("inf"):
        raise UserError(f"--minutes must be a time from 0 on, got {options.minutes:g}")
    return options


def _names(arguments: list[str]) -> set[str]:
    """Names of the options among some arguments, without dashes."""
    return {
        argument.partition("=")[0].removeprefix("--").replace("-", "_")
        for argument in arguments
        if argument.startswith("--")
    }


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
