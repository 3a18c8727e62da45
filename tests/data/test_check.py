"""Each finding is there exactly when its reason is, names what it is about, and stops training if it must."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from manigraph.build import check_dataset, load_dataset
from manigraph.config import DataConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.check import Check, ClassCounts, Finding, check_batches, check_data
from manigraph.data.locations import Locations
from manigraph.data.sources.base import UNLABELLED, Dataset, Problem
from manigraph.data.split import Split
from tests.helpers import seeded

PARTS = ("labelled", "unlabelled", "validation", "test")


class Images:
    """A data set put together image by image; each shows another picture unless it is told which."""

    def __init__(self, *, class_names: tuple[str, ...] = ("cat", "dog")) -> None:
        self.class_names = class_names
        self.entries: list[tuple[str, int, int]] = []
        self.names: list[str] = []

    def add(
        self, part: str, label: int = UNLABELLED, count: int = 1, *, picture: int | None = None
    ) -> "Images":
        for _ in range(count):
            index = len(self.entries)
            self.entries.append((part, label, 1000 + index if picture is None else picture))
            self.names.append(f"{part}/{index}.png")
        return self

    def clean(self) -> "Images":
        """Just enough of everything for no finding."""
        for label in range(len(self.class_names)):
            self.add("labelled", label, 5).add("validation", label, 25)
        return self.add("unlabelled", count=5 * len(self.class_names))

    def dataset(self, **changes: Any) -> Dataset:
        indices = {name: self.split().as_lists()[name] for name in PARTS}
        pictures = torch.tensor([picture for _, _, picture in self.entries], dtype=torch.long)
        bits = (pictures.unsqueeze(1) >> torch.arange(16)) & 1  # (N, 16)
        values: dict[str, Any] = {
            "name": "made",
            "images": bits.to(torch.uint8).view(-1, 1, 4, 4),
            "classes": torch.tensor([label for _, label, _ in self.entries], dtype=torch.long),
            "class_names": self.class_names,
            "train": torch.tensor(indices["labelled"] + indices["unlabelled"], dtype=torch.long),
            "validation": torch.tensor(indices["validation"], dtype=torch.long),
            "test": torch.tensor(indices["test"], dtype=torch.long),
            "paths": self.names,
        }
        return Dataset(**{**values, **changes})

    def split(self) -> Split:
        return Split(
            **{
                name: torch.tensor(
                    [i for i, (part, _, _) in enumerate(self.entries) if part == name], dtype=torch.long
                )
                for name in PARTS
            }
        )

    def check(self, *, needs_unlabelled: bool = True, **changes: Any) -> Check:
        return check_data(self.dataset(**changes), self.split(), needs_unlabelled=needs_unlabelled)


def kinds(check: Check) -> set[str]:
    return {finding.kind for finding in check.findings}


def only(check: Check) -> Finding:
    """The one finding; it says what to do and can be written down."""
    (finding,) = check.findings
    assert finding.message
    assert finding.suggestion
    assert check.errors == [f for f in check.findings if f.severity == "error"]
    assert json.loads(json.dumps(check.as_dict()))["can_train"] == (finding.severity != "error")
    return finding


# Nothing to find


def test_a_clean_data_set_has_no_findings() -> None:
    check = Images().clean().check()
    assert check.findings == []
    assert check.errors == []


def test_images_and_labels_are_counted_by_class_and_part() -> None:
    images = Images().clean().add("labelled", 1, 3).add("test", 0, 7).add("unlabelled", 1, 2)
    check = images.check(original_formats=Counter({"640x480 RGB": 2, "8x8 L": 80}))
    assert check.dataset == "made"
    assert check.num_images == 10 + 50 + 10 + 3 + 7 + 2
    assert check.parts == {"labelled": 13, "unlabelled": 12, "validation": 50, "test": 7}
    assert check.classes == [
        ClassCounts("cat", images=37, labelled=5, unlabelled=0, validation=25, test=7),
        ClassCounts("dog", images=35, labelled=8, unlabelled=2, validation=25, test=0),
    ]
    assert check.input_shape == (1, 4, 4)
    assert list(check.original_formats.items()) == [("8x8 L", 80), ("640x480 RGB", 2)]


def test_what_was_found_can_be_written_as_json() -> None:
    images = Images().clean().add("test", 0, picture=1000)
    check = images.check(problems=[Problem("caf\\xe9.jpg", "empty file")], remarks=["кошка"])
    values = json.loads(json.dumps(check.as_dict()))
    assert values["can_train"] is False
    assert values["dataset"] == "made"
    assert values["input_shape"] == [1, 4, 4]
    assert values["parts"]["validation"] == 50
    counts = {"images": 31, "labelled": 5, "unlabelled": 0, "validation": 25, "test": 1}
    assert values["classes"][0] == {"name": "cat", **counts}
    assert values["original_formats"] == {}
    severities = [finding["severity"] for finding in values["findings"]]
    assert severities == ["error", "warning", "note"]
    assert values["findings"][0] == {
        "severity": "error",
        "kind": "copies_labelled_test",
        "message": "1 of 1 test images are exact copies of labelled ones",
        "suggestion": "remove them from test: their error would look too good",
        "examples": ["test/70.png = labelled/0.png"],
    }
    assert json.loads(json.dumps(Images().clean().check().as_dict()))["can_train"] is True


# Files


def test_files_that_cannot_be_used_are_named_with_the_reason() -> None:
    found = only(
        Images().clean().check(problems=[Problem("a.jpg", "empty file"), Problem("b", "broken link")])
    )
    assert (found.severity, found.kind) == ("warning", "unreadable_files")
    assert found.message == "2 of 72 files could not be used"
    assert found.examples == ["a.jpg (empty file)", "b (broken link)"]


def test_classes_without_a_readable_image_are_named() -> None:
    found = only(Images().clean().check(lost_classes=["bird", "fish"]))
    assert (found.severity, found.kind) == ("warning", "classes_without_images")
    assert found.examples == ["bird", "fish"]


def test_remarks_are_handed_on_one_by_one() -> None:
    check = Images().clean().check(remarks=["one.", "two."])
    assert [(f.severity, f.kind, f.message) for f in check.findings] == [
        ("note", "remark", "one."),
        ("note", "remark", "two."),
    ]
    assert not check.errors


@pytest.mark.parametrize("value", [0, 7, 255])
def test_images_with_nothing_on_them_are_named(value: int) -> None:
    images = Images().clean()
    pixels = images.dataset().images
    pixels[3] = value
    found = only(images.check(images=pixels))
    assert (found.severity, found.kind) == ("warning", "blank_images")
    assert found.examples == [images.names[3]]
    pixels[3, 0, 2, 2] = 99
    assert images.check(images=pixels).findings == []


def test_a_plane_of_colour_is_blank_and_one_channel_with_a_picture_is_not() -> None:
    images = Images().clean()
    pixels = images.dataset().images.repeat(1, 3, 1, 1)
    pixels[3] = torch.tensor([10, 20, 30], dtype=torch.uint8).view(3, 1, 1)
    assert only(images.check(images=pixels)).examples == [images.names[3]]
    pixels[3, 1, 0, 0] = 0
    assert images.check(images=pixels).findings == []


def test_blank_images_are_found_at_any_place() -> None:
    pixels = torch.randint(0, 256, (9000, 1, 3, 3), dtype=torch.uint8, generator=seeded())
    expected = [0, 4095, 4096, 8191, 8192, 8999]
    pixels[expected] = 5
    images = Images()
    images.add("labelled", 0, 4500).add("labelled", 1, 4500)
    check = images.check(images=pixels)
    (found,) = (finding for finding in check.findings if finding.kind == "blank_images")
    assert found.examples == [images.names[i] for i in expected]


def test_vectors_are_never_blank() -> None:
    images = Images().clean()
    vectors = torch.arange(70.0).unsqueeze(1).repeat(1, 3)
    assert images.check(images=vectors).findings == []


# Classes and labels


def test_without_images_there_is_nothing_to_train_on() -> None:
    images = Images(class_names=())
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    problem = [Problem("a.jpg", "empty file")]
    for split in (None, images.split()):
        check = check_data(images.dataset(images=empty, problems=problem), split, split_problem="no labels")
        assert check.errors[0].kind == "no_images"
        assert "unreadable_files" in kinds(check)
        assert json.loads(json.dumps(check.as_dict()))["can_train"] is False


@pytest.mark.parametrize("drawn", [False, True])
def test_without_a_label_there_is_nothing_to_train_on(drawn: bool) -> None:
    images = Images(class_names=()).add("unlabelled", count=20)
    check = check_data(
        images.dataset(), images.split() if drawn else None, split_problem="has no labels: add"
    )
    assert [(f.kind, f.message) for f in check.errors] == [("no_labels", "no image has a label")]
    assert check.classes == []


def test_one_class_is_not_enough_and_two_are() -> None:
    images = Images(class_names=("cat",)).add("labelled", 0, 5).add("validation", 0, 50)
    found = only(images.add("unlabelled", count=5).check())
    assert (found.severity, found.kind) == ("error", "one_class")
    assert found.message == "there is only one class, 'cat'"
    assert "one_class" not in kinds(Images().clean().check())


@pytest.mark.parametrize("elsewhere", ["test", "validation"])
def test_a_class_without_a_labelled_image_is_an_error_and_with_one_is_not(elsewhere: str) -> None:
    names = ("cat", "dog", "bird", "fish")
    images = Images(class_names=names).clean()
    images.entries = [
        (elsewhere if part == "labelled" and label in (1, 3) else part, label, picture)
        for part, label, picture in images.entries
    ]
    check = images.check()
    (found,) = check.errors
    assert found.kind == "classes_without_labels"
    assert found.message == "2 of 4 classes have no labelled image (dog, fish)"
    assert found.examples == ["dog", "fish"]
    assert not kinds(check) & {"few_labels", "imbalance"}
    assert not images.add("labelled", 1).add("labelled", 3).check().errors


def test_of_many_classes_without_labels_five_are_in_the_sentence_and_all_in_the_examples() -> None:
    names = tuple(f"c{i}" for i in range(9))
    images = (
        Images(class_names=names).add("labelled", 0, 5).add("validation", 8, 50).add("unlabelled", count=9)
    )
    (found,) = images.check().errors
    assert found.message == "8 of 9 classes have no labelled image (c1, c2, c3, c4, c5, …)"
    assert list(found.examples) == list(names[1:])


@pytest.mark.parametrize(
    ("counts", "severity", "examples"),
    [
        ((5, 5, 5), None, []),
        ((5, 4, 5), "note", ["dog: 4"]),
        ((2, 4, 5), "note", ["cat: 2", "dog: 4"]),
        ((5, 1, 4), "warning", ["dog: 1", "bird: 4"]),
    ],
)
def test_classes_with_fewer_than_five_labels_are_named(
    counts: tuple[int, ...], severity: str | None, examples: list[str]
) -> None:
    images = Images(class_names=("cat", "dog", "bird")).add("unlabelled", count=50).add("validation", 0, 50)
    for label, count in enumerate(counts):
        images.add("labelled", label, count)
    check = images.check()
    if severity is None:
        assert check.findings == []
    else:
        found = only(check)
        assert (found.severity, found.kind, found.examples) == (severity, "few_labels", examples)
        assert found.message == f"{len(examples)} of 3 classes have fewer than 5 labelled images"


@pytest.mark.parametrize(("most", "unequal"), [(25, False), (26, True)])
def test_more_than_five_times_the_labels_are_an_imbalance(most: int, unequal: bool) -> None:
    images = Images(class_names=("cat", "dog", "bird")).add("unlabelled", count=90).add("validation", 0, 50)
    images.add("labelled", 0, 9).add("labelled", 1, most).add("labelled", 2, 5)
    check = images.check()
    if unequal:
        found = only(check)
        assert (found.severity, found.kind) == ("warning", "imbalance")
        assert found.message == "labels are unequal: 'dog' has 26, 'bird' 5"
    else:
        assert check.findings == []


# Parts


def test_no_unlabelled_images_are_an_error_for_methods_that_need_them() -> None:
    images = Images().add("labelled", 0, 5).add("labelled", 1, 5).add("validation", 0, 50)
    found = only(images.check())
    assert (found.severity, found.kind) == ("error", "no_unlabelled")
    assert images.check(needs_unlabelled=False).findings == []
    assert not images.add("unlabelled").check().errors


@pytest.mark.parametrize(("unlabelled", "few"), [(9, True), (10, False)])
def test_fewer_unlabelled_than_labelled_images_are_few(unlabelled: int, few: bool) -> None:
    images = Images().add("labelled", 0, 5).add("labelled", 1, 5).add("validation", 0, 50)
    images.add("unlabelled", count=unlabelled)
    assert images.check(needs_unlabelled=False).findings == []
    if few:
        found = only(images.check())
        assert (found.severity, found.kind) == ("warning", "few_unlabelled")
        assert "(9) than labelled ones (10)" in found.message
    else:
        assert images.check().findings == []


def test_nothing_to_measure_the_error_on_is_a_warning_and_one_test_image_is_enough() -> None:
    images = Images().add("labelled", 0, 5).add("labelled", 1, 5).add("unlabelled", count=10)
    found = only(images.check())
    assert (found.severity, found.kind) == ("warning", "no_validation")
    assert images.add("test", 0).check().findings == []


@pytest.mark.parametrize(("count", "share"), [(1, "100.0"), (49, "2.0"), (50, None)])
def test_fewer_than_fifty_validation_images_are_noted(count: int, share: str | None) -> None:
    images = Images().add("labelled", 0, 5).add("labelled", 1, 5).add("unlabelled", count=10)
    check = images.add("validation", 0, count).check()
    if share is None:
        assert check.findings == []
    else:
        found = only(check)
        assert (found.severity, found.kind) == ("note", "small_validation")
        assert found.message == f"with {count} validation images one image is {share} % of the error"


# Copies

COPIES = [
    # Where the original is and where the copy, the severity of much and of at most 1 %.
    ("labelled", "validation", "error", "warning"),
    ("labelled", "test", "error", "warning"),
    ("unlabelled", "validation", "warning", "note"),
    ("unlabelled", "test", "warning", "note"),
    ("validation", "test", "warning", "note"),
    ("labelled", "unlabelled", "note", "note"),
]


@pytest.mark.parametrize(("first", "second", "much", "little"), COPIES)
@pytest.mark.parametrize("share", ["much", "little"])
def test_exact_copies_between_parts_are_named(
    first: str, second: str, much: str, little: str, share: str
) -> None:
    images = Images().clean().add("test", 0, 50)
    original = next(i for i, (part, _, _) in enumerate(images.entries) if part == first)
    # Filled up to 199 or 200 images, of which two are copies: just above 1 %, and 1 %.
    size = sum(part == second for part, _, _ in images.entries)
    images.add(second, 0 if second != "unlabelled" else UNLABELLED, (197 if share == "much" else 198) - size)
    copies = []
    for _ in range(2):
        copies.append(len(images.entries))
        images.add(second, images.entries[original][1], picture=images.entries[original][2])
    found = only(images.check())
    assert found.kind == f"copies_{first}_{second}"
    assert found.severity == (much if share == "much" else little)
    total = 199 if share == "much" else 200
    assert found.message == f"2 of {total} {second} images are exact copies of {first} ones"
    assert found.examples == [f"{images.names[copy]} = {images.names[original]}" for copy in copies]


def test_images_that_differ_in_one_pixel_are_no_copies() -> None:
    """A bit of a picture's number is a pixel of it."""
    images = Images().clean()
    images.add("validation", 0, picture=1000 ^ 1 << 15).add("unlabelled", picture=1000 ^ 1 << 14)
    assert images.check().findings == []


def test_copies_within_one_part_are_no_leak() -> None:
    images = Images().clean().add("labelled", 0, picture=1000).add("validation", 0, 2, picture=3)
    images.add("unlabelled", count=3, picture=5)
    finding = only(images.check())
    assert (finding.severity, finding.kind) == ("note", "copies_labelled_labelled")
    assert finding.message == "2 labelled images are only 1 different ones"


def test_images_in_memory_are_named_by_their_number() -> None:
    images = Images().clean().add("test", 0, picture=1000)
    assert only(images.check(paths=None)).examples == ["image 70 = image 0"]


def test_an_image_in_three_parts_is_found_between_each_two() -> None:
    images = Images().clean().add("unlabelled", picture=1000).add("test", 0, picture=1000)
    check = images.check()
    assert [(f.severity, f.kind) for f in check.findings] == [
        ("error", "copies_labelled_test"),
        ("warning", "copies_unlabelled_test"),
        ("note", "copies_labelled_unlabelled"),
    ]


def test_copies_with_two_labels_contradict_each_other() -> None:
    images = Images().clean().add("labelled", 1, picture=1000).add("unlabelled")
    found = only(images.check())
    assert (found.severity, found.kind) == ("error", "contradicting_labels")
    assert found.message == "1 labelled images are exact copies of one with another label"
    assert found.examples == ["labelled/0.png as 'cat' and labelled/70.png as 'dog'"]


@pytest.mark.parametrize(("labelled", "severity"), [(100, "warning"), (99, "error")])
def test_up_to_one_contradiction_in_a_hundred_labels_is_only_warned_of(labelled: int, severity: str) -> None:
    images = Images().add("labelled", 0, 50).add("labelled", 1, labelled - 51).add("unlabelled", count=100)
    images.add("validation", 0, 50).add("labelled", 1, picture=1000)
    found = only(images.check())
    assert (found.severity, found.kind) == (severity, "contradicting_labels")


def test_the_classes_of_unlabelled_images_contradict_nothing() -> None:
    """The split hides them from the method, so they do no harm."""
    images = Images().clean().add("unlabelled", 1, picture=1000)
    assert kinds(images.check()) == {"copies_labelled_unlabelled"}


# No split


def test_without_a_split_its_reason_is_the_finding() -> None:
    images = Images(class_names=("cat: small", "dog")).clean()
    problem = "class 'cat: small' of made has 3 images, fewer than 5: lower data.labels"
    check = check_data(images.dataset(), None, split_problem=problem)
    found = only(check)
    assert (found.severity, found.kind) == ("error", "no_split")
    assert found.message == "class 'cat: small' of made has 3 images, fewer than 5"
    assert found.suggestion == "lower data.labels"
    assert check.parts == {}
    assert check.classes == []
    assert check.num_images == 70
    assert check.input_shape == (1, 4, 4)


@pytest.mark.parametrize("problem", ["too few images", ""])
def test_a_reason_without_a_way_out_still_makes_a_whole_finding(problem: str) -> None:
    found = only(check_data(Images().clean().dataset(), None, split_problem=problem))
    assert found.message == (problem or "no split can be drawn")
    assert found.suggestion == "change the numbers of images"


def test_without_a_split_everything_about_files_is_still_said() -> None:
    images = Images(class_names=("cat",)).clean()
    changes = {"problems": [Problem("a", "empty file")], "lost_classes": ["dog"], "remarks": ["one."]}
    check = check_data(images.dataset(**changes), None, split_problem="x: y")
    assert [(f.severity, f.kind) for f in check.findings] == [
        ("error", "one_class"),  # the reason behind the reason
        ("warning", "unreadable_files"),
        ("warning", "classes_without_images"),
        ("note", "remark"),
    ]
    assert json.loads(json.dumps(check.as_dict()))["can_train"] is False


# Real folders


def save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def folder(root: Path) -> DataConfig:
    """30 cats and 30 dogs, 60 unlabelled images, and a test folder of 20."""
    for number in range(30):
        save(root / "cat" / f"{number}.png", number)
        save(root / "dog" / f"{number}.png", 100 + number)
    for number in range(60):
        save(root / "unlabelled" / f"{number}.png", 200 + number)
    for number in range(10):
        save(root / "test" / "cat" / f"{number}.png", 300 + number)
        save(root / "test" / "dog" / f"{number}.png", 400 + number)
    return DataConfig(name="folder", path=str(root))


def checked(config: DataConfig, tmp_path: Path) -> Check:
    dataset = load_dataset(config, Locations(data=tmp_path / "data", cache=tmp_path / "cache"))
    return check_dataset(config, dataset, seed=0)[1]


def test_a_clean_folder_can_be_trained_on(tmp_path: Path) -> None:
    check = checked(folder(tmp_path / "photos"), tmp_path)
    # A fifth of 60 labels is held out.
    assert [f.kind for f in check.findings] == ["small_validation"]
    assert check.parts == {"labelled": 48, "unlabelled": 60, "validation": 12, "test": 20}
    assert check.classes == [
        ClassCounts("cat", images=40, labelled=24, unlabelled=0, validation=6, test=10),
        ClassCounts("dog", images=40, labelled=24, unlabelled=0, validation=6, test=10),
    ]
    assert check.original_formats == {"10x10 RGB": 140}


def test_a_folder_with_every_kind_of_fault_is_described_file_by_file(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    config = folder(root)
    (root / "cat" / "broken.jpg").write_bytes(b"text")
    (root / "bird").mkdir()
    (root / "notes.txt").write_text("text")
    Image.new("RGB", (10, 10), "red").save(root / "unlabelled" / "red.png")
    save(root / "test" / "cat" / "copy.png", 3)
    save(root / "dog" / "also a cat.png", 4)
    save(root / "unlabelled" / "copy.png", 105)
    check = checked(config, tmp_path)
    findings = {finding.kind: finding for finding in check.findings}
    assert set(findings) == {
        "copies_labelled_test",
        "contradicting_labels",
        "unreadable_files",
        "classes_without_images",
        "blank_images",
        "remark",
        "small_validation",
        "copies_labelled_unlabelled",
    }
    assert {f.kind for f in check.errors} == {"copies_labelled_test", "contradicting_labels"}
    assert findings["copies_labelled_test"].examples == ["test/cat/copy.png = cat/3.png"]
    (pair,) = findings["contradicting_labels"].examples
    assert set(pair.split(" and ")) == {"cat/4.png as 'cat'", "dog/also a cat.png as 'dog'"}
    assert findings["unreadable_files"].examples == ["cat/broken.jpg (not an image that can be read)"]
    assert findings["classes_without_images"].examples == ["bird"]
    assert findings["blank_images"].examples == ["unlabelled/red.png"]
    assert findings["remark"].message.endswith("passed over: notes.txt")
    assert findings["copies_labelled_unlabelled"].examples == ["unlabelled/copy.png = dog/5.png"]


def test_a_folder_from_which_no_split_can_be_drawn_is_described_all_the_same(tmp_path: Path) -> None:
    config = dataclasses.replace(folder(tmp_path / "photos"), labels=500)
    split, check = check_dataset(
        config, load_dataset(config, Locations(data=tmp_path / "data", cache=tmp_path / "cache")), seed=0
    )
    assert split is None
    found = only(check)
    assert found.kind == "no_split"
    assert found.message.endswith("fewer than the 500 labels asked for")
    assert found.suggestion == "lower data.labels"
    assert check.num_images == 140
    assert check.original_formats == {"10x10 RGB": 140}


def test_classes_that_differ_only_in_capitals_are_doubted() -> None:
    images = Images().clean()
    check = images.check(class_names=["cat", "Cat"])
    finding = only(check)
    assert (finding.severity, finding.kind) == ("warning", "classes_alike")
    assert list(finding.examples) == ["cat and Cat"]


def test_rows_of_a_table_without_an_image_are_counted_apart() -> None:
    problems = [
        Problem("a.jpg", "empty file"),
        Problem("b.jpg", "listed in labels.csv, line 2, but there is no such image"),
    ]
    kinds = {f.kind: f.message for f in Images().clean().check(problems=problems).findings}
    assert kinds["unreadable_files"].startswith("1 of ")
    assert kinds["rows_without_image"].startswith("1 rows of the CSV name no image")


# Batches


def batch_findings(
    num_labelled: int, pool: int, batch: BatchConfig, *, uses_unlabelled: bool = True
) -> dict[str, Finding]:
    split = Images().add("labelled", 0, num_labelled).split()
    findings = check_batches(split, batch, pool=pool, uses_unlabelled=uses_unlabelled)
    assert all(finding.severity == "warning" for finding in findings)
    return {finding.kind: finding for finding in findings}


@pytest.mark.parametrize(
    ("num_labelled", "pool", "expected"),
    [
        (20, 1480, set()),  # the digits recipe
        (16, 128, set()),
        (15, 128, {"labelled_batch_too_large"}),
        (16, 127, {"unlabelled_batch_too_large"}),
        (1, 1, {"labelled_batch_too_large", "unlabelled_batch_too_large"}),
        (0, 0, set()),  # that there are none is another finding
    ],
)
def test_batches_larger_than_the_data(num_labelled: int, pool: int, expected: set[str]) -> None:
    assert set(batch_findings(num_labelled, pool, BatchConfig(32, 128))) == expected


def test_the_unlabelled_batch_does_not_matter_to_a_method_without_it() -> None:
    assert batch_findings(20, 3, BatchConfig(32, 128), uses_unlabelled=False) == {}


def test_warnings_of_batches_name_numbers_that_give_no_warning() -> None:
    found = batch_findings(6, 40, BatchConfig(32, 128))
    labelled, unlabelled = found["labelled_batch_too_large"], found["unlabelled_batch_too_large"]
    assert labelled.message == (
        "a batch of 32 labelled images holds each of the 6 there are 5.3 times on average"
    )
    assert labelled.suggestion.endswith(": --batch.labelled 6")
    assert unlabelled.message == (
        "a batch of 128 unlabelled images is larger than all 40 there are, so it holds some more than once"
    )
    assert unlabelled.suggestion == "use smaller batches: --batch.unlabelled 40"
    assert batch_findings(6, 40, BatchConfig(6, 40)) == {}
    # A batch has at least two images, however few there are.
    assert batch_findings(1, 1, BatchConfig())["unlabelled_batch_too_large"].suggestion.endswith(" 2")
