"""Which images are suggested, against naive loops."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from manigraph.build import load_dataset
from manigraph.data.listing import list_images
from manigraph.engine import indices_of, train
from manigraph.errors import UserError
from manigraph.inference.predictor import Predictor
from manigraph.inference.suggest import (
    DEFAULT_STRATEGY,
    SHORT_LIST,
    STRATEGIES,
    Candidates,
    Suggestion,
    as_table,
    candidates_of,
    farthest_first,
    known_labels,
    suggest,
)
from manigraph.runs import RunDirectory
from tests.data.pictures import picture, write_files
from tests.helpers import normal, seeded
from tests.inference.conftest import quick

N, D, C = 60, 5, 4


def made_up(nodes: bool = True) -> Candidates:
    return Candidates.of(
        2 * normal(N, C, seed=1),
        normal(N, D, seed=2),
        normal(6, D, seed=3),
        normal(8, D, seed=4) if nodes else None,
    )


def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
    dot = sum(float(a) * float(b) for a, b in zip(one, two, strict=True))
    return dot / math.sqrt(sum(float(a) ** 2 for a in one) * sum(float(b) ** 2 for b in two))


@pytest.mark.parametrize("nodes", [True, False])
def test_scores_of_each_image(nodes: bool) -> None:
    candidates = made_up(nodes)
    places = normal(8, D, seed=4) if nodes else normal(6, D, seed=3)
    for number, (logits, features) in enumerate(
        zip(2 * normal(N, C, seed=1), normal(N, D, seed=2), strict=True)
    ):
        weights = sorted((math.exp(float(logit)) for logit in logits), reverse=True)
        margin = (weights[0] - weights[1]) / sum(weights)
        assert candidates.uncertainty[number].item() == pytest.approx(1 - margin)
        nearest = max(cosine(features, place) for place in places)
        assert candidates.distance[number].item() == pytest.approx(1 - nearest)


@pytest.mark.parametrize("weighted", [True, False])
def test_farthest_first_takes_the_farthest_every_time(weighted: bool) -> None:
    candidates = made_up()
    weights = candidates.uncertainty if weighted else None
    features, given = normal(N, D, seed=2), normal(6, D, seed=3)
    chosen: list[int] = []
    for _ in range(7):
        worth = {}
        for i in range(N):
            places = [*given, *(features[c] for c in chosen)]
            distance = min(1 - cosine(features[i], place) for place in places)
            worth[i] = distance * (1.0 if weights is None else float(weights[i]))
        chosen.append(max((i for i in worth if i not in chosen), key=lambda i: worth[i]))
    found = farthest_first(candidates.features, 7, given=candidates.labelled, weights=weights)
    assert found.tolist() == chosen
    name = "uncertain and far" if weighted else "diversity"
    assert STRATEGIES[name](candidates, 7, seeded()).tolist() == chosen


def test_the_most_uncertain_and_the_farthest() -> None:
    candidates = made_up()
    for name, scores in (("uncertainty", candidates.uncertainty), ("distance", candidates.distance)):
        expected = sorted(range(N), key=lambda i: -float(scores[i]))[:9]
        assert STRATEGIES[name](candidates, 9, seeded()).tolist() == expected


def test_of_each_group_of_uncertain_images_one_is_chosen() -> None:
    """Two uncertain groups and one sure one: an image out of each uncertain group, none of the sure."""
    centres = torch.eye(3, dtype=torch.float64).repeat_interleave(10, dim=0)
    features = centres + 0.05 * normal(30, 3, seed=5)
    logits = torch.zeros(30, 2)
    logits[20:, 0] = 20.0
    logits[:20, 0] = torch.linspace(0.1, 0.3, 20)
    candidates = Candidates.of(logits, features, normal(2, 3), None)
    chosen = STRATEGIES["uncertain groups"](candidates, 2, seeded()).tolist()
    assert sorted(index // 10 for index in chosen) == [0, 1]
    assert chosen == STRATEGIES["uncertain groups"](candidates, 2, seeded()).tolist()
    # The most uncertain ones alone are all of one group.
    assert {index // 10 for index in STRATEGIES["uncertainty"](candidates, 2, seeded()).tolist()} == {0}


def test_of_the_largest_groups_without_a_label_one_is_chosen() -> None:
    """Groups of 5, 10 and 12 images; the one of 10 has a label."""
    directions = torch.eye(3, dtype=torch.float64)
    features = directions.repeat_interleave(torch.tensor([5, 10, 12]), dim=0) + 0.05 * normal(27, 3, seed=5)
    candidates = Candidates.of(normal(27, C), features, directions[1:2], None)
    chosen = STRATEGIES["typical groups"](candidates, 2, seeded()).tolist()
    assert chosen[0] >= 15
    assert chosen[1] < 5
    own = candidates.features[15:].double()
    centre = own.mean(dim=0)
    distances = [math.dist(centre.tolist(), image.tolist()) for image in own]
    assert chosen[0] == 15 + distances.index(min(distances))


def test_groups_are_weighted_by_uncertainty() -> None:
    """One group: its middle is the image nearest to the weighted mean of all."""
    candidates = made_up()
    weights = candidates.uncertainty.tolist()
    mean = [
        sum(w * float(image[d]) for w, image in zip(weights, candidates.features, strict=True)) / sum(weights)
        for d in range(D)
    ]
    distances = [math.dist(mean, image.tolist()) for image in candidates.features]
    expected = distances.index(min(distances))
    assert STRATEGIES["weighted groups"](candidates, 1, seeded()).tolist() == [expected]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [1, 10, N])
def test_every_strategy_chooses_as_many_as_asked_for(name: str, count: int) -> None:
    chosen = STRATEGIES[name](made_up(), count, seeded())
    assert len(chosen) == len(set(chosen.tolist())) == count
    if name.startswith("uncertain groups") and SHORT_LIST * count < N:
        most = STRATEGIES["uncertainty"](made_up(), SHORT_LIST * count, seeded())
        assert torch.isin(chosen, most).all()


@pytest.mark.parametrize("name", STRATEGIES)
def test_copies_of_one_image_are_no_trouble(name: str) -> None:
    same = Candidates.of(torch.zeros(12, C), torch.ones(12, D), torch.ones(1, D), torch.ones(2, D))
    assert len(set(STRATEGIES[name](same, 5, seeded()).tolist())) == 5


def test_only_unlabelled_images_are_suggested(run_of: Callable[[str], RunDirectory]) -> None:
    predictor = Predictor.load(run_of("shared").path)
    dataset = load_dataset(predictor.trained.config.data)
    unlabelled = indices_of(predictor.run, "unlabelled")
    suggestions = suggest(predictor, dataset, 12)
    assert [s.rank for s in suggestions] == list(range(1, 13))
    assert {s.index for s in suggestions} <= set(unlabelled.tolist())
    assert len({s.index for s in suggestions}) == 12
    nodes = predictor.nodes
    assert nodes is not None
    for s in suggestions:
        answers = predictor(dataset.images[s.index][None])
        probs, classes = answers.probabilities[0].double().sort(descending=True)
        assert s.predicted == str(int(classes[0]))
        assert s.probability == pytest.approx(float(probs[0]), abs=1e-5)
        assert s.second_probability == pytest.approx(float(probs[1]), abs=1e-5)
        assert s.uncertainty == pytest.approx(1 - float(probs[0] - probs[1]), abs=1e-5)
        nearest = max(cosine(answers.features[0], p) for p in nodes.prototypes)
        assert s.distance == pytest.approx(1 - nearest, abs=1e-5)
    assert suggestions == suggest(predictor, dataset, 12)
    assert len(suggest(predictor, dataset, 10**6, strategy="uncertainty")) == len(unlabelled)


def test_reasons_say_what_stands_out(run_of: Callable[[str], RunDirectory]) -> None:
    predictor = Predictor.load(run_of("shared").path)
    dataset = load_dataset(predictor.trained.config.data)
    candidates, indices = candidates_of(predictor, dataset)
    places = {int(index): place for place, index in enumerate(indices)}
    uncertainty, distance = candidates.uncertainty.tolist(), candidates.distance.tolist()
    seen = set()
    for s in suggest(predictor, dataset, 200, strategy="random"):
        place = places[s.index]
        more_sure = sum(u < uncertainty[place] for u in uncertainty) / len(indices)
        nearer = sum(d < distance[place] for d in distance) / len(indices)
        expected = "varied"
        if max(more_sure, nearer) >= 0.75:
            expected = "uncertain" if more_sure >= nearer else "unfamiliar"
        assert s.reason == expected
        seen.add(s.reason)
    assert seen == {"varied", "uncertain", "unfamiliar"}


def test_without_a_graph_distance_is_to_labelled_images(tmp_path: Path) -> None:
    run, _ = train(quick("pi_vat"), tmp_path)
    predictor = Predictor.load(run.path)
    dataset = load_dataset(predictor.trained.config.data)
    candidates, _ = candidates_of(predictor, dataset)
    assert candidates.nodes is None
    labelled = predictor(dataset.images[indices_of(run, "labelled")]).features
    own = predictor(dataset.images[indices_of(run, "unlabelled")[:1]]).features[0]
    expected = 1 - max(cosine(own, features) for features in labelled)
    assert candidates.distance[0].item() == pytest.approx(expected, abs=1e-5)


def test_nothing_left_to_label(tmp_path: Path) -> None:
    config = quick("supervised")
    config = replace(config, data=replace(config.data, labels=1297, validation=0, stratify="proportional"))
    predictor = Predictor.load(train(config, tmp_path)[0].path)
    dataset = load_dataset(config.data)
    with pytest.raises(UserError, match="there is nothing left to label"):
        suggest(predictor, dataset, 5)


def test_the_table_can_be_filled_in(run_of: Callable[[str], RunDirectory]) -> None:
    predictor = Predictor.load(run_of("shared").path)
    dataset = load_dataset(predictor.trained.config.data)
    assert known_labels(predictor, dataset) is None
    suggestions = suggest(predictor, dataset, 3)
    rows = list(csv.DictReader(io.StringIO(as_table(suggestions))))
    assert [int(row["index"]) for row in rows] == [s.index for s in suggestions]
    assert "label" not in rows[0]
    named = replace(dataset, paths=[f"a, {i}.png" for i in range(len(dataset.images))])
    known = known_labels(predictor, named)
    assert known is not None
    split = {p: indices_of(predictor.run, p).tolist() for p in ("labelled", "validation", "test")}
    assert known == {f"a, {i}.png": str(int(dataset.classes[i])) for part in split.values() for i in part}
    rows = list(csv.DictReader(io.StringIO(as_table(suggest(predictor, named, 3), known))))
    assert list(rows[0])[:2] == ["path", "label"]
    assert [row["path"] for row in rows[:3]] == [f"a, {s.index}.png" for s in suggestions]
    assert [row["label"] for row in rows[:3]] == ["", "", ""]
    assert {row["path"]: row["label"] for row in rows[3:]} == known
    np.testing.assert_allclose(
        [float(row["uncertainty"]) for row in rows[:3]], [s.uncertainty for s in suggestions]
    )


def test_no_path_is_a_formula_and_all_are_read_back(tmp_path: Path) -> None:
    paths = ["=1+1.png", "+a/x.png", "-b.png", "@c.png", "  =d.png", "\t-e.png", "e=f.png", "a/-g.png"]
    names = ["=1", "-cat", "-1", "@\x1b[2Jred"]
    write_files(tmp_path, ((path, picture(i)) for i, path in enumerate(paths)))
    chosen = [
        Suggestion(i + 1, i, path, name, 0.5, name, 0.4, 0.9, 0.1, "varied")
        for i, (path, name) in enumerate(zip(paths[:4], names, strict=True))
    ]
    known = dict(zip(paths[4:], ("cat", "dog", "cat", "dog"), strict=True))
    text = as_table(chosen, known)
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert not cell.lstrip().startswith(("=", "+", "@"))
            assert not cell.lstrip().startswith("-") or float(cell)
            assert "\x1b" not in cell
    (tmp_path / "suggestions.csv").write_text(text, encoding="utf-8")
    listing = list_images(tmp_path / "suggestions.csv")
    assert not listing.problems
    assert {item.name: item.label for item in listing.items} == {**dict.fromkeys(paths[:4]), **known}
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["path"] for row in rows[-2:]] == ["e=f.png", "a/-g.png"]
    assert [row["predicted"] for row in rows[:4]] == ["'=1", "'-cat", "-1", r"'@\x1b[2Jred"]


def test_the_default_is_a_strategy() -> None:
    assert DEFAULT_STRATEGY in STRATEGIES
