"""Whatever cannot be used is one sentence, and a `ValueError`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manigraph import ManifoldGraphClassifier, SemiSupervisedClassifier
from manigraph.errors import UserError
from tests.estimator.data import blobs, digits, hidden
from tests.estimator.test_estimator import fitted, small

X, TRUTH = blobs(30)
Y = hidden(TRUTH, 2)
IMAGES, CLASSES = digits(30)
LABELS = hidden(CLASSES, 1)
BYTES = IMAGES.astype(np.uint8)


def refusal(X: Any, y: Any, **settings: Any) -> str:
    """The sentence with which `fit` refuses."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the callers look at the text
        small(**{"max_iter": 1, **settings}).fit(X, y)
    text = str(caught.value)
    assert "\n" not in text
    return text


# X


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.where(IMAGES == 16, np.nan, IMAGES), "Input X contains NaN."),
        (IMAGES + np.inf, "Input X contains infinity or a value too large for dtype('float64')."),
        (BYTES[:0], "Found array with 0 sample(s) (shape=(0, 8, 8)) while a minimum of 1 is required."),
        (np.repeat(BYTES[..., None], 5, axis=3), "images must have 1 to 4 channels, got 5"),
        (BYTES[None, None], "images must have 2, 3 or 4 dimensions, got the shape (1, 1, 30, 8, 8)"),
        (BYTES.astype(np.int32) - 9, "whole-number pixels must be from 0 to 255, got -9 to 7: scale them"),
        (BYTES.astype(np.int32) * 99, "whole-number pixels must be from 0 to 255, got 0 to 1584"),
        ([BYTES[0], BYTES[1, :4]], "images in X must all have the same shape: resize them, or give names"),
        (["a.png", 3], "X holds names of files, but 3 in row 1: give names alone"),
        (np.array([None, "a.png"]), "X holds names of files, but None in row 0: give names alone"),
    ],
    ids=["nan", "inf", "none", "channels", "dimensions", "negative", "large", "shapes", "mixed", "gap"],
)
def test_images(images: Any, said: str) -> None:
    assert said in refusal(images, LABELS[: len(images)])


def test_vectors() -> None:
    assert refusal(np.where(X > 5, np.nan, X), Y) == (
        "Input X contains NaN: fill in what is missing, or leave those rows out"
    )
    assert "Expected 2D array, got 1D array instead" in str_of(lambda: small().fit(X[0], Y[:4]))
    assert refusal(1e300 * X, Y).startswith("vectors must be finite, got nan or inf")
    assert "inconsistent numbers of samples: [30, 29]" in refusal(X, Y[:-1])
    assert refusal([X[0], X[1, :3]], [0, 1]) == "vectors in X must all have the same number of values"


def str_of(action: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        action()
    return str(caught.value)


def test_files(tmp_path: Path) -> None:
    good, broken = tmp_path / "good.png", tmp_path / "broken.png"
    Image.fromarray(BYTES[0]).save(good)
    broken.write_bytes(good.read_bytes()[:60])
    missing = tmp_path / "missing.png"
    assert refusal([good, missing], [0, 1]) == (
        f"'{missing}' cannot be used: there is no such file; repair it or leave it out of X"
    )
    assert refusal([good, broken], [0, 1]).startswith(f"'{broken}' cannot be used: damaged")
    assert refusal([good, tmp_path], [0, 1]).startswith(
        f"'{tmp_path}' cannot be used: a folder, not an image"
    )
    assert refusal(str(good), [0]) == f"X is one name, '{good}': give a list of names of image files"
    assert refusal([good], [0], image_size=4) == "image_size must be at least 8 pixels, got 4"


# y


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.full(30, -1), "none of the 30 rows has a label: give that of at least one row for each class"),
        ([None] * 30, "none of the 30 rows has a label"),
        ([""] * 30, "none of the 30 rows has a label"),
        (np.full(30, np.nan), "none of the 30 rows has a label"),
        (np.where(Y == 2, 2, -1), "y holds only one class, 2: give labels of at least two classes (-1 means"),
        (np.full(30, "a"), "y holds only one class, 'a': give labels of at least two classes"),
        (None, "y should be a 1d array of labels, got None: give one label, or -1, for each row of X"),
        (np.stack([Y, Y], axis=1), "y should be a 1d array, got an array of shape (30, 2) instead"),
        (Y + 0.5, "Unknown label type: continuous"),
        (np.where(Y < 0, np.inf, Y), "y holds infinite values: give classes, or -1 where"),
        ([*"ab", 3, *([-1] * 27)], "y mixes text and other labels (3 of type int): give classes of one kind"),
        (
            [[1], [2, 3]] * 15,
            "labels in y must be text, numbers or anything else that can be a key of a dict",
        ),
    ],
    ids=[
        "minus",
        "none",
        "empty",
        "nan",
        "one",
        "one-text",
        "missing",
        "columns",
        "floats",
        "inf",
        "mixed",
        "lists",
    ],
)
def test_labels(y: Any, said: str) -> None:
    assert said in refusal(X, y)


def test_a_class_seen_once_is_learned_and_noted() -> None:
    model = small(max_iter=40).fit(X, hidden(TRUTH, 1))
    assert model.score(X, TRUTH) > 0.9
    assert model.notes_ == ["3 of 3 classes have one label only (0, 1, 2): a few more help most"]


def test_all_labelled_is_noted() -> None:
    model = small().fit(X, TRUTH)
    assert model.notes_ == ["all rows have labels: the unlabelled part of training uses the same rows"]
    assert fitted()[0].notes_ == []


def test_one_row_of_each_class_and_no_others() -> None:
    model = small(max_iter=3).fit(X[[0, 1, 2]], TRUTH[[0, 1, 2]] if len(set(TRUTH[:3])) > 1 else [0, 1, 1])
    assert model.predict(X).shape == (30,)


def test_equal_vectors_may_be_of_two_classes() -> None:
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0]], 10, axis=0)
    labels = np.array([0] * 8 + [1] * 2 + [1] * 8 + [0] * 2)
    model = small(max_iter=60).fit(rows, labels)
    assert model.predict([[0.0, 0.0], [1.0, 1.0]]).tolist() == [0, 1]


def test_classes_that_fit_has_never_seen() -> None:
    model, vectors, truth = fitted(max_iter=40)
    labels = truth.copy()
    labels[:9] = 7
    with pytest.warns(
        UserWarning, match=r"^9 labels are of classes that fit has never seen \(7\), and count as"
    ):
        score = model.score(vectors, labels)
    assert score == pytest.approx((model.predict(vectors) == labels).mean())
    text = str_of(lambda: model.score(vectors, truth.astype(str)))
    assert text == "no label in y is one of the classes that were learned: '1' is not among 0, 1, 2" or (
        "is not among 0, 1, 2" in text
    )
    assert str_of(lambda: model.score(vectors, np.full(90, -1))) == (
        "none of the 90 labels is known: there is nothing to compare with"
    )


# What comes after fit


def test_other_vectors_than_those_of_fit() -> None:
    model, vectors, _ = fitted()
    assert "X has 3 features, but SemiSupervisedClassifier is expecting 4" in str_of(
        lambda: model.predict(vectors[:, :3])
    )
    assert str_of(lambda: model.predict(BYTES)) == (
        "X holds images, but vectors of 4 features were given to fit: give such"
    )


def test_other_images_than_those_of_fit(tmp_path: Path) -> None:
    model = small(max_iter=2).fit(BYTES, LABELS)
    assert str_of(lambda: model.predict(BYTES[:, :7])) == (
        "images are 7×8, but 8×8 were given to fit: give all the same shape"
    )
    assert str_of(lambda: model.predict(IMAGES)) == (
        "pixels are floats, but whole numbers were given to fit: give the same kind"
    )
    assert str_of(lambda: model.predict(BYTES.reshape(30, 64))) == (
        "X has the shape (30, 64), but images were given to fit: give (N, 8×8)"
    )
    Image.fromarray(BYTES[0]).save(tmp_path / "0.png")
    assert str_of(lambda: model.predict([tmp_path / "0.png"])) == (
        "X holds names of files now, but images were given to fit: give the same"
    )
    floats = small(max_iter=2).fit(IMAGES / 16, LABELS)
    assert str_of(lambda: floats.predict(IMAGES)) == (
        "pixels reach from 0 to 16, those given to fit from 0 to 1: scale them alike"
    )
    assert floats.predict(IMAGES / 15).shape == (30,), "a little more is cut off"


# Settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "manifold"}, "unknown algorithm 'manifold': did you mean 'manifold_graph'?"),
        (
            {"settings": {"epsilom": 1}},
            "unknown setting of manifold_graph 'epsilom': did you mean 'epsilon'?",
        ),
        ({"settings": {"epsilon": -1}}, "epsilon must be at least 0, xi above 0"),
        ({"settings": {"epsilon": "big"}}, "epsilon must be a number, got 'big'"),
        ({"settings": {"epsilon": True}}, "epsilon must be a number, got True"),
        ({"settings": {"num_heads": 1.5}}, "num_heads must be a whole number, got 1.5"),
        ({"settings": {"comparison": "pi_vta"}}, "unknown comparison 'pi_vta': did you mean 'pi_vat'?"),
        ({"settings": {"nodes": 3}}, "nodes must be one of 'generated', 'labelled_images', got 3"),
        ({"settings": ["epsilon"]}, "settings must be a dict or None, got ['epsilon']"),
        ({"augmentation": {"flip": "yes"}}, "flip must be True or False, got 'yes'"),
        ({"augmentation": {"padding": "mirror"}}, "unknown padding 'mirror': choose one of: edge, reflect"),
        ({"algorithm": 3}, "algorithm must be text, got 3"),
        ({"max_iter": "many"}, "max_iter must be a whole number or None, got 'many'"),
        ({"image_size": 8.5}, "image_size must be a whole number or None, got 8.5"),
        ({"labelled_batch": None}, "labelled_batch must be a whole number, got None"),
        ({"learning_rate": "high"}, "learning_rate must be a number or None, got 'high'"),
        ({"warm_start": "no"}, "warm_start must be True or False, got 'no'"),
        ({"runs": 3}, "runs must be text or a path or None, got 3"),
        ({"augmentation": {"mirror": True}}, "unknown augmentation 'mirror'"),
        ({"backbone": "cnn"}, "unknown backbone 'cnn': did you mean 'cnn13'?"),
        ({"backbone": "cnn13"}, "use the backbone 'mlp' for vectors"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"minutes": 0}, "minutes must be above 0, got 0"),
        ({"unlabelled_batch": 1}, "labelled_batch and unlabelled_batch must be at least 2, got 32 and 1"),
        ({"learning_rate": -1.0}, "max_learning_rate must be positive and finite, got -1.0"),
        ({"device": 3}, "there is no device '3': use auto, cpu, cuda or cuda:1"),
        ({"device": "tpu"}, "there is no device 'tpu': use auto, cpu, cuda or cuda:1"),
        (
            {"runs": "somewhere", "minutes": 1},
            "minutes and runs cannot be used together: set max_iter instead",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(X, Y, **{"algorithm": "manifold_graph", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"prototype_update": "nope"},
            "unknown prototype_update 'nope': did you mean 'none'?",
        ),
        (
            {"comparison": "nope"},
            "unknown comparison 'nope': choose one of: fixmatch, mean_teacher, pi_model, pi_vat",
        ),
        ({"prototypes_per_class": "five"}, "prototypes_per_class must be a whole number, got 'five'"),
        ({"warmup_fraction": "short"}, "warmup_fraction must be a number, got 'short'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_of_the_graph(settings: dict[str, Any], said: str) -> None:
    assert str_of(lambda: ManifoldGraphClassifier(max_iter=1, **settings).fit(X, Y)) == said


def test_training_that_blows_up_says_what_to_do() -> None:
    text = refusal(X, Y, learning_rate=1e30, max_iter=50)
    assert text.startswith("training failed because the loss or its gradient is not finite (classification")
    assert text.endswith("): set a lower learning_rate than 1e+30")


def test_warm_start_needs_the_same_classes_features_and_network() -> None:
    model = small(warm_start=True, max_iter=2).fit(X, Y)
    before = model.predict_proba(X)
    assert str_of(lambda: model.fit(X, np.where(Y == 2, 3, Y))).startswith(
        "warm_start goes on with the classes 0, 1, 2, but y holds 0, 1, 3: give labels of just these"
    )
    assert "X has 2 features, but SemiSupervisedClassifier is expecting 4" in str_of(
        lambda: model.fit(X[:, :2], Y)
    )
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.set_params(width=0.5)
    assert str_of(lambda: model.fit(X, Y)).startswith(
        "warm_start cannot go on with weights of another network"
    )
    model.set_params(width=None, runs="somewhere")
    assert str_of(lambda: model.fit(X, Y)).startswith("warm_start and runs cannot be used together")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        text = refusal(X, Y, runs=tmp_path / "runs")
    finally:
        tmp_path.chmod(0o700)
    assert text == f"cannot write into '{tmp_path / 'runs'}': Permission denied; name another folder for runs"


def test_runs_in_the_place_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("")
    assert refusal(X, Y, runs=file) == f"'{file}' is a file: runs need a folder"
    assert refusal(X, Y, runs=file / "more") == (
        f"cannot write into '{file / 'more'}': Not a directory; name another folder for runs"
    )


def test_errors_are_meant_for_people() -> None:
    with pytest.raises(UserError):
        ManifoldGraphClassifier(max_iter=0).fit(X, Y)
    with pytest.raises(UserError):
        SemiSupervisedClassifier("nothing").fit(X, Y)
