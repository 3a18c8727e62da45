"""`manigraph suggest RUN`."""

import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from manigraph.cli.outputs import free_paths, output_folder
from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.runs import RunDirectory

if TYPE_CHECKING:
    from manigraph.data.sources.base import Dataset
    from manigraph.inference.suggest import Suggestion
    from manigraph.reports.contact_sheet import Entry

StrategyName = Literal[
    "uncertain_groups",
    "weighted_groups",
    "typical_groups",
    "uncertain_and_far",
    "uncertainty",
    "distance",
    "diversity",
    "random",
]


@dataclass(frozen=True)
class SuggestOptions:
    """Say which unlabelled images of a run to label next.

    Writes suggestions.csv with the images, what they are taken for and why they were chosen, and
    suggestions.png to look at them; nothing is overwritten. Of own images, the CSV has an empty column
    `label` and holds all labels of before as well: filled in and put beside the images, it can be trained on.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    count: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 50
    """How many images."""
    strategy: StrategyName = "uncertain_groups"
    """How they are chosen; docs/suggest.md says what each brought."""
    seed: int = 0
    """Of what is drawn at random; the same seed suggests the same images."""
    output: Path | None = None
    """Folder for the files; by default `suggestions` in the run directory."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""


def run(arguments: list[str]) -> int:
    """Choose, write the table and the sheet, and say how to go on."""
    options: SuggestOptions = parse(SuggestOptions, arguments, program="manigraph suggest")
    if options.count < 1:
        raise UserError(f"--count must be at least 1, got {options.count}")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {options.seed}")
    directory = RunDirectory.open(options.run)
    folder = output_folder(options.output, directory.path / "suggestions")

    from manigraph.cli.display import data_progress
    from manigraph.data.locations import Locations
    from manigraph.engine import dataset_of
    from manigraph.inference.pictures import pixels_of
    from manigraph.inference.predictor import Predictor
    from manigraph.inference.suggest import as_table, known_labels, suggest
    from manigraph.reports.contact_sheet import save_contact_sheet
    from manigraph.runs import write_bytes

    predictor, locations = Predictor.load(options.run), Locations.default(options.data_dir)
    with data_progress() as progress:
        dataset = dataset_of(directory, predictor.trained, locations=locations, progress=progress)
        suggestions = suggest(
            predictor,
            dataset,
            options.count,
            strategy=options.strategy.replace("_", " "),
            seed=options.seed,
            progress=progress,
        )
        pixels = pixels_of(predictor, dataset, locations=locations, progress=progress)
    known = known_labels(predictor, dataset)
    table, sheet = free_paths(folder, "suggestions", (".csv", ".png"))
    write_bytes(table, as_table(suggestions, known).encode())
    save_contact_sheet([_entry(suggestion, pixels) for suggestion in suggestions], sheet)
    print(_in_words(suggestions, len(directory.read_json("split.json")["unlabelled"])))
    print(f"written: {table}, {sheet}")
    if known is not None:
        print(_how_to_go_on(table, Path(predictor.trained.config.data.path)))
    return 0


def _entry(suggestion: "Suggestion", pixels: "Dataset | None") -> "Entry":
    from manigraph.inference.pictures import picture_of
    from manigraph.reports.contact_sheet import Entry
    from manigraph.reports.words import percent

    title = f"image {suggestion.index}" if suggestion.path is None else Path(suggestion.path).name
    return Entry(
        None if pixels is None else picture_of(pixels.images[suggestion.index], pixels.white),
        f"{suggestion.rank}. {title}",
        (
            f"{suggestion.predicted}, {percent(suggestion.probability)}",
            f"{suggestion.second}, {percent(suggestion.second_probability)}",
        ),
    )


def _in_words(suggestions: "list[Suggestion]", unlabelled: int) -> str:
    reasons = [suggestion.reason for suggestion in suggestions]
    counts = ", ".join(f"{reasons.count(r)} {r}" for r in dict.fromkeys(reasons))
    return f"{len(suggestions)} of {unlabelled:,} unlabelled images to label next: {counts}"


def _how_to_go_on(table: Path, images: Path) -> str:
    """The commands that train with the new labels; beside the images the table gets a name that is free."""
    folder = images if images.is_dir() else images.parent
    names = (f"{table.stem}{'' if n == 1 else f'-{n}'}.csv" for n in itertools.count(1))
    there = next(folder / name for name in names if not (folder / name).exists())
    return (
        f"fill in the column `label` of the table (no label: stays unlabelled); it holds the labels of "
        f"before too. Then:\n"
        f"  cp {shlex.quote(str(table))} {shlex.quote(str(there))}\n"
        f"  manigraph train {shlex.quote(str(there))}"
    )
