"""`manigraph evaluate RUN`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.runs import RunDirectory

if TYPE_CHECKING:
    from manigraph.readout import ReadOut


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a trained run on the validation or test images of its own split."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    part: Literal["test", "validation"] = "test"
    """Which images of the split."""
    views: bool = False
    """Average the answers over the image, the image shifted by a pixel to each side, and all these mirrored,
    as far as the run was trained on such views: two to ten times the time, mostly a little better."""
    read_out: Literal["label_propagation", "label_spreading"] | None = None
    """Instead of the run's linear layer, let labels go along a graph over the features of its training
    images; an evaluated image then takes the classes of its nearest training images."""
    neighbours: int | None = None
    """With --read_out: neighbours of each image (in the graph, itself among them); by default 7."""
    transductive: bool = False
    """With --read_out: evaluated images, without their labels, are part of the graph too."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: list[str]) -> int:
    """Print error, calibration error and the error of each class."""
    options: EvaluateOptions = parse(EvaluateOptions, arguments, program="manigraph evaluate")
    directory = RunDirectory.open(options.run)

    if options.read_out is None and (options.neighbours is not None or options.transductive):
        option = "transductive" if options.neighbours is None else "neighbours"
        raise UserError(f"--{option} is about the graph of a read-out: add --read_out label_spreading")
    if options.read_out is not None and options.views:
        raise UserError("--read_out and --views are two ways to answer: leave one of them out")

    from manigraph.cli.display import data_progress, print_evaluation
    from manigraph.data.locations import Locations
    from manigraph.engine import evaluate_run
    from manigraph.readout import NEIGHBOURS, read_out
    from manigraph.training.selection import CHOSEN_ON_TEST

    locations, answer = Locations.default(options.data_dir), None
    with data_progress() as progress:
        if options.read_out is None:
            trained, evaluation = evaluate_run(
                directory, options.part, views=options.views, locations=locations, progress=progress
            )
        else:
            answer = read_out(
                directory,
                options.read_out,
                options.part,
                neighbours=NEIGHBOURS if options.neighbours is None else options.neighbours,
                transductive=options.transductive,
                locations=locations,
                progress=progress,
            )
            trained, evaluation = answer.trained, answer.evaluation
    chosen_on_test = trained.config.training.select == "test"
    state = directory.read_json("status.json").get("state")
    if state != "finished":
        print(f"manigraph: this run is not finished but {state}", file=sys.stderr)
    if options.json:
        facts: dict[str, Any] = {"views": True} if options.views else {}
        if answer is not None:
            facts["read_out"] = answer.facts()
        print(json.dumps({**asdict(evaluation), "selected_on": trained.config.training.select, **facts}))
    else:
        print_evaluation(options.part, evaluation, trained.class_names)
        if options.views:
            print("answers are means over shifted or mirrored views of each image")
        if answer is not None:
            print("\n".join(_remarks(answer)))
        if chosen_on_test:
            print(CHOSEN_ON_TEST)
    return 0


def _remarks(answer: "ReadOut") -> list[str]:
    """What was read out of what, and where it had no answer."""
    remarks = [
        f"{answer.method.replace('_', ' ')} over {answer.num_graph} training images "
        f"({answer.num_labelled} labelled) with {answer.neighbours} neighbours; evaluated images are "
        f"{'part of' if answer.transductive else 'not in'} the graph",
        f"the run's own model: error {answer.own_error:.2f} %",
    ]
    if answer.graph_unreached or answer.unreached:
        remarks.append(
            f"no label comes to {answer.graph_unreached} of the training images, nor to {answer.unreached} "
            f"of the evaluated ones, which keep the class that the run's own model predicts"
        )
    if not answer.converged:
        remarks.append("labels were still moving when the last iteration was over")
    if answer.classes_without_label:
        remarks.append(f"never the answer, having no label: {', '.join(answer.classes_without_label)}")
    return remarks
