import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from manigraph.data.sources.base import UNLABELLED, Dataset, SourceRequest
from manigraph.data.sources.digits import load_digits
from manigraph.data.split import Split, Stratify, draw_split, read_split, shares, split_as_json
from manigraph.errors import UserError
from manigraph.experiments.outsiders import label_spreading
from tests.helpers import seeded


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits(SourceRequest())


def made(
    sizes: list[int], *, unlabelled: int = 0, test: int = 0, copies: int = 0, validation: int = 0
) -> Dataset:
    """Classes of the given sizes in a random order, some images without a class; image i shows i.

    The last `copies` training images are copies of the first ones.
    """
    classes = [c for c, size in enumerate(sizes) for _ in range(size)] + [UNLABELLED] * unlabelled
    num_train = len(classes)
    classes += [i % len(sizes) for i in range(test + validation)]
    order = torch.randperm(num_train, generator=seeded(1))
    numbers = torch.arange(len(classes))
    if copies:
        numbers[order[-copies:]] = numbers[order[:copies]]
    bits = (numbers.unsqueeze(1) >> torch.arange(16)) & 1  # (N, 16)
    return Dataset(
        name="made",
        images=bits.to(torch.uint8).view(-1, 1, 4, 4),
        classes=torch.tensor(classes),
        class_names=[f"class {c}" for c in range(len(sizes))],
        train=order,
        test=torch.arange(num_train, num_train + test),
        validation=torch.arange(num_train + test, len(classes)),
    )


def parts_of(split: Split) -> list[torch.Tensor]:
    return [split.labelled, split.unlabelled, split.validation, split.test]


def counts(dataset: Dataset, indices: torch.Tensor) -> list[int]:
    result: list[int] = dataset.classes[indices].bincount(minlength=dataset.num_classes).tolist()
    return result


# The protocol on digits


def test_few_test_images_are_drawn_from_all_and_change_no_other_part(digits: Dataset) -> None:
    whole = draw_split(digits, num_labels=20, num_validation=100, seed=5)
    few = draw_split(digits, num_labels=20, num_validation=100, seed=5, num_test=30)
    assert (len(few.test), few.test.unique().numel()) == (30, 30)
    assert torch.isin(few.test, digits.test).all()
    assert few.test.tolist() != digits.test[:30].tolist()
    other = draw_split(digits, num_labels=20, num_validation=100, seed=6, num_test=30)
    assert other.test.tolist() != few.test.tolist()
    for part in ("labelled", "unlabelled", "validation"):
        assert torch.equal(getattr(few, part), getattr(whole, part))
    more = draw_split(digits, num_labels=20, num_validation=100, seed=5, num_test=10**6)
    assert sorted(more.test.tolist()) == sorted(digits.test.tolist())
    with pytest.raises(UserError, match="the number of test images must be at least 1, got 0"):
        draw_split(digits, num_labels=20, num_validation=0, seed=5, num_test=0)


def test_digits_are_the_images_of_scikit_learn(digits: Dataset) -> None:
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.images.dtype == torch.uint8
    assert int(digits.images.max()) == 16
    assert digits.class_names == [str(c) for c in range(10)]
    assert len(digits.test) == 500
    assert sorted(torch.cat([digits.test, digits.train]).tolist()) == list(range(1797))


@pytest.mark.parametrize("num_labels", [20, 50])
def test_the_labelled_images_are_those_of_the_protocol(digits: Dataset, num_labels: int) -> None:
    """Written out once more: test = first 500 of randperm(123); per class a randperm of the rest."""
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(123))
    train = order[500:]
    generator = torch.Generator().manual_seed(3)
    expected = []
    for c in range(10):
        candidates = [i for i in train.tolist() if digits.classes[i] == c]
        chosen = torch.randperm(len(candidates), generator=generator)[: num_labels // 10]
        expected += [candidates[i] for i in chosen.tolist()]
    split = draw_split(digits, num_labels=num_labels, num_validation=0, seed=3, stratify="equal")
    assert split.labelled.tolist() == expected
    assert split.test.tolist() == order[:500].tolist()


@pytest.mark.parametrize(("num_labels", "mean"), [(20, 10.08), (50, 5.28)])
def test_label_spreading_has_its_published_error(digits: Dataset, num_labels: int, mean: float) -> None:
    """10.1 and 5.3 %, measured elsewhere on these splits: so the splits are the same."""
    splits = [
        draw_split(digits, num_labels=num_labels, num_validation=0, seed=s, stratify="equal")
        for s in range(5)
    ]
    errors = [label_spreading(digits, split) for split in splits]
    assert sum(errors) / 5 == pytest.approx(mean, abs=0.005)


def test_validation_does_not_change_which_images_are_labelled(digits: Dataset) -> None:
    without = draw_split(digits, num_labels=20, num_validation=0, seed=0)
    with_validation = draw_split(digits, num_labels=20, num_validation=300, seed=0)
    assert torch.equal(without.labelled, with_validation.labelled)
    assert without.digest != with_validation.digest


def test_seeds_give_different_splits(digits: Dataset) -> None:
    digests = {draw_split(digits, num_labels=20, num_validation=0, seed=s).digest for s in range(5)}
    assert len(digests) == 5


# Properties of any split

sizes_of_classes = st.lists(st.integers(1, 60), min_size=2, max_size=8)


@given(
    sizes=sizes_of_classes,
    unlabelled=st.integers(0, 50),
    test=st.integers(0, 20),
    labels=st.integers(2, 200),
    validation=st.integers(0, 100),
    stratify=st.sampled_from(["proportional", "equal"]),
    copies=st.integers(0, 10),
    seed=st.integers(0, 2**31 - 1),
)
def test_splits_are_disjoint_complete_stratified_and_reproducible(
    sizes: list[int],
    unlabelled: int,
    test: int,
    labels: int,
    validation: int,
    stratify: Stratify,
    copies: int,
    seed: int,
) -> None:
    assume(2 * copies <= sum(sizes) + unlabelled)
    dataset = made(sizes, unlabelled=unlabelled, test=test, copies=copies)

    def draw() -> Split:
        return draw_split(dataset, num_labels=labels, num_validation=validation, seed=seed, stratify=stratify)

    try:
        split = draw()
    except UserError:
        assume(False)
    assert sorted(torch.cat(parts_of(split)).tolist()) == list(range(len(dataset.images)))
    assert len(split.labelled) == labels
    assert len(split.validation) == validation
    assert torch.equal(split.test, dataset.test)
    labelled = counts(dataset, split.labelled)
    whole = sum(sizes)
    for size, count in zip(sizes, labelled, strict=True):
        if stratify == "equal":
            assert abs(count - labels / len(sizes)) < 1
        else:
            # Within one of the exact share, unless every class must have one and a share is below.
            slack = 1 + sum(labels * s < whole for s in sizes)
            assert max(1, labels * size / whole - slack) <= count <= max(1, labels * size / whole + 1)
    assert (dataset.classes[split.validation] != UNLABELLED).all()
    assert not dataset.has_copy[split.validation].any()
    assert draw().digest == split.digest


@given(sizes=sizes_of_classes, unlabelled=st.integers(0, 50), seed=st.integers(0, 2**31 - 1))
def test_without_a_number_all_labels_are_used_and_a_fifth_is_held_out(
    sizes: list[int], unlabelled: int, seed: int
) -> None:
    dataset = made(sizes, unlabelled=unlabelled)
    split = draw_split(dataset, num_labels=None, num_validation=None, seed=seed)
    assert sorted(torch.cat(parts_of(split)).tolist()) == list(range(len(dataset.images)))
    assert (dataset.classes[split.unlabelled] == UNLABELLED).all()
    assert len(split.unlabelled) == unlabelled
    assert min(counts(dataset, split.labelled)) >= 1
    room = sum(sizes) - len(sizes)
    assert len(split.validation) == min(sum(sizes) // 5, room)
    for size, count in zip(sizes, counts(dataset, split.validation), strict=True):
        assert count < size
        assert count <= size / 5 + 1 + sum(s < 5 for s in sizes)


@given(
    total=st.integers(0, 300),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    minimum=st.integers(0, 1),
)
def test_shares_add_up_and_are_in_proportion(total: int, sizes: list[int], minimum: int) -> None:
    assume(total >= minimum * len(sizes))
    result = shares(total, sizes, minimum=minimum)
    assert sum(result) == total
    assert min(result) >= minimum
    if minimum == 0:
        assert all(abs(n - total * s / sum(sizes)) < 1 for n, s in zip(result, sizes, strict=True))
    in_order = sorted(zip(sizes, result, strict=True))
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(in_order) if a[0] < b[0])


def test_shares_by_hand() -> None:
    # 10 x (5, 3, 2) / 10 divides evenly; 7 x (5, 3, 2) / 10 = 3.5, 2.1, 1.4: floors 3, 2, 1, the rest to 3.5.
    assert shares(10, [5, 3, 2]) == [5, 3, 2]
    assert shares(7, [5, 3, 2]) == [4, 2, 1]
    # 25 labels for 10 equal classes: 2 each, and 5 of them 3.
    assert sorted(shares(25, [100] * 10)) == [2] * 5 + [3] * 5
    # A class with a share of 0.1 still gets one.
    assert shares(10, [99, 1], minimum=1) == [9, 1]
    # No more than there is room for.
    assert shares(6, [1, 1], [2, 9]) == [2, 4]


def test_a_copy_of_a_validation_image_is_never_trained_on() -> None:
    dataset = made([40, 40], copies=30)
    for seed in range(20):
        split = draw_split(dataset, num_labels=10, num_validation=15, seed=seed)
        ids = dataset.content_ids
        trained = torch.cat([split.labelled, split.unlabelled])
        assert not torch.isin(ids[split.validation], ids[trained]).any()


def test_given_validation_images_are_used_and_cannot_be_drawn_as_well() -> None:
    dataset = made([20, 20], validation=8)
    split = draw_split(dataset, num_labels=4, num_validation=None, seed=0)
    assert split.validation.tolist() == dataset.validation.tolist()
    assert len(split.unlabelled) == 36
    with pytest.raises(UserError, match="has validation images of its own"):
        draw_split(dataset, num_labels=4, num_validation=5, seed=0)


@pytest.mark.parametrize(
    ("num_labels", "num_validation", "message"),
    [
        (9, 0, "9 labels are fewer than the 10 classes of digits"),
        (2000, 0, "digits has 1297 training images whose class is known, fewer than the 2000 labels"),
        (20, 1277, "1277 validation images leave none of the 1277 unlabelled ones"),
        (None, 1297, "has 1287 images that could be held out for validation, fewer than 1297"),
        (20, -1, "cannot be negative, got -1"),
    ],
)
def test_impossible_splits_are_refused_in_one_sentence(
    digits: Dataset, num_labels: int | None, num_validation: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        draw_split(digits, num_labels=num_labels, num_validation=num_validation, seed=0)


def test_equal_shares_need_enough_images_of_each_class() -> None:
    dataset = made([50, 3])
    with pytest.raises(UserError, match="'class 1' of made has 3 training images, fewer than the 5 labels"):
        draw_split(dataset, num_labels=10, num_validation=0, seed=0, stratify="equal")
    proportional = draw_split(dataset, num_labels=10, num_validation=0, seed=0)
    assert counts(dataset, proportional.labelled) == [9, 1]


# Splits in files


def test_a_stored_split_is_used_again(digits: Dataset, tmp_path: Path) -> None:
    split = draw_split(digits, num_labels=20, num_validation=100, seed=5)
    file = tmp_path / "split.json"
    file.write_text(json.dumps(split_as_json(split, digits)))
    assert read_split(file, digits).digest == split.digest


def changed(values: dict[str, object], name: str, change: object) -> dict[str, object]:
    return {**values, name: change}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dataset", "other", "was drawn from other images than digits holds now"),
        ("labelled", [1797], "points to images that digits does not have"),
        ("labelled", [-1], "points to images that digits does not have"),
        ("validation", "text", "is not a split file"),
        ("unlabelled", None, "is not a split file"),
        ("labelled", [[0, 1]], "is not a split file"),
        ("labelled", [1.5], "is not a split file"),
    ],
)
def test_a_wrong_split_file_is_refused_in_one_sentence(
    digits: Dataset, tmp_path: Path, name: str, change: object, message: str
) -> None:
    split = draw_split(digits, num_labels=20, num_validation=100, seed=5)
    file = tmp_path / "split.json"
    values = changed(split_as_json(split, digits), name, change)
    file.write_text(json.dumps({key: value for key, value in values.items() if key != "digest"}))
    with pytest.raises(UserError, match=message):
        read_split(file, digits)


def test_a_split_file_with_an_image_twice_or_no_class_is_refused(tmp_path: Path) -> None:
    dataset = made([5, 5], unlabelled=5)
    split = draw_split(dataset, num_labels=4, num_validation=2, seed=0)
    values = {key: value for key, value in split_as_json(split, dataset).items() if key != "digest"}
    file = tmp_path / "split.json"
    file.write_text(json.dumps(changed(values, "labelled", values["labelled"] + values["validation"])))
    with pytest.raises(UserError, match="has an image in two parts"):
        read_split(file, dataset)
    without_class = int(dataset.train[dataset.classes[dataset.train] == UNLABELLED][0])
    rest = [i for i in values["unlabelled"] if i != without_class]
    file.write_text(
        json.dumps(
            changed(changed(values, "unlabelled", rest), "labelled", [*values["labelled"], without_class])
        )
    )
    with pytest.raises(UserError, match="has a labelled image whose class is not known"):
        read_split(file, dataset)
    with pytest.raises(UserError, match="cannot read the split file"):
        read_split(tmp_path / "missing.json", dataset)


def test_a_split_file_cannot_make_test_images_anything_else(tmp_path: Path) -> None:
    dataset = made([20, 20], test=10)
    split = draw_split(dataset, num_labels=4, num_validation=5, seed=0)
    values = split_as_json(split, dataset)
    file = tmp_path / "split.json"
    swapped = {**values, "validation": values["test"], "test": values["validation"]}
    file.write_text(json.dumps(swapped))
    with pytest.raises(UserError, match="was changed after it was written"):
        read_split(file, dataset)
    del swapped["digest"]
    file.write_text(json.dumps(swapped))
    with pytest.raises(UserError, match="mixes test images of made with others"):
        read_split(file, dataset)
    given = made([20, 20], validation=6)
    split = draw_split(given, num_labels=4, num_validation=None, seed=0)
    values = {key: value for key, value in split_as_json(split, given).items() if key != "digest"}
    file.write_text(
        json.dumps({**values, "validation": [], "labelled": values["labelled"] + values["validation"]})
    )
    with pytest.raises(UserError, match="trains on validation images of made"):
        read_split(file, given)


def test_many_copies_leave_less_validation_rather_than_an_error() -> None:
    dataset = made([20, 20], copies=20)  # every training image occurs twice
    split = draw_split(dataset, num_labels=4, num_validation=None, seed=0)
    assert len(split.validation) == 0


def test_the_digest_tells_the_parts_of_a_data_set_apart() -> None:
    images, classes = torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.zeros(6, dtype=torch.long)
    digests = {
        Dataset(
            "x",
            images,
            classes,
            ["a"],
            train=torch.arange(a),
            validation=torch.arange(a, b),
            test=torch.arange(b, 6),
        ).digest
        for a, b in ((2, 4), (4, 4), (2, 6), (3, 4))
    }
    assert len(digests) == 4


def test_the_digest_of_a_data_set_notices_every_change() -> None:
    dataset = made([5, 5], unlabelled=5, test=2)
    digests = {dataset.digest}
    for change in ("images", "classes", "train", "test", "names"):
        images, classes, train, test = (
            tensor.clone() for tensor in (dataset.images, dataset.classes, dataset.train, dataset.test)
        )
        names = list(dataset.class_names)
        if change == "images":
            images[3, 0, 0, 0] += 1
        elif change == "classes":
            classes[0] = 1 - classes[0]
        elif change == "train":
            train = train.flip(0)
        elif change == "test":
            test = test[:1]
        else:
            names[0] = "another"
        digests.add(Dataset("made", images, classes, names, test=test, train=train).digest)
    assert len(digests) == 6
