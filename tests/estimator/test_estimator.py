"""`fit`, `predict` and the rest, on images, files and vectors; what scikit-learn's tools make of them."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from manigraph import ManifoldGraphClassifier, SemiSupervisedClassifier
from manigraph.catalogue import ALGORITHMS
from manigraph.estimator.inputs import first_inputs
from manigraph.inference.predictor import Predictor
from tests.estimator.data import Array, blobs, digits, hidden

FEW_UPDATES = pytest.mark.filterwarnings("ignore:after . updates all predictions")


def small(**settings: Any) -> SemiSupervisedClassifier:
    """An estimator that is fitted in a moment."""
    quick = {
        "algorithm": "pi_model",
        "width": 0.25,
        "unlabelled_batch": 64,
        "max_iter": 12,
        "random_state": 0,
    }
    return SemiSupervisedClassifier(**{**quick, **settings})


def fitted(**settings: Any) -> tuple[SemiSupervisedClassifier, Array, Array]:
    """The same, fitted to vectors of which two in a class are labelled; the vectors; the truth."""
    X, truth = blobs()
    return small(**settings).fit(X, hidden(truth, 2)), X, truth


# What can be given as X


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_method_learns_blobs(algorithm: str) -> None:
    model, X, truth = fitted(algorithm=algorithm, max_iter=40)
    assert model.score(X, truth) > 0.9
    probs = model.predict_proba(X)
    assert probs.shape == (len(X), 3)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert model.predict(X).tolist() == probs.argmax(axis=1).tolist()
    features = model.transform(X)
    assert features.shape == (len(X), len(model.get_feature_names_out()))


def as_bytes(images: Array) -> Array:
    return (images * 15.9).astype(np.uint8)


def objects(rows: Array) -> Array:
    """A row of arrays."""
    array = np.empty(len(rows), dtype=object)
    array[:] = list(rows)
    return array


FORMS: dict[str, Callable[[Array], Any]] = {
    "ints": lambda images: as_bytes(images).astype(np.int64),
    "channel": lambda images: as_bytes(images)[..., None],
    "unit": lambda images: as_bytes(images) / 255,
    "tensor": lambda images: torch.from_numpy(as_bytes(images)).unsqueeze(1),
    "pillow": lambda images: [Image.fromarray(image) for image in as_bytes(images)],
    "lists": lambda images: as_bytes(images).tolist(),
    "objects": lambda images: objects(as_bytes(images)),
    "series": lambda images: pandas.Series(list(as_bytes(images))),
    "tensors": lambda images: list(torch.from_numpy(as_bytes(images) / 255).requires_grad_()),
    "learned": lambda images: torch.from_numpy(as_bytes(images) / 255).requires_grad_(),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_in_all_forms(form: str) -> None:
    images, truth = digits(40)
    y = hidden(truth, 2)
    X = FORMS[form](images)
    expected = small(max_iter=2).fit(as_bytes(images), y).predict_proba(as_bytes(images))
    np.testing.assert_allclose(small(max_iter=2).fit(X, y).predict_proba(X), expected, rtol=1e-6)


def test_bfloat16() -> None:
    images, truth = digits(40)
    X = torch.from_numpy(images).bfloat16()  # which has all whole numbers up to 256
    expected = small(max_iter=2).fit(images, hidden(truth, 2)).predict_proba(images)
    for same in (X, list(X)):
        np.testing.assert_array_equal(
            small(max_iter=2).fit(same, hidden(truth, 2)).predict_proba(X), expected
        )


@pytest.mark.parametrize(
    "form",
    [
        lambda X: torch.from_numpy(X).requires_grad_(),
        lambda X: list(torch.from_numpy(X).requires_grad_()),
        lambda X: objects(X),
        lambda X: pandas.DataFrame({"embedding": list(X)})["embedding"],
    ],
    ids=["learned", "tensors", "objects", "column"],
)
def test_vectors_in_all_forms(form: Any) -> None:
    model, X, truth = fitted()
    again = small().fit(form(X), hidden(truth, 2))
    np.testing.assert_array_equal(again.predict_proba(form(X)), model.predict_proba(X))


def test_vectors_of_bfloat16() -> None:
    X, truth = blobs()
    rounded = torch.from_numpy(X).bfloat16()
    model = small(max_iter=40).fit(rounded, hidden(truth, 2))
    np.testing.assert_array_equal(model.predict_proba(rounded), model.predict_proba(rounded.double()))
    assert model.score(rounded, truth) > 0.9


@FEW_UPDATES
def test_colours() -> None:
    generator = np.random.default_rng(0)
    X = generator.integers(0, 256, (6, 12, 8, 3), dtype=np.uint8)
    model = small(max_iter=1).fit(X, [0, 1, -1, -1, -1, -1])
    assert model._format.shape == (3, 12, 8)
    first = torch.from_numpy(X).permute(0, 3, 1, 2)
    other = small(max_iter=1).fit(first, [0, 1, -1, -1, -1, -1])
    np.testing.assert_array_equal(other.predict_proba(first), model.predict_proba(X))


def test_images_are_learned() -> None:
    images, truth = digits()
    model = ManifoldGraphClassifier(max_iter=30, random_state=0, unlabelled_batch=32)
    assert model.fit(images, hidden(truth, 8)).score(images, truth) > 0.6
    assert model.transform(images[:2]).shape == (2, 256)


def test_pixels_are_used_alike_whatever_their_scale() -> None:
    images, truth = digits(40)
    y = hidden(truth, 2)
    forms = (images / 16, images, images.astype(np.float32) / 8 - 1)
    expected, *others = (small(max_iter=2).fit(X, y).predict_proba(X) for X in forms)
    for probs in others:
        np.testing.assert_allclose(probs, expected, atol=1e-6)


@FEW_UPDATES
def test_larger_images_get_a_larger_network_and_tiny_ones_none_of_convolutions() -> None:
    generator = np.random.default_rng(0)
    y = [0, 1, -1, -1]
    names = {}
    for side in (4, 8, 16, 20):
        X = generator.integers(0, 256, (4, side, side), dtype=np.uint8)
        model = small(max_iter=1, width=None).fit(X, y)
        names[side] = (model.config_.backbone.name, model.config_.backbone.width)
    assert names == {
        4: ("mlp", 1.0),
        8: ("small_cnn", 1.0),
        16: ("small_cnn", 1.0),
        20: ("cnn13", 0.25),
    }


def write(folder: Path, images: Array) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


@FEW_UPDATES
@pytest.mark.parametrize(
    "kind",
    [
        list,
        lambda paths: [str(path) for path in paths],
        np.array,
        pandas.Series,
        lambda paths: pandas.Series(map(str, paths), index=range(len(paths), 0, -1)),
        lambda paths: pandas.Series(map(str, paths), dtype="string").array,
    ],
    ids=["paths", "names", "array", "series", "series-of-text", "array-of-text"],
)
def test_names_of_files(kind: Any, tmp_path: Path) -> None:
    images, truth = digits(40)
    X = kind(write(tmp_path, as_bytes(images)))
    y = hidden(truth, 2)
    before = sorted(tmp_path.iterdir())
    from_files = small(max_iter=3).fit(X, y)
    assert from_files._format.shape == (1, 8, 8)
    from_arrays = small(max_iter=3).fit(as_bytes(images), y)
    np.testing.assert_allclose(from_files.predict_proba(X), from_arrays.predict_proba(as_bytes(images)))
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


@FEW_UPDATES
def test_files_of_different_sizes_are_made_alike(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = []
    for number, (height, width) in enumerate([(30, 40), (22, 21), (50, 23), (300, 200)]):
        X.append(tmp_path / f"{number}.png")
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(X[-1])
    assert small(max_iter=1).fit(X, [0, 1, -1, -1])._format.shape == (3, 20, 20)
    assert small(max_iter=1, image_size=16).fit(X, [0, 1, -1, -1])._format.shape == (3, 16, 16)


@FEW_UPDATES
def test_one_odd_file_does_not_decide_the_size_of_all(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = []
    for number, side in enumerate([8, *[40] * 6]):
        X.append(tmp_path / f"{number}.png")
        Image.fromarray(generator.integers(0, 256, (side, side), dtype=np.uint8)).save(X[-1])
    assert small(max_iter=1).fit(X, [0, 1, *[-1] * 5])._format.shape == (1, 40, 40)


# What a run that was written answers for files


@FEW_UPDATES
@pytest.mark.parametrize(
    ("given", "in_files"),
    [
        (lambda images: (4 * images).astype(np.uint8), lambda images: 4 * images),
        (lambda images: (4 * images).astype(np.int64), lambda images: 4 * images),
        (lambda images: 4 * images, lambda images: 4 * images),
        (lambda images: images.astype(np.uint8), lambda images: images),
        (lambda images: images, lambda images: (255 / 16 * images).round()),
        (lambda images: images.astype(np.int64), lambda images: (255 / 16 * images).round()),
    ],
    ids=["dark-bytes", "dark-ints", "dark-floats", "digits-bytes", "digits-floats", "digits-ints"],
)
def test_a_run_answers_for_files_as_for_arrays(given: Any, in_files: Any, tmp_path: Path) -> None:
    images, truth = digits(40)
    X = given(images)
    model = small(max_iter=4, runs=tmp_path / "runs").fit(X, hidden(truth, 2))
    (tmp_path / "files").mkdir()
    paths = write(tmp_path / "files", in_files(images).astype(np.uint8))
    answers = Predictor.load(model.run_).predict_files(paths)
    probs = np.array([answer.probabilities for answer in answers])
    np.testing.assert_allclose(probs, model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize(
    ("pixels", "white"),
    [
        (np.array([0, 9], np.uint8), 255),
        (np.array([0, 1]), 1),
        (np.array([0, 9]), 16),
        (np.array([0.0, 16.0]), 16),
        (np.array([0.0, 90.0]), 255),
        (np.array([0.5, 90.5], np.float32), 255),
        (np.array([0.5, 20.5]), 20.5),
        (np.array([-0.5, 90.5]), 90.5),
        (np.array([0.5, 0.7]), 1),
        (np.array([0.0, 4095.0]), 4095),
    ],
)
def test_the_value_of_white(pixels: Array, white: float) -> None:
    images = np.tile(pixels, (4, 8, 4))
    format_, stored = first_inputs(None, images, None)
    assert format_.high == white
    scaled = (images - format_.low) / (white - format_.low)
    np.testing.assert_allclose(stored.squeeze(1) / 255, scaled, atol=0.5 / 255 + 1e-6)


@FEW_UPDATES
@pytest.mark.parametrize("runs", [False, True])
def test_bytes_that_strong_views_take_for_black_are_noted(runs: bool, tmp_path: Path) -> None:
    images, truth = digits(40)
    y = hidden(truth, 2)
    settings = {"max_iter": 1, "runs": tmp_path / "runs"} if runs else {"max_iter": 1}
    fixmatch = small(algorithm="fixmatch", **settings).fit(images.astype(np.uint8), y)
    assert fixmatch.notes_[-1].startswith("the brightest pixel is 16 of 255, so strong views are made as of")
    assert small(**settings).fit(images.astype(np.uint8), y).notes_ == []
    assert small(algorithm="fixmatch", **settings).fit(images, y).notes_ == []


def test_pixels_of_another_scale_are_warned_of() -> None:
    images, truth = digits(40)
    model = small(max_iter=2).fit(images, hidden(truth, 2))
    said = "pixels reach from 0 to 1 only, those given to fit from 0 to 16: unless these images are so dull"
    with pytest.warns(UserWarning, match=said) as caught:
        model.predict_proba(images / 16)
    assert caught[0].filename == __file__
    model.predict_proba(images / 4)
    model.predict_proba(np.zeros_like(images))
    ints = small(max_iter=2).fit(as_bytes(images), hidden(truth, 2))
    with pytest.warns(UserWarning, match="from 0 to 15 only, those given to fit from 0 to 254"):
        ints.predict(as_bytes(images) // 16)


def test_ready_made_features_with_the_graph_alone() -> None:
    X, truth = blobs()
    model = ManifoldGraphClassifier(backbone="head", max_iter=150, random_state=0).fit(X, hidden(truth, 2))
    assert not any(name.startswith("model.backbone.") for name in model._weights)
    assert model.score(X, truth) > 0.95
    assert model.transform(X).shape == X.shape


# Labels


@pytest.mark.parametrize(
    ("names", "mark"),
    [
        (np.array(["cat", "dog", "owl"], dtype=object), None),
        (np.array(["cat", "dog", "owl"], dtype=object), np.nan),
        (np.array(["cat", "dog", "owl"], dtype=object), -1),
        (np.array(["cat", "dog", "owl"], dtype=object), "-1"),
        (np.array(["cat", "dog", "owl"]), "-1"),
        (np.array(["cat", "dog", "owl"], dtype=object), ""),
        (np.array(["cat", "dog", "owl"]), ""),
        (np.array(["cat", "dog", "owl"]), " "),
        (np.array([10, 20, 70]), -1),
        (np.array([1.0, 2.0, 7.0]), np.nan),
        (np.array([1, 2, 7], dtype=object), None),
        (np.array([("a", 1), ("a", 2), ("b", 1), None], dtype=object)[:3], None),
        (np.array([frozenset("a"), frozenset("b"), 3j], dtype=object), None),
    ],
    ids=[
        "none",
        "nan",
        "minus-one",
        "text-object",
        "text",
        "empty-object",
        "empty",
        "blank",
        "ints",
        "floats",
        "objects",
        "tuples",
        "unordered",
    ],
)
def test_labels_of_any_kind(names: Array, mark: Any) -> None:
    X, truth = blobs()
    numbers = hidden(truth, 2)
    y = np.empty(len(X), dtype=names.dtype if names.dtype != object else object)
    y[:] = [mark if number < 0 else names[number] for number in numbers]
    model = small(max_iter=40).fit(X, y)
    assert set(model.classes_) == set(names.tolist())
    expected = [names[number] for number in truth]
    found = model.predict(X).tolist()
    assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.9
    assert np.isin(numbers, -1).sum() == 84
    assert model.score(X, y) > 0.9


def test_lists_may_mix_labels_and_none() -> None:
    X, truth = blobs()
    y = [None if number < 0 else "abc"[number] for number in hidden(truth, 2)]
    assert small().fit(X, y).classes_.tolist() == ["a", "b", "c"]


def test_truth_values_are_classes() -> None:
    X, truth = blobs(classes=2)
    model = small(max_iter=30).fit(X, truth == 1)
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == np.bool_


def test_pandas_objects() -> None:
    X, truth = blobs()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    y = pandas.Series(hidden(truth, 2)).astype("Int64").replace(-1, pandas.NA)
    model = small(max_iter=30).fit(frame, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.score(frame, truth) > 0.9


def test_minus_one_is_a_class_if_so_wished() -> None:
    X, truth = blobs(classes=2)
    y = np.where(truth == 1, 1, -1)
    with pytest.raises(ValueError, match=r"only one class, 1: .*-1 means unlabelled.*set unlabelled=None"):
        small().fit(X, y)
    model = small(unlabelled=None, max_iter=30).fit(X, y)
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(X, y) > 0.9


def test_another_label_may_mean_unlabelled() -> None:
    X, truth = blobs()
    y = np.array(["a", "b", "c", "?"])[hidden(truth, 2)]
    assert small(unlabelled="?").fit(X, y).classes_.tolist() == ["a", "b", "c"]


def test_rows_without_label_do_not_count_in_the_score() -> None:
    model, X, truth = fitted(max_iter=40)
    wrong = truth.copy()
    wrong[:10] = (truth[:10] + 1) % 3
    wrong[20:] = -1
    right = (model.predict(X[:20]) == wrong[:20]).mean()
    assert model.score(X, wrong) == pytest.approx(right)
    weights = np.where(np.arange(len(X)) < 10, 0.0, 1.0)
    assert model.score(X, wrong, weights) == pytest.approx((model.predict(X[10:20]) == wrong[10:20]).mean())


# scikit-learn's tools


def test_in_a_pipeline() -> None:
    X, truth = blobs()
    model = make_pipeline(StandardScaler(), small(max_iter=30)).fit(X, hidden(truth, 2))
    assert model.score(X, truth) > 0.9
    features = make_pipeline(small(max_iter=30), LogisticRegression())
    assert features.fit(X, truth).score(X, truth) > 0.9


def test_cross_validation_with_unlabelled_rows() -> None:
    X, truth = blobs()
    scores = cross_val_score(small(max_iter=30), X, hidden(truth, 6), cv=2)
    assert scores.min() > 0.9


def test_grid_search_over_settings() -> None:
    X, truth = blobs()
    grid = {"prototypes_per_class": [1, 3], "settings": [None, {"margin_angle": 0.05}]}
    model = ManifoldGraphClassifier(max_iter=6, random_state=0)
    search = GridSearchCV(model, grid, cv=2).fit(X, hidden(truth, 6))
    assert search.best_estimator_.config_.method.prototypes_per_class in (1, 3)
    assert len(search.cv_results_["params"]) == 4


def test_in_parallel_as_one_after_the_other() -> None:
    X, truth = blobs()
    y = hidden(truth, 2)

    def probs(seed: int) -> Array:
        return small(random_state=seed, max_iter=5, dropout=0.5).fit(X, y).predict_proba(X)

    expected = [probs(seed) for seed in range(12)]
    found = joblib.Parallel(n_jobs=4, backend="threading")(joblib.delayed(probs)(s) for s in range(12))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_other_processes() -> None:
    X, truth = blobs(30)
    search = GridSearchCV(small(), {"max_iter": [1, 2]}, cv=2, n_jobs=2, error_score="raise")
    assert search.fit(X, truth).best_estimator_.n_iter_ in (1, 2)


def test_clone_and_parameters() -> None:
    model = ManifoldGraphClassifier(epsilon=0.5, settings={"scale": 2.0}, augmentation={"flip": True})
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert repr(copy) == repr(model)
    assert copy.set_params(num_heads=2).num_heads == 2


def test_joblib_keeps_a_fitted_estimator(tmp_path: Path) -> None:
    model, X, _ = fitted()
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).transform(X), model.transform(X))


# Training


def test_the_same_random_state_gives_the_same_and_leaves_the_callers_numbers_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, X, _ = fitted(random_state=5)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(fitted(random_state=5)[0].predict_proba(X), one.predict_proba(X))
    assert (fitted(random_state=6)[0].predict_proba(X) != one.predict_proba(X)).any()
    drawn = fitted(random_state=np.random.RandomState(5))[0].predict_proba(X)
    np.testing.assert_array_equal(drawn, one.predict_proba(X))


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitted()
    assert list(tmp_path.iterdir()) == []
    model, X, truth = fitted(runs="runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [model.run_.name]
    np.testing.assert_array_equal(model.predict_proba(X), fitted()[0].predict_proba(X))
    again = clone(model).fit(X, hidden(truth, 2))
    assert again.run_ != model.run_


def test_warm_start_goes_on_from_the_weights() -> None:
    X, truth = blobs()
    few, more = hidden(truth, 1), hidden(truth, 4)
    cold = small(max_iter=2).fit(X, more)
    warm = small(max_iter=60, warm_start=True).fit(X, few)
    warm.set_params(max_iter=2).fit(X, more)
    assert warm.n_iter_ == 2
    assert warm.loss_ < 0.7 * cold.loss_
    assert warm.score(X, truth) > 0.9
    assert small(max_iter=2, warm_start=True).fit(X, more).loss_ == cold.loss_, (
        "there is nothing to go on from"
    )


def test_length_of_training() -> None:
    model, *_ = fitted(max_iter=7)
    assert model.n_iter_ == 7
    hurried, *_ = fitted(max_iter=2000, minutes=0.0005)
    assert 1 <= hurried.n_iter_ < 1000
    assert hurried.config_.training.steps == hurried.n_iter_
    small_data = SemiSupervisedClassifier()._config(model._format, [2, 2, 2], 90)
    large_data = SemiSupervisedClassifier()._config(model._format, [2, 2, 2], 5_000)
    assert (small_data.training.steps, large_data.training.steps) == (1000, 1954)
    assert SemiSupervisedClassifier()._config(model._format, [2, 2], 10**6).training.steps == 3000


def test_progress_is_shown_only_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    fitted()
    assert capsys.readouterr() == ("", "")
    X, truth = blobs()
    small(verbose=True, max_iter=20).fit(X, truth)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("[SemiSupervisedClassifier] update 2 of 20, loss ")
    assert lines[-1].endswith("all rows have labels: the unlabelled part of training uses the same rows")


def test_batches_are_no_larger_than_the_data() -> None:
    X, truth = blobs(12)
    config = small().fit(X, hidden(truth, 1)).config_
    assert (config.batch.labelled, config.batch.unlabelled) == (6, 12)
    X, truth = blobs(300)
    config = small(max_iter=1).fit(X, truth).config_
    assert (config.batch.labelled, config.batch.unlabelled) == (32, 64)


def test_classes_are_expected_alike_or_as_the_labels_are() -> None:
    X, truth = blobs()
    even = small(max_iter=1).fit(X, hidden(truth, 2)).config_.method
    y = np.where(hidden(truth, 20) == 0, 0, hidden(truth, 2))
    model = small(max_iter=1).fit(X, y)
    uneven = model.config_.method
    assert (even.balance_weight, even.balance_memory, even.class_shares) == (1.0, 1280, ())
    assert (uneven.balance_weight, uneven.balance_memory) == (1.0, 1280)
    assert uneven.class_shares[0] > 3 * max(uneven.class_shares[1:])
    assert [note for note in model.notes_ if "as frequent as their labels" in note]


def test_settings_reach_the_method() -> None:
    X, truth = blobs()
    y = hidden(truth, 2)
    model = ManifoldGraphClassifier(epsilon=0.7, anchor_weight=0.5, settings={"xi": 0.2}, max_iter=1)
    method = model.fit(X, y).config_.method
    assert (method.epsilon, method.anchor_weight, method.xi) == (0.7, 0.5, 0.2)
    config = small(max_iter=1, learning_rate=0.03, weight_decay=0.0, width=0.5, dropout=0.1).fit(X, y).config_
    assert config.schedule.max_learning_rate == 0.03
    assert config.training.weight_decay == 0.0
    assert (config.backbone.width, config.backbone.dropout) == (0.5, 0.1)


@FEW_UPDATES
def test_numbers_may_be_those_of_numpy(tmp_path: Path) -> None:
    X, truth = blobs()
    few = np.int64(2)
    numbers: dict[str, Any] = {"prototypes_per_class": few, "max_iter": few, "width": np.float32(0.5)}
    model = ManifoldGraphClassifier(**numbers, runs=tmp_path)
    method = model.fit(X, hidden(truth, 2)).config_.method
    assert type(method.prototypes_per_class) is int
    assert json.loads((model.run_ / "config.json").read_text())["backbone"]["width"] == 0.5


def test_a_device_of_torch(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    model, X, _ = fitted(device=cpu, runs=tmp_path)
    np.testing.assert_array_equal(model.predict_proba(X), fitted(device="cpu")[0].predict_proba(X))


def test_both_estimators_choose_the_same() -> None:
    X, truth = blobs()
    images, classes = digits(30)
    for inputs, y in ((X, hidden(truth, 2)), (images, hidden(classes, 2))):
        one = ManifoldGraphClassifier(max_iter=1, random_state=0).fit(inputs, y)
        other = SemiSupervisedClassifier(max_iter=1, random_state=0).fit(inputs, y)
        assert one.config_ == other.config_


# The package


def test_importing_the_package_imports_neither_torch_nor_scikit_learn() -> None:
    script = (
        "import sys, manigraph; assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules); "
        "assert 'ManifoldGraphClassifier' in manigraph.__all__"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_name_that_the_package_does_not_have() -> None:
    import manigraph

    with pytest.raises(AttributeError, match="module 'manigraph' has no attribute 'Classifier'"):
        manigraph.Classifier  # noqa: B018


def test_nothing_is_predicted_before_fit() -> None:
    for method in ("predict", "predict_proba", "transform"):
        with pytest.raises(NotFittedError):
            getattr(small(), method)([[0.0]])
    with pytest.raises(NotFittedError):
        small().score([[0.0]], [0])


def test_a_collapse_is_warned_of() -> None:
    X, truth = blobs()
    model = small(max_iter=1, algorithm="supervised", learning_rate=1e-9)
    message = "after 1 updates all predictions of the last batch fall into one class: set a higher max_iter"
    with pytest.warns(ConvergenceWarning, match=message):
        model.fit(np.zeros_like(X), truth)
