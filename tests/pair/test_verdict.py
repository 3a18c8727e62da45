"""Verdicts on counted errors, and what they advise to check."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.pair.checks import Evidence, Pool, advice
from manigraph.pair.verdict import Verdict, judge
from manigraph.recipes.small import folder


def counted(both: int, run_only: int, control_only: int, right: int) -> tuple[Tensor, Tensor]:
    """Images that both get wrong, that only one does, and that both get right."""
    run = [True] * both + [True] * run_only + [False] * control_only + [False] * right
    control = [True] * both + [False] * run_only + [True] * control_only + [False] * right
    return torch.tensor(run), torch.tensor(control)


def judged(*counts: int, **how: Any) -> Verdict:
    return judge(*counted(*counts), part="validation", names=("a", "a-control"), **how)


def test_fewer_errors_than_chance_allows_is_help() -> None:
    verdict = judged(10, 4, 20, 166)
    assert verdict.outcome == "helped"
    assert verdict.sentence == "the unlabelled images lowered the error from 15.0 % to 7.0 %"
    assert (verdict.with_unlabelled.wrong, verdict.control.wrong, verdict.num_images) == (14, 30, 200)
    assert (verdict.only_run_wrong, verdict.only_control_wrong) == (4, 20)
    assert verdict.difference == pytest.approx(-8)
    assert verdict.difference_low < -8 < verdict.difference_high < 0
    assert verdict.with_unlabelled.low < 7 < verdict.with_unlabelled.high < verdict.control.high
    assert verdict.p == pytest.approx(0.001544, abs=1e-6)  # 2 Σ_{k ≤ 4} C(24, k) / 2^24 = 25902 / 16777216
    assert verdict.images_needed is None


def test_more_errors_than_chance_allows_is_harm() -> None:
    verdict = judged(10, 20, 4, 166)
    assert verdict.outcome == "worse"
    assert verdict.sentence == "with the unlabelled images the error is higher: 15.0 % instead of 7.0 %"


def test_what_chance_may_have_done_is_not_told_and_the_images_needed_are() -> None:
    # 5 of 30 disagree, one way: p = 2 / 2^5 = 0.0625.
    verdict = judged(3, 0, 5, 22)
    assert verdict.outcome == "unclear"
    assert verdict.images_needed is not None
    assert 30 < verdict.images_needed < 60
    assert verdict.sentence.startswith(
        "cannot tell from 30 validation images whether the unlabelled images help: 10.0 % with them, 26.7 % "
        "without; if that is the true difference, about "
    )
    small = judged(10, 11, 12, 967)
    assert small.images_needed is not None
    assert small.images_needed > 100_000


def test_equal_errors() -> None:
    verdict = judged(2, 3, 3, 32)
    assert verdict.outcome == "unclear"
    assert "12.5 % with and without them; to notice a quarter less error takes about" in verdict.sentence
    perfect = judged(0, 0, 0, 40)
    assert perfect.images_needed is None
    assert perfect.sentence.endswith("neither makes an error that the other avoids")


def test_a_verdict_is_plain_values() -> None:
    values = judged(3, 0, 5, 22).as_dict()
    assert values["control"]["run"] == "a-control"
    assert values["outcome"] == "unclear"
    assert values["sentence"]


QUIET = Evidence(
    config=folder("manifold_graph"),
    class_names=["cat", "dog", "fish"],
    labels=[10, 10, 10],
    unlabelled=1000,
    findings=[],
    warnings=[],
    consistency=[0.0, 0.0, 0.1, 0.3],
    pool=Pool([0.3, 0.3, 0.4], confidence=0.8, held_out_confidence=0.85, uncertainty=0.01),
    control_error=0.2,
)


def seen(evidence: Evidence, outcome: str = "worse", lacking: float = 0.0) -> str:
    return "\n".join(f"{item.seen} → {item.try_}" for item in advice(evidence, outcome, lacking))


def test_a_run_without_any_sign_gets_no_made_up_reasons() -> None:
    assert seen(QUIET) == ""


def test_no_advice_is_needed_where_it_helped() -> None:
    assert seen(replace(QUIET, warnings=["all is one class: do something"]), "helped") == ""


def test_collapse_comes_first() -> None:
    evidence = replace(
        QUIET,
        warnings=["all predictions fall into one class: try a lower --schedule.max_learning_rate"],
        findings=[{"kind": "few_labels", "message": "few", "suggestion": "label more"}],
    )
    lines = seen(evidence).splitlines()
    assert lines == [
        "all predictions fall into one class → try a lower --schedule.max_learning_rate",
        "few → label more",
    ]


def test_findings_that_explain_nothing_are_left_out() -> None:
    assert seen(replace(QUIET, findings=[{"kind": "remark", "message": "m", "suggestion": "s"}])) == ""


def test_a_class_that_swallows_others_is_named() -> None:
    pool = replace(QUIET.pool, shares=[0.1, 0.75, 0.15])  # type: ignore[type-var]
    text = seen(replace(QUIET, pool=pool))
    assert "75 % of the unlabelled images are taken for 'dog', which has 33 % of the labels" in text
    cure = "set --method.balance_weight 1 --method.balance_memory 1280 or label a few of each of these"
    assert cure in text
    method = replace(QUIET.config.method, balance_weight=1.0, balance_memory=1280)
    for config in (replace(QUIET.config, method=method), folder("supervised")):
        text = seen(replace(QUIET, pool=pool, config=config), "unclear")
        assert "if they are of other classes, label a few of each of these" in text
        assert "--method" not in text
    many = replace(QUIET, pool=pool, labels=[10, 60, 10])
    assert seen(many) == ""  # it has three quarters of the labels too


def test_unlabelled_images_of_another_kind_are_noticed() -> None:
    strange = replace(QUIET.pool, confidence=0.5)  # type: ignore[type-var]
    assert "less sure of unlabelled images (mean probability 0.50)" in seen(replace(QUIET, pool=strange))
    vague = replace(QUIET.pool, confidence=0.5, uncertainty=0.2)  # type: ignore[type-var]
    assert seen(replace(QUIET, pool=vague)) == ""
    assert seen(replace(QUIET, pool=None)) == ""


def test_a_short_run_is_told() -> None:
    short = replace(QUIET.config, training=replace(QUIET.config.training, steps=60))
    # 60 steps of 64 images, of 1000.
    assert "60 steps, in which each unlabelled image was seen 3.8 times" in seen(replace(QUIET, config=short))
    # Few steps are few, however often they go through few images.
    assert "was seen 38.4 times" in seen(replace(QUIET, config=short, unlabelled=100))
    many = replace(QUIET, unlabelled=100_000)
    assert "was seen 1.9 times" in seen(many)


def test_where_labels_suffice_there_is_little_to_gain() -> None:
    assert "labels alone give 1.0 % error" in seen(replace(QUIET, control_error=0.01))


def test_more_images_are_asked_for_only_where_that_is_within_reach() -> None:
    assert "3.5 times as many counted images would tell" in seen(QUIET, "unclear", 3.5)
    assert "the difference is small" in seen(QUIET, "unclear", 400.0)
    assert "the difference is small" in seen(QUIET, "unclear", 0.0)


def test_balance_is_doubted_where_it_was_on_and_the_result_is_worse() -> None:
    method = replace(QUIET.config.method, balance_weight=1.0)
    balanced = replace(QUIET, config=replace(QUIET.config, method=method))
    assert "--method.balance_weight 0" in seen(balanced)
    assert "--method.balance_weight 0" not in seen(balanced, "unclear", 3.0)


def test_images_from_which_nothing_was_learned_are_told() -> None:
    nothing, sure = [0.2, 0.2, 0.0, 0.0], "hardly a prediction on unlabelled images was sure enough"
    method = replace(QUIET.config.method, comparison="fixmatch")
    for config in (replace(QUIET.config, method=method), folder("fixmatch")):
        text = seen(replace(QUIET, consistency=nothing, config=config))
        assert sure in text
        assert "a lower --method.threshold, 0.8" in text
    for config in (QUIET.config, folder("mean_teacher"), folder("sntg")):  # they learn from all predictions
        text = seen(replace(QUIET, consistency=nothing, config=config))
        assert "hardly differed: little was learned from them" in text
        assert hasattr(config.method, "consistency_weight")
        assert sure not in text
        assert "threshold" not in text
    assert seen(replace(QUIET, consistency=[])) == ""
