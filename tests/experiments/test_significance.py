"""Paired tests, by hand: with three differences, p = 1 - |t| / √(t² + 2), and t = 4.30265 for 95 %."""

import math

import pytest
from scipy import stats

from manigraph.experiments.significance import difference_test, pairs, ratio_test
from manigraph.significance import paired_test
from tests.experiments.made_up import CIFAR10, made_up


@pytest.mark.parametrize(
    ("differences", "mean", "p", "significant"),
    [
        # t = 2 / (1 / √3) = √12
        ([1.0, 2.0, 3.0], 2.0, 1 - math.sqrt(12 / 14), False),
        # t = -4 / (1 / √3) = -√48
        ([-3.0, -4.0, -5.0], -4.0, 1 - math.sqrt(48 / 50), True),
    ],
)
def test_of_three_differences(differences: list[float], mean: float, p: float, significant: bool) -> None:
    test = paired_test(differences)
    assert test.size == 3
    assert test.mean == pytest.approx(mean)
    assert test.p == pytest.approx(p)
    assert test.is_significant == significant
    reach = 4.302653 / math.sqrt(3)
    assert (test.low, test.high) == pytest.approx((mean - reach, mean + reach), rel=1e-6)


@pytest.mark.parametrize("differences", [[1.5], [1.1 - 1.0, 2.1 - 2.0, 3.1 - 3.0], [0.0, 0.0]])
def test_without_any_spread_there_is_no_test(differences: list[float]) -> None:
    test = paired_test(differences)
    assert test.mean == pytest.approx(differences[0])
    assert (test.low, test.high, test.p) == (None, None, None)
    assert not test.is_significant


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = (
        made_up("Manifold Graph", 250, [9.0, 30.0, 17.0]),
        made_up("Π-VAT", 250, [10.0, 32.0, 20.0]),
    )
    test = difference_test(pairs(ours[::-1], theirs))
    assert test.mean == pytest.approx(-2)
    assert test.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert test.p == pytest.approx(stats.ttest_rel([9, 30, 17], [10, 32, 20]).pvalue)


def test_only_results_that_share_everything_but_the_method_are_pairs() -> None:
    ours = [*made_up("Π-VAT", 250, [1.0, 2.0]), *made_up("Π-VAT", 500, [3.0])]
    theirs = [
        *made_up("VAT", 250, [4.0]),
        *made_up("VAT", 1000, [5.0]),
        *made_up("VAT", 500, [6.0], recipe=CIFAR10),
    ]
    assert [(a.test_error, b.test_error) for a, b in pairs(ours, theirs)] == [(1.0, 4.0)]


def test_pairs_of_different_splits_are_refused() -> None:
    ours, theirs = made_up("Π-VAT", 250, [1.0]), made_up("VAT", 250, [2.0], split="another")
    with pytest.raises(ValueError, match="different splits"):
        pairs(ours, theirs)


def test_over_all_columns_a_data_set_and_seed_count_once() -> None:
    # Ratios of seed 0: 2 and 8 (geometric mean 4), of seed 1: 8 and 8, of seed 2: 16.
    ours = [*made_up("Π-VAT", 250, [2.0, 16.0, 16.0]), *made_up("Π-VAT", 500, [8.0, 8.0])]
    theirs = [*made_up("VAT", 250, [1.0, 2.0, 1.0]), *made_up("VAT", 500, [1.0, 1.0])]
    test = ratio_test(pairs(ours, theirs))
    # Exponents of 2 are 2, 3 and 4: t = 3 / (1 / √3) = √27.
    assert test.size == 3
    assert test.mean == pytest.approx(100 * (8 - 1))
    assert test.p == pytest.approx(1 - math.sqrt(27 / 29))
    reach = 4.302653 / math.sqrt(3)
    assert test.low == pytest.approx(100 * (2 ** (3 - reach) - 1), rel=1e-5)
    assert test.high == pytest.approx(100 * (2 ** (3 + reach) - 1), rel=1e-5)


def test_the_same_seed_of_another_data_set_counts_for_itself() -> None:
    ours = [*made_up("Π-VAT", 250, [2.0]), *made_up("Π-VAT", 250, [4.0], recipe=CIFAR10)]
    theirs = [*made_up("VAT", 250, [1.0]), *made_up("VAT", 250, [1.0], recipe=CIFAR10)]
    assert ratio_test(pairs(ours, theirs)).size == 2


def test_fewer_labels_are_some_of_more_labels() -> None:
    """Why pairs of one seed are not independent."""
    from manigraph.build import load_dataset, split_dataset
    from manigraph.catalogue import RECIPES

    data = RECIPES.get("digits")("supervised").data
    dataset = load_dataset(data)
    few, many = (
        split_dataset(type(data)(**{**vars(data), "labels": labels}), dataset, 0).labelled.tolist()
        for labels in (20, 50)
    )
    assert set(few) < set(many)
