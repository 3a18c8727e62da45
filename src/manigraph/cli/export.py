"""`manigraph export RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from manigraph.options import parse


@dataclass(frozen=True)
class ExportOptions:
    """Write a trained run as ONNX and torch.export, to use it without manigraph.

    Images go in as bytes, (images, height, width, channels), and probabilities come out: preprocessing and
    prototypes are inside. Before anything is written, both are compared with the run on real images.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    output: Path | None = None
    """New folder for model.onnx, model.pt2 and serve.py, an example; by default `export` in the run
    directory."""
    images: tuple[str, ...] = ()
    """Image files or folders to compare on; by default the images that the run was tested on."""
    views: bool = False
    """Average the answers over the image, the image shifted by a pixel to each side, and all these mirrored,
    as far as the run was trained on such views: two to ten times the time, mostly a little better."""
    tolerance: float = 1e-5
    """How far a probability may be from the run's own; if one is farther, nothing is written."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""


def run(arguments: list[str]) -> int:
    """Export, compare, and say how far they are apart."""
    options: ExportOptions = parse(ExportOptions, arguments, program="manigraph export")

    from manigraph.cli.display import data_progress
    from manigraph.data.locations import Locations
    from manigraph.inference.export import check_new_folder, export_run, images_of_files, images_of_run
    from manigraph.inference.predictor import Predictor

    predictor = Predictor.load(options.run, views=options.views)
    output = options.run / "export" if options.output is None else options.output
    check_new_folder(output)
    with data_progress() as progress:
        if options.images:
            images = images_of_files(predictor, list(options.images))
        else:
            images = images_of_run(
                predictor, locations=Locations.default(options.data_dir), progress=progress
            )
    exported = export_run(predictor, output, images, tolerance=options.tolerance)
    sizes = ", ".join(str(size) for size in exported.shape)
    kind = "images" if len(exported.shape) == 3 else "vectors"
    print(f"{output}: {kind} (batch, {sizes}) to probabilities of {len(predictor.class_names)} classes")
    for name, size in exported.sizes.items():
        difference = exported.differences.get(name)
        compared = "" if difference is None else f"  {difference:.1e} from the run"
        print(f"  {name:<10} {size / 1000:>9,.1f} kB{compared}")
    print(f"(largest difference of a probability, on {exported.num_images} {kind})")
    if kind == "images":
        print(f"try: python {output / 'serve.py'} IMAGE")
    return 0
