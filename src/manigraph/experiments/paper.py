"""The paper's tables and ablation (Kuo et al. 2019), at its own scale or at one for small machines.

Every table of a scale is measured into the same results file, so that what two tables share is measured once.
"""

from collections.abc import Mapping
from typing import Literal

from manigraph.experiments.tables import Column, Row, Table, combined_with
from manigraph.published import LABELS, PUBLISHED

Scale = Literal["paper", "small"]

RECIPES: Mapping[Scale, Mapping[str, str]] = {
    "paper": {"SVHN": "svhn", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"},
    "small": {"SVHN": "svhn_16px", "CIFAR-10": "cifar10_16px", "CIFAR-100": "cifar100_16px"},
}

SEEDS = (0, 1, 2)

ON_FIXMATCH = (
    *(*combined_with("fixmatch"), "--method.entropy_weight", "0", "--method.ramp_fraction", "0"),
    *("--preprocessing.kind", "standardise"),  # whitening would blow up what strong views bring in
)
ON_MEAN_TEACHER = (
    *(*combined_with("mean_teacher"), "--method.entropy_weight", "0", "--method.ramp_fraction", "0.25"),
    *("--method.consistency", "mse", "--method.consistency_weight", "10"),
)

CONTENDERS = (
    Row("supervised only", "supervised"),
    Row("Π-VAT", "pi_vat"),
    Row("Manifold Graph", "manifold_graph"),
    Row("FixMatch", "fixmatch"),
)
OTHERS = (
    Row("Π-model", "pi_model"),
    Row("VAT", "vat"),
    Row("Mean Teacher", "mean_teacher"),
    Row("Pseudo-Label", "pseudo_label"),
    Row("MixUp", "mixup"),
    Row("MixMatch", "mixmatch"),
    Row("Manifold Graph on FixMatch", "manifold_graph", ON_FIXMATCH),
    Row("Manifold Graph on Mean Teacher", "manifold_graph", ON_MEAN_TEACHER),
)

ABLATION = (
    Row("random labelled images as nodes", "manifold_graph", ("--method.nodes", "labelled_images")),
    Row("without anchor loss", "manifold_graph", ("--method.anchor_weight", "0")),
    Row("without divergence loss", "manifold_graph", ("--method.divergence_weight", "0")),
    Row(
        "without either",
        "manifold_graph",
        ("--method.anchor_weight", "0", "--method.divergence_weight", "0"),
    ),
    Row("Manifold Graph", "manifold_graph"),
)

_PRINTED_ABLATION = {
    "random labelled images as nodes": (8.75, 0.17),
    "without anchor loss": (8.52, 0.20),
    "without divergence loss": (8.32, 0.26),
    "without either": (8.49, 0.36),
    "Manifold Graph": (8.27, 0.19),
}


def paper_table(name: str, scale: Scale) -> Table:
    """One of `PAPER_TABLES`."""
    at = "at the paper's scale" if scale == "paper" else "at the scale of a small machine"
    heading, columns, rows = PAPER_TABLES[name]
    if name == "ablation" and scale == "small":
        columns = (("SVHN", 250), ("CIFAR-10", 1000))  # where there is more to gain
    return Table(
        f"{heading}, {at}",
        tuple(_column(data, labels, scale) for data, labels in columns),
        rows,
        SEEDS,
        published=PUBLISHED | _of_the_ablation() if name == "ablation" else PUBLISHED,
    )


def _column(data: str, labels: int, scale: Scale) -> Column:
    return Column(f"{data} {labels} labels", RECIPES[scale][data], labels)


def _of_the_ablation() -> dict[tuple[str, str], tuple[float, float]]:
    return {(row, "CIFAR-10 4000 labels"): figures for row, figures in _PRINTED_ABLATION.items()}


_METHODS = (*CONTENDERS, *OTHERS)
PAPER_TABLES: Mapping[str, tuple[str, tuple[tuple[str, int], ...], tuple[Row, ...]]] = {
    "main": ("Main table", (("SVHN", 1000), ("CIFAR-10", 4000), ("CIFAR-100", 10_000)), _METHODS),
    "svhn-labels": ("SVHN with fewer labels", tuple(("SVHN", n) for n in LABELS["SVHN"]), _METHODS),
    "cifar10-labels": (
        "CIFAR-10 with fewer labels",
        tuple(("CIFAR-10", n) for n in LABELS["CIFAR-10"]),
        _METHODS,
    ),
    "ablation": ("Ablation", (("CIFAR-10", 4000),), ABLATION),
}
