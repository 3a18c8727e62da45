"""Arrays and tensors become the images they show, or are refused in one sentence."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from manigraph.catalogue import RECIPES
from manigraph.data.sources.arrays import from_arrays, stored_images
from manigraph.data.sources.base import Dataset
from manigraph.engine import evaluate_run, load, train
from manigraph.errors import UserError
from manigraph.runs import RunDirectory

Bytes = npt.NDArray[np.uint8]

N, H, W = 6, 12, 16


def pictures(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def grey() -> Bytes:
    return pictures(N, H, W)


CLASSES = [0, 1, 2, -1, -1, 0]


# Shapes


def test_images_without_channels_get_one() -> None:
    dataset = from_arrays(grey(), CLASSES)
    assert dataset.images.shape == (N, 1, H, W)
    assert dataset.images.dtype == torch.uint8
    assert (dataset.images[:, 0].numpy() == grey()).all()
    assert dataset.input_shape == (1, H, W)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("size", [(H, W), (W, H), (12, 12), (8, 8)])
def test_channels_are_found_first_and_last(channels: int, as_tensor: bool, size: tuple[int, int]) -> None:
    first = pictures(N, channels, *size)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    for array in (first, last):
        stored = stored_images(torch.from_numpy(array) if as_tensor else array)
        assert (stored.numpy() == first).all()
        assert stored.is_contiguous()


def test_square_images_tell_where_other_numbers_of_channels_are() -> None:
    first = pictures(N, 7, 32, 32)
    last = first.transpose(0, 2, 3, 1)
    for array in (first, last):
        assert (stored_images(array).numpy() == first).all()
        assert (stored_images(torch.from_numpy(array)).numpy() == first).all()


def test_where_both_orders_fit_arrays_have_channels_last_and_tensors_first() -> None:
    array = pictures(N, 3, 2, 4)
    assert stored_images(array).shape == (N, 4, 3, 2)
    assert stored_images(torch.from_numpy(array)).shape == (N, 3, 2, 4)


@pytest.mark.parametrize("shape", [(N, 8, 8, 8), (N, 10, 20, 30)])
def test_channels_that_cannot_be_told_are_refused_and_not_guessed(shape: tuple[int, ...]) -> None:
    for images in (pictures(*shape), torch.from_numpy(pictures(*shape))):
        with pytest.raises(UserError, match="cannot tell the channels of images of the shape"):
            stored_images(images)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.uint16, np.bool_])
def test_vectors_become_floats_with_the_same_values(dtype: Any) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    stored = stored_images(values)
    assert stored.dtype == torch.float32
    assert stored.tolist() == values.astype(float).tolist()


def test_vectors_keep_their_scale() -> None:
    dataset = from_arrays(np.array([[-3.5, 1e6], [0.25, -0.0]]), [0, -1])
    assert dataset.images.tolist() == [[-3.5, 1e6], [0.25, 0.0]]
    assert dataset.input_shape == (2,)


# Pixels


def test_every_byte_comes_out_as_it_went_in() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    assert (stored_images(ramp)[0, 0].numpy() == ramp[0]).all()
    assert (stored_images(torch.from_numpy(ramp))[0, 0].numpy() == ramp[0]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_from_0_to_1_become_the_nearest_bytes(dtype: torch.dtype) -> None:
    ramp = torch.arange(256).view(1, 16, 16)
    assert torch.equal(stored_images((ramp.double() / 255).to(dtype))[0, 0], ramp[0].to(torch.uint8))
    # A quarter below and above the middle between two bytes.
    near = torch.tensor([76.25, 76.75], dtype=torch.float64).view(1, 1, 2) / 255
    assert stored_images(near).flatten().tolist() == [76, 77]


def test_arrays_of_any_kind_are_read() -> None:
    expected = grey()
    read_only = grey()
    read_only.flags.writeable = False
    floats = (grey() / 255).astype(">f4")  # as files for other machines hold them
    with_gradient = torch.from_numpy(grey()).float().div(255).requires_grad_(True)
    backwards = np.ascontiguousarray(grey()[::-1])[::-1]
    for images in (list(grey()), (grey() / 255).tolist(), backwards, read_only, floats, with_gradient):
        assert (stored_images(images)[:, 0].numpy() == expected).all()
    vectors = torch.rand(N, 5, requires_grad=True)
    assert from_arrays(vectors, CLASSES).content_ids.tolist() == list(range(N))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint16", "uint64", ">i4"])
def test_classes_are_whole_numbers_of_any_kind(dtype: str) -> None:
    numbers = [0, 1, 2, 1, 0, 2]
    dataset = from_arrays(grey(), np.array(numbers, dtype=dtype))
    assert dataset.classes.tolist() == numbers
    assert dataset.classes.dtype == torch.int64


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_minus_one_is_unlabelled(make: Any) -> None:
    dataset = from_arrays(grey(), make(CLASSES))
    assert dataset.classes.tolist() == CLASSES
    assert dataset.class_names == ["0", "1", "2"]
    assert dataset.train.tolist() == list(range(N))
    assert len(dataset.test) == len(dataset.validation) == 0
    assert dataset.paths is None


def test_without_any_label_there_is_no_class() -> None:
    assert from_arrays(grey(), [-1] * N).num_classes == 0


def test_no_images_are_an_empty_data_set() -> None:
    dataset = from_arrays(np.zeros((0, 8, 8), np.uint8), np.zeros(0, int))
    assert (len(dataset.images), dataset.num_classes) == (0, 0)


def test_test_images_come_behind_the_others() -> None:
    test = pictures(3, H, W, seed=1)
    dataset = from_arrays(grey(), CLASSES, test_images=test, test_classes=[3, 0, 1], name="mine")
    assert dataset.name == "mine"
    assert dataset.train.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.test.tolist() == [6, 7, 8]
    assert (dataset.images[6:, 0].numpy() == test).all()
    assert dataset.classes.tolist() == [*CLASSES, 3, 0, 1]
    assert dataset.class_names == ["0", "1", "2", "3"]


def test_bytes_and_floats_of_the_same_pictures_are_the_same_data_set() -> None:
    whole = from_arrays(grey(), CLASSES, test_images=grey(), test_classes=[0] * N)
    other = from_arrays(
        torch.from_numpy(grey()).unsqueeze(1), CLASSES, test_images=grey() / 255, test_classes=[0] * N
    )
    assert whole.digest == other.digest


def test_classes_have_the_names_they_are_given() -> None:
    dataset = from_arrays(grey(), CLASSES, class_names=("cat", "dog", "bird", "fish"))
    assert dataset.class_names == ["cat", "dog", "bird", "fish"]


# Refusals

PIXELS = grey() / 255
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one dimension": (
        {"images": np.zeros(N)},
        r"images must have 2, 3 or 4 dimensions, got the shape \(6,\)",
    ),
    "five dimensions": (
        {"images": np.zeros((N, 1, 2, 3, 4))},
        r"images must have 2, 3 or 4 dimensions, got the shape \(6, 1, 2, 3, 4\)",
    ),
    "whole numbers that are no bytes": (
        {"images": grey().astype(np.int64)},
        "pixels must be uint8 or floats from 0 to 1, got torch.int64",
    ),
    "16 bits": (
        {"images": grey().astype(np.uint16)},
        "pixels must be uint8 or floats from 0 to 1, got torch.uint16",
    ),
    "floats up to 255": (
        {"images": grey().astype(float)},
        "float pixels must be from 0 to 1, got 0 to 255: scale them, or give uint8",
    ),
    "a little above 1": ({"images": PIXELS + 1e-3}, "float pixels must be from 0 to 1, got 0.001 to 1"),
    "below 0": ({"images": 2 * PIXELS - 1}, "float pixels must be from 0 to 1, got -1 to 1"),
    "not a number": (
        {"images": np.full((N, H, W), np.nan)},
        "float pixels must be from 0 to 1, got nan to nan",
    ),
    "vectors that are not finite": (
        {"images": np.array([[0, np.inf]] * N)},
        "vectors must be finite, got nan or inf: fill or remove them",
    ),
    "images of several sizes": (
        {"images": [np.zeros((8, 8)), np.zeros((9, 9))]},
        "images must all have the same shape",
    ),
    "no numbers": ({"images": np.full((N, H, W), "x")}, "images must be numbers, got <U1"),
    "nothing": ({"images": None}, "images must be numbers, got object"),
    "other length": ({"classes": [0, 1]}, "images has 6 entries but classes has 2"),
    "classes in floats": (
        {"classes": np.array(CLASSES, float)},
        r"classes must be one row of whole numbers, got torch.float64 of \(6,\)",
    ),
    "truth values": (
        {"classes": np.ones(N, bool)},
        r"classes must be one row of whole numbers, got torch.bool of \(6,\)",
    ),
    "one-hot": (
        {"classes": np.eye(N, dtype=int)},
        r"classes must be one row of whole numbers, got torch.int64 of \(6, 6\)",
    ),
    "a column": (
        {"classes": torch.zeros(N, 1, dtype=torch.long)},
        r"classes must be one row of whole numbers, got torch.int64 of \(6, 1\)",
    ),
    "names in the place of numbers": ({"classes": ["cat"] * N}, "classes must be numbers, got <U3"),
    "below -1": ({"classes": [0, 1, 2, -2, -1, 0]}, r"classes must be at least -1 \(unlabelled\), got -2"),
    "numbers that count something else": (
        {"classes": [0, 1, 2, 10**6, 1, 2]},
        "there are classes up to 1000000 but only 6 images: number the classes from 0 without gaps",
    ),
    "too few names": (
        {"class_names": ["cat", "dog"]},
        "there are classes up to 2 but only 2 class names",
    ),
    "test images without classes": (
        {"test_images": grey()},
        "test_images and test_classes go together: give both or neither",
    ),
    "test classes without images": (
        {"test_classes": CLASSES},
        "test_images and test_classes go together: give both or neither",
    ),
    "test images of another length": (
        {"test_images": grey(), "test_classes": [0]},
        "test_images has 6 entries but test_classes has 1",
    ),
    "test images of another shape": (
        {"test_images": pictures(1, W, H), "test_classes": [0]},
        r"test_images are \(1, 16, 12\) but images are \(1, 12, 16\): give both the same shape and type",
    ),
    "test vectors": (
        {"test_images": np.zeros((1, H)), "test_classes": [0]},
        r"test_images are \(12,\) but images are \(1, 12, 16\): give both the same shape and type",
    ),
    "unlabelled test images": (
        {"test_images": grey(), "test_classes": CLASSES},
        "test_classes holds -1: every test image needs its class",
    ),
    "test classes below -1": (
        {"test_images": grey(), "test_classes": [-2] * N},
        r"test_classes must be at least -1 \(unlabelled\), got -2",
    ),
    "a class that only test images have and no name": (
        {"test_images": grey(), "test_classes": [3] * N, "class_names": ["a", "b", "c"]},
        "there are classes up to 3 but only 3 class names",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_sentence(case: str) -> None:
    changes, message = REFUSED[case]
    arguments: dict[str, Any] = {"images": grey(), "classes": CLASSES, **changes}
    with pytest.raises(UserError, match=message) as caught:
        from_arrays(**arguments)
    assert "\n" not in str(caught.value)


# Training on them


def two_kinds(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Bright spots on the left or on the right, on noise."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % 2
    images = torch.rand(count, 8, 8, generator=generator) / 2
    images[classes == 0, 2:6, :4] += 0.5
    images[classes == 1, 2:6, 4:] += 0.5
    return images, classes


def in_memory() -> Dataset:
    images, classes = two_kinds(80, seed=0)
    test_images, test_classes = two_kinds(30, seed=1)
    seen = classes.clone()
    seen[20:] = -1
    return from_arrays(
        images,
        seen,
        test_images=test_images,
        test_classes=test_classes,
        class_names=["left", "right"],
        name="spots",
    )


def tiny_config(algorithm: str, backbone: str = "small_cnn") -> Any:
    config = RECIPES.get("digits")(algorithm)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, labels=None, validation=None),
        batch=dataclasses.replace(config.batch, labelled=8, unlabelled=16),
        backbone=dataclasses.replace(config.backbone, name=backbone, width=0.25),
        augmentation=dataclasses.replace(config.augmentation, translation=0, rotation=0.0, scale=0.0),
        training=dataclasses.replace(config.training, steps=30, log_every=10, ema_decay=0.0),
    )


@pytest.mark.parametrize("algorithm", ["supervised", "pi_vat"])
def test_a_run_on_arrays_is_trained_to_the_end_and_says_so(tmp_path: Path, algorithm: str) -> None:
    dataset = in_memory()
    run, evaluations = train(tiny_config(algorithm), tmp_path, dataset=dataset)
    assert run.read_json("status.json") == {"state": "finished", "reason": ""}
    data = run.read_json("data.json")
    assert data == {
        "name": "spots",
        "class_names": ["left", "right"],
        "input_shape": [1, 8, 8],
        "num_images": 110,
        "digest": dataset.digest,
        "in_memory": True,
        "white": 255.0,
        "image_shape": None,
        "encoder": None,
    }
    split = run.read_json("split.json")
    assert sorted(split["unlabelled"]) == list(range(20, 80))
    assert sorted(split["labelled"] + split["validation"]) == list(range(20))
    assert split["test"] == list(range(80, 110))
    assert run.read_json("check.json")["can_train"] is True
    # The halves are easy to tell apart: chance is 50 %.
    assert evaluations["test"].error < 10
    steps = [json.loads(line)["step"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 30
    assert load(RunDirectory.open(run.path)).class_names == ("left", "right")
    with pytest.raises(UserError, match="was trained on arrays in memory: evaluate it from Python"):
        evaluate_run(run, "test")


def test_a_run_on_vectors_is_trained_to_the_end(tmp_path: Path) -> None:
    images, classes = two_kinds(60, seed=0)
    classes[20:] = -1
    dataset = from_arrays(images.flatten(1), classes)
    run, evaluations = train(tiny_config("supervised", "mlp"), tmp_path, dataset=dataset)
    assert run.read_json("status.json")["state"] == "finished"
    assert run.read_json("data.json")["input_shape"] == [64]
    assert evaluations["validation"].error < 30


def test_arrays_that_cannot_be_trained_on_leave_no_run(tmp_path: Path) -> None:
    images, classes = two_kinds(20, seed=0)
    with pytest.raises(UserError, match="arrays cannot be trained on: no image has a label"):
        train(tiny_config("pi_vat"), tmp_path / "runs", dataset=from_arrays(images, [-1] * 20))
    with pytest.raises(UserError, match="arrays cannot be trained on: there are no unlabelled images"):
        train(tiny_config("pi_vat"), tmp_path / "runs", dataset=from_arrays(images, classes))
    with pytest.raises(UserError, match=r"arrays cannot be trained on: 1 of 3 classes have no labelled"):
        train(tiny_config("supervised"), tmp_path / "runs", dataset=from_arrays(images, 2 * classes))
    assert not (tmp_path / "runs").exists()
