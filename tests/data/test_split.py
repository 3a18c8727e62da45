import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manigraph.data.sources.base import Dataset
from manigraph.data.sources.digits import load_digits
from manigraph.data.split import draw_split
from manigraph.errors import UserError
from manigraph.experiments.outsiders import label_spreading


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


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
    split = draw_split(digits, num_labels=num_labels, num_validation=0, seed=3)
    assert split.labelled.tolist() == expected
    assert split.test.tolist() == order[:500].tolist()


@settings(max_examples=30, deadline=None)
@given(per_class=st.integers(1, 30), num_validation=st.integers(0, 500), seed=st.integers(0, 2**31 - 1))
def test_splits_are_disjoint_complete_and_stratified(
    digits: Dataset, per_class: int, num_validation: int, seed: int
) -> None:
    split = draw_split(digits, num_labels=10 * per_class, num_validation=num_validation, seed=seed)
    parts = [split.labelled, split.unlabelled, split.validation, split.test]
    assert sorted(torch.cat(parts).tolist()) == list(range(1797))
    assert torch.bincount(digits.classes[split.labelled]).tolist() == [per_class] * 10
    assert len(split.validation) == num_validation
    again = draw_split(digits, num_labels=10 * per_class, num_validation=num_validation, seed=seed)
    assert again.digest == split.digest


def test_validation_does_not_change_which_images_are_labelled(digits: Dataset) -> None:
    without = draw_split(digits, num_labels=20, num_validation=0, seed=0)
    with_validation = draw_split(digits, num_labels=20, num_validation=300, seed=0)
    assert torch.equal(without.labelled, with_validation.labelled)
    assert without.digest != with_validation.digest


def test_seeds_give_different_splits(digits: Dataset) -> None:
    digests = {draw_split(digits, num_labels=20, num_validation=0, seed=s).digest for s in range(5)}
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("num_labels", "num_validation", "message"),
    [
        (9, 0, "9 labels are fewer than the 10 classes of digits"),
        (25, 0, "25 labels do not divide evenly .*: try 20 or 30"),
        (2000, 0, "fewer than the 200 labels asked for"),
        (20, 1277, "1277 validation images leave none of the 1277 unlabelled ones"),
    ],
)
def test_impossible_splits_are_refused_in_one_sentence(
    digits: Dataset, num_labels: int, num_validation: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        draw_split(digits, num_labels=num_labels, num_validation=num_validation, seed=0)


@pytest.mark.parametrize(("num_labels", "mean"), [(20, 10.08), (50, 5.28)])
def test_label_spreading_has_its_published_error(digits: Dataset, num_labels: int, mean: float) -> None:
    """10.1 and 5.3 %, measured elsewhere on these splits: so the splits are the same."""
    errors = [
        label_spreading(digits, draw_split(digits, num_labels=num_labels, num_validation=0, seed=s))
        for s in range(5)
    ]
    assert sum(errors) / 5 == pytest.approx(mean, abs=0.005)
