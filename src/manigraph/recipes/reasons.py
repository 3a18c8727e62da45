"""Why the automatic choice is what it is, in a few words for each line."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from manigraph.config import Config
from manigraph.recipes.automatic import (
    CONTROL,
    CONTROL_SHARE,
    ENOUGH_STEPS,
    FEW_STEPS,
    MOST_PASSES,
    TINY_SIDE,
    Facts,
    Plan,
    as_drawn,
    can_be_compared,
    is_even,
    is_tiny,
)

AS_SET = "as you set it"


@dataclass(frozen=True)
class Reason:
    """One line of the table that is printed before training."""

    what: str
    value: str
    why: str


def reasons_for(plan: Plan, facts: Facts, *, minutes: float, given: Collection[str]) -> list[Reason]:
    """Every choice for own images."""
    config = plan.config
    facts = as_drawn(facts, config.data)
    wanted = min(ENOUGH_STEPS, plan.most_steps)
    lines = [
        *_about_images(config, facts, given, wanted),
        *_about_network(config, facts, given, wanted),
        *_about_batches(config, facts, given),
        *_about_validation(config, facts, given),
        *_about_learning(config, facts, given),
    ]
    return lines + reasons_for_steps(plan, minutes=minutes, given=given, facts=facts)


def reasons_for_steps(
    plan: Plan, *, minutes: float, given: Collection[str] = (), facts: Facts | None = None
) -> list[Reason]:
    """The length of the run, and the control."""
    steps, control = plan.config.training.steps, plan.control
    share = minutes * (1 if control is None else 1 - CONTROL_SHARE)
    if "training.steps" in given:
        why = AS_SET
    elif facts is not None and steps == plan.most_steps:
        what = "labelled" if plan.config.algorithm == CONTROL else "unlabelled"
        passes = f"{MOST_PASSES} times through the {what} images"
        why = f"{passes if steps > FEW_STEPS else 'so few images need no more'}; {minutes:g} min allow more"
    else:
        why = f"what fits into {share:.3g} min at {plan.speed.step:.2g} s a step"
        if steps < FEW_STEPS // 2:
            why += ": hardly enough, give more --minutes"
    lines = [Reason("steps", f"{steps:,}", why)]
    if control is not None:
        more = control.training.steps > steps
        why = "same labels, network and images; " + ("steps are cheap, so more" if more else "as many steps")
        lines.append(Reason("control", f"supervised, {control.training.steps:,} steps", why))
    elif plan.config.algorithm == CONTROL:
        lines.append(Reason("control", "none", "this is supervised training itself"))
    elif facts is not None and not can_be_compared(plan.config, facts):
        lines.append(Reason("control", "none", "no image can be held out to compare both on"))
    else:
        lines.append(Reason("control", "none", AS_SET))
    return lines


def _about_images(config: Config[Any], facts: Facts, given: Collection[str], wanted: int) -> Iterator[Reason]:
    if config.data.features:
        why = "photographs: it has learned from millions of them"
        yield Reason("features", config.data.features, AS_SET if "data.features" in given else why)
        return
    if facts.hint:
        yield Reason("features", "none", facts.hint)
    channels, height, width = facts.shape
    side, largest = config.data.image_size, facts.file_side
    size = f"{width}x{height}" if side is None else f"{side}x{side}"
    colours = "grey" if channels == 1 else "colour"
    if "data.image_size" in given:
        why = AS_SET
    elif side is not None:
        why = f"larger ones ({largest or min(height, width)}) leave no time for {wanted:,} steps"
    elif largest is None:
        why = "as the files are"
    elif largest > min(height, width):
        why = f"files are of {largest} and more; larger than this takes long"
    else:
        why = "files are of different sizes; this is the usual one"
    yield Reason("images", f"{size} {colours}", why)


def _about_network(
    config: Config[Any], facts: Facts, given: Collection[str], wanted: int
) -> Iterator[Reason]:
    backbone = config.backbone
    value = f"{backbone.name}, width {backbone.width:g}"
    if "backbone.name" in given or "backbone.width" in given:
        why = AS_SET
    elif len(facts.shape) == 1:
        why = "on features; the pretrained network stays as it is"
    elif is_tiny(facts.shape):
        why = f"made for images of up to {TINY_SIDE} pixels"
    else:
        why = f"the widest with time for {wanted:,} steps"
        if config.training.steps < wanted:
            why = "the narrowest, since time is short"
    yield Reason("network", value, why)


def _about_batches(config: Config[Any], facts: Facts, given: Collection[str]) -> Iterator[Reason]:
    batch = config.batch
    if "batch.labelled" in given or "batch.unlabelled" in given:
        why = AS_SET
    elif batch.labelled < 32 or batch.unlabelled < 64:
        why = "smaller than usual, as there are few images"
    elif config.data.features:
        why = "steps on features are cheap"
    else:
        why = "small batches: more steps in the same time"
    value = f"{batch.labelled} labelled"
    if config.algorithm != CONTROL:
        value += f" + {batch.unlabelled} not"
    yield Reason("batch", value, why)


def _about_validation(config: Config[Any], facts: Facts, given: Collection[str]) -> Iterator[Reason]:
    labels, held_out = sum(facts.labels), config.data.validation
    if {"data.validation", "data.labels", "data.split"} & set(given):
        yield Reason("validation", "-" if held_out is None else f"{held_out:,}", AS_SET)
    elif facts.validation:
        yield Reason("validation", f"{facts.validation:,}", "your own validation images")
    elif held_out == 0:
        yield Reason("validation", "none", "no class can spare a label: label some more")
    else:
        assert held_out is not None, "only given where images are"
        why = "a fifth, to measure the error on"
        if held_out > labels // 5:
            why = "more than a fifth, as labels are few"
        elif held_out < labels // 5:
            why = "so many are enough" if held_out < facts.holdable else "all that have no copy"
        yield Reason("validation", f"{held_out:,} of {labels:,} labels", why)


def _about_learning(config: Config[Any], facts: Facts, given: Collection[str]) -> Iterator[Reason]:
    method = config.method
    if getattr(method, "comparison", "") == "fixmatch" or config.algorithm == "fixmatch":
        why = "with few labels and steps the others mislead"
        yield Reason("learning", "from sure predictions", AS_SET if "method.comparison" in given else why)
    elif hasattr(method, "balance_weight"):
        on = method.balance_weight > 0 or method.balance_memory > 0
        if {"method.balance_weight", "method.balance_memory"} & set(given):
            why = AS_SET
        elif is_even(facts.labels):
            why = "their labels are about equal, so perhaps the others too"
        else:
            why = f"from {min(facts.labels)} to {max(facts.labels)} labels: perhaps the others differ as much"
        kept = "as frequent as labels" if method.class_shares else "kept equally frequent"
        yield Reason("classes", kept if on else "of any frequency", why)
