"""Many numbers for each point to a place on a map (van der Maaten and Hinton 2008), by openTSNE."""

import numpy as np
import numpy.typing as npt

from manigraph.errors import UserError

PERPLEXITY = 30
SEED = 0
METRIC = "cosine"
"""By angle, as the losses that place the prototypes."""

Array = npt.NDArray[np.float64]


def map_of(points: Array) -> Array:
    """Places of N points, (N, 2); the same for the same points."""
    try:
        from openTSNE import TSNE
    except ImportError:
        raise UserError("maps are made by openTSNE, which is not installed: pip install openTSNE") from None
    if len(points) < 4:
        raise UserError(f"a map needs at least 4 points, got {len(points)}")
    if not np.isfinite(points).all() or np.ptp(points, axis=0).max() < 1e-12:
        raise UserError("there is no map of features that are not finite, or all alike")
    method = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        metric=METRIC,
        neighbors="exact",
        random_state=SEED,
        n_jobs=1,  # several would add up in another order each time
    )
    places: Array = np.asarray(method.fit(points), dtype=np.float64)
    return places
