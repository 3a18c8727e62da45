"""How the settings of the small scale are being chosen: on validation images of SVHN, never on test images.

Label draw 10 is in no table of results. What the rows showed so far is in `docs/results.md`.
"""

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

_BALANCED = ("--method.balance_weight", "1", "--method.balance_memory", "1280")

# As in the recipe `digits`.
_FEWER_PROTOTYPES = (
    *("--method.prototypes_per_class", "5", "--method.prototype_update", "shared"),
    *("--method.warmup_fraction", "0.2"),
)


def _many(title: str, algorithm: str, *options: str) -> Row:
    return Row(f"1,000 labels: {title}", algorithm, options, labels=1000)


# The recipe of the tables: 250 labels, then 1,000.
TUNING_AT_16PX = (
    Row("supervised", "supervised"),
    Row("supervised, batches of 16", "supervised", ("--batch.labelled", "16")),
    Row("supervised, batches of 96", "supervised", ("--batch.labelled", "96")),
    Row("Π-VAT", "pi_vat"),
    Row(
        "Π-VAT, nothing learned from unlabelled images",
        "pi_vat",
        ("--method.consistency_weight", "0", "--method.entropy_weight", "0"),
    ),
    Row(
        "Π-VAT, a tenth of the weights",
        "pi_vat",
        ("--method.consistency_weight", "0.1", "--method.entropy_weight", "0.01"),
    ),
    Row("Π-VAT, ramp, balanced", "pi_vat", (*_RAMP, *_BALANCED)),
    Row(
        "Π-VAT, MSE, ramp, no entropy",
        "pi_vat",
        ("--method.consistency", "mse", *_RAMP, "--method.entropy_weight", "0"),
    ),
    Row("Manifold Graph", "manifold_graph"),
    Row("FixMatch", "fixmatch"),
    Row("Manifold Graph on FixMatch", "manifold_graph", ON_FIXMATCH),
    Row(
        "Manifold Graph on FixMatch, 5 prototypes, shared, warm-up 0.2",
        "manifold_graph",
        (*ON_FIXMATCH, *_FEWER_PROTOTYPES),
    ),
    _many("supervised", "supervised"),
    _many("Π-VAT, ε = 1.75", "pi_vat", *_epsilon("1.75")),
    _many("Π-VAT, ε = 3.5", "pi_vat", *_epsilon("3.5")),
    _many("Manifold Graph, ε = 1.75", "manifold_graph", *_epsilon("1.75")),
    _many("Manifold Graph, ε = 3.5", "manifold_graph", *_epsilon("3.5")),
    _many("Manifold Graph, 5 prototypes, shared, warm-up 0.2", "manifold_graph", *_FEWER_PROTOTYPES),
    _many("VAT, ε = 1.75", "vat", *_epsilon("1.75")),
    _many("VAT, ε = 3.5", "vat", *_epsilon("3.5")),
    _many("FixMatch, threshold 0.95", "fixmatch", "--method.threshold", "0.95"),
    _many("FixMatch, threshold 0.8", "fixmatch", "--method.threshold", "0.8"),
)


def _looks(title: str, recipe: str, rows: tuple[Row, ...]) -> Table:
    title = f"{title}, settings that were tried"
    return Table(title, label_columns(recipe, 250), rows, seeds=(10,), part="validation")


SMALL_TABLES = {
    "16px-tuning": _looks("SVHN at 16x16 pixels", "svhn_16px", TUNING_AT_16PX),
    "small-tuning": _looks("SVHN at the scale of a small machine", "svhn_small", TUNING),
}
