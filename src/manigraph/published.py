"""The figures that the paper prints (Kuo et al. 2019), for tables and reports to show beside ours."""

from collections.abc import Mapping

LABELS: Mapping[str, tuple[int, ...]] = {
    "SVHN": (250, 500, 1000),
    "CIFAR-10": (250, 500, 1000, 2000, 4000),
    "CIFAR-100": (10_000,),
}

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


def _published() -> dict[tuple[str, str], tuple[float, float]]:
    titles = [f"{data} {labels} labels" for data, all_labels in LABELS.items() for labels in all_labels]
    figures = {}
    for row, printed in _PRINTED.items():
        for column, figure in zip(titles, printed.split(), strict=True):
            if figure != "-":
                mean, _, spread = figure.partition("±")
                figures[row, column] = (float(mean), float(spread))
    return figures


PUBLISHED = _published()
"""Mean and standard deviation by method and by data set with number of labels, as in `SVHN 250 labels`."""


def printed_error(data: str, labels: int | None, method: str) -> tuple[float, float] | None:
    """The paper's test error of a method, mean and deviation; None if it has none.

    Args:
        data: Data set, by its name here, as in `cifar10`.
        labels: How many.
        method: By the paper's name, as in `Manifold Graph`.
    """
    title = next((name for name in LABELS if name.lower().replace("-", "") == data), None)
    return PUBLISHED.get((method, f"{title} {labels} labels"))
