"""The automatic choice for real images on this machine: reads them, measures, asks `recipes/automatic.py`."""

import importlib.util
import statistics
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from manigraph.build import load_dataset
from manigraph.config import Config
from manigraph.data.cache import Progress, silent
from manigraph.data.decode import DecodeError, read_header
from manigraph.data.listing import list_images
from manigraph.data.locations import Locations
from manigraph.data.sources.base import MAX_NATURAL_SIDE, Dataset
from manigraph.nn.efficientnet_lite import INSTALL, PACKAGE
from manigraph.pair.speed import facts_about, measured_speed
from manigraph.pair.training import Order
from manigraph.recipes.automatic import Settle, Speed, choose, fit_steps
from manigraph.recipes.reasons import reasons_for, reasons_for_steps
from manigraph.training.execution import Execution
from manigraph.training.processes import Processes

ENCODER = "efficientnet_lite0"

FILES_LOOKED_AT = 50


def choose_for(
    config: Config[Any],
    *,
    is_own: bool,
    minutes: float,
    control: bool,
    given: Collection[str],
    settle: Settle,
    locations: Locations | None,
    execution: Execution,
    processes: Processes,
    progress: Progress = silent,
) -> Order:
    """What to train in the time there is.

    Args:
        config: The recipe's configuration with what a person has set.
        is_own: Whether these are own images; with a recipe only the number of steps is chosen.
        minutes: Time for the run and its control.
        control: Whether a control is wanted.
        given: Names of the settings that a person has set.
        settle: Puts these into a configuration.
        locations: Where data sets and decoded pixels are.
        execution: Where and how it will be computed.
        processes: All processes of the training.
        progress: Called while data is read.
    """
    datasets: dict[int | None, Dataset] = {}

    def images_for(config: Config[Any]) -> Dataset:
        size = config.data.image_size
        if size not in datasets:
            with processes.one_after_the_other():
                datasets[size] = load_dataset(config.data, locations, progress)
        return datasets[size]

    def speed_of(config: Config[Any]) -> Speed:
        return measured_speed(config, images_for(config), execution, processes)

    if is_own:
        hint = ""
        if not sets_features(given) and shows_photographs(Path(config.data.path)):
            if importlib.util.find_spec(PACKAGE) is None:
                hint = f"photographs are learned far better with them: {INSTALL}"
            else:
                config = replace(config, data=replace(config.data, features=ENCODER))
        facts = replace(facts_about(images_for(config)), hint=hint)
        plan = choose(
            config, facts, minutes=minutes, control=control, speed_of=speed_of, given=given, settle=settle
        )
        reasons = reasons_for(plan, facts, minutes=minutes, given=given)
    else:
        fixed = config.training.steps if "training.steps" in given else None
        plan = fit_steps(config, minutes=minutes, control=control, steps=fixed, speed_of=speed_of)
        reasons = reasons_for_steps(plan, minutes=minutes, given=given)
    return Order(plan.config, plan.control, reasons, plan.control_seconds)


def sets_features(given: Collection[str]) -> bool:
    """Whether a person has decided for features, or set something that is for pixels."""
    decisive = ("data.features", "data.image_size", "data.split", "backbone.name")
    return any(name in decisive or name.startswith(("augmentation.", "strong.")) for name in given)


def shows_photographs(path: Path) -> bool:
    """Whether most of the files are larger than what a network is trained on from scratch, and in colour."""
    listing = list_images(path)
    headers = []
    for item in listing.items[:: max(1, len(listing.items) // FILES_LOOKED_AT)]:
        try:
            headers.append(read_header(listing.root / item.name))
        except (DecodeError, OSError):
            continue
    if not headers or all(header.is_grey for header in headers):
        return False
    return statistics.median_low(min(h.width, h.height) for h in headers) > MAX_NATURAL_SIDE
