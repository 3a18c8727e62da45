"""What a table is, and the tables of digits; `paper.py` has the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from manigraph.catalogue import RECIPES
from manigraph.config import with_options
from manigraph.experiments.budget import passes_of_a_step, steps_for
from manigraph.experiments.grid import Cell, WayToAsk
from manigraph.experiments.outsiders import OUTSIDERS


@dataclass(frozen=True)
class Row:
    """A method, possibly with settings changed."""

    title: str
    algorithm: str
    options: tuple[str, ...] = ()
    """Changes to the recipe, as on the command line of `manigraph train`."""
    labels: int | None = None
    """Number of labels of this row, whatever the column; None means the column's."""
    read_out: WayToAsk = ""
    """As in `Cell`."""


@dataclass(frozen=True)
class Column:
    """A data set with a number of labels."""

    title: str
    recipe: str
    labels: int


def label_columns(recipe: str, *labels: int, data: str = "") -> tuple[Column, ...]:
    """One column for each number of labels."""
    return tuple(Column(f"{data} {number} labels".lstrip(), recipe, number) for number in labels)


@dataclass(frozen=True)
class Table:
    """Rows and the splits they are measured on."""

    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    part: Literal["test", "validation"] = "test"
    """On which images the error is reported."""
    budget: str = ""
    """Every row takes as many network passes as this algorithm in its recipe; by default as many steps."""
    published: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """The paper's mean and standard deviation, by the titles of row and column."""

    def cell(self, row: Row, column: Column, seed: int) -> Cell:
        """The run behind one entry."""
        options = row.options
        if self.budget and row.algorithm not in OUTSIDERS:
            options += _steps_within(column.recipe, self.budget, row.algorithm, row.options)
        return Cell(column.recipe, row.algorithm, row.labels or column.labels, seed, options, row.read_out)

    def cells(self) -> dict[Cell, Row]:
        """All runs, all of the first seed first: a table that is stopped has something of everything."""
        return {
            self.cell(row, column, seed): row
            for seed in self.seeds
            for column in self.columns
            for row in self.rows
        }


@cache
def _steps_within(recipe: str, budget: str, algorithm: str, options: tuple[str, ...]) -> tuple[str, ...]:
    """The option that gives a row its number of steps, if the recipe's is another."""
    measure = RECIPES.get(recipe)(budget)
    passes = measure.training.steps * passes_of_a_step(measure)
    config = with_options(RECIPES.get(recipe)(algorithm), options, program="manigraph reproduce")
    steps = steps_for(config, passes)
    return () if steps == config.training.steps else ("--training.steps", str(steps))


def combined_with(comparison: str) -> tuple[str, ...]:
    """Manifold Graph with another consistency term."""
    if comparison == "mean_teacher":  # which is an average itself
        return ("--method.comparison", comparison, "--training.ema_decay", "0")
    return ("--method.comparison", comparison)


DIGITS_TRAINING_IMAGES = 1297
_MILDER_STRONG_VIEWS = ("--strong.magnitude", "0.5", "--strong.cutout", "0.25", "--strong.fill", "0")
_AS_FIXMATCH = ("--method.consistency_weight", "1", "--method.balance_memory", "0")

FIRST_METHODS = (
    Row("supervised only", "supervised"),
    Row("LabelSpreading (scikit-learn)", "label_spreading"),
    Row("Π-model", "pi_model"),
    Row("VAT", "vat"),
    Row("Π-VAT", "pi_vat"),
    Row("Manifold Graph", "manifold_graph"),
)

METHODS = (
    Row("supervised only", "supervised"),
    Row("LabelSpreading (scikit-learn)", "label_spreading"),
    Row("Pseudo-Label", "pseudo_label"),
    Row("Π-model", "pi_model"),
    Row("Temporal Ensembling", "temporal_ensembling"),
    Row("Mean Teacher", "mean_teacher"),
    Row("VAT", "vat"),
    Row("SNTG on Π-model", "sntg"),
    Row("SWA on Π-model", "fast_swa", ("--training.swa_every", str(30 / 480))),
    Row("fast-SWA on Π-model", "fast_swa"),
    Row("Deep Co-Training, 2 views", "deep_cotraining"),
    Row("SSL with Memory", "memory"),
    Row("Compact clustering", "compact_clustering"),
    Row("MixUp", "mixup"),
    Row("MixMatch", "mixmatch"),
    Row("FixMatch", "fixmatch"),
    Row("Π-VAT", "pi_vat"),
    Row("Π-VAT, read out by LabelSpreading", "pi_vat", read_out="label_spreading"),
    Row("Manifold Graph", "manifold_graph"),
    Row(
        "Manifold Graph on Mean Teacher",
        "manifold_graph",
        (*combined_with("mean_teacher"), "--method.teacher_decay", "0.97"),
    ),
    Row(
        "Manifold Graph on FixMatch",
        "manifold_graph",
        (*combined_with("fixmatch"), *_AS_FIXMATCH, *_MILDER_STRONG_VIEWS),
    ),
    Row(
        "supervised, all labels",
        "supervised",
        ("--data.stratify", "proportional"),
        labels=DIGITS_TRAINING_IMAGES,
    ),
)

_VALIDATION = ("--data.validation", "300")


def _choice(title: str, *options: str, algorithm: str = "manifold_graph") -> Row:
    return Row(title, algorithm, (*_VALIDATION, *options))


_NO_BALANCE = ("--method.balance_memory", "0", "--method.balance_weight", "0")
CHOICES = (
    _choice("as in the recipe"),
    _choice("Π-VAT as in the recipe", algorithm="pi_vat"),
    _choice("targets not balanced", "--method.balance_memory", "0", "--method.balance_weight", "3"),
    _choice("no balance at all", "--method.balance_memory", "0", "--method.balance_weight", "0"),
    _choice(
        "KL with weight 1, as in the paper", "--method.consistency", "kl", "--method.consistency_weight", "1"
    ),
    _choice("ε = 1", "--method.epsilon", "1"),
    _choice("Π-VAT with ε = 1", "--method.epsilon", "1", algorithm="pi_vat"),
    _choice("shifts only", "--augmentation.rotation", "0", "--augmentation.scale", "0"),
    # Without a term on clean predictions, labelled images go through with the student's views, which saves a
    # backward pass; an entropy term that weighs nothing makes it the first views again.
    *(
        _choice(f"{title}, labelled images with {views} views", *_NO_BALANCE, *entropy, algorithm=algorithm)
        for title, algorithm in (("FixMatch", "fixmatch"), ("Π-model", "pi_model"))
        for views, entropy in (("the student's", ()), ("first", ("--method.entropy_weight", "1e-12")))
    ),
)


def _tried(algorithm: str, *options: str) -> Row:
    named = " ".join(option.removeprefix("--method.").removeprefix("--") for option in options)
    return Row(f"{algorithm}: {named}", algorithm, (*_VALIDATION, *options))


def _weights(algorithm: str, name: str, *values: str) -> tuple[Row, ...]:
    return tuple(_tried(algorithm, f"--method.{name}", value) for value in values)


_NO_DROPOUT = ("--backbone.dropout", "0")
_UNBALANCED = ("--method.balance_memory", "0")
_SLOWER = ("--schedule.max_learning_rate", "0.03")

TUNING = (
    _tried("mean_teacher", "--method.teacher_decay", "0.999"),
    _tried("mean_teacher", "--method.teacher_decay", "0.97"),
    _tried("mean_teacher", "--method.teacher_decay", "0.97", "--method.consistency_weight", "10"),
    *(
        _tried("fixmatch", *("--method.consistency_weight", "1", "--method.threshold", threshold), *strong)
        for threshold, strong in (
            ("0.95", ()),
            ("0.95", _MILDER_STRONG_VIEWS),
            ("0.8", _MILDER_STRONG_VIEWS),
            ("0.95", (*_MILDER_STRONG_VIEWS, *_UNBALANCED)),
            ("0.95", (*_MILDER_STRONG_VIEWS, *_SLOWER)),
        )
    ),
    *_weights("compact_clustering", "clustering_weight", "0.3", "1", "3"),
    _tried("compact_clustering", "--method.clustering_weight", "1", *_UNBALANCED),
    *(
        _tried("compact_clustering", "--method.clustering_weight", weight, *_NO_DROPOUT)
        for weight in ("0.3", "1", "3")
    ),
    _tried("memory", "--method.memory_entropy_weight", "1", "--method.memory_divergence_weight", "1"),
    _tried("memory", "--method.memory_entropy_weight", "0.1", "--method.memory_divergence_weight", "1"),
    _tried("memory", "--method.memory_entropy_weight", "0.1", "--method.memory_divergence_weight", "0.1"),
    *_weights("deep_cotraining", "agreement_weight", "1", "3", "10"),
    _tried("deep_cotraining", "--method.agreement_weight", "3", *_UNBALANCED),
    _tried("deep_cotraining", "--method.agreement_weight", "10", *_UNBALANCED),
    *_weights("fast_swa", "consistency_weight", "4", "10"),
    _tried("fast_swa", "--method.consistency_weight", "4", *_SLOWER),
    *_weights("mixup", "mixed_consistency_weight", "0.1", "0.3", "1"),
    _tried("mixup", "--method.mixed_consistency_weight", "0.3", "--method.alpha", "0.2"),
    _tried("mixup", "--method.mixed_consistency_weight", "0.3", "--method.entropy_weight", "0.3"),
    _tried("mixup", "--method.mixed_consistency_weight", "1", "--method.entropy_weight", "1"),
    _tried("manifold_graph", *combined_with("mean_teacher"), "--method.teacher_decay", "0.97"),
    _tried("manifold_graph", *combined_with("fixmatch"), *_MILDER_STRONG_VIEWS),
    _tried("manifold_graph", *combined_with("fixmatch"), *_AS_FIXMATCH, *_MILDER_STRONG_VIEWS),
    *_weights("pseudo_label", "threshold", "0", "0.8"),
    _tried("pseudo_label", "--method.threshold", "0.8", "--method.pseudo_label_weight", "1"),
    *_weights("mixmatch", "mixed_consistency_weight", "10", "40", "75"),
    *_weights("temporal_ensembling", "consistency_weight", "4", "10", "25"),
    *_weights("sntg", "neighbours_weight", "0.4", "1.6", "6"),
)
"""Three settings for each method that came later, as many as Π-VAT and Manifold Graph had in the end; more
for those that fell behind with them."""

DIGITS_TABLES = {
    "digits": Table("Digits, equal steps", label_columns("digits", 20, 50), FIRST_METHODS, (0, 1, 2, 3, 4)),
    "digits-methods": Table(
        "Digits, all methods, equal network passes",
        label_columns("digits", 20, 50),
        METHODS,
        seeds=(0, 1, 2, 3, 4),
        budget="manifold_graph",
    ),
    "digits-tuning": Table(
        "Digits, the settings of each method",
        label_columns("digits_shared", 20),
        TUNING,
        seeds=(10, 12),
        part="validation",
        budget="manifold_graph",
    ),
    "digits-choices": Table(
        "Digits, what each choice of the recipe is worth",
        label_columns("digits", 20),
        CHOICES,
        seeds=(10, 12, 13),
        part="validation",
    ),
}
