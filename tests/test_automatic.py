"""The automatic choice, from facts and made-up speeds."""

import math
from dataclasses import replace
from typing import Any

import pytest

from manigraph.catalogue import ALGORITHMS
from manigraph.config import Config
from manigraph.recipes.automatic import (
    Facts,
    Plan,
    Speed,
    as_drawn,
    average,
    choose,
    control_of,
    expected_shares,
    fit_steps,
    held_out,
    is_even,
)
from manigraph.recipes.features import on_features
from manigraph.recipes.reasons import AS_SET, reasons_for, reasons_for_steps
from manigraph.recipes.small import folder

SMALL = Facts(
    shape=(1, 28, 28), labels=(50,) * 10, holdable=490, unlabelled=6000, validation=0, test=0, file_side=None
)
PHOTOS = replace(SMALL, shape=(3, 64, 64), file_side=480)


class Machine:
    """Steps of a length that grows with pixels and width; remembers what it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """Of a step at 32×32 pixels and full width."""
        self.asked: list[tuple[int | None, float]] = []

    def __call__(self, config: Config[Any]) -> Speed:
        side, width = config.data.image_size, config.backbone.width
        self.asked.append((side, width))
        step = self.seconds * width**1.5 * ((side or 64) / 32) ** 2
        return Speed(step, step / 8, 1.0)


def made(
    facts: Facts,
    seconds: float,
    *,
    minutes: float = 10,
    algorithm: str = "manifold_graph",
    features: bool = False,
    **how: Any,
) -> Plan:
    how = {"control": True, "speed_of": Machine(seconds), **how}
    config = folder(algorithm)
    if features:
        config = replace(config, data=replace(config.data, features="efficientnet_lite0"))
    return choose(config, facts, minutes=minutes, **how)


@pytest.mark.parametrize("minutes", [0.5, 3, 10, 60])
@pytest.mark.parametrize("seconds", [0.01, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("facts", [SMALL, PHOTOS, replace(SMALL, shape=(1, 8, 8))])
def test_the_time_is_kept(facts: Facts, seconds: float, minutes: float) -> None:
    plan = made(facts, seconds, minutes=minutes)
    if plan.config.training.steps > 1:
        assert plan.seconds + plan.control_seconds <= 60 * minutes + 1e-6
    assert plan.control is not None
    assert plan.control.training.steps >= plan.config.training.steps


def test_more_time_never_gives_a_smaller_network_or_smaller_images() -> None:
    sizes = []
    for minutes in (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        config = made(PHOTOS, 2.0, minutes=minutes).config
        sizes.append((config.data.image_size or 64, config.backbone.width))
    assert sizes == sorted(sizes)
    assert sizes[0] == (16, 0.125)
    assert sizes[-1] == (64, 0.5)
    assert len(set(sizes)) >= 4


def test_what_surely_takes_too_long_is_not_measured() -> None:
    machine = Machine(100.0)
    made(PHOTOS, 0, minutes=1, speed_of=machine)
    assert (None, 0.5) not in machine.asked
    assert len(machine.asked) == len(set(machine.asked)) <= 5
    machine = Machine(0.001)
    made(PHOTOS, 0, minutes=10, speed_of=machine)
    assert machine.asked == [(None, 0.25), (None, 0.5)]


def test_time_that_would_not_help_is_not_used() -> None:
    few = replace(SMALL, shape=(1, 8, 8), unlabelled=1280)
    plan = made(few, 0.001, minutes=60)
    assert plan.config.training.steps == 200 * 1280 // 64
    assert "200 times through" in {r.what: r.why for r in reasons(plan, few, 60)}["steps"]


def test_images_of_a_few_pixels_get_the_small_network() -> None:
    config = made(replace(SMALL, shape=(1, 16, 20)), 0.1).config
    assert (config.backbone.name, config.backbone.width) == ("small_cnn", 1.0)
    assert made(replace(SMALL, shape=(1, 17, 17)), 0.1).config.backbone.name == "cnn13"


def test_rules_that_hold_for_any_size() -> None:
    """ε and shifts of the digits recipe at 8×8, of the paper's order at 32×32."""
    small = made(replace(SMALL, shape=(1, 8, 8)), 0.1).config
    large = made(replace(SMALL, shape=(3, 32, 32)), 0.1).config
    assert (small.method.epsilon, small.augmentation.translation) == (0.5, 1)
    assert (large.method.epsilon, large.augmentation.translation) == (3.46, 2)
    assert large.method.scale * large.backbone.width == 1


@pytest.mark.parametrize(
    ("labels", "unlabelled", "batch"),
    [
        ((50,) * 10, 6000, (32, 64)),
        ((3, 3), 6000, (8, 64)),  # 2 of 6 held out; no image more than twice in a batch
        ((2, 1), 5, (4, 4)),
        ((1, 1), 1, (4, 2)),
    ],
)
def test_batches_fit_the_images(labels: tuple[int, ...], unlabelled: int, batch: tuple[int, int]) -> None:
    facts = replace(SMALL, labels=labels, holdable=sum(labels) - len(labels), unlabelled=unlabelled)
    config = made(facts, 0.1).config
    assert (config.batch.labelled, config.batch.unlabelled) == batch


@pytest.mark.parametrize(
    ("labels", "holdable", "expected"),
    [
        ((50,) * 10, 490, 100),  # a fifth
        ((10,) * 10, 90, 30),  # three of each class
        ((5,) * 10, 40, 16),  # but no more than a third
        ((1, 1, 1), 0, 0),  # every class keeps one
        ((2000,) * 10, 19_000, 1000),
        ((50,) * 10, 20, 20),  # most have a copy
    ],
)
def test_images_held_out(labels: tuple[int, ...], holdable: int, expected: int) -> None:
    assert held_out(replace(SMALL, labels=labels, holdable=holdable)) == expected


def test_given_validation_images_are_used() -> None:
    facts = replace(SMALL, validation=40)
    assert made(facts, 0.1).config.data.validation is None


@pytest.mark.parametrize("algorithm", ["manifold_graph", "pi_vat"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1280,)])
def test_classes_are_expected_alike_or_as_the_labels_are(algorithm: str, shape: tuple[int, ...]) -> None:
    for labels, even in (((20, 40), True), ((20, 60), False)):
        facts = replace(SMALL, shape=shape, labels=labels)
        plan = made(facts, 0.1, algorithm=algorithm, features=len(shape) == 1)
        method = plan.config.method
        assert method.balance_memory > 0
        assert method.balance_weight > 0
        assert method.ramp_fraction > 0
        assert method.class_shares == (() if even else (0.2561, 0.7439))
        value = {r.what: r.value for r in reasons(plan, facts)}["classes"]
        assert value == ("kept equally frequent" if even else "as frequent as labels")


def test_labels_of_a_random_draw_are_even() -> None:
    """50 labels, drawn from ten equally frequent classes; the rarest has one, others up to nine."""
    assert is_even((3, 6, 5, 1, 4, 3, 9, 7, 8, 4))
    assert is_even((1, 3))
    assert not is_even((19, 41))
    assert expected_shares((19, 41)) == (0.3226, 0.6774)


def test_the_reason_names_the_steps_that_were_wanted() -> None:
    few = replace(SMALL, shape=(1, 28, 28), unlabelled=300)
    plan = made(few, 0.5, minutes=3)
    assert plan.most_steps == 1000
    why = {reason.what: reason.why for reason in reasons(plan, few, 3)}
    assert "1,000 steps" in why["network"]
    assert "5,000" not in "".join(why.values())


@pytest.mark.parametrize(
    ("facts", "seconds", "what", "why"),
    [
        (SMALL, 50.0, "images", "larger ones (28) leave no time for 5,000 steps"),
        (SMALL, 0.001, "images", "as the files are"),
        (SMALL, 50.0, "network", "the narrowest, since time is short"),
        (SMALL, 0.001, "network", "the widest with time for 5,000 steps"),
        (SMALL, 0.1, "validation", "a fifth, to measure the error on"),
        (replace(SMALL, labels=(6, 6)), 0.1, "validation", "more than a fifth, as labels are few"),
        (replace(SMALL, labels=(4000,) * 2), 0.1, "validation", "all that have no copy"),
        (replace(SMALL, labels=(4000,) * 2, holdable=8000), 0.1, "validation", "so many are enough"),
    ],
)
def test_reasons(facts: Facts, seconds: float, what: str, why: str) -> None:
    assert {reason.what: reason.why for reason in reasons(made(facts, seconds), facts)}[what] == why


def test_labels_that_are_not_to_be_used_make_unlabelled_images() -> None:
    facts = replace(SMALL, labels=(200, 600), holdable=790, unlabelled=0)

    def settle(config: Config[Any]) -> Config[Any]:
        return replace(config, data=replace(config.data, labels=40, validation=100))

    plan = made(facts, 0.001, given={"data.labels", "data.validation"}, settle=settle)
    assert (plan.config.batch.labelled, plan.config.batch.unlabelled) == (32, 64)
    drawn = as_drawn(facts, plan.config.data)
    assert (list(drawn.labels), drawn.unlabelled) == ([10, 30], 660)
    even = as_drawn(facts, replace(plan.config.data, stratify="equal"))
    assert list(even.labels) == [20, 20]
    assert plan.config.training.steps == int(200 * 660 / 64)


def test_larger_images_are_learned_from_where_predictions_are_sure() -> None:
    method = made(SMALL, 0.1).config.method
    assert (method.comparison, method.entropy_weight, method.ramp_fraction) == ("fixmatch", 0.0, 0.0)
    assert (method.balance_weight, method.balance_memory) == (0.0, 0)

    def settle(config: Config[Any]) -> Config[Any]:
        return replace(config, method=replace(config.method, comparison="pi_vat"))

    method = made(SMALL, 0.1, given={"method.comparison"}, settle=settle).config.method
    assert (method.comparison, method.entropy_weight) == ("pi_vat", 0.1)
    assert method.ramp_fraction > 0
    assert method.balance_weight > 0
    alone = made(SMALL, 0.1, algorithm="fixmatch").config.method
    assert (alone.balance_memory, alone.ramp_fraction, alone.consistency_weight) == (0, 0.0, 1.0)


def reasons(plan: Plan, facts: Facts, minutes: float = 10, given: frozenset[str] = frozenset()) -> list[Any]:
    return reasons_for(plan, facts, minutes=minutes, given=given)


def test_what_a_person_sets_wins_and_is_taken_into_account() -> None:
    given = frozenset(
        ("backbone.width", "training.steps", "data.image_size", "method.balance_weight", "method.comparison")
    )

    def settle(config: Config[Any]) -> Config[Any]:
        return replace(
            config,
            backbone=replace(config.backbone, width=0.2),
            training=replace(config.training, steps=7),
            data=replace(config.data, image_size=40),
            method=replace(config.method, comparison="pi_vat", balance_weight=0.5),
        )

    machine = Machine(1.0)
    facts = replace(PHOTOS, shape=(3, 40, 40))
    plan = made(facts, 0, speed_of=machine, given=given, settle=settle)
    assert machine.asked == [(40, 0.2)]
    assert (plan.config.training.steps, plan.config.backbone.width, plan.config.data.image_size) == (
        7,
        0.2,
        40,
    )
    assert plan.config.method.balance_weight == 0.5
    assert plan.config.method.scale == 5.0  # for the width that was set
    assert plan.control is not None
    assert plan.control.training.steps == 7
    why = {reason.what: reason.why for reason in reasons(plan, facts, given=given)}
    assert [what for what, text in why.items() if text == AS_SET] == ["images", "network", "classes", "steps"]


def test_steps_that_are_set_leave_the_network_to_the_time() -> None:
    def steps(number: int) -> Any:
        return lambda config: replace(config, training=replace(config.training, steps=number))

    widths = [
        made(SMALL, 0.5, given={"training.steps"}, settle=steps(number)).config.backbone.width
        for number in (10, 1000, 100_000)
    ]
    assert widths == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_control_differs_in_the_method_alone(algorithm: str) -> None:
    plan = made(SMALL, 0.3, algorithm=algorithm)
    if algorithm == "supervised":
        assert plan.control is None
        return
    control = plan.control
    assert control is not None
    assert control.algorithm == "supervised"
    config = plan.config
    same = replace(control, algorithm=config.algorithm, method=config.method)
    training = replace(same.training, steps=config.training.steps, ema_decay=config.training.ema_decay)
    assert replace(same, training=training) == config
    # Predictions of both are those of an average of weights.
    assert control.training.ema_decay > 0 or control.training.swa_fraction > 0


def test_without_images_to_compare_on_there_is_no_control() -> None:
    facts = replace(SMALL, labels=(1, 1), holdable=0)
    plan = made(facts, 0.3)
    assert plan.control is None
    assert plan.config.data.validation == 0
    why = {reason.what: reason for reason in reasons(plan, facts)}
    assert why["control"].why == "no image can be held out to compare both on"
    assert why["validation"].value == "none"
    assert made(replace(facts, test=5), 0.3).control is not None


def test_no_control_leaves_all_of_the_time() -> None:
    machine = Machine(0.5)
    with_control = made(SMALL, 0, minutes=3, speed_of=machine)
    alone = made(SMALL, 0, minutes=3, speed_of=machine, control=False)
    assert alone.control is None
    assert alone.config.training.steps > 1.2 * with_control.config.training.steps
    why = {reason.what: reason.why for reason in reasons(alone, SMALL)}
    assert why["control"] == AS_SET


def test_a_recipe_gets_steps_and_a_control_and_nothing_else() -> None:
    config = folder("pi_vat")
    plan = fit_steps(config, minutes=2, control=True, speed_of=lambda _: Speed(0.1, 0.01, 10.0))
    # 3/4 of 120 s, less 10 s, at 0.1 s.
    assert plan.config == replace(config, training=replace(config.training, steps=800))
    # 1/4 of 120 s, less 10 s, at 0.01 s: 2,000.
    assert plan.control == control_of(plan.config, 2000)
    assert [r.what for r in reasons_for_steps(plan, minutes=2)] == ["steps", "control"]
    fixed = fit_steps(config, minutes=2, control=True, steps=5, speed_of=lambda _: Speed(0.1, 0.01, 10.0))
    assert (fixed.config.training.steps, fixed.control) == (5, control_of(fixed.config, 5))


def test_the_control_has_at_most_four_times_the_steps() -> None:
    plan = fit_steps(folder("pi_vat"), minutes=2, control=True, speed_of=lambda _: Speed(1.0, 1e-4, 0.0))
    assert plan.control is not None
    assert plan.control.training.steps == 4 * plan.config.training.steps


def test_the_control_never_has_fewer_steps_even_where_it_takes_longer_than_its_share() -> None:
    plan = fit_steps(folder("pi_vat"), minutes=2, control=True, speed_of=lambda _: Speed(0.1, 0.1, 0.0))
    assert plan.control is not None
    assert plan.control.training.steps == plan.config.training.steps == 900


def test_every_line_of_the_table_is_short() -> None:
    for facts in (SMALL, PHOTOS, replace(SMALL, shape=(1, 8, 8)), replace(SMALL, labels=(3, 400))):
        for seconds in (0.001, 1.0, 50.0):
            for reason in reasons(made(facts, seconds), facts):
                assert len(reason.what) <= 10
                assert len(reason.value) <= 24
                assert len(reason.why) <= 90


def test_a_speed_of_something_longer() -> None:
    assert Speed(1.0, 2.0, 3.0).times(2.0) == Speed(2.0, 4.0, 6.0)
    assert math.isfinite(Speed(1.0, 2.0, 3.0).times(0.5).step)


def test_features_are_learned_from_as_their_recipe_has_it() -> None:
    facts = replace(SMALL, shape=(1280,))
    config = folder("manifold_graph")
    config = replace(config, data=replace(config.data, features="efficientnet_lite0"))
    plan = choose(config, facts, minutes=10, control=True, speed_of=Machine(0.1))
    recipe = on_features("manifold_graph", plan.config.data)
    training = replace(recipe.training, ema_decay=plan.config.training.ema_decay)
    assert plan.config == replace(recipe, training=training)
    assert (plan.config.method.comparison, plan.config.method.balance_weight) == ("pi_vat", 1.0)
    assert plan.control is not None
    assert plan.control.data == plan.config.data
    values = {reason.what: reason for reason in reasons(plan, facts)}
    assert values["features"].value == "efficientnet_lite0"
    assert "images" not in values


def test_what_could_be_installed_is_said() -> None:
    facts = replace(PHOTOS, hint="install it")
    first = reasons(made(facts, 1.0), facts)[0]
    assert (first.what, first.value, first.why) == ("features", "none", "install it")


def test_weights_are_averaged_over_the_end_of_the_run() -> None:
    """After 200 steps nothing of the first weights may be left, which 0.99 would keep 13 % of."""
    for minutes in (0.5, 2, 20):
        plan = made(SMALL, 2.0, minutes=minutes)
        assert plan.control is not None
        for config in (plan.config, plan.control):
            steps, decay = config.training.steps, config.training.ema_decay
            assert decay <= 0.99
            assert decay**steps < 1e-3
    assert average(500) == pytest.approx(0.98)  # the recipe `digits`
    assert average(1) == 0.5

    def settle(config: Config[Any]) -> Config[Any]:
        return replace(config, training=replace(config.training, ema_decay=0.7))

    plan = made(SMALL, 2.0, given={"training.ema_decay"}, settle=settle)
    assert plan.control is not None
    assert plan.config.training.ema_decay == plan.control.training.ema_decay == 0.7
