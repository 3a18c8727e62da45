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
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: list[str]) -> int:
    """Print error, calibration error and the error of each class."""
    options: EvaluateOptions = parse(EvaluateOptions, arguments, program="manigraph evaluate")
    directory = RunDirectory.open(options.run)

    from manigraph.cli.display import print_evaluation
    from manigraph.engine import evaluate_run

    dataset, evaluation = evaluate_run(directory, options.part)
    state = directory.read_json("status.json").get("state")
    if state != "finished":
        print(f"manigraph: this run is not finished but {state}", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(evaluation)))
    else:
        print_evaluation(options.part, evaluation, tuple(dataset.class_names))
    return 0
