"""Half an hour of one core: what is reached, and how its recipes were found, on validation images.

Short looks, most of a tenth of the time, on label draw 10, which is in no table of results. What they showed
is in `docs/results.md`.
"""

from collections.abc import Callable
from fractions import Fraction

from manigraph.experiments.paper import ON_FIXMATCH
from manigraph.experiments.small import BY_COSINES, as_first_tried
from manigraph.experiments.tables import Row, Table, label_columns

_LOOK = ("--data.validation", "5000", "--training.decay_at_labels", "0")
_SHARED = (
    *("--method.prototypes_per_class", "5", "--method.prototype_update", "shared"),
    *("--method.warmup_fraction", "0.2"),
)

_RESNET9 = ("--backbone.name", "resnet9", "--backbone.width", "0.25")
_RESNET9_AT_32 = (
    *("--backbone.name", "resnet9", "--data.image_size", "None", "--augmentation.translation", "2"),
)
_BY_TEACHER = ("--training.ema_decay", "0", "--method.target_decay")  # which is an average itself


def _freely(decay: str = "0.001") -> tuple[str, ...]:
    """Without dropout, and with less weight decay than in the tables."""
    return (*_LOOK, "--training.weight_decay", decay, "--backbone.dropout", "0")


def _look(title: str, *options: str) -> Row:
    return Row(f"FixMatch{title}", "fixmatch", (*_freely(), *options))


def _graph(title: str, *options: str) -> Row:
    """As in `manigraph train PATH`."""
    title = f"Manifold Graph on FixMatch, 5 prototypes, shared, warm-up 0.2{title}"
    return Row(title, "manifold_graph", (*_freely(), *ON_FIXMATCH, *_SHARED, *options))


def _resnet9(title: str, *options: str) -> Row:
    return _look(f", ResNet-9 at width 1/4{title}", *_RESNET9, *options)


def _small_first(
    width: str, steps: str, title: str = "", *options: str, of: Callable[..., Row] = _look
) -> Row:
    """32×32 pixels after six tenths of the steps, if the options do not say otherwise."""
    return of(
        f", ResNet-9 at width {width}, teacher's targets (0.99), 32×32 pixels after six tenths of "
        f"{int(steps):,} steps{title}",
        *("--backbone.name", "resnet9", "--backbone.width", str(float(Fraction(width)))),
        *("--data.image_size", "None", "--augmentation.translation", "2", *_BY_TEACHER, "0.99"),
        *("--training.half_size_fraction", "0.6", "--training.steps", steps, *options),
    )


def _combined(width: str, steps: str) -> Row:
    return _small_first(
        *(width, steps, ", strong views anchored", "--method.anchored_view", "student"), of=_graph
    )


_FEW_LABELLED = ("--batch.labelled", "16", "--batch.unlabelled", "80")
_STRONG_LABELLED = ("--batch.labelled_view", "strong")
_EARLY_PEAK = ("--schedule.ramp_up", "0.15", "--schedule.ramp_down", "0.7")
_MUON = "--training.muon_turn"
_MILD = ("--strong.magnitude", "0.5", "--strong.cutout", "0.25")

LOOKS = (
    as_first_tried(
        Row("FixMatch, with dropout", "fixmatch", (*_LOOK, "--training.weight_decay", "0.001")),
    ),
    _look(""),
    Row("FixMatch, weight decay 0.002", "fixmatch", _freely("0.002")),
    _look(", threshold 0.95", "--method.threshold", "0.95"),
    _look(", 16 + 80 images", *_FEW_LABELLED),
    _graph(""),
    _graph(", strong views anchored", "--method.anchored_view", "student"),
    _look(", 32×32 pixels", "--data.image_size", "None", "--augmentation.translation", "2"),
    _look(", width 1/4", "--backbone.width", "0.25"),
    _resnet9(""),
    _look(", ResNet-9 at width 1/8, 32×32 pixels", *_RESNET9_AT_32),
    _resnet9(", teacher's targets (0.99)", *_BY_TEACHER, "0.99"),
    _resnet9(", teacher's targets (0.999)", *_BY_TEACHER, "0.999"),
    _resnet9(", teacher's targets (0.99), balanced", *_BY_TEACHER, "0.99", "--method.balance_memory", "50"),
    _graph(
        ", strong views anchored, ResNet-9 at width 1/4, teacher's targets (0.99)",
        *("--method.anchored_view", "student", *_RESNET9, *_BY_TEACHER, "0.99"),
    ),
    _resnet9(", 18,000 steps", "--training.steps", "18000"),
    _resnet9(", teacher's targets (0.99), 18,000 steps", *_BY_TEACHER, "0.99", "--training.steps", "18000"),
    _resnet9(
        ", teacher's targets (0.99), threshold 0.95, 18,000 steps",
        *(*_BY_TEACHER, "0.99", "--method.threshold", "0.95", "--training.steps", "18000"),
    ),
    _small_first("1/4", "9000"),
    _small_first("1/2", "4000"),
    _combined("1/4", "9000"),
    _combined("1/2", "15500"),
    _small_first("1/4", "9000", ", Muon (0.3)", _MUON, "0.3"),
)

LOOKS_AT_CIFAR10 = (
    _small_first("1/4", "9000"),
    _small_first("1/2", "4000"),
    _small_first("1/4", "9000", ", weight decay 0.0005", "--training.weight_decay", "0.0005"),
    _small_first("1/4", "9000", ", threshold 0.95", "--method.threshold", "0.95"),
    _combined("1/2", "15000"),
    _small_first("1/4", "9000", ", labelled images in strong views", *_STRONG_LABELLED),
    _small_first("1/4", "9000", ", highest rate early", *_EARLY_PEAK),
    _small_first("1/4", "9000", ", milder strong views", *_MILD),
    _small_first("1/4", "9000", ", Muon (0.3)", _MUON, "0.3"),
    _small_first("1/4", "9000", ", Muon (0.1)", _MUON, "0.1"),
    _small_first("1/4", "9000", ", Muon (0.6)", _MUON, "0.6"),
    _small_first("1/4", "9000", ", Muon (0.3), milder strong views", _MUON, "0.3", *_MILD),
    _small_first("1/2", "4000", ", Muon (0.3)", _MUON, "0.3"),
)

_BY_SGD = (_MUON, "0", "--training.steps")
_BY_MUON = (_MUON, "0.3", "--training.steps")


COMBINATION = Row("Manifold Graph, all combined", "manifold_graph", read_out="views")
ONE_VIEW = Row("combined, one view", "manifold_graph")
SINGLE_METHODS = (
    Row("FixMatch", "fixmatch"),
    Row("Π-VAT", "pi_vat"),
    Row("FixMatch, averaged over views", "fixmatch", read_out="views"),
)
HALF_HOUR = (
    COMBINATION,
    *SINGLE_METHODS,
    ONE_VIEW,
    Row("combined, one view, attention by cosines", "manifold_graph", BY_COSINES),
)
OPTIMISERS = (
    Row("all combined, by SGD", "manifold_graph", (*_BY_SGD, "11000"), read_out="views"),
    Row("all combined, by Muon", "manifold_graph", (*_BY_MUON, "10500"), read_out="views"),
    Row("combined, one view, by SGD", "manifold_graph", (*_BY_SGD, "11000")),
    Row("combined, one view, by Muon", "manifold_graph", (*_BY_MUON, "10500")),
)
THREE_TIMES = (
    Row(
        "combined, one view, width 1/2",
        *("manifold_graph", ("--backbone.width", "0.5", *_BY_SGD, "14500")),
    ),
    Row("combined, one view", "manifold_graph", (*_BY_SGD, "41000")),
    Row("FixMatch", "fixmatch", ("--training.steps", "27500")),
)


def _told(title: str, *options: str) -> Row:
    """With the labels of nearly all images that there are in `svhn_30min` and `cifar10_30min`."""
    told = ("--data.stratify", "proportional", "--batch.labelled", "96", "--batch.labelled_view", "strong")
    training = (
        *("--training.half_size_fraction", "0.6", "--preprocessing.kind", "standardise"),
        *("--training.weight_decay", "0.001", "--training.decay_at_labels", "0"),
    )
    return Row(title, "supervised", (*told, *training, *options), labels=23_000, read_out="views")


LIMIT = (
    _told("told 23,000 labels, by SGD", "--training.steps", "11000"),
    _told("told 23,000 labels, by Muon", "--training.steps", "10500", _MUON, "0.3"),
)
"""What the combination's network could reach in its steps if all its targets were right."""
_COLUMNS = (
    *label_columns("svhn_30min", 250, data="SVHN"),
    *label_columns("cifar10_30min", 4000, data="CIFAR-10"),
)

HALF_HOUR_TABLES = {
    "30min": Table(
        "Half an hour of one core",
        _COLUMNS,
        HALF_HOUR,
        seeds=(0, 1, 2),
    ),
    "30min-muon": Table("Half an hour, by SGD and by Muon", _COLUMNS, OPTIMISERS, seeds=(0,)),
    "30min-limit": Table("The same steps, told all labels", _COLUMNS, LIMIT, seeds=(0,)),
    "30min-fast": Table("Half an hour of a core three times as fast", _COLUMNS, THREE_TIMES, seeds=(0,)),
    "30min-tuning": Table(
        "SVHN in half an hour, settings that were tried",
        label_columns("svhn_16px", 250),
        LOOKS,
        seeds=(10,),
        part="validation",
    ),
    "30min-tuning-cifar10": Table(
        "CIFAR-10 in half an hour, settings that were tried",
        label_columns("cifar10_16px", 4000),
        LOOKS_AT_CIFAR10,
        seeds=(10,),
        part="validation",
    ),
}
