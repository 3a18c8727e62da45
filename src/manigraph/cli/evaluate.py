"""`manigraph evaluate RUN`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from manigraph.options import parse
from manigraph.runs import RunDirectory


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a trained run on the validation or test images of its own split."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    part: Literal["test", "validation"] = "test"
    """Which images of the split."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: list[str]) -> int:
    """Print error, calibration error and the error of each class."""
    options: EvaluateOptions = parse(EvaluateOptions, arguments, program="manigraph evaluate")
    directory = RunDirectory.open(options.run)

    from manigraph.cli.display import data_progress, print_evaluation
    from manigraph.data.locations import Locations
    from manigraph.engine import evaluate_run
    from manigraph.training.selection import CHOSEN_ON_TEST

    with data_progress() as progress:
        trained, evaluation = evaluate_run(
            directory, options.part, locations=Locations.default(options.data_dir), progress=progress
        )
    chosen_on_test = trained.config.training.select == "test"
    state = directory.read_json("status.json").get("state")
    if state != "finished":
        print(f"manigraph: this run is not finished but {state}", file=sys.stderr)
    if options.json:
        print(json.dumps({**asdict(evaluation), "selected_on": trained.config.training.select}))
    else:
        print_evaluation(options.part, evaluation, trained.class_names)
        if chosen_on_test:
            print(CHOSEN_ON_TEST)
    return 0
