"""The first iterations of every recipe: that it runs as it is written, and what a step of it costs here.

A run of the paper takes months on two cores, so a recipe is proved by its first updates, at its own width,
on the real images. Each recipe is tried in a process of its own, whose peak memory is then its own:
`python -m manigraph.bench.recipes RECIPE ALGORITHM SCALE` prints a line of JSON for each event.
"""

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manigraph.build import build, load_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import Config
from manigraph.data.locations import Locations
from manigraph.data.sources.arrays import from_arrays
from manigraph.data.sources.base import Dataset
from manigraph.data.sources.benchmarks import BENCHMARKS
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.nn.backbones.base import SMALLEST_IMAGE
from manigraph.recipes.measured import Measured, Measurements, calibration_seconds, finish
from manigraph.training.loop import Trainer, TrainingConfig

ALGORITHMS_TRIED = ("pi_vat", "manifold_graph")
"""The paper's baseline and its method."""
FIRST_ITERATIONS = 5
GRAPH_ITERATIONS = 3
"""After the warm-up, where the graph is on."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Images:
    """The images a recipe is tried on."""

    dataset: Dataset
    what: str
    """In words."""
    stand_in: bool
    """Whether they take the place of images that are not on this machine."""


@dataclass(frozen=True)
class Iteration:
    """One update."""

    step: int
    seconds: float
    loss: float
    terms: dict[str, float]
    learning_rate: float
    """As the optimiser had it, not as it was asked for."""
    momentum: float


@dataclass(frozen=True)
class Trial:
    """The first iterations of a recipe, and some after the warm-up."""

    recipe: str
    algorithm: str
    images: str
    stand_in: bool
    digest: str
    """Of the images."""
    width: float
    steps: int
    """Of a whole run."""
    parameters: int
    iterations: tuple[Iteration, ...]
    seconds_per_step: float
    """Median of the iterations after the warm-up, if there is one, else of all; the first does not count.
    Where a run begins with images of half their size, the mean of both kinds of steps."""
    calibration_seconds: float
    peak_mib: float | None
    """Highest memory of the process, or of its GPU; None where the system does not tell."""
    threads: int
    problems: tuple[str, ...]
    """What was not as it should be."""

    def measured(self, machine: dict[str, Any], commit: str | None, when: str) -> Measured:
        """What `manigraph list recipes` needs of it."""
        return Measured(
            parameters=self.parameters,
            seconds_per_step=self.seconds_per_step,
            calibration_seconds=self.calibration_seconds,
            images=self.images,
            machine=machine,
            commit=commit,
            time=when,
        )


def tried_recipes() -> list[str]:
    """All that learn from pixels and can be tried without being told where images are."""
    data = {name: RECIPES.get(name)("pi_vat").data for name in RECIPES}
    return [name for name, images in data.items() if images.name != "folder" and not images.features]


# Images, or what takes their place


def images_for(
    name: str, locations: Locations, *, reduced: bool, needed: int, image_size: int | None = None
) -> Images:
    """The data set, or a stand-in where it is not on this machine, which is said.

    Args:
        name: Data set.
        locations: Where data sets are looked for.
        reduced: Make stand-ins of noise of 16×16 pixels only, which recipes may halve.
        needed: Images that a split takes, at least.
        image_size: Side to which the recipe reduces images; None means as they are.
    """
    try:
        return _real(name, locations, image_size)
    except UserError:
        if (locations.data / name).exists():
            raise  # it is there, and something is wrong with it
    if name == "cifar100":
        try:
            return hundred_classes(_real("cifar10", locations, image_size).dataset)
        except UserError:
            pass
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}[name]
    side = 2 * SMALLEST_IMAGE if reduced else image_size or known.size
    noise = _noise(max(needed, 2000), known.channels, side, known.num_classes)
    return Images(noise, f"stand-in: noise of {side}x{side}, because {name} is not on this machine", True)


def _real(name: str, locations: Locations, image_size: int | None) -> Images:
    data = replace(RECIPES.get("digits")("pi_vat").data, name=name, image_size=image_size)
    dataset = load_dataset(data, locations)
    return Images(dataset, f"{name}, {len(dataset.images):,} images", False)


def hundred_classes(dataset: Dataset) -> Images:
    """Images of ten classes as if they had a hundred, to try CIFAR-100's recipe without CIFAR-100.

    Image number n of class c, counted within its class, gets class 10 c + n mod 10: of the right number and
    size, and without any meaning.
    """
    classes = torch.empty_like(dataset.classes)
    for c in range(dataset.num_classes):
        for part in (dataset.train, dataset.test):
            members = part[dataset.classes[part] == c]
            classes[members] = 10 * c + torch.arange(len(members)) % 10
    names = [f"{name} {bucket}" for name in dataset.class_names for bucket in range(10)]
    pretended = replace(dataset, name="cifar100", classes=classes, class_names=names, remarks=())
    what = (
        f"stand-in: {len(dataset.images):,} images of {dataset.name} with each class cut into ten, because "
        f"cifar100 is not on this machine"
    )
    return Images(pretended, what, True)


def _noise(count: int, channels: int, side: int, num_classes: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)
    return from_arrays(images, torch.arange(count) % num_classes, name="noise")


# One recipe in this process


def reduced_config(config: Config[Any], scale: float) -> Config[Any]:
    """The recipe with a record of every step; below scale 1 with a narrower network too."""
    backbone = replace(config.backbone, width=config.backbone.width * min(scale, 1.0))
    return replace(config, backbone=backbone, training=replace(config.training, log_every=1))


def try_recipe(recipe: str, config: Config[Any], images: Images, *, scale: float, tell: Told) -> Trial:
    """Make the first updates of a run and some after the warm-up, and look at what they did."""
    passes = 5 if scale >= 1 else 1
    calibration = calibration_seconds(passes=passes)
    job = build(config, dataset=images.dataset)
    trainer = job.trainer
    trainer.algorithm.train()
    before = _weights(trainer)
    places = [(0, max(1, round(FIRST_ITERATIONS * scale)))]
    later = first_step_after_warmup(config)
    for start in sorted({later, config.training.half_size_steps} - {0}):
        places.append((start, max(1, round(GRAPH_ITERATIONS * scale))))

    iterations: list[Iteration] = []
    problems: list[str] = []
    try:
        for start, count in places:
            trainer.step = start
            for number in range(count):
                tell(f"step {trainer.step}, {number + 1} of {count}")
                iterations.append(_iterate(trainer, job.batches))
    except NonFiniteLossError as error:
        problems.append(str(error))
    problems += _still(before, _weights(trainer))
    problems += _wrong_rates(config, iterations)
    problems += _missing_terms(iterations, later)
    return Trial(
        recipe=recipe,
        algorithm=config.algorithm,
        images=images.what,
        stand_in=images.stand_in,
        digest=images.dataset.digest,
        width=config.backbone.width,
        steps=config.training.steps,
        parameters=sum(p.numel() for p in trainer.algorithm.parameters()),
        iterations=tuple(iterations),
        seconds_per_step=round(_seconds_per_step(iterations, config.training, later), 5),
        calibration_seconds=round(min(calibration, calibration_seconds(passes=passes)), 6),
        peak_mib=peak_memory(trainer.device),
        threads=torch.get_num_threads(),
        problems=tuple(problems),
    )


def _seconds_per_step(iterations: Sequence[Iteration], training: TrainingConfig, later: int) -> float:
    """Over a whole run, which may begin with images of half their size; of what was tried if that is less."""
    small = training.half_size_steps / training.steps
    mean, tried = 0.0, 0.0
    for is_small, share in ((True, small), (False, 1 - small)):
        kind = [i for i in iterations if (i.step < training.half_size_steps) == is_small]
        seconds = [i.seconds for i in kind if i.step >= later] or [i.seconds for i in kind]
        if seconds:  # the first of them pays for memory and kernels
            mean += share * statistics.median(seconds[1:] or seconds)
            tried += share
    return mean / tried if tried else 0.0


def first_step_after_warmup(config: Config[Any]) -> int:
    """The first step in which everything of the method takes part; 0 for methods without a warm-up."""
    fraction, steps = getattr(config.method, "warmup_fraction", 0.0), config.training.steps
    return next(step for step in range(steps) if step / steps >= fraction)


def _iterate(trainer: Trainer, batches: Iterator[Any]) -> Iteration:
    step = trainer.step
    began = time.perf_counter()
    record = trainer.train_step(next(batches))
    finish(trainer.device)
    seconds = time.perf_counter() - began
    assert record is not None, "every step is logged"
    (group,) = trainer.optimizer.param_groups
    return Iteration(
        step=step,
        seconds=round(seconds, 5),
        loss=record.loss,
        terms=record.terms,
        learning_rate=group["lr"],
        momentum=group["momentum"],
    )


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    named = trainer.algorithm.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if weight.requires_grad}


def _still(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    still = [name for name, weight in after.items() if torch.equal(weight, before[name])]
    return [f"these weights did not move: {', '.join(still)}"] if still else []


def _wrong_rates(config: Config[Any], iterations: Sequence[Iteration]) -> list[str]:
    wrong = []
    for done in iterations:
        expected = config.schedule.at(done.step / config.training.steps)
        if (done.learning_rate, done.momentum) != expected:
            wrong.append(
                f"step {done.step} was made with learning rate {done.learning_rate} and momentum "
                f"{done.momentum}, the schedule says {expected.learning_rate} and {expected.momentum}"
            )
    return wrong


def _missing_terms(iterations: Sequence[Iteration], later: int) -> list[str]:
    """A loss that is not a number, or a warm-up after which nothing is new."""
    problems = [f"the loss of step {i.step} is {i.loss}" for i in iterations if not math.isfinite(i.loss)]
    if later and iterations and not iterations[-1].terms.keys() > iterations[0].terms.keys():
        problems.append(f"step {iterations[-1].step} has no term that the warm-up had not")
    return problems


def peak_memory(device: torch.device) -> float | None:
    """Highest memory of this process so far in MiB, as CUDA or Linux tells it.

    `getrusage` would not do: what it tells may be the peak of the process that started this one.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return round(int(fields["VmHWM"].split()[0]) / 1024, 1)


# All recipes, each in its own process


def try_recipes(
    names: Sequence[str], scale: float, tell: Told, algorithms: Sequence[str] = ALGORITHMS_TRIED
) -> list[Trial]:
    """The first iterations of recipes, by default with the paper's baseline and its method."""
    trials = []
    for name in names:
        for algorithm in algorithms:
            trials.append(try_in_process(name, algorithm, scale, _prefixed(f"{name}, {algorithm}: ", tell)))
    return trials


def _prefixed(prefix: str, tell: Told) -> Told:
    return lambda text: tell(prefix + text)


def try_in_process(recipe: str, algorithm: str, scale: float, tell: Told) -> Trial:
    """One recipe in a process of its own, which tells how far it is."""
    command = [sys.executable, "-m", __name__, recipe, algorithm, str(scale)]
    answer: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            event = json.loads(line)
            if "tell" in event:
                tell(event["tell"])
            else:
                answer = event
        complaint = process.stderr.read().strip()
    if process.returncode or not answer:
        reason = complaint.splitlines()[-1] if complaint else f"it ended with code {process.returncode}"
        raise UserError(f"recipe {recipe} with {algorithm} could not be tried: {reason}")
    iterations = tuple(Iteration(**values) for values in answer.pop("iterations"))
    return Trial(**{**answer, "iterations": iterations, "problems": tuple(answer["problems"])})


def measurements(trials: Sequence[Trial], provenance: dict[str, Any]) -> Measurements:
    """What `manigraph list recipes` needs of trials in which nothing was wrong."""
    found: Measurements = {}
    for trial in trials:
        if trial.problems:
            continue
        figures = trial.measured(provenance["machine"], provenance["commit"], provenance["time"])
        found.setdefault(trial.recipe, {})[trial.algorithm] = figures
    return found


def _main(recipe: str, algorithm: str, scale: float) -> None:
    def tell(text: str) -> None:
        print(json.dumps({"tell": text}), flush=True)

    config = reduced_config(RECIPES.get(recipe)(algorithm), scale)
    tell("images")
    needed = 2 * ((config.data.labels or 0) + (config.data.validation or 0))
    images = images_for(
        config.data.name,
        Locations.default(),
        reduced=scale < 1,
        needed=needed,
        image_size=config.data.image_size,
    )
    print(json.dumps(asdict(try_recipe(recipe, config, images, scale=scale, tell=tell))), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
