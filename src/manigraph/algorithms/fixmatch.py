"""FixMatch (Sohn et al. 2020).

| equation | function |
|---|---|
| l_s (eq. 3) | `torch.nn.functional.cross_entropy` on weak views |
| l_u (eq. 4) | `functional.confident_cross_entropy`: the class of a weak view, for its strong view |
| RandAugment, Cutout | `data.strong_augmentation` |

Strong views are made for whole batches, from the original pixels. Whitening is refused: it blows up what
they bring in. The clean pass over weak views moves running statistics and has no gradient; labelled images go
with the strong views, which move none, as evaluation never sees such images. Entropy and balance, which the
paper does not have and which are off by default, learn from weak views: with them, these have a gradient, and
labelled images go with them.

With `target_decay`, which is ours, a teacher that follows the network looks at the weak views, in passes that
move its own running statistics, and predicts in the end. Then the network itself does not look at them, and
its own statistics, which nobody reads, never move (unless entropy or balance learn from weak views).

Different from the paper: the schedule is the recipe's, not part of a cosine, and the paper's 7 unlabelled
images for a labelled one are `batch.unlabelled`.
"""

from dataclasses import dataclass

from manigraph.algorithms.comparisons import ComparisonAlgorithm, ThresholdConfig


class FixMatch(ComparisonAlgorithm["FixMatch.Config"]):
    """What a weak view is surely taken for, the strong view of the same image must be taken for."""

    comparison_name = "fixmatch"

    @dataclass(frozen=True)
    class Config(ThresholdConfig):
        """Settings of FixMatch."""

        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""

    @classmethod
    def keeps_average(cls, config: Config) -> bool:
        return config.target_decay > 0
