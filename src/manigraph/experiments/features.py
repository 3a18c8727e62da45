"""Heads on the features of a pretrained network: CIFAR-10 through EfficientNet-Lite0 at 96 pixels.

Whatever was chosen was chosen on validation images with label draws 10 and 11, which are in no table of
results.
"""

from manigraph.experiments.tables import Row, Table, label_columns

_MIRRORED = ("--data.features", "efficientnet_lite0:mirrored")

CONTENDERS = (
    Row("logistic regression (scikit-learn)", "logistic_regression"),
    Row("LabelSpreading (scikit-learn)", "label_spreading"),
    Row("LabelSpreading by cosine, edges both ways", "label_spreading_by_cosine"),
    Row("supervised only", "supervised"),
    Row("Π-VAT", "pi_vat"),
    Row("Manifold Graph", "manifold_graph"),
    Row("mirrored: logistic regression (scikit-learn)", "logistic_regression", _MIRRORED),
    Row("mirrored: Π-VAT", "pi_vat", _MIRRORED),
    Row("mirrored: Manifold Graph", "manifold_graph", _MIRRORED),
)


def _tried(title: str, *options: str, algorithm: str = "pi_vat") -> Row:
    return Row(
        f"{'Manifold Graph' if algorithm == 'manifold_graph' else 'Π-VAT'}: {title}", algorithm, options
    )


_MLP = ("--backbone.name", "mlp", "--schedule.max_learning_rate", "0.1")
TUNING = (
    _tried("as in the recipe"),
    _tried("rate 0.1", "--schedule.max_learning_rate", "0.1"),
    _tried("rate 0.003", "--schedule.max_learning_rate", "0.003"),
    _tried("dropout 0.5", "--backbone.dropout", "0.5"),
    _tried("an MLP, rate 0.1", *_MLP),
    _tried("as in the recipe", algorithm="manifold_graph"),
    _tried("256 directions", "--backbone.width", "0.5", algorithm="manifold_graph"),
)

FEATURE_TABLES = {
    "features": Table(
        "CIFAR-10, features of EfficientNet-Lite0",
        label_columns("cifar10_features", 40, 250, 1000),
        CONTENDERS,
        seeds=(0, 1, 2),
    ),
    "features-tuning": Table(
        "CIFAR-10, features of EfficientNet-Lite0, settings that were tried",
        label_columns("cifar10_features", 40, 250),
        TUNING,
        seeds=(10, 11),
        part="validation",
    ),
}
