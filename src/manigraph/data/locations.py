"""Where data sets are looked for and where decoded pixels are kept."""

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

DATA_VARIABLE = "MANIGRAPH_DATA"
CACHE_VARIABLE = "MANIGRAPH_CACHE"


@dataclass(frozen=True)
class Locations:
    """The folders that the data layer reads from and writes to."""

    data: Path
    """Holds a folder for each named data set, such as `data/cifar10`."""
    cache: Path
    """Decoded pixels and fingerprints of files; may be deleted at any time."""

    @classmethod
    def default(cls, data_dir: Path | None = None) -> "Locations":
        """`data_dir`, else what MANIGRAPH_DATA says, else a folder in the user's cache.

        MANIGRAPH_CACHE moves the cache, by default `manigraph` in the user's cache folder.
        """
        cache = Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("manigraph"))
        return cls(data=Path(data_dir or os.environ.get(DATA_VARIABLE) or cache / "data"), cache=cache)
