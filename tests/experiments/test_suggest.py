"""The simulation of rounds of labelling: what it adds, what it keeps, and what the page says of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from manigraph.build import split_dataset
from manigraph.config import BackboneConfig, Config
from manigraph.experiments import suggest
from manigraph.experiments.suggest import (
    REPORTED,
    REPORTED_SEEDS,
    ROUNDS,
    SCENARIOS,
    Results,
    Scenario,
    choice_table,
    reported_table,
    simulate,
    with_labels,
)
from manigraph.inference.suggest import DEFAULT_STRATEGY, STRATEGIES
from tests.data.test_benchmarks import write_fashion

ROOT = Path(__file__).parent.parent.parent
COMMITTED = ROOT / "results" / "suggest.json"


def tiny() -> Config[Any]:
    config = SCENARIOS["digits"].config()
    return replace(
        config,
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=replace(config.training, steps=2, log_every=1),
    )


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    made = Scenario(10, tiny, side=8)
    monkeypatch.setattr(suggest, "SCENARIOS", {"digits": made})
    return made


def test_rounds_add_the_labels_that_were_asked_for(scenario: Scenario, tmp_path: Path) -> None:
    dataset, results = scenario.dataset(), Results(tmp_path / "results.json")
    strategies = ("random", "uncertain groups")
    made = list(simulate(results, "digits", 3, strategies, dataset, rounds=2))
    expected = [("", 0, 10), *((name, number, 10 * number + 10) for name in strategies for number in (1, 2))]
    assert [(r.strategy, r.round, r.labels) for r in made] == expected
    start, first, second = made[0], made[1], made[2]
    assert set(start.wanted) == set(STRATEGIES)
    split = split_dataset(scenario.round_config(3).data, dataset, 3)
    assert start.split == split.digest
    held_out = set(split.validation.tolist()) | set(split.test.tolist())
    after_one = with_labels(split, torch.tensor(start.wanted["random"]))
    assert first.split == after_one.digest
    assert second.split == with_labels(after_one, torch.tensor(first.wanted["random"])).digest
    for result in made:
        for wanted in result.wanted.values():
            assert len(set(wanted)) == 10
            assert not set(wanted) & (held_out | set(split.labelled.tolist()))
    # What was measured is not measured again, and a stopped simulation goes on where it was.
    again = Results(tmp_path / "results.json")
    assert not list(simulate(again, "digits", 3, strategies, dataset, rounds=2))
    third = list(simulate(again, "digits", 3, strategies, dataset, rounds=3))
    assert [(r.strategy, r.round) for r in third] == [("random", 3), ("uncertain groups", 3)]
    # A round counts only with the labels it was measured with.
    key = ("digits", 3, 1, "random")
    known = set(again.all[key].wanted["random"])
    other = next(index for index in after_one.unlabelled.tolist() if index not in known)
    changed = replace(
        again.all[key],
        wanted={"random": [*again.all[key].wanted["random"][:-1], other]},
    )
    again.add(changed)
    repeated = list(simulate(again, "digits", 3, ("random",), dataset, rounds=2))
    assert [r.round for r in repeated] == [2]
    values = json.loads((tmp_path / "results.json").read_text())
    assert values["command"][:3] == ["python", "-m", "manigraph.experiments.suggest"]
    assert values["machine"]["cores"]


def test_labels_come_out_of_the_unlabelled_images(scenario: Scenario) -> None:
    dataset = scenario.dataset()
    split = split_dataset(scenario.round_config(0).data, dataset, 0)
    wanted = split.unlabelled[5:8]
    after = with_labels(split, wanted)
    assert after.labelled.tolist() == [*split.labelled.tolist(), *wanted.tolist()]
    assert sorted([*after.unlabelled.tolist(), *wanted.tolist()]) == sorted(split.unlabelled.tolist())
    assert torch.equal(after.validation, split.validation)
    with pytest.raises(AssertionError, match="only unlabelled images"):
        with_labels(split, split.test[:1])


def test_images_are_averaged_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion(tmp_path / "fashion_mnist", suffix="")
    monkeypatch.setenv("MANIGRAPH_DATA", str(tmp_path))
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    scenario = SCENARIOS["fashion_mnist"]
    whole = replace(scenario, side=28).dataset()
    half = replace(scenario, train_images=5).dataset()
    assert whole.input_shape == (1, 28, 28)
    assert half.input_shape == (1, 14, 14)
    expected = whole.images[7, 0, 2:4, 4:6].float().mean()
    assert abs(float(half.images[7, 0, 1, 2] - expected)) <= 0.5
    assert len(whole.train) == 11
    assert half.train.tolist() == whole.train[:5].tolist()
    assert torch.equal(half.test, whole.test)


def test_the_page_has_the_figures_of_the_committed_results() -> None:
    results = Results(COMMITTED)
    page = (ROOT / "docs" / "suggest.md").read_text(encoding="utf-8")
    assert reported_table(results) in page
    assert choice_table(results) in page


def test_every_committed_result_is_one_of_todays_settings() -> None:
    results = Results(COMMITTED)
    for result in results.all.values():
        assert result.digest == SCENARIOS[result.data].digest()
    for data in SCENARIOS:
        for seed in REPORTED_SEEDS:
            for strategy in REPORTED:
                for number in range(1, ROUNDS + 1):
                    result = results.all[data, seed, number, strategy]
                    assert result.labels == SCENARIOS[data].labels * (number + 1)


def test_the_default_is_the_best_by_the_choice() -> None:
    """Mean over data sets of the validation error by that of random choice, same seeds and rounds."""
    results = Results(COMMITTED)
    ratios = suggest.choice_ratios(results)
    assert min(ratios, key=lambda name: ratios[name]) == DEFAULT_STRATEGY
