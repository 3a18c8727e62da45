"""The paper's tables and ablation (Kuo et al. 2019), at its own scale or at one for small machines.

Every table of a scale is measured into the same results file, so that what two tables share is measured once.
"""

from collections.abc import Mapping
from typing import Literal

from manigraph.experiments.tables import Column, Row, Table, combined_with

Scale = Literal["paper", "small"]

RECIPES: Mapping[Scale, Mapping[str, str]] = {
    "paper": {"SVHN": "svhn", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"},
    "small": {"SVHN": "svhn_small", "CIFAR-10": "cifar10_small", "CIFAR-100": "cifar100_small"},
}

SEEDS = (0, 1, 2)

ON_FIXMATCH = (
    *(*combined_with("fixmatch"), "--method.entropy_weight", "0"),
    *("--preprocessing.kind", "standardise"),  # whitening would blow up what strong views bring in
)
ON_MEAN_TEACHER = combined_with("mean_teacher")

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

_LABELS = {"SVHN": (250, 500, 1000), "CIFAR-10": (250, 500, 1000, 2000, 4000), "CIFAR-100": (10_000,)}

# Test error in per cent, mean and standard deviation, as the paper prints them: for each row the figures of
# SVHN 250, 500, 1000, CIFAR-10 250, 500, 1000, 2000, 4000 and CIFAR-100 10000.
_PRINTED: Mapping[str, str] = {
    "VAT": "- - 3.96±.22 - - - - 9.90±.12 35.06±.27",
    "Π-VAT": "7.26±1.73 4.78±.41 4.50±.24 24.5±2.76 16.76±.40 13.23±.10 11.15±.26 9.20±.02 34.94±.24",
    "Manifold Graph": "3.77±.07 3.53±.08 3.35±.17 "
    "19.93±1.14 14.52±1.10 11.05±.52 9.31±.27 8.27±.19 33.83±.62",
    "Π-model": "17.65±.27 11.44±.39 8.60±.18 53.02±2.05 41.82±1.52 31.53±.98 23.07±.66 17.41±.37 39.19±.36",
    "Pseudo-Label": "21.16±.88 14.35±.37 10.19±.41 49.98±1.17 40.55±1.70 30.91±1.73 21.96±.42 16.21±.11 -",
    "MixUp": "39.97±1.89 29.62±1.54 16.79±.63 47.43±.92 36.17±1.36 25.72±.66 18.14±1.06 13.15±.20 -",
    "Mean Teacher": "6.45±2.43 3.82±.17 3.75±.10 47.32±4.71 42.01±5.86 17.32±4.00 12.17±.22 10.36±.25 -",
}
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


def _published() -> dict[tuple[str, str], tuple[float, float]]:
    titles = [f"{data} {labels} labels" for data, all_labels in _LABELS.items() for labels in all_labels]
    figures = {}
    for row, printed in _PRINTED.items():
        for column, figure in zip(titles, printed.split(), strict=True):
            if figure != "-":
                mean, _, spread = figure.partition("±")
                figures[row, column] = (float(mean), float(spread))
    return figures


def _of_the_ablation() -> dict[tuple[str, str], tuple[float, float]]:
    return {(row, "CIFAR-10 4000 labels"): figures for row, figures in _PRINTED_ABLATION.items()}


PUBLISHED = _published()
"""The paper's figures, by the titles of row and column."""

_METHODS = (*CONTENDERS, *OTHERS)
PAPER_TABLES: Mapping[str, tuple[str, tuple[tuple[str, int], ...], tuple[Row, ...]]] = {
    "main": ("Main table", (("SVHN", 1000), ("CIFAR-10", 4000), ("CIFAR-100", 10_000)), _METHODS),
    "svhn-labels": ("SVHN with fewer labels", tuple(("SVHN", n) for n in _LABELS["SVHN"]), _METHODS),
    "cifar10-labels": (
        "CIFAR-10 with fewer labels",
        tuple(("CIFAR-10", n) for n in _LABELS["CIFAR-10"]),
        _METHODS,
    ),
    "ablation": ("Ablation", (("CIFAR-10", 4000),), ABLATION),
}
