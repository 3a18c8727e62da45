"""Where the graph's P = K·C class nodes come from."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manigraph.functional.graph import LEAKY_SLOPE


class PrototypeGenerator(nn.Module):
    """p_ij = MLP([f_k_i, f_c_j]): K prototypes for each of C classes (paper, section 3.3).

    Two embeddings, of K and of C rows, instead of one of K·C: parameters grow with K + C.

    Args:
        num_classes: C.
        prototypes_per_class: K.
        feature_size: D, the size of the backbone's features.
        embedding_size: Size of each of the two embeddings.
        hidden_size: Width of the MLP's hidden layer.
    """

    def __init__(
        self,
        num_classes: int,
        prototypes_per_class: int,
        feature_size: int,
        *,
        embedding_size: int = 32,
        hidden_size: int = 64,
    ) -> None:
        super().__init__()
        if prototypes_per_class < 1:
            raise ValueError(f"prototypes per class (K) must be at least 1, got {prototypes_per_class}")
        self.num_classes = num_classes
        self.prototypes_per_class = prototypes_per_class
        self.instance_embedding = nn.Parameter(torch.randn(prototypes_per_class, embedding_size))
        self.class_embedding = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.mlp = nn.Sequential(
            nn.Linear(2 * embedding_size, hidden_size),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Linear(hidden_size, feature_size),
        )

    def forward(self) -> Float[Tensor, "P D"]:
        """All prototypes, class-major: row j·K + i is prototype i of class j."""
        C, K = self.num_classes, self.prototypes_per_class
        condition = torch.cat(
            [
                self.instance_embedding.expand(C, K, -1),
                self.class_embedding.unsqueeze(1).expand(C, K, -1),
            ],
            dim=2,
        )  # (C, K, 2·embedding)
        prototypes: Tensor = self.mlp(condition.flatten(0, 1))
        return prototypes


class LabelledImageNodes(nn.Module):
    """The ablation's class nodes: K labelled images per class, re-encoded every iteration.

    It keeps the images of the last draw, so that evaluation and a saved model have nodes too.
    """

    images: Tensor

    def __init__(self, num_classes: int, prototypes_per_class: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        if prototypes_per_class < 1:
            raise ValueError(f"node images per class (K) must be at least 1, got {prototypes_per_class}")
        self.num_classes = num_classes
        self.prototypes_per_class = prototypes_per_class
        self.register_buffer("images", torch.zeros(num_classes * prototypes_per_class, *input_shape))

    def draw(self, images: Float[Tensor, "P ..."]) -> None:
        """Take `images`, class-major, as the nodes."""
        self.images.copy_(images)
