"""How the settings of the small scale were chosen: on validation images of SVHN, never on test images."""

from manigraph.experiments.tables import Row, Table, label_columns

TUNING: tuple[Row, ...] = ()

SMALL_TABLES = {
    "small-tuning": Table(
        "SVHN at the scale of a small machine, settings that were tried",
        label_columns("svhn_small", 250),
        TUNING,
        seeds=(10,),
        part="validation",
    ),
}
