"""Does it pay to choose which images to label? Rounds of training and labelling, by every strategy.

    python -m manigraph.experiments.suggest

A round trains a short run from its first step with all labels there are, measures it, and asks for more
labels, which the data set knows. All strategies begin with the same run. The strategies are compared on
validation images with label draws that are in no table, and the best one is the default; what is reported is
measured on test images with other draws. Every run is written to the results file as it is done, with what
each strategy asked for next, so that a simulation that was stopped goes on where it was.
"""

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig, Config, deciding_settings
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.sources.base import Dataset
from manigraph.data.split import Split, split_as_json
from manigraph.engine import train
from manigraph.errors import UserError
from manigraph.experiments.grid import mean_and_spread, results_text
from manigraph.inference.predictor import Predictor
from manigraph.inference.suggest import DEFAULT_STRATEGY, STRATEGIES, candidates_of
from manigraph.options import parse
from manigraph.runs import machine, provenance, write_bytes, write_json
from manigraph.training.execution import Execution
from manigraph.training.selection import Part

ROUNDS = 5
REPORTED_SEEDS = (0, 1, 2)
"""Measured on test images."""
CHOICE_SEEDS = (10,)
"""On whose validation images the default was chosen."""
REPORTED = ("random", DEFAULT_STRATEGY, "typical groups")
"""What the reported seeds are measured with; typical groups since they were the best on Fashion-MNIST."""


@dataclass(frozen=True)
class Scenario:
    """A data set, and how many labels it begins with and gets in each round."""

    labels: int
    config: Callable[[], Config[Any]]
    side: int
    """Pixels; larger images are averaged down to it."""
    train_images: int = 0
    """Only the first so many, to save time; 0 means all."""

    def dataset(self) -> Dataset:
        """The images."""
        dataset = load_dataset(replace(self.round_config(0).data, image_size=self.side))
        train = dataset.train[: self.train_images] if self.train_images else dataset.train
        return replace(dataset, train=train)

    def round_config(self, seed: int, split: str = "") -> Config[Any]:
        """That of one run."""
        config = self.config()
        return replace(config, seed=seed, data=replace(config.data, labels=self.labels, split=split))

    def digest(self) -> str:
        """Changes whenever a setting does."""
        settings = [self.labels, self.side, deciding_settings(self.round_config(0))]
        settings += [self.train_images] if self.train_images else []
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digits() -> Config[Any]:
    """Half as wide and 300 steps instead of 500."""
    config = RECIPES.get("digits")("manifold_graph")
    return replace(
        config,
        data=replace(config.data, validation=300),
        backbone=BackboneConfig("small_cnn", width=0.5),
        training=replace(config.training, steps=300),
    )


def _fashion_mnist() -> Config[Any]:
    """The settings of digits, a narrower network; noise, shifts and mirroring as larger images bear them."""
    config = _digits()
    return replace(
        config,
        data=replace(config.data, name="fashion_mnist", validation=1000),
        method=replace(config.method, epsilon=0.9),
        augmentation=AugmentationConfig(translation=2, flip=True),
        batch=BatchConfig(labelled=32, unlabelled=64),
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=replace(config.training, steps=200),
    )


SCENARIOS: Mapping[str, Scenario] = {
    "digits": Scenario(10, _digits, side=8),
    "fashion_mnist": Scenario(20, _fashion_mnist, side=14, train_images=10_000),
}


@dataclass(frozen=True)
class Result:
    """One run, and what was asked for after it."""

    data: str
    strategy: str
    """Empty for the run that all strategies begin with."""
    seed: int
    round: int
    """0 is the run that all begin with."""
    labels: int
    digest: str
    """Of the settings."""
    split: str
    """Digest of the split, which all choices before went into."""
    validation_error: float
    """Per cent."""
    test_error: float
    """Per cent."""
    wanted: dict[str, list[int]]
    """Strategy to the images it asks for next."""
    seconds: float
    commit: str | None
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What tells it from all others."""
        return self.data, self.seed, self.round, self.strategy


class Results:
    """The results file, rewritten after each run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: dict[tuple[str, int, int, str], Result] = {}
        if path.is_file():
            try:
                values = json.loads(path.read_text(encoding="utf-8"))["results"]
                results = [Result(**value) for value in values]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"'{path}' is not a results file: move it away or name another") from None
            self.all = {result.key: result for result in results}

    def find(self, data: str, seed: int, number: int, strategy: str, split: Split) -> Result | None:
        """What was measured with today's settings, and with these labels."""
        result = self.all.get((data, seed, number, strategy))
        today = (SCENARIOS[data].digest(), split.digest)
        return result if result is not None and (result.digest, result.split) == today else None

    def add(self, result: Result) -> None:
        """Keep a result; one line for each."""
        self.all[result.key] = result
        text = results_text(
            provenance() | {"command": _command()}, [self.all[key] for key in sorted(self.all)]
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path, text.encode())


def _command() -> list[str]:
    return ["python", "-m", "manigraph.experiments.suggest", *sys.argv[1:]]


def simulate(
    results: Results,
    data: str,
    seed: int,
    strategies: Sequence[str],
    dataset: Dataset,
    *,
    rounds: int = ROUNDS,
    threads: int = 1,
) -> Iterator[Result]:
    """Every run of one label draw that is not in `results` yet, as it is done."""
    scenario = SCENARIOS[data]
    start = split_dataset(scenario.round_config(seed).data, dataset, seed)
    first = results.find(data, seed, 0, "", start)
    if first is None or not set(strategies) <= set(first.wanted):
        first = _measured(data, "", seed, 0, start, tuple(STRATEGIES), dataset, threads)
        results.add(first)
        yield first
    for strategy in strategies:
        split, last = start, first
        for number in range(1, rounds + 1):
            split = with_labels(split, torch.tensor(last.wanted[strategy]))
            known = results.find(data, seed, number, strategy, split)
            if known is None:
                known = _measured(data, strategy, seed, number, split, (strategy,), dataset, threads)
                results.add(known)
                yield known
            last = known


def with_labels(split: Split, wanted: torch.Tensor) -> Split:
    """The split after some of its unlabelled images were labelled."""
    assert torch.isin(wanted, split.unlabelled).all(), "only unlabelled images are asked for"
    left = split.unlabelled[~torch.isin(split.unlabelled, wanted)]
    return replace(split, labelled=torch.cat([split.labelled, wanted]), unlabelled=left)


def _measured(
    data: str,
    strategy: str,
    seed: int,
    number: int,
    split: Split,
    strategies: Sequence[str],
    dataset: Dataset,
    threads: int,
) -> Result:
    """Train, evaluate, and let strategies ask for more."""
    scenario, began = SCENARIOS[data], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.json"
        write_json(file, split_as_json(split, dataset))
        execution = Execution(threads=threads, checkpoint_minutes=0)
        run, evaluations = train(
            scenario.round_config(seed, str(file)), Path(folder), dataset=dataset, execution=execution
        )
        candidates, indices = candidates_of(Predictor.load(run.path), dataset)
    wanted = {}
    for name in strategies:
        generator = torch.Generator().manual_seed(1000 * seed + number)
        chosen = STRATEGIES[name](candidates, scenario.labels, generator)
        wanted[name] = indices[chosen].tolist()
    return Result(
        data=data,
        strategy=strategy,
        seed=seed,
        round=number,
        labels=len(split.labelled),
        digest=scenario.digest(),
        split=split.digest,
        validation_error=round(evaluations["validation"].error, 4),
        test_error=round(evaluations["test"].error, 4),
        wanted=wanted,
        seconds=round(time.monotonic() - began, 1),
        commit=provenance()["commit"],
        machine=machine(),
    )


# What the page says


def errors(results: Results, data: str, strategy: str, seed: int, part: Part) -> list[float] | None:
    """After each round, in per cent; None if not all rounds were measured."""
    found = [results.all.get((data, seed, number, strategy)) for number in range(1, ROUNDS + 1)]
    values = [getattr(result, f"{part}_error") for result in found if result is not None]
    return values if len(values) == ROUNDS else None


def reported_table(results: Results) -> str:
    """Test errors after each round, mean ± spread over the reported seeds."""
    blocks = []
    for data, scenario in SCENARIOS.items():
        labels = [scenario.labels * (number + 1) for number in range(ROUNDS + 1)]
        lines = [
            f"| {data} | {' | '.join(f'{count} labels' for count in labels)} | mean of the rounds |",
            f"|---|{'---|' * (ROUNDS + 2)}",
        ]
        start = [results.all[data, seed, 0, ""].test_error for seed in REPORTED_SEEDS]
        for strategy in REPORTED:
            seeds = [_measured_errors(results, data, strategy, seed) for seed in REPORTED_SEEDS]
            cells = [start, *zip(*seeds, strict=True), [statistics.fmean(rounds) for rounds in seeds]]
            lines.append(f"| {strategy} | {' | '.join(_mean_and_spread(cell) for cell in cells)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _measured_errors(results: Results, data: str, strategy: str, seed: int) -> list[float]:
    found = errors(results, data, strategy, seed, "test")
    if found is None:
        raise UserError(f"{data}, seed {seed}, {strategy} is not measured yet: run the simulation to its end")
    return found


def _mean_and_spread(values: Sequence[float]) -> str:
    return "{:.2f} ± {:.2f}".format(*mean_and_spread(values))


def choice_table(results: Results) -> str:
    """Mean validation error over the rounds, for each strategy, data set and seed of the choice."""
    columns = [(data, seed) for data in SCENARIOS for seed in CHOICE_SEEDS]
    ratios = choice_ratios(results)
    lines = [
        f"| strategy | {' | '.join(f'{data}, seed {seed}' for data, seed in columns)} | by random choice |",
        f"|---|{'---|' * (len(columns) + 1)}",
    ]
    for strategy in STRATEGIES:
        cells = []
        for data, seed in columns:
            found = errors(results, data, strategy, seed, "validation")
            cells.append("–" if found is None else f"{statistics.fmean(found):.2f}")
        ratio = f"{ratios[strategy]:.2f}" if strategy in ratios else "–"
        lines.append(f"| {strategy} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def choice_ratios(results: Results) -> dict[str, float]:
    """Strategy to its mean validation error by that of random choice with the same seeds, mean over data.

    Of strategies that were measured on every data set.
    """
    ratios = {}
    for strategy in STRATEGIES:
        found = []
        for data in SCENARIOS:
            own_total = plain_total = 0.0
            for seed in CHOICE_SEEDS:
                own = errors(results, data, strategy, seed, "validation")
                plain = errors(results, data, "random", seed, "validation")
                if own is not None and plain is not None:
                    own_total += sum(own)
                    plain_total += sum(plain)
            if plain_total:
                found.append(own_total / plain_total)
        if len(found) == len(SCENARIOS):
            ratios[strategy] = statistics.fmean(found)
    return ratios


@dataclass(frozen=True)
class SuggestExperiment:
    """Compare strategies to choose images for labelling, over rounds of training and labelling."""

    data: Annotated[tuple[str, ...], tyro.conf.Positional] = tuple(SCENARIOS)
    """Data sets."""
    seeds: tuple[int, ...] = (*CHOICE_SEEDS, *REPORTED_SEEDS)
    """Label draws: from 10 on those on whose validation images the default is chosen, all strategies; below
    10 those that are reported, a few."""
    strategies: tuple[str, ...] = ()
    """By default as said of the seeds."""
    results: Path = Path("results/suggest.json")
    """Results file; what it holds is not measured again."""
    threads: int = 1
    """Of torch."""
    tables: bool = False
    """Only print the tables of docs/suggest.md."""


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing, a line for each run."""
    options: SuggestExperiment = parse(
        SuggestExperiment, arguments, program="python -m manigraph.experiments.suggest"
    )
    results = Results(options.results)
    if options.tables:
        print(reported_table(results), choice_table(results), sep="\n\n")
        return
    torch.set_num_threads(options.threads)
    datasets = {data: SCENARIOS[data].dataset() for data in options.data}
    for seed in options.seeds:
        usual = tuple(STRATEGIES) if seed in CHOICE_SEEDS else REPORTED
        for data, dataset in datasets.items():
            for result in simulate(
                results, data, seed, options.strategies or usual, dataset, threads=options.threads
            ):
                print(
                    f"{data}, seed {seed}, {result.strategy or 'start'}, {result.labels} labels: "
                    f"{result.validation_error:.2f} % of validation and {result.test_error:.2f} % of test "
                    f"images wrong ({result.seconds:.0f} s)",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
