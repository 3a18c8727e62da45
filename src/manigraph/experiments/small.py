"""How the settings of the small scale are being chosen: on validation images of SVHN, never on test images.

Label draw 10 is in no table of results. What the rows showed so far is in `docs/results.md`.
"""

from dataclasses import replace

from manigraph.experiments.paper import ON_FIXMATCH
from manigraph.experiments.tables import Row, Table, label_columns

# A first look: an eighth of the width and half the steps, so that many settings could be tried.
_LOOK = (
    *("--backbone.width", "0.125", "--training.steps", "1500"),
    *("--schedule.max_learning_rate", "0.1", "--training.ema_decay", "0.99"),
)
_RAMP = ("--method.ramp_fraction", "0.4")
_MSE = ("--method.consistency", "mse", "--method.consistency_weight", "4")


def _epsilon(value: str) -> tuple[str, ...]:
    return ("--method.epsilon", value)


def _looked(title: str, algorithm: str, *options: str) -> Row:
    return Row(f"width 1/8, 1,500 steps: {title}", algorithm, (*_LOOK, *options))


# A quarter of the width, with more labels.
_QUARTER = ("--training.steps", "1200")
_FASTER = ("--schedule.max_learning_rate", "0.1", "--training.ema_decay", "0.99", *_epsilon("3.5"))


def _quarter(title: str, algorithm: str, *options: str) -> Row:
    return Row(f"width 1/4, 1,200 steps: {title}", algorithm, (*_QUARTER, *options), labels=1000)


# As long as the recipe has it.
_WHOLE = (*_FASTER, "--training.evaluate_every", "300")


def _whole(title: str, algorithm: str, *options: str) -> Row:
    return Row(f"width 1/4, 3,000 steps: {title}", algorithm, (*_WHOLE, *options))


TUNING = (
    _looked("supervised", "supervised"),
    _looked("Π-VAT, ε = 3.5", "pi_vat", *_epsilon("3.5")),
    _looked("Π-VAT, ε = 1", "pi_vat", *_epsilon("1")),
    _looked("Π-VAT, ε = 0.3", "pi_vat", *_epsilon("0.3")),
    _looked("Π-VAT, ε = 3.5, ramp", "pi_vat", *_epsilon("3.5"), *_RAMP),
    _looked("Π-VAT, ε = 3.5, ramp, MSE", "pi_vat", *_epsilon("3.5"), *_MSE, *_RAMP),
    _looked("Π-VAT, ε = 1, no entropy", "pi_vat", *_epsilon("1"), "--method.entropy_weight", "0"),
    _looked("Π-VAT, ε = 1, balanced", "pi_vat", *_epsilon("1"), "--method.balance_memory", "1280"),
    _looked("Π-VAT, ε = 1, dropout 0.1", "pi_vat", *_epsilon("1"), "--backbone.dropout", "0.1"),
    _looked("Π-VAT, ε = 1, no dropout", "pi_vat", *_epsilon("1"), "--backbone.dropout", "0"),
    _looked("supervised, no dropout", "supervised", "--backbone.dropout", "0"),
    _looked("Π-model", "pi_model"),
    _looked("FixMatch", "fixmatch"),
    # An entropy term that weighs nothing has labelled images go with the first views, at the cost of a
    # backward pass through these.
    _looked("FixMatch, labelled with first views", "fixmatch", "--method.entropy_weight", "1e-12"),
    _looked("Manifold Graph, ε = 1", "manifold_graph", *_epsilon("1")),
    _quarter("Π-VAT, rate 0.02, ε = 7", "pi_vat", *_epsilon("7")),
    _quarter("Π-VAT, rate 0.1, ε = 3.5", "pi_vat", *_FASTER),
    _quarter("Π-VAT, rate 0.1, ε = 3.5, no entropy", "pi_vat", *_FASTER, "--method.entropy_weight", "0"),
    _quarter(
        "Manifold Graph, rate 0.1, ε = 3.5, no entropy, scale 4",
        "manifold_graph",
        *(*_FASTER, "--method.entropy_weight", "0", "--method.scale", "4"),
    ),
    _whole("Π-VAT, rate 0.1, ε = 3.5", "pi_vat"),
    _whole("Manifold Graph, rate 0.1, ε = 3.5, scale 4", "manifold_graph", "--method.scale", "4"),
)

# As in the recipe `digits`.
_FEWER_PROTOTYPES = (
    *("--method.prototypes_per_class", "5", "--method.prototype_update", "shared"),
    *("--method.warmup_fraction", "0.2"),
)
_BALANCED = ("--method.balance_weight", "1", "--method.balance_memory", "1280")
_KL = ("--method.consistency", "kl", "--method.ramp_fraction", "0")
_KL_RAMP = ("--method.consistency", "kl")
_STRONG = ("--batch.labelled_view", "strong")
_HEAVIER = ("--method.consistency_weight", "4")


def _decayed(decay: str, title: str, algorithm: str, *options: str, labels: int | None = None) -> Row:
    many = f"{labels:,} labels, " if labels else ""
    return Row(
        f"{many}weight decay {decay}: {title}",
        algorithm,
        ("--training.weight_decay", decay, "--training.decay_at_labels", "0", *options),
        labels=labels,
    )


def _light(title: str, algorithm: str, *options: str, labels: int | None = None) -> Row:
    """With the weight decay that other recipes have."""
    return _decayed("0.0002", title, algorithm, *options, labels=labels)


def _light_kl(title: str, algorithm: str, *options: str, labels: int | None = None) -> Row:
    """And predictions compared as in the paper."""
    return _light(title, algorithm, *_KL, *options, labels=labels)


# The recipe of the tables: first with little weight decay, then how the weight decay and the distance of the
# recipe were chosen.
TUNING_AT_16PX = (
    _light("supervised", "supervised"),
    _light("supervised, batches of 16", "supervised", "--batch.labelled", "16"),
    _light("supervised, batches of 96", "supervised", "--batch.labelled", "96"),
    _light_kl("Π-VAT, KL", "pi_vat"),
    _light_kl(
        "Π-VAT, nothing learned from unlabelled images",
        "pi_vat",
        *("--method.consistency_weight", "0", "--method.entropy_weight", "0"),
    ),
    _light_kl(
        "Π-VAT, KL, a tenth of the weights",
        "pi_vat",
        *("--method.consistency_weight", "0.1", "--method.entropy_weight", "0.01"),
    ),
    _light("Π-VAT, KL, ramp, balanced", "pi_vat", *_KL_RAMP, *_BALANCED),
    _light("Π-VAT, MSE, ramp, no entropy", "pi_vat", "--method.entropy_weight", "0"),
    _light_kl("Manifold Graph, KL", "manifold_graph"),
    _light("FixMatch", "fixmatch"),
    _light_kl("Manifold Graph on FixMatch", "manifold_graph", *ON_FIXMATCH),
    _light_kl(
        "Manifold Graph on FixMatch, 5 prototypes, shared, warm-up 0.2",
        "manifold_graph",
        *(*ON_FIXMATCH, *_FEWER_PROTOTYPES),
    ),
    _light("supervised", "supervised", labels=1000),
    _light_kl("Π-VAT, KL, ε = 1.75", "pi_vat", labels=1000),
    _light_kl("Π-VAT, KL, ε = 3.5", "pi_vat", *_epsilon("3.5"), labels=1000),
    _light_kl("Manifold Graph, KL, ε = 1.75", "manifold_graph", labels=1000),
    _light_kl("Manifold Graph, KL, ε = 3.5", "manifold_graph", *_epsilon("3.5"), labels=1000),
    _light_kl(
        "Manifold Graph, KL, 5 prototypes, shared, warm-up 0.2",
        "manifold_graph",
        *_FEWER_PROTOTYPES,
        labels=1000,
    ),
    _light_kl("VAT, KL, ε = 1.75", "vat", *_epsilon("1.75"), labels=1000),
    _light_kl("VAT, KL, ε = 3.5", "vat", labels=1000),
    _light("FixMatch, threshold 0.95", "fixmatch", "--method.threshold", "0.95", labels=1000),
    _light("FixMatch, threshold 0.8", "fixmatch", labels=1000),
    *(
        _decayed(decay, title, algorithm, *options)
        for title, algorithm, options, decays in (
            ("supervised", "supervised", (), ("0.001", "0.002", "0.003", "0.005", "0.01")),
            ("supervised, labelled images in strong views", "supervised", _STRONG, ("0.005",)),
            ("FixMatch", "fixmatch", (), ("0.001", "0.003", "0.005", "0.01")),
            (
                "FixMatch, labelled images in strong views",
                "fixmatch",
                (*_STRONG, "--training.evaluate_every", "1000"),
                ("0.005",),
            ),
            ("Π-VAT, KL", "pi_vat", _KL, ("0.001", "0.003", "0.01")),
            ("Π-VAT, KL, ramp", "pi_vat", _KL_RAMP, ("0.0005",)),
            ("Π-VAT, KL, ramp, balanced", "pi_vat", (*_KL_RAMP, *_BALANCED), ("0.005", "0.01")),
            ("Π-VAT, MSE, ramp", "pi_vat", (), ("0.001", "0.005", "0.01")),
            ("Π-VAT, MSE, ramp, weight 4", "pi_vat", _HEAVIER, ("0.005",)),
            ("Manifold Graph, KL", "manifold_graph", _KL, ("0.01",)),
            ("Manifold Graph, MSE, ramp", "manifold_graph", (), ("0.005", "0.01")),
            ("Manifold Graph, MSE, ramp, weight 4", "manifold_graph", _HEAVIER, ("0.005",)),
        )
        for decay in decays
    ),
    *(
        _decayed(decay, title, algorithm, *options, labels=1000)
        for title, algorithm, options, decay in (
            ("supervised", "supervised", (), "0.001"),
            ("supervised", "supervised", (), "0.003"),
            ("Π-VAT, KL", "pi_vat", _KL, "0.003"),
            ("Π-VAT, MSE, ramp", "pi_vat", (), "0.001"),
            ("Π-VAT, MSE, ramp", "pi_vat", (), "0.005"),
            ("FixMatch", "fixmatch", (), "0.003"),
        )
    ),
)

# Why the graph pays or does not: on 5,000 validation images, so that a point is more than chance.
_MANY = ("--data.validation", "5000")
_HEAVY_ANCHOR = ("--method.anchor_weight", "10")
_NO_DROPOUT = ("--backbone.dropout", "0")
_OWN_VIEW = ("--method.adversarial_reference", "own_view")
_LATE = ("--method.warmup_fraction", "0.4")
# As many features as the paper's network has, 128, in a network that is small all the same. They have so much
# in common that its graph hears nothing by dot products.
_RESNET9 = (*_NO_DROPOUT, "--backbone.name", "resnet9", "--backbone.width", "0.25")


BY_COSINES = ("--method.attention", "cosine", "--method.scale", "1.5")


def _graph(title: str, *options: str) -> Row:
    return Row(title, "manifold_graph", (*options, *_MANY))


GRAPH_TUNING = (
    Row("Π-VAT", "pi_vat", _MANY),
    _graph("Manifold Graph"),
    _graph("Manifold Graph, anchor weight 10", *_HEAVY_ANCHOR),
    _graph("Manifold Graph, scale 2", "--method.scale", "2"),
    _graph("Manifold Graph, warm-up 0.4", *_LATE),
    _graph("Manifold Graph, L_clf,P with weight 10", "--method.prototype_weight", "10"),
    _graph("Manifold Graph, perturbed from the own view", *_OWN_VIEW),
    Row("Π-VAT, perturbed from the own view", "pi_vat", (*_OWN_VIEW, *_MANY)),
    _graph("Manifold Graph, perturbed from the own view, scale 2", *_OWN_VIEW, "--method.scale", "2"),
    Row("supervised, no dropout", "supervised", (*_NO_DROPOUT, *_MANY)),
    Row("Π-VAT, no dropout", "pi_vat", (*_NO_DROPOUT, *_MANY)),
    _graph("Manifold Graph, no dropout", *_NO_DROPOUT),
    *(
        row
        for value in ("1", "3.5", "7")
        for row in (
            Row(f"Π-VAT, no dropout, ε = {value}", "pi_vat", (*_NO_DROPOUT, *_epsilon(value), *_MANY)),
            _graph(f"Manifold Graph, no dropout, ε = {value}", *_NO_DROPOUT, *_epsilon(value)),
        )
    ),
    *(
        _graph(f"Manifold Graph, no dropout, ε = 3.5, {title}", *_NO_DROPOUT, *_epsilon("3.5"), *options)
        for title, options in (
            ("scale 2", ("--method.scale", "2")),
            ("scale 1", ("--method.scale", "1")),
            ("scale 0", ("--method.scale", "0")),
            ("without anchor loss", ("--method.anchor_weight", "0")),
            ("warm-up 0.4", _LATE),
        )
    ),
    *(
        Row(f"VAT, no dropout, ε = {value}", "vat", (*_NO_DROPOUT, *_epsilon(value), *_MANY))
        for value in ("3.5", "7")
    ),
    Row("Π-model, no dropout", "pi_model", (*_NO_DROPOUT, *_MANY)),
    Row("Π-model", "pi_model", _MANY),
    Row("Mean Teacher, no dropout", "mean_teacher", (*_NO_DROPOUT, *_MANY)),
    Row("Mean Teacher", "mean_teacher", _MANY),
    Row("FixMatch, no dropout", "fixmatch", (*_NO_DROPOUT, *_MANY)),
    Row("FixMatch", "fixmatch", _MANY),
    _graph("Manifold Graph on FixMatch", *ON_FIXMATCH),
    _graph("Manifold Graph on FixMatch, anchor weight 10", *ON_FIXMATCH, *_HEAVY_ANCHOR),
    # Other readings of the paper, and whether they matter.
    *(
        _graph(f"Manifold Graph, no dropout, {title}", *_NO_DROPOUT, *options)
        for title, options in (
            ("perturbed from the own view", _OWN_VIEW),
            ("L_clf,P on raw prototypes", ("--method.prototype_update", "none")),
            ("prototypes refined once for all images", ("--method.prototype_update", "shared")),
            ("no gradient through the boundary's margin", ("--method.detach_boundary_margin", "True")),
            ("warm-up 0.4", _LATE),
        )
    ),
    *(
        row
        for value in ("3.5", "1.75")
        for row in (
            Row(f"Π-VAT, 128 features, ε = {value}", "pi_vat", (*_RESNET9, *_epsilon(value), *_MANY)),
            _graph(
                f"Manifold Graph, 128 features, attention by cosines, ε = {value}",
                *(*_RESNET9, *_epsilon(value), *BY_COSINES),
            ),
        )
    ),
    *(
        Row(
            f"MixMatch, no dropout, weight {weight}",
            "mixmatch",
            (*_NO_DROPOUT, "--method.mixed_consistency_weight", weight, *_MANY),
        )
        for weight in ("20", "5")
    ),
)


# Whether it is ε or the graph: each method with the other's, where Manifold Graph has the lower error.
OTHERS_EPSILON = tuple(
    Row(f"{title}, ε = {value}", algorithm, (*_epsilon(value), *_MANY))
    for title, algorithm in (("Π-VAT", "pi_vat"), ("Manifold Graph", "manifold_graph"))
    for value in ("4", "2")
)


def as_first_tried(row: Row) -> Row:
    """With the dropout and ε that recipes at 16 pixels had before the looks, unless the row has its own."""
    before = {"--backbone.dropout": "None"}
    if row.algorithm in ("pi_vat", "vat"):
        before["--method.epsilon"] = "1.75" if row.algorithm == "pi_vat" else "3.5"
    kept = (word for name, value in before.items() if name not in row.options for word in (name, value))
    return replace(row, options=(*row.options, *kept))


def _looks(title: str, recipe: str, rows: tuple[Row, ...], labels: int = 250) -> Table:
    title = f"{title}, settings that were tried"
    return Table(title, label_columns(recipe, labels), rows, seeds=(10,), part="validation")


SMALL_TABLES = {
    "graph-tuning": _looks(
        "The graph at 16x16 pixels", "svhn_16px", tuple(map(as_first_tried, GRAPH_TUNING))
    ),
    "16px-tuning": _looks("SVHN at 16x16 pixels", "svhn_16px", tuple(map(as_first_tried, TUNING_AT_16PX))),
    "cifar10-epsilon": _looks("CIFAR-10 at 16x16 pixels", "cifar10_16px", OTHERS_EPSILON, labels=1000),
    "small-tuning": _looks("SVHN at the scale of a small machine", "svhn_small", TUNING),
}
