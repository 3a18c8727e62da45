"""Image to logits: a backbone and a linear layer, with or without the graph between them."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manigraph.functional.prototype_classification import prototype_cross_entropy
from manigraph.nn.backbones.base import Backbone
from manigraph.nn.batch_norm import frozen_running_statistics
from manigraph.nn.dropout import dropout_of
from manigraph.nn.manifold_graph import ManifoldGraph, Nodes
from manigraph.nn.passes import Passes
from manigraph.nn.prototypes import LabelledImageNodes, PrototypeGenerator
from manigraph.sharding import ALONE


class Classifier(nn.Module):
    """Backbone, then one linear layer."""

    passes = Passes()
    """How images go through the backbone."""

    def __init__(self, backbone: Backbone, linear: nn.Linear) -> None:
        super().__init__()
        self.num_classes = linear.out_features
        if self.num_classes < 2:
            raise ValueError(f"a classifier needs at least 2 classes, got {self.num_classes}")
        self.backbone = backbone
        self.linear = linear

    def features(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        """f: the backbone's features, before any graph."""
        return self.passes(self.backbone, images)

    def final_features(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        """What the linear layer gets: features that went through the graph, if there is one."""
        return self.features(images)

    def forward(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """Logits."""
        logits: Tensor = self.linear(self.final_features(images))
        return logits


class GraphClassifier(Classifier):
    """Backbone, manifold graph over the class nodes, then one linear layer.

    `graph_is_on` is part of the saved state: until the warm-up is over the prototypes mean nothing,
    and predictions come from the raw features.
    """

    graph_is_on: Tensor

    def __init__(
        self,
        backbone: Backbone,
        linear: nn.Linear,
        nodes: PrototypeGenerator | LabelledImageNodes,
        graph: ManifoldGraph,
    ) -> None:
        super().__init__(backbone, linear)
        self.nodes = nodes
        self.graph = graph
        self.register_buffer("graph_is_on", torch.tensor(False))

    def class_nodes(self) -> Nodes:
        """The P class nodes, differentiable."""
        if isinstance(self.nodes, LabelledImageNodes):
            # All processes take all of these images, and none of them moves running statistics.
            with dropout_of(self.backbone, ALONE), frozen_running_statistics(self.backbone):
                prototypes = self.features(self.nodes.images)
        else:
            prototypes = self.nodes()
        return self.graph.nodes(prototypes)

    def classify(
        self,
        features: Float[Tensor, "B D"],
        nodes: Nodes | None,
        embeddings: Float[Tensor, "B H E"] | None = None,
    ) -> Float[Tensor, "B C"]:
        """Logits from features: refined through the graph if there are nodes, else raw.

        Args:
            features: Of the images.
            nodes: The class nodes.
            embeddings: The graph's embeddings of these features, where they are known.
        """
        if nodes is not None:
            features = self.graph.refine_images(features, nodes.embeddings, nodes.messages, embeddings)
        logits: Tensor = self.linear(features)
        return logits

    def prototype_logits(self, nodes: Nodes, features: Float[Tensor, "B D"]) -> Float[Tensor, "G P C"]:
        """Logits of the refined prototypes, in the graphs of the images with these features."""
        logits: Tensor = self.linear(
            self.graph.refine_prototypes(nodes.prototypes, nodes.embeddings, features)
        )
        return logits

    def prototype_loss(
        self,
        nodes: Nodes,
        features: Float[Tensor, "B D"],
        classes: Int[Tensor, " P"],
        embeddings: Float[Tensor, "B H E"] | None = None,
    ) -> Float[Tensor, ""]:
        """L_clf,P: cross-entropy of the refined prototypes, mean over all graphs of the batch.

        Args:
            nodes: The class nodes.
            features: Of the images.
            classes: Of the prototypes.
            embeddings: The graph's embeddings of these features, where they are known.
        """
        if self.graph.prototype_update == "per_image":
            g = self.graph.embedding(features) if embeddings is None else embeddings
            parts = self.graph.message_parts(nodes.prototypes, nodes.embeddings, g)
            return prototype_cross_entropy(parts, self.linear.weight, self.linear.bias, classes)
        return F.cross_entropy(self.prototype_logits(nodes, features).squeeze(0), classes)

    def final_features(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        features = self.features(images)
        if not self.graph_is_on:
            return features
        nodes = self.class_nodes()
        return self.graph.refine_images(features, nodes.embeddings, nodes.messages)

    def frozen(self) -> "FrozenGraphClassifier":
        """The model to predict with: nodes as constants, generator left out, mode as it is."""
        return FrozenGraphClassifier(self)


class FrozenGraphClassifier(nn.Module):
    """A trained graph classifier whose class nodes are constants: 2·P·D numbers, and P·D for each head.

    It shares the other parameters with the model it was made from. Predictions do not need the prototypes
    themselves; whoever explains them does.
    """

    prototypes: Tensor | None
    prototype_embeddings: Tensor | None
    messages: Tensor | None

    def __init__(self, model: GraphClassifier) -> None:
        super().__init__()
        self.num_classes = model.num_classes
        self.backbone = model.backbone
        self.graph = model.graph
        self.linear = model.linear
        was_training = model.training
        model.eval()
        with torch.no_grad():
            nodes = model.class_nodes() if model.graph_is_on else None
        model.train(was_training)
        self.training = was_training
        self.nodes_are_images = isinstance(model.nodes, LabelledImageNodes)
        self.register_buffer("prototypes", None if nodes is None else nodes.prototypes)
        self.register_buffer("prototype_embeddings", None if nodes is None else nodes.embeddings)
        self.register_buffer("messages", None if nodes is None else nodes.messages)

    @property
    def nodes(self) -> Nodes | None:
        """The class nodes; None if training ended before the graph was on."""
        if self.prototypes is None:
            return None
        assert self.prototype_embeddings is not None
        assert self.messages is not None
        return Nodes(self.prototypes, self.prototype_embeddings, self.messages)

    def final_features(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        """What the linear layer gets; only the image's row of its graph is computed."""
        features: Tensor = self.backbone(images)
        if self.prototype_embeddings is not None:
            assert self.messages is not None
            features = self.graph.refine_images(features, self.prototype_embeddings, self.messages)
        return features

    def forward(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """Logits."""
        logits: Tensor = self.linear(self.final_features(images))
        return logits
