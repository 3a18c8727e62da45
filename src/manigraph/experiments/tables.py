"""The tables `manigraph reproduce` can measure."""

from dataclasses import dataclass
from typing import Literal

from manigraph.experiments.grid import Cell


@dataclass(frozen=True)
class Row:
    """A method, possibly with settings changed."""

    title: str
    algorithm: str
    options: tuple[str, ...] = ()
    """Changes to the recipe, as on the command line of `manigraph train`."""


@dataclass(frozen=True)
class Table:
    """Rows and the splits they are measured on."""

    heading: str
    recipe: str
    rows: tuple[Row, ...]
    labels: tuple[int, ...]
    seeds: tuple[int, ...]
    part: Literal["test", "validation"] = "test"
    """On which images the error is reported."""

    def cell(self, row: Row, labels: int, seed: int) -> Cell:
        """The run behind one entry."""
        return Cell(self.recipe, row.algorithm, labels, seed, row.options)


METHODS = (
    Row("supervised only", "supervised"),
    Row("LabelSpreading (scikit-learn)", "label_spreading"),
    Row("Π-model", "pi_model"),
    Row("VAT", "vat"),
    Row("Π-VAT", "pi_vat"),
    Row("Manifold Graph", "manifold_graph"),
)

_VALIDATION = ("--data.validation", "300")


def _choice(title: str, *options: str, algorithm: str = "manifold_graph") -> Row:
    return Row(title, algorithm, (*_VALIDATION, *options))


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
)

TABLES = {
    "digits": Table("Digits, all methods", "digits", METHODS, labels=(20, 50), seeds=(0, 1, 2, 3, 4)),
    "digits-choices": Table(
        "Digits, what each choice of the recipe is worth",
        "digits",
        CHOICES,
        labels=(20,),
        seeds=(10, 12, 13),
        part="validation",
    ),
}
