"""`manigraph explain RUN IMAGE`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from manigraph.cli.outputs import free_paths, output_folder
from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.runs import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor

    from manigraph.data.sources.base import Dataset
    from manigraph.inference.pictures import Picture
    from manigraph.inference.predictor import Predictor


@dataclass(frozen=True)
class ExplainOptions:
    """Say why a trained run takes an image for what it does.

    Shows the probabilities, what they would be without the graph, how the image's attention is shared among
    classes and prototypes, and which training images are nearest to these prototypes and to the image.
    Writes NAME.png, and NAME.json with all that is behind it; nothing is overwritten.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    image: Annotated[Path | None, tyro.conf.Positional] = None
    """An image file; without one, an image of the run's own data (--index)."""
    index: int | None = None
    """Instead of a file: an image of the data set, by its place there, as in suggestions.csv and
    figures.json; with --part, by its place in that part."""
    part: Literal["labelled", "unlabelled", "validation", "test"] | None = None
    """With --index: count in this part of the run's split."""
    prototypes: int = 3
    """Name the nearest training images of so many prototypes, those with the most attention."""
    neighbours: int = 5
    """So many labelled and so many unlabelled ones."""
    output: Path | None = None
    """Folder for the files; by default `explanations` in the run directory."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""


def run(arguments: list[str]) -> int:
    """Explain one image, draw it, and say it in words."""
    options: ExplainOptions = parse(ExplainOptions, arguments, program="manigraph explain")
    _check(options)
    directory = RunDirectory.open(options.run)
    folder = output_folder(options.output, directory.path / "explanations")

    from manigraph.cli.display import data_progress
    from manigraph.data.listing import printable
    from manigraph.data.locations import Locations
    from manigraph.data.sources.base import Dataset
    from manigraph.inference.explain import explain, training_images
    from manigraph.inference.pictures import picture_of, pixels_of
    from manigraph.inference.predictor import Predictor
    from manigraph.reports.explanation import in_words, write_explanation
    from manigraph.runs import write_json

    predictor, locations = Predictor.load(options.run), Locations.default(options.data_dir)
    index, picture, pixels = None, None, None
    if options.image is not None:
        name = printable(options.image.name)
        image, picture = _read(options.image, predictor)
    with data_progress() as progress:
        dataset = training_images(predictor, locations=locations, progress=progress)
        if options.image is None:
            image, name, index = _chosen(options, predictor, dataset)
        if isinstance(dataset, Dataset):
            pixels = pixels_of(predictor, dataset, locations=locations, progress=progress)
        if pixels is not None and index is not None:
            picture = picture_of(pixels.images[index], pixels.white)
        explanation = explain(
            predictor,
            image,
            dataset,
            name=name,
            index=index,
            picture=picture,
            pixels=pixels,
            prototypes=options.prototypes,
            neighbours=options.neighbours,
            progress=progress,
        )
    stem = name.replace(" ", "-") if options.image is None else options.image.stem
    as_json, as_png = free_paths(folder, stem, (".json", ".png"))
    write_json(as_json, explanation.facts)
    write_explanation(explanation.facts, explanation.picture, explanation.pictures, as_png)
    print(in_words(explanation.facts))
    print(f"written: {as_png}, {as_json}")
    return 0


def _check(options: ExplainOptions) -> None:
    if (options.image is None) == (options.index is None):
        raise UserError("name either an image file or an image of the run's own data (--index)")
    if options.part is not None and options.index is None:
        raise UserError("--part goes with --index: the place of the image in that part")
    if min(options.prototypes, options.neighbours) < 1:
        raise UserError("--prototypes and --neighbours must be at least 1")


def _chosen(
    options: ExplainOptions, predictor: "Predictor", dataset: "Dataset | str"
) -> "tuple[Tensor, str, int]":
    """An image of the run's own data as it is stored, its name, and where it is in the data set."""
    from manigraph.engine import indices_of

    assert options.index is not None
    if isinstance(dataset, str):
        raise UserError(f"--index needs the images of the run: {dataset}")
    index, title, count = options.index, "the data set", len(dataset.images)
    if options.part is not None:
        indices = indices_of(predictor.run, options.part)
        title, count = f"the {options.part} images", len(indices)
    if not 0 <= index < count:
        raise UserError(f"--index {index} is not in {title}: they are numbered from 0 to {count - 1}")
    if options.part is None:
        return dataset.images[index], f"image {index}", index
    place = int(indices[index])
    return dataset.images[place], f"{options.part} image {index}", place


def _read(path: Path, predictor: "Predictor") -> "tuple[Tensor, Picture]":
    """An image file in the form of the run's data set, and as it looks then."""
    import torch

    from manigraph.data.decode import DecodeError, read_pixels
    from manigraph.inference.files import intake_of
    from manigraph.inference.pictures import picture_of

    intake = intake_of(predictor.trained)
    channels, height, width = intake.shape
    if not path.exists():
        raise UserError(f"there is no image '{path}'")
    try:
        pixels = torch.from_numpy(read_pixels(path, (height, width), grey=channels == 1).copy())
    except DecodeError as error:
        raise UserError(f"'{path}' cannot be explained: {error}") from None
    return intake.stored(pixels[None])[0], picture_of(pixels)
