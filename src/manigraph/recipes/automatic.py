"""Own images: image size, network, batches and length of a run, chosen from the data and the time there is.

`choose` is a function of facts, of how fast steps are, and of the time; it measures nothing and reads nothing
itself. What a person sets wins, and the other choices take it into account. `reasons.py` says why.

Settings are those of the recipes `digits` for tiny images and `folder_features` for features, what was best
in short runs on larger images (`docs/own-images.md`, `docs/results.md`), and rules that hold for any size:
shifts in shares of the image, ε in shares of the deviation of a pixel.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from manigraph.catalogue import ALGORITHMS
from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.recipes.features import on_features
from manigraph.recipes.parts import average_for, averaged, method_config, with_settings
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

CONTROL = "supervised"

CONTROL_SHARE = 0.25
"""Share of the time for the control. Its steps are several times as cheap, so it makes more of them."""

MOST_CONTROL_STEPS = 4
"""Steps of the control for each step of the run, at most. With four times 500 steps, its error on
Fashion-MNIST (400 labels) was 20.6 instead of 25.1 %: a shorter control would flatter the run. More was
not tried."""

TINY_SIDE = 16
"""Up to this size images go to the small CNN, which keeps positions."""

WIDTHS = (0.5, 0.25, 0.125)

SIZES = (64, 48, 32, 16)
"""Sides to which larger images may be reduced."""

ENOUGH_STEPS = 5000
"""A larger network or larger images are taken if there is time for so many steps with them. On SVHN, 6,000
steps at 16×16 pixels gave 16.6 % error in the time in which a third of them could be made at 32×32."""

FEW_STEPS = 1000
"""However few the images are, so many steps make sense."""

MOST_PASSES = 200
"""Times that every unlabelled image is seen at most: more time than that is not used."""

MOST_VALIDATION = 1000
PER_CLASS_HELD_OUT = 3

EVEN_LABELS = 2.0
"""Up to this ratio between the numbers of labels of two classes, classes are taken for equally frequent."""

UNLIKELY = 0.01
"""Above this chance of such numbers in a random draw from equally frequent classes, they are too."""

PIXEL_EPSILON = 1 / 16
"""ε by the square root of the number of values of an image: 0.5 for 8×8 grey, 3.46 for 32×32 colour."""

AVERAGED_SHARE = 0.1
"""Of the steps, over which weights are averaged: 50 of 500, as in the recipe `digits`. With a fixed decay
of 0.99, a seventh of the first, random weights would be in the average after 200 steps."""

MOST_AVERAGED = 100
"""Steps over which weights are averaged at most."""

GRAPH: dict[str, Any] = {"prototypes_per_class": 5, "prototype_update": "shared", "warmup_fraction": 0.2}
"""For few labels and few steps, where the paper has 20 prototypes of a class from the start."""

ALL_PREDICTIONS: dict[str, Any] = {"ramp_fraction": 0.4}
"""For methods that learn from all predictions on unlabelled images: these must first become worth it."""

BALANCED: dict[str, Any] = {"balance_weight": 1.0, "balance_memory": 1280}
"""Keeps such methods from taking all unlabelled images for one class. Classes are expected in equal shares,
or in those of the labels if these are uneven."""

TINY: dict[str, Any] = {"consistency": "mse", "consistency_weight": 4.0}
"""As in the recipe `digits`."""

THEIR_OWN: dict[str, dict[str, Any]] = {
    "fixmatch": {"ramp_fraction": 0.0, "balance_weight": 0.0, "balance_memory": 0, "consistency_weight": 1.0}
}
"""FixMatch learns from sure predictions alone, which need no guard."""

SURE_PREDICTIONS: dict[str, Any] = {"comparison": "fixmatch", "entropy_weight": 0.0}
"""Manifold Graph on larger images: in a short run with few labels, Π-VAT's targets are worse than none."""


@dataclass(frozen=True)
class Facts:
    """What a choice depends on."""

    shape: tuple[int, ...]
    """Channels, height and width of the images as they were read, or the number of features of each."""
    labels: Sequence[int]
    """Images of each class whose class is known, without those for validation and testing."""
    holdable: int
    """How many of these can be held out so that every class keeps one and no copy is trained on."""
    unlabelled: int
    validation: int
    """Images that were given for validation."""
    test: int
    file_side: int | None = None
    """Shorter side of a typical file, if the images were made from larger or unequal ones."""
    hint: str = ""
    """How they could be learned from better, if something were installed."""


@dataclass(frozen=True)
class Speed:
    """Measured seconds."""

    step: float
    control_step: float
    evaluation: float
    """Of all evaluations of the run together."""

    def times(self, factor: float) -> "Speed":
        """Of something that takes so many times as long."""
        return Speed(self.step * factor, self.control_step * factor, self.evaluation * factor)


@dataclass(frozen=True)
class Plan:
    """What was chosen, and what it will take."""

    config: Config[Any]
    control: Config[Any] | None
    speed: Speed
    most_steps: int
    """As many as make sense for these images."""

    @property
    def seconds(self) -> float:
        """Of the run itself."""
        return self.config.training.steps * self.speed.step + self.speed.evaluation

    @property
    def control_seconds(self) -> float:
        """Of the control."""
        if self.control is None:
            return 0.0
        return self.control.training.steps * self.speed.control_step + self.speed.evaluation


Settle = Callable[[Config[Any]], Config[Any]]
"""Puts in what a person has set."""

SpeedOf = Callable[[Config[Any]], Speed]
"""Measures a configuration; called as rarely as possible."""


def choose(
    config: Config[Any],
    facts: Facts,
    *,
    minutes: float,
    control: bool,
    speed_of: SpeedOf,
    given: Collection[str] = (),
    settle: Settle = lambda config: config,
) -> Plan:
    """Everything about a run on own images that nobody has set.

    Args:
        config: Where to start from: data, method, seed.
        facts: About the images.
        minutes: Time for the run and its control, without reading the images.
        control: Whether a control is wanted; there is none if nothing can be measured with it.
        speed_of: How fast a configuration and its control are.
        given: Names of the settings that somebody has set, such as `training.steps`.
        settle: Puts those into a configuration.
    """
    facts = as_drawn(facts, settle(config).data)
    candidates: list[Config[Any]] = []
    for candidate in map(settle, _candidates(settle(config), facts, given)):
        if candidate not in candidates:
            candidates.append(candidate)
    control = control and can_be_compared(candidates[0], facts)
    time = _Time(60 * minutes, control, fixed="training.steps" in given)
    limit = _most_steps(candidates[0], facts)

    def has_time(candidate: Config[Any], speed: Speed) -> bool:
        steps = candidate.training.steps if time.fixed else min(ENOUGH_STEPS, limit)
        return time.steps(speed) >= steps

    chosen, speed = _largest(candidates, facts, has_time, speed_of)
    steps = chosen.training.steps if time.fixed else min(time.steps(speed), limit)
    plan = _with_control(chosen, steps, speed, time, limit)
    if "training.ema_decay" in given:
        return plan
    control_config = None if plan.control is None else _averaged_over_its_end(plan.control)
    return replace(plan, config=_averaged_over_its_end(plan.config), control=control_config)


def fit_steps(
    config: Config[Any], *, minutes: float, control: bool, speed_of: SpeedOf, steps: int | None = None
) -> Plan:
    """A configuration with as many steps as fit into the time, and its control; nothing else is changed.

    Args:
        config: What to train.
        minutes: Time for the run and its control.
        control: Whether a control is wanted.
        speed_of: How fast the configuration and its control are.
        steps: As somebody has set them.
    """
    time = _Time(60 * minutes, control and config.algorithm != CONTROL, fixed=steps is not None)
    speed = speed_of(config)
    steps = time.steps(speed) if steps is None else steps
    return _with_control(config, steps, speed, time, limit=steps)


def control_of(config: Config[Any], steps: int | None = None) -> Config[Any]:
    """The same run from the labelled images alone."""
    training = replace(config.training, steps=steps or config.training.steps)
    if ALGORITHMS.get(config.algorithm).keeps_average(config.method) and training.ema_decay == 0:
        training = replace(training, ema_decay=average(training.steps))  # the method's own average is gone
    return replace(config, algorithm=CONTROL, method=method_config(CONTROL), training=training)


def average(steps: int) -> float:
    """Decay of the average of weights in a run of so many steps; 1 / (1 - decay) of them count."""
    return 1 - 1 / max(min(AVERAGED_SHARE * steps, MOST_AVERAGED), 2)


def can_be_compared(config: Config[Any], facts: Facts) -> bool:
    """Whether the method differs from its control, and images are left to measure both on."""
    held_out = facts.test > 0 or facts.validation > 0 or config.data.validation != 0
    return config.algorithm != CONTROL and held_out


@dataclass(frozen=True)
class _Time:
    """How the time is divided."""

    seconds: float
    control: bool
    fixed: bool = False
    """Whether a person has set the number of steps."""

    def steps(self, speed: Speed) -> int:
        """Steps of the run for which there is time."""
        share = 1 - CONTROL_SHARE if self.control else 1.0
        return max(int((share * self.seconds - speed.evaluation) / speed.step), 1)

    def control_steps(self, steps: int, speed: Speed) -> int:
        """As many as the run has, or more where there is time: the control must not lack training."""
        room = int((CONTROL_SHARE * self.seconds - speed.evaluation) / speed.control_step)
        return steps if self.fixed else max(steps, min(room, MOST_CONTROL_STEPS * steps))


def _with_control(config: Config[Any], steps: int, speed: Speed, time: _Time, limit: int) -> Plan:
    config = replace(config, training=replace(config.training, steps=steps))
    control = control_of(config, time.control_steps(steps, speed)) if time.control else None
    return Plan(config, control, speed, limit)


def _averaged_over_its_end(config: Config[Any]) -> Config[Any]:
    training = config.training
    if training.ema_decay == 0:
        return config
    return replace(config, training=replace(training, ema_decay=average(training.steps)))


def _candidates(config: Config[Any], facts: Facts, given: Collection[str]) -> list[Config[Any]]:
    """Image sizes and networks, the most expensive first."""
    shape = facts.shape
    if len(shape) == 1:
        return [_on_features(config, facts)]
    side = min(shape[1:])
    if is_tiny(facts.shape):
        width = config.backbone.width if "backbone.width" in given else 1.0
        return [_on_pixels(config, facts, given, shape, width)]
    smaller = [size for size in SIZES if size < side]
    if "data.image_size" in given or "data.split" in given:  # a split is of images of one size
        smaller = []
    networks = [(side, width) for width in WIDTHS[: -1 if smaller else None]]
    networks += [(size, WIDTHS[1]) for size in smaller]  # as fast as larger images in a narrower network
    networks += [(size, WIDTHS[2]) for size in smaller[-1:]]
    candidates = []
    for size, width in networks:
        if "backbone.width" in given:
            width = config.backbone.width
        reduced = shape if size == side else (shape[0], size, size)
        candidate = _on_pixels(config, facts, given, reduced, width)
        if size != side:
            candidate = replace(candidate, data=replace(candidate.data, image_size=size))
        candidates.append(candidate)
    return candidates


def is_tiny(shape: Sequence[int]) -> bool:
    """Whether images, before they are reduced, are so small that they go to the small CNN."""
    return 0 < min(shape[1:], default=0) <= TINY_SIDE


def _on_features(config: Config[Any], facts: Facts) -> Config[Any]:
    """As the recipe for features has it, with batches for these images."""
    recipe = on_features(config.algorithm, _held_out_of(config, facts))
    method = with_settings(recipe.method, class_shares=expected_shares(facts.labels))
    return replace(recipe, seed=config.seed, method=method, batch=_batch(config, facts, recipe.batch))


def _on_pixels(
    config: Config[Any], facts: Facts, given: Collection[str], shape: tuple[int, ...], width: float
) -> Config[Any]:
    """What does not depend on the time, for images of this shape and a network of this width."""
    tiny = is_tiny(facts.shape)
    method = method_config(
        config.algorithm,
        **_learning(config, facts, given),
        epsilon=round(PIXEL_EPSILON * math.sqrt(math.prod(shape)), 2),
        scale=1.0 if tiny else attention_scale(width),
    )
    return averaged(
        replace(
            config,
            method=method,
            data=_held_out_of(config, facts),
            augmentation=AugmentationConfig(translation=max(1, round(min(shape[1:]) / 16))),
            batch=_batch(config, facts, BatchConfig(labelled=32, unlabelled=64)),
            backbone=BackboneConfig("small_cnn" if tiny else "cnn13", width=width),
            schedule=SuperConvergence(max_learning_rate=0.1),
            training=TrainingConfig(
                steps=FEW_STEPS,
                ema_decay=average_for(config.algorithm, average(FEW_STEPS)),
                max_gradient_norm=3.0,
            ),
        )
    )


def _held_out_of(config: Config[Any], facts: Facts) -> DataConfig:
    data = config.data
    if data.labels is not None or data.split:
        return data
    return replace(data, validation=held_out(facts))


def _batch(config: Config[Any], facts: Facts, most: BatchConfig) -> BatchConfig:
    """No larger than the images are many; labelled ones may come twice."""
    labelled = config.data.labels or sum(facts.labels) - (_held_out_of(config, facts).validation or 0)
    return BatchConfig(
        labelled=_limited(2 * labelled, most.labelled), unlabelled=_limited(facts.unlabelled, most.unlabelled)
    )


def _learning(config: Config[Any], facts: Facts, given: Collection[str]) -> dict[str, Any]:
    comparison = config.method.comparison if "method.comparison" in given else None
    return learning(config.algorithm, tiny=is_tiny(facts.shape), labels=facts.labels, comparison=comparison)


def learning(
    algorithm: str, *, tiny: bool, labels: Sequence[int], comparison: str | None = None
) -> dict[str, Any]:
    """How a method learns from unlabelled images, from scratch; whatever of it the method has.

    Args:
        algorithm: Its name.
        tiny: Whether the images are tiny; vectors are learned from in the same way.
        labels: Images of each class whose class is known.
        comparison: Manifold Graph: the comparison that somebody has set.
    """
    is_sure = not tiny if comparison is None else comparison == "fixmatch"
    if algorithm == "manifold_graph" and is_sure:
        return GRAPH | SURE_PREDICTIONS
    balanced = BALANCED | {"class_shares": expected_shares(labels)}
    return GRAPH | ALL_PREDICTIONS | balanced | (TINY if tiny else {}) | THEIR_OWN.get(algorithm, {})


def attention_scale(width: float) -> float:
    """For dot products of embeddings, which shrink with the number of features: 128 in the paper."""
    return max(1.0, round(1 / width, 2))


def as_drawn(facts: Facts, data: DataConfig) -> Facts:
    """What is left of the labels if only some are to be used: the other images are unlabelled ones then."""
    known = sum(facts.labels)
    if data.labels is None or data.labels >= known:
        return facts
    validation = data.validation
    if validation is None:
        validation = 0 if facts.validation else min(known // 5, MOST_VALIDATION)
    classes = len(facts.labels)
    labels = [
        data.labels / classes if data.stratify == "equal" else data.labels * n / known for n in facts.labels
    ]
    unlabelled = facts.unlabelled + max(known - data.labels - validation, 0)
    return replace(facts, labels=[max(1, round(number)) for number in labels], unlabelled=unlabelled)


def held_out(facts: Facts) -> int | None:
    """Labelled images to hold out: a fifth, but three of each class unless that is over a third.

    None where images are given for validation.
    """
    if facts.validation:
        return None
    labels = sum(facts.labels)
    few = min(PER_CLASS_HELD_OUT * len(facts.labels), labels // 3)
    return min(max(labels // 5, few), MOST_VALIDATION, facts.holdable)


def is_even(labels: Sequence[int]) -> bool:
    """Whether classes have about as many labels, or as many as a random draw could give them (χ² test)."""
    if max(labels, default=0) <= EVEN_LABELS * min(labels, default=0):
        return True
    from scipy.special import gammaincc  # 0.1 s, only when asked for

    expected = sum(labels) / len(labels)
    distance = sum((number - expected) ** 2 for number in labels) / expected
    return bool(gammaincc((len(labels) - 1) / 2, distance / 2) > UNLIKELY)


def expected_shares(labels: Sequence[int]) -> tuple[float, ...]:
    """Of the classes among unlabelled images: those of the labels, or none if these are about equal.

    One label is added to each class, since few labels say little of rare ones.
    """
    total = sum(labels) + len(labels)
    return () if is_even(labels) else tuple(round((number + 1) / total, 4) for number in labels)


def _limited(images: int, most: int) -> int:
    """`most`, or the largest power of two that is not above the number of images, but at least 2."""
    return most if images >= most else int(2 ** (max(images, 2).bit_length() - 1))


def _most_steps(config: Config[Any], facts: Facts) -> int:
    batches = facts.unlabelled / config.batch.unlabelled
    if config.algorithm == CONTROL:
        batches = sum(facts.labels) / config.batch.labelled
    if config.data.features:
        return config.training.steps  # of the recipe, for which more did not help
    return max(FEW_STEPS, int(MOST_PASSES * batches))


def _largest(
    candidates: Sequence[Config[Any]],
    facts: Facts,
    has_time: Callable[[Config[Any], Speed], bool],
    speed_of: SpeedOf,
) -> tuple[Config[Any], Speed]:
    """The first for which there is time, or else the last; what surely takes too long is not measured."""
    # Measuring begins with the smallest network for images as they were read.
    *_, anchor = [c for c in candidates if c.data.image_size == candidates[0].data.image_size]
    known = speed_of(anchor)

    def work(config: Config[Any]) -> float:
        """At least in proportion to this the time grows."""
        side = config.data.image_size
        return config.backbone.width * (math.prod(facts.shape[1:]) if side is None else side * side)

    *larger, last = candidates
    for candidate in larger:
        times = work(candidate) / work(anchor)
        if times > 1 and not has_time(candidate, known.times(times)):
            continue
        speed = known if candidate == anchor else speed_of(candidate)
        if has_time(candidate, speed):
            return candidate, speed
    return last, known if last == anchor else speed_of(last)
