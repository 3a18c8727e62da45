"""Network passes are counted as the convolutions say, and tables spend the same number on every row."""

from typing import Any

import pytest

from manigraph.catalogue import RECIPES
from manigraph.config import Config, with_options
from manigraph.experiments.budget import passes_of_a_step, steps_for
from manigraph.experiments.tables import DIGITS_TABLES

LABELLED, UNLABELLED = 32, 128

# Multiplications of the small CNN's four convolutions, 9 for each pair of channels and pixel:
# 1·32·64 pixels, 32·32·64, 32·64·16 and 64·64·16, that is 2048, 65536, 32768 and 65536 times 9.
FIRST_LAYER = 2048 / (2048 + 65536 + 32768 + 65536)
TRAINED = 3 - FIRST_LAYER
"""Forward, gradient of weights, gradient of inputs, which the first layer leaves out."""


def recipe(algorithm: str, *options: str) -> Config[Any]:
    return with_options(RECIPES.get("digits")(algorithm), options, program="test")


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        ("supervised", LABELLED * TRAINED),
        ("pseudo_label", (LABELLED + UNLABELLED) * TRAINED),
        ("pi_model", (LABELLED + 2 * UNLABELLED) * TRAINED),
        # The power step: forward, and the gradient of the images, to the first layer.
        ("vat", (LABELLED + 2 * UNLABELLED) * TRAINED + 2 * UNLABELLED),
        ("pi_vat", (LABELLED + 2 * UNLABELLED) * TRAINED + 2 * UNLABELLED),
        ("manifold_graph", (LABELLED + 2 * UNLABELLED) * TRAINED + 2 * UNLABELLED),
        ("mean_teacher", (LABELLED + UNLABELLED) * TRAINED + UNLABELLED),
    ],
)
def test_passes_of_a_step(algorithm: str, passes: float) -> None:
    assert passes_of_a_step(recipe(algorithm)) == pytest.approx(passes, rel=1e-9)


def test_a_network_without_convolutions_is_refused() -> None:
    with pytest.raises(ValueError, match="counted in convolutions"):
        passes_of_a_step(recipe("supervised", "--backbone.name", "mlp"))


def test_steps_for_a_budget() -> None:
    config = recipe("supervised")
    assert steps_for(config, 10 * LABELLED * TRAINED) == 10
    assert steps_for(config, 10.6 * LABELLED * TRAINED) == 11
    assert steps_for(config, 0.1) == 1


def test_every_row_of_the_digits_table_spends_the_same() -> None:
    table = DIGITS_TABLES["digits-methods"]
    budget = 500 * passes_of_a_step(recipe("manifold_graph"))
    for row in table.rows:
        if row.algorithm == "label_spreading":
            continue
        config = table.cell(row, table.columns[0], 0).config()
        spent = config.training.steps * passes_of_a_step(config)
        assert spent == pytest.approx(budget, rel=0.005), row.title


def test_rows_with_the_steps_of_the_recipe_are_the_cells_of_before() -> None:
    table = DIGITS_TABLES["digits-methods"]
    for row in table.rows:
        if row.algorithm in ("vat", "pi_vat") or row.title == "Manifold Graph":
            assert table.cell(row, table.columns[0], 0).options == row.options == ()


def test_the_bound_does_not_depend_on_the_column() -> None:
    table = DIGITS_TABLES["digits-methods"]
    (row,) = [row for row in table.rows if row.title == "supervised, all labels"]
    assert table.cell(row, table.columns[0], 3) == table.cell(row, table.columns[1], 3)
    assert table.cell(row, table.columns[0], 3).config().data.labels == 1297
