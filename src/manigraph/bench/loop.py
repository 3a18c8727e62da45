"""What the training loop costs beyond the network's passes, and what compiling the network brings.

Both are ratios of contenders that take turns in one process, step by step, as in `bench.py`.
"""

import copy
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manigraph.bench.data import random_dataset
from manigraph.bench.turns import median_interval
from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.config import Config
from manigraph.contract import Batch
from manigraph.data.sources.base import Dataset
from manigraph.nn.classifier import Classifier, GraphClassifier
from manigraph.nn.compiling import compile_backbone
from manigraph.recipes.measured import finish
from manigraph.training.loop import StepRecord

WARM_UP_ROUNDS = 2
"""Rounds that pay for memory and kernels, and are not counted."""

Passes = Callable[[], None]


@dataclass(frozen=True)
class LoopSetting:
    """A method, a network and a batch."""

    algorithm: str
    width: float
    unlabelled: int
    rounds: int
    side: int = 32
    only_whole: bool = False
    """Left out of a quick look."""

    @property
    def name(self) -> str:
        """In words."""
        return f"CNN-13 at width {self.width:g}, 32 + {self.unlabelled} images of {self.side}x{self.side}"


LOOP_SETTINGS = (
    LoopSetting("pi_vat", width=0.25, unlabelled=64, rounds=80),
    LoopSetting("manifold_graph", width=0.25, unlabelled=64, rounds=80),
    LoopSetting("pi_vat", width=1.0, unlabelled=128, rounds=16, only_whole=True),
    LoopSetting("manifold_graph", width=1.0, unlabelled=128, rounds=16, only_whole=True),
)


@dataclass(frozen=True)
class LoopTiming:
    """The whole loop against the bare passes of the same step."""

    setting: str
    algorithm: str
    milliseconds: float
    """Median of a step in the loop."""
    bare_milliseconds: float
    """Median of the passes alone."""
    ratio: float
    """Loop / passes of the whole network, median over rounds; every 20th step writes its record."""
    low: float
    """95 % interval of the median over the rounds without a record."""
    high: float
    logged_ratio: float
    """As `ratio`, of steps that write their record."""
    data_milliseconds: float
    """Of a step in the loop: making its batch."""
    optimizer_milliseconds: float
    """Likewise: the update of the weights."""
    record_milliseconds: float
    """Likewise: writing the record, where there is one."""


# The loop


def time_loop(setting: LoopSetting, rounds: int, on_round: Callable[[], None]) -> LoopTiming:
    """Time `Trainer.run` on images of noise, every step in turn with the bare passes."""
    job = build(_config(setting, WARM_UP_ROUNDS + rounds), dataset=_images(setting))
    model, batch = job.trainer.algorithm.model, next(job.batches)
    model = copy.deepcopy(model)
    if isinstance(model, GraphClassifier):
        bare = graph_passes(model, batch)
    else:
        bare = backbone_passes(model, batch)
    turns = _Turns(job.batches, bare, job.trainer.device, on_round)
    job.trainer.optimizer.register_step_pre_hook(lambda *_: turns.start("optimizer"))
    job.trainer.optimizer.register_step_post_hook(lambda *_: turns.stop("optimizer"))
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:

        def on_step(record: StepRecord) -> None:
            turns.start("record")
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            turns.stop("record")

        job.trainer.run(turns, on_step)
    turns.end()
    return _loop_timing(setting, turns.rounds[WARM_UP_ROUNDS:])


def _loop_timing(setting: LoopSetting, rounds: list[dict[str, float]]) -> LoopTiming:
    """The medians; `rounds` has the seconds of each part of each round."""
    log_every = RECIPES.get("cifar10")(setting.algorithm).training.log_every

    def ratios(logged: bool) -> list[float]:
        """Of rounds that wrote a record, or of those that did not."""
        return [r["loop"] / r["passes"] for r in rounds if ("record" in r) == logged]

    plain, logged = (statistics.median(ratios(logged)) for logged in (False, True))
    low, high = median_interval(ratios(logged=False))

    def milliseconds(part: str) -> float:
        return round(1000 * statistics.median(r[part] for r in rounds if part in r), 3)

    return LoopTiming(
        setting=setting.name,
        algorithm=setting.algorithm,
        milliseconds=milliseconds("loop"),
        bare_milliseconds=milliseconds("passes"),
        ratio=round((logged + (log_every - 1) * plain) / log_every, 4),
        low=round(low, 4),
        high=round(high, 4),
        logged_ratio=round(logged, 4),
        data_milliseconds=milliseconds("data"),
        optimizer_milliseconds=milliseconds("optimizer"),
        record_milliseconds=milliseconds("record"),
    )


class _Turns(Iterator[Batch]):
    """Batches for a loop that runs as always, while the bare passes take their turn before each of its steps.

    A step of the loop lasts from the call for its batch to the call for the next one.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        bare: Passes,
        device: torch.device,
        on_round: Callable[[], None],
    ) -> None:
        self.rounds: list[dict[str, float]] = []
        self._batches = batches
        self._bare = bare
        self._device = device
        self._on_round = on_round
        self._began: dict[str, float] = {}

    def __next__(self) -> Batch:
        self.end()
        self.rounds.append({})
        self.start("passes")
        self._bare()
        finish(self._device)
        self.stop("passes")
        self.start("loop")
        self.start("data")
        batch = next(self._batches)
        self.stop("data")
        return batch

    def end(self) -> None:
        """The step that is under way is over."""
        if self.rounds:
            finish(self._device)
            self.stop("loop")
            self._on_round()

    def start(self, part: str) -> None:
        """A part of the round begins."""
        self._began[part] = time.perf_counter()

    def stop(self, part: str) -> None:
        """A part of the round is over."""
        self.rounds[-1][part] = time.perf_counter() - self._began[part]


def _images(setting: LoopSetting) -> Dataset:
    return random_dataset(4000, setting.side)


def _config(setting: LoopSetting, steps: int) -> Config[Any]:
    """The paper's recipe at the setting's size, with the graph on; every fourth step writes a record."""
    config = RECIPES.get("cifar10")(setting.algorithm)
    if setting.algorithm == "manifold_graph":
        config = replace(config, method=replace(config.method, warmup_fraction=0.0))
    return replace(
        config,
        data=replace(config.data, labels=1000, validation=0),
        preprocessing=replace(config.preprocessing, kind="standardise"),
        backbone=replace(config.backbone, width=setting.width),
        batch=replace(config.batch, unlabelled=setting.unlabelled),
        training=replace(config.training, steps=steps, log_every=4),
    )


# The passes a step cannot do without, in plain torch on tensors that are ready


def backbone_passes(model: Classifier, batch: Batch) -> Passes:
    """Clean pass over all images, power pass, student pass, one backward pass; no graph, loss or update."""
    backbone, linear = model.backbone, model.linear
    clean, student = _ready(batch)
    clean_cotangent, student_cotangent = (_cotangent(part, model.num_classes) for part in (clean, student))
    probe = student.clone().requires_grad_(True)

    def passes() -> None:
        model.zero_grad(set_to_none=True)
        clean_logits = linear(backbone(clean))
        torch.autograd.grad(linear(backbone(probe)), probe, student_cotangent)
        student_logits = linear(backbone(student))
        torch.autograd.backward([clean_logits, student_logits], [clean_cotangent, student_cotangent])

    return passes


def graph_passes(model: GraphClassifier, batch: Batch) -> Passes:
    """The same through prototype generator and graph, with the classification of all refined prototypes."""
    backbone = model.backbone
    clean, student = _ready(batch)
    clean_cotangent, student_cotangent = (_cotangent(part, model.num_classes) for part in (clean, student))
    probe = student.clone().requires_grad_(True)
    P = len(model.class_nodes().prototypes)
    classes = torch.arange(P, device=clean.device) // (P // model.num_classes)

    def passes() -> None:
        model.zero_grad(set_to_none=True)
        nodes = model.class_nodes()
        features = backbone(clean)
        embeddings = model.graph.embedding(features)
        clean_logits = model.classify(features, nodes, embeddings)
        torch.autograd.grad(model.classify(backbone(probe), nodes), probe, student_cotangent)
        student_logits = model.classify(backbone(student), nodes)
        prototype_loss = model.prototype_loss(nodes, features, classes, embeddings)
        torch.autograd.backward(
            [clean_logits, student_logits, prototype_loss],
            [clean_cotangent, student_cotangent, torch.ones_like(prototype_loss)],
        )

    return passes


def _ready(batch: Batch) -> tuple[Tensor, Tensor]:
    """All images of the clean pass and those of the student, in the layout of the network's weights."""
    images = torch.cat([batch.labelled["image"], batch.unlabelled["first"]]), batch.unlabelled["second"]
    clean, student = (part.contiguous(memory_format=torch.channels_last) for part in images)
    return clean, student


def _cotangent(images: Tensor, num_classes: int) -> Tensor:
    """What a loss would send back into the logits of images."""
    return torch.randn(len(images), num_classes, device=images.device) / len(images)


def run_loop_benchmark(scale: float, tell: Callable[[str], None]) -> list[LoopTiming]:
    """All settings, or below scale 1 the small ones; `scale` multiplies the number of rounds."""
    timings = []
    for setting in LOOP_SETTINGS:
        if setting.only_whole and scale < 1:
            continue
        rounds = max(4, round(scale * setting.rounds))
        with torch.random.fork_rng():
            timings.append(time_loop(setting, rounds, _counted(tell, setting, WARM_UP_ROUNDS + rounds)))
    return timings


def _counted(tell: Callable[[str], None], setting: LoopSetting, total: int) -> Callable[[], None]:
    done = 0

    def on_round() -> None:
        nonlocal done
        done += 1
        tell(f"{setting.algorithm}, {setting.name}: round {done} of {total}")

    return on_round


# Compiled against eager

COMPILING_STEPS = 3
"""Steps after which every pass has met its compiled code."""


@dataclass(frozen=True)
class CompileSetting:
    """What is compiled."""

    name: str
    make_job: Callable[[], Job]
    rounds: int


@dataclass(frozen=True)
class CompileTiming:
    """A step with the backbone compiled against the same step without."""

    setting: str
    eager_milliseconds: float
    compiled_milliseconds: float
    ratio: float
    """Compiled / eager, median over rounds."""
    compile_seconds: float
    """What the first steps took longer."""
    pays_after_steps: int | None
    """Steps after which the time for compiling is made up for; None means never."""


@dataclass(frozen=True)
class NotCompiled:
    """Why there is nothing to measure."""

    reason: str


def _digits_job() -> Job:
    config = RECIPES.get("digits")("manifold_graph")
    return build(replace(config, method=replace(config.method, warmup_fraction=0.0)))


def _cnn13_job(setting: LoopSetting) -> Job:
    return build(_config(setting, 1000), dataset=_images(setting))


COMPILE_SETTINGS = (
    CompileSetting("Manifold Graph, digits recipe", _digits_job, rounds=40),
    CompileSetting(
        f"Manifold Graph, {LOOP_SETTINGS[1].name}", partial(_cnn13_job, LOOP_SETTINGS[1]), rounds=15
    ),
)


def compiler_problem() -> str | None:
    """Why torch cannot compile here, in one sentence; None if it can."""
    try:
        torch.compile(lambda values: values.sin() + 1)(torch.ones(8))
    except Exception as error:  # whatever goes wrong in there, the network is not compiled
        causes = "; ".join(line for line in str(error).splitlines()[:1] if line.strip())
        return f"torch cannot compile here, so nothing is measured; it needs a C++ compiler ({causes})"
    return None


def time_compiled(setting: CompileSetting, rounds: int, on_round: Callable[[], None]) -> CompileTiming:
    """Steps of two equal jobs in turns, the backbone of one of them compiled."""
    jobs = {"eager": setting.make_job(), "compiled": setting.make_job()}
    compile_backbone(jobs["compiled"].trainer.algorithm.model.backbone)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(COMPILING_STEPS + rounds):
        for name, job in jobs.items():
            began = time.perf_counter()
            job.trainer.train_step(next(job.batches))
            finish(job.trainer.device)
            seconds[name].append(time.perf_counter() - began)
        on_round()
    compiling = sum(seconds["compiled"][:COMPILING_STEPS])
    eager, compiled = (seconds[name][COMPILING_STEPS:] for name in ("eager", "compiled"))
    median, eager_median = statistics.median(compiled), statistics.median(eager)
    return compile_timing(
        setting.name,
        eager=eager_median,
        compiled=median,
        ratio=statistics.median(c / e for c, e in zip(compiled, eager, strict=True)),
        compiling=max(0.0, compiling - COMPILING_STEPS * median),
    )


def compile_timing(
    setting: str, *, eager: float, compiled: float, ratio: float, compiling: float
) -> CompileTiming:
    """Figures from seconds; what a step gains is taken from the ratio, which noise disturbs less."""
    gain = eager * (1 - ratio)
    return CompileTiming(
        setting=setting,
        eager_milliseconds=round(1000 * eager, 2),
        compiled_milliseconds=round(1000 * compiled, 2),
        ratio=round(ratio, 3),
        compile_seconds=round(compiling, 1),
        pays_after_steps=round(compiling / gain) if gain > 0 else None,
    )


def run_compile_benchmark(
    scale: float, tell: Callable[[str], None]
) -> list[CompileTiming] | list[NotCompiled]:
    """All settings, compiled from nothing; `scale` multiplies the number of rounds."""
    # Without it, code compiled on another day would be found again. There is no public way to ask for this.
    from torch._inductor.utils import fresh_cache

    with fresh_cache(), torch.random.fork_rng(), warnings.catch_warnings():
        # Said by torch's own compiler about the images of the power pass.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        tell("looking for a compiler")
        problem = compiler_problem()
        if problem:
            return [NotCompiled(problem)]
        timings = []
        for setting in COMPILE_SETTINGS:
            torch.compiler.reset()
            tell(f"{setting.name}: compiling")
            on_round = partial(tell, f"{setting.name}: timing steps")
            timings.append(time_compiled(setting, max(1, round(scale * setting.rounds)), on_round))
        torch.compiler.reset()
        return timings
