"""Each kind of collapse is told once, in time, after an interruption too, and never in a healthy run."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from manigraph.algorithms.manifold_graph import ManifoldGraphMethod
from manigraph.build import build
from manigraph.config import BackboneConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.sources.arrays import from_arrays
from manigraph.recipes.digits import digits
from manigraph.runs import RunDirectory
from manigraph.session import Session, Silence
from manigraph.training.collapse import KINDS, CollapseWatch
from manigraph.training.execution import Execution
from manigraph.training.schedule import SuperConvergence

BAD = {"largest_class": 0.97, "attention_entropy": 0.995, "prototype_similarity": 0.9995}
GOOD = {"largest_class": 0.94, "attention_entropy": 0.98, "prototype_similarity": 0.99}
every_kind = pytest.mark.parametrize("name", KINDS)


def warned(values: Sequence[float], sign: str, watch: CollapseWatch | None = None) -> list[int]:
    """Numbers of the records, from 1, at which a run with these values of one sign was warned."""
    watch = watch or CollapseWatch()
    told = [watch.see({sign: value}, (i + 1) / len(values)) for i, value in enumerate(values)]
    return [i + 1 for i, warning in enumerate(told) if warning is not None]


@every_kind
def test_a_run_that_is_bad_from_the_start_is_warned_once(name: str) -> None:
    # 48 records of 2.1 %. One class: the first at 2.1 %, counted from 7.1 %, so records 4 to 8. The
    # others: counted from 12.1 %, records 6 to 15.
    sign = KINDS[name].sign
    expected = 8 if name == "one_class" else 15
    assert warned([BAD[sign]] * 48, sign) == [expected]


@every_kind
def test_the_end_of_the_range_is_what_counts(name: str) -> None:
    sign = KINDS[name].sign
    assert warned([GOOD[sign]] * 50, sign) == []
    assert warned([float("nan")] * 50, sign) == []


def test_labels_that_are_uneven_themselves_explain_uneven_predictions() -> None:
    """Of three quarters of the labels in one class, nearly all predictions are too many; of more, all are."""
    for share, values in ((0.75, (0.97, 1.0)), (0.9, (1.0,))):
        for value in (0.97, 1.0):
            told = warned([value] * 48, "largest_class", CollapseWatch(largest_share=share))
            assert told == ([8] if value in values else [])


def test_a_run_knows_how_uneven_its_labels_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    config = digits("supervised")
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, labels=None, validation=0), batch=BatchConfig(4, 4)
    )
    for name, few, expected in (("even", 30, [8]), ("uneven", 6, [])):
        classes = (np.arange(60) < few).astype(int)
        with torch.random.fork_rng():
            job = build(config, dataset=from_arrays(pixels, classes))
        session = Session(RunDirectory.create(tmp_path, name), job, Execution(), Silence())
        assert warned([0.97] * 48, "largest_class", session.collapse) == expected


@every_kind
def test_one_good_record_starts_the_count_again(name: str) -> None:
    kind = KINDS[name]
    bad = [BAD[kind.sign]] * (kind.records - 1)
    values = [GOOD[kind.sign]] * 10 + [*bad, GOOD[kind.sign]] * 3
    assert warned(values + [GOOD[kind.sign]] * 10, kind.sign) == []
    assert warned([*values, *bad, BAD[kind.sign]], kind.sign) == [len(values) + kind.records]


@every_kind
def test_in_a_long_run_a_share_of_it_must_be_bad(name: str) -> None:
    # 1,000 records: as many in a row as a short run needs are a moment here.
    kind = KINDS[name]
    duration = round(1000 * kind.duration)
    good, bad = GOOD[kind.sign], BAD[kind.sign]
    assert warned([good] * 500 + [bad] * duration + [good] * (500 - duration), kind.sign) == []
    (record,) = warned([good] * 500 + [bad] * 500, kind.sign)
    assert record - (500 + duration) in (1, 2), "up to rounding"


@every_kind
def test_a_run_of_few_records_is_never_warned(name: str) -> None:
    kind = KINDS[name]
    assert warned([BAD[kind.sign]] * (kind.records - 1), kind.sign) == []


@every_kind
def test_a_sign_may_be_bad_when_it_is_new(name: str) -> None:
    # The graph comes in at half of the run; its signs are counted a tenth later.
    kind, watch = KINDS[name], CollapseWatch()
    told = [watch.see({kind.sign: BAD[kind.sign]} if i > 100 else {}, i / 200) for i in range(1, 201)]
    (record,) = [i for i, warning in enumerate(told, start=1) if warning is not None]
    assert record / 200 >= 0.5 + kind.settling + kind.duration


def test_kinds_are_told_one_by_one() -> None:
    watch = CollapseWatch()
    told = [watch.see(BAD, i / 48) for i in range(1, 49)]
    assert [(i, text) for i, text in enumerate(told, start=1) if text is not None] == [
        (8, KINDS["one_class"].warning),
        (15, KINDS["uniform_attention"].warning),
        (16, KINDS["equal_prototypes"].warning),
    ]


@every_kind
@pytest.mark.parametrize("interrupted_at", [1, 5, 7, 8, 12, 14, 15, 30])
def test_an_interrupted_run_warns_as_an_uninterrupted_one(name: str, interrupted_at: int) -> None:
    sign, watch = KINDS[name].sign, CollapseWatch()
    told = []
    for i in range(1, 49):
        if watch.see({sign: BAD[sign]}, i / 48) is not None:
            told.append(i)
        if i == interrupted_at:
            state = json.loads(json.dumps(watch.state_dict()))
            watch = CollapseWatch()
            watch.load_state_dict(state)
    assert told == warned([BAD[sign]] * 48, sign)


@every_kind
def test_the_advice_names_options_that_there_are(name: str) -> None:
    options = re.findall(r"--([a-z]+)\.([a-z_]+)", KINDS[name].warning)
    known = {
        "method": {field.name for field in dataclasses.fields(ManifoldGraphMethod.Config)},
        "schedule": {field.name for field in dataclasses.fields(SuperConvergence)},
    }
    assert options
    assert all(option in known[section] for section, option in options)
    assert "\n" not in KINDS[name].warning
    assert not KINDS[name].warning.endswith(".")


# Real runs


def warnings_of_digits(**method: object) -> list[str]:
    """A few dozen steps of the Π-model on digits with a tiny network, each of them seen."""
    config = digits("pi_model")
    config = dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, **method),
        backbone=BackboneConfig(name="small_cnn", width=0.25),
        batch=BatchConfig(labelled=8, unlabelled=24),
        training=dataclasses.replace(config.training, steps=36, log_every=1),
    )
    with torch.random.fork_rng():
        job, watch, told = build(config), CollapseWatch(), []
        job.trainer.run(job.batches, lambda record: told.append(watch.see(record.health, record.step / 36)))
    return [warning for warning in told if warning is not None]


def test_a_real_collapse_is_told_and_the_same_run_in_health_is_not() -> None:
    # A huge weight on decided predictions, from the first step on: the easiest way is one class for all.
    collapsing = {
        "consistency": "kl",
        "entropy_weight": 300.0,
        "balance_weight": 0.0,
        "balance_memory": 0,
        "ramp_fraction": 0.0,
    }
    assert warnings_of_digits(**collapsing) == [KINDS["one_class"].warning]
    assert warnings_of_digits() == []
