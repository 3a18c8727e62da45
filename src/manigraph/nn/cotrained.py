"""Networks that were trained together, as one."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from manigraph.functional import mean_log_probs
from manigraph.nn.classifier import Classifier


class CoTrainedViews(nn.Module):
    """Predicts the mean of what several classifiers predict; it shares their parameters."""

    def __init__(self, views: Sequence[Classifier]) -> None:
        super().__init__()
        self.num_classes = views[0].num_classes
        self.views = nn.ModuleList(views)
        self.training = views[0].training

    def final_features(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B VD"]:
        """What the linear layers get, of length 1 in each view, side by side."""
        features = []
        for view in self.views:
            assert isinstance(view, Classifier)
            features.append(F.normalize(view.final_features(images), dim=1))
        return torch.cat(features, dim=1)

    def forward(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """The logarithm of the mean probabilities."""
        return mean_log_probs(torch.stack([view(images) for view in self.views]))
