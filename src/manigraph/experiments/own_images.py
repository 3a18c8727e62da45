"""What does `manigraph train PATH` say on folders of real images? Its own choices, control and verdict.

    python -m manigraph.experiments.own_images --folder FOLDER

Images of benchmarks are written to folders as a person would have them: a folder for each class, `unlabelled`
and `test`. The command is given nothing but the folder and the time; what it chose and found is kept.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from PIL import Image

from manigraph.build import load_dataset
from manigraph.config import DataConfig
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.experiments.grid import results_text
from manigraph.inference.pictures import picture_of
from manigraph.options import parse
from manigraph.runs import machine, provenance, write_bytes

TEST_IMAGES = 1000
UNLABELLED = 6000


@dataclass(frozen=True)
class Folder:
    """Which images of a benchmark, and how the command is called on them."""

    data: str
    per_class: int
    options: tuple[str, ...] = ()
    unlabelled: int = UNLABELLED


FOLDERS: Mapping[str, Folder] = {
    "digits": Folder("digits", 10),
    "fashion_mnist": Folder("fashion_mnist", 50),
    "svhn-250": Folder("svhn", 25),
    "svhn-1000": Folder("svhn", 100),
    "cifar10": Folder("cifar10", 50),
    "cifar10-features": Folder("cifar10", 50, ("--data.features", "efficientnet_lite0")),
}


@dataclass(frozen=True)
class Result:
    """What the command chose and found."""

    name: str
    seed: int
    minutes: float
    labels: int
    """In the folder; some of them were held out."""
    unlabelled: int
    steps: int
    control_steps: int
    image_size: int | None
    backbone: str
    verdict: dict[str, Any]
    seconds: float
    """Of the whole command."""
    commit: str | None
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, float]:
        """What tells it from all others."""
        return self.name, self.seed, self.minutes


def read_results(path: Path) -> list[Result]:
    """All that a results file holds."""
    if not path.is_file():
        return []
    try:
        return [Result(**value) for value in json.loads(path.read_text(encoding="utf-8"))["results"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"'{path}' is not a results file: move it away or name another") from None


def write_results(path: Path, results: Iterable[Result]) -> None:
    """One line for each."""
    command = ["python", "-m", "manigraph.experiments.own_images"]
    text = results_text(provenance() | {"command": command}, sorted(results, key=lambda r: r.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())


def write_folder(dataset: Dataset, wanted: Folder, root: Path, seed: int) -> tuple[int, int]:
    """Write PNG files; returns how many are labelled and unlabelled."""
    generator = torch.Generator().manual_seed(seed)
    order = dataset.train[torch.randperm(len(dataset.train), generator=generator)]
    labelled, others, counts = [], [], dict.fromkeys(range(dataset.num_classes), 0)
    for index in order.tolist():
        number = int(dataset.classes[index])
        if counts[number] < wanted.per_class:
            counts[number] += 1
            labelled.append(index)
        else:
            others.append(index)
    test = dataset.test[torch.randperm(len(dataset.test), generator=generator)][:TEST_IMAGES].tolist()
    others = others[: wanted.unlabelled]
    for index in labelled:
        _write(dataset, index, root / _class_folder(dataset, index))
    for index in others:
        _write(dataset, index, root / "unlabelled")
    for index in test:
        _write(dataset, index, root / "test" / _class_folder(dataset, index))
    return len(labelled), len(others)


def _class_folder(dataset: Dataset, index: int) -> str:
    return "class " + dataset.class_names[int(dataset.classes[index])].replace("/", "or")


def _write(dataset: Dataset, index: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture_of(dataset.images[index], dataset.white)).save(folder / f"{index}.png")


def measure(name: str, seed: int, minutes: float, folder: Path) -> Result:
    """Write the folder, call the command, and read what it left."""
    wanted = FOLDERS[name]
    root = folder / f"{name}-seed{seed}"
    if root.exists():
        raise UserError(f"'{root}' exists already: remove it, or name another --folder")
    dataset = load_dataset(DataConfig(name=wanted.data))
    labels, unlabelled = write_folder(dataset, wanted, root / "images", seed)
    options = ["--minutes", str(minutes), "--seed", str(seed), "--runs", str(root / "runs")]
    command = [sys.executable, "-m", "manigraph", "train", str(root / "images"), *options, *wanted.options]
    began = time.monotonic()
    if subprocess.run(command, check=False).returncode != 0:
        raise UserError(f"`manigraph train` failed on '{root / 'images'}': see above")
    seconds = time.monotonic() - began
    (run,) = [path for path in (root / "runs").iterdir() if not path.name.endswith("-control")]
    control = run.with_name(run.name + "-control")
    config, of_control = _read(run / "config.json"), _read(control / "config.json")
    verdict = _read(run / "verdict.json")
    del verdict["advice"]
    return Result(
        name=name,
        seed=seed,
        minutes=minutes,
        labels=labels,
        unlabelled=unlabelled,
        steps=config["training"]["steps"],
        control_steps=of_control["training"]["steps"],
        image_size=config["data"]["image_size"],
        backbone=f"{config['backbone']['name']}, width {config['backbone']['width']:g}",
        verdict=verdict,
        seconds=round(seconds, 1),
        commit=provenance()["commit"],
        machine=machine(),
    )


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def table(results: Sequence[Result]) -> str:
    """As in docs/own-images.md."""
    lines = [
        "| images | labels | others | time | size, network | steps, control | error | control | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = list(FOLDERS)
    for result in sorted(results, key=lambda r: (order.index(r.name), r.seed, r.minutes)):
        verdict = result.verdict
        p = "p < 0.001" if verdict["p"] < 0.001 else f"p = {verdict['p']:.2g}"
        size = "as it is" if result.image_size is None else f"{result.image_size} px"
        steps = f"{result.steps:,}, {result.control_steps:,}"
        lines.append(
            f"| {result.name}, seed {result.seed} | {result.labels:,} | {result.unlabelled:,} | "
            f"{result.minutes:g} min | {size}, {result.backbone} | {steps} | "
            f"{verdict['with_unlabelled']['error']:.1f} % | {verdict['control']['error']:.1f} % | "
            f"{verdict['outcome']}, {p} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class OwnImagesExperiment:
    """Call `manigraph train PATH` on folders made of benchmarks, and keep what it says."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = tuple(FOLDERS)
    """Which folders."""
    folder: Path = Path("build/own-images")
    """Where images and runs are written."""
    seeds: tuple[int, ...] = (0,)
    """Draws of the images."""
    minutes: float = 5.0
    """Given to the command."""
    results: Path = Path("results/own-images.json")
    """Results file; what it holds is not measured again."""
    table: bool = False
    """Only print the table of docs/own-images.md."""


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing."""
    options: OwnImagesExperiment = parse(
        OwnImagesExperiment, arguments, program="python -m manigraph.experiments.own_images"
    )
    if unknown := [name for name in options.names if name not in FOLDERS]:
        raise UserError(f"there is no folder '{unknown[0]}': choose among {', '.join(FOLDERS)}")
    results = {result.key: result for result in read_results(options.results)}
    if not options.table:
        for seed in options.seeds:
            for name in options.names:
                if (name, seed, options.minutes) not in results:
                    result = measure(name, seed, options.minutes, options.folder)
                    results[result.key] = result
                    write_results(options.results, results.values())
    print(table(list(results.values())))


if __name__ == "__main__":
    main(sys.argv[1:])
