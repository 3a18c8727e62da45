"""Manifold Graph with Learned Prototypes (Kuo, Ma, Huang, Kira 2019).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| r, L_con (Π-VAT) | `comparisons.PiVATComparison`; `comparison` names another |
| L_em | `functional.entropy` |
| p_ij = MLP([f_k, f_c]) | `nn.PrototypeGenerator` |
| f̂ = σ(f + φ2([g, Σ w g])) | `nn.ManifoldGraph`, `functional.graph` |
| L_anc = magnitude + angle + boundary | `functional.anchor_magnitude/_angle/_boundary` |
| L_div | `functional.divergence` |
| L_clf,P | `functional.prototype_cross_entropy` |

L = L_clf,I + λ1 L_con + λ2 L_em + λ3 L_anc + λ4 L_div + λ5 L_clf,P. Until `warmup_fraction` of the run
is over, only the first three, on raw features: that step equals Π-VAT's bit for bit.

Where the paper is silent or was tried and failed: the divergence is a mean over pairs, not a sum
(which drives training to NaN); the prototype losses act on the raw features of the clean views; the
perturbation is found against the target view. `nodes="labelled_images"` is the paper's ablation.

The graph and the prototypes do not ask where the consistency term comes from: with `comparison` it is Mean
Teacher's (the teacher has a graph and prototypes of its own, which follow) or FixMatch's, as the paper
proposes for future work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.algorithms.base import health_values, prediction_health
from manigraph.algorithms.comparisons import (
    ComparisonAlgorithm,
    ComparisonName,
    NoiseConfig,
    PiVATConfig,
    TeacherConfig,
    ThresholdConfig,
)
from manigraph.contract import NEUTRAL, Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import (
    anchor_angle,
    anchor_boundary,
    anchor_magnitude,
    attention_entropy,
    class_centres,
    cosine_similarity,
    divergence,
    nearest_centre,
    own_class_attention,
    prototype_similarity,
)
from manigraph.nn import (
    GraphClassifier,
    LabelledImageNodes,
    ManifoldGraph,
    PrototypeGenerator,
    PrototypeUpdate,
    frozen_running_statistics,
)
from manigraph.nn.backbones.base import Backbone
from manigraph.nn.manifold_graph import Nodes


class ManifoldGraphMethod(ComparisonAlgorithm["ManifoldGraphMethod.Config"]):
    """Π-VAT, or another consistency term, on features refined by a graph of learned prototypes."""

    @dataclass(frozen=True)
    class Config(PiVATConfig, NoiseConfig, TeacherConfig, ThresholdConfig):
        """Settings of Manifold Graph; the defaults are the paper's for CIFAR-10."""

        comparison: ComparisonName = field(default="pi_vat", metadata=NEUTRAL)
        """How targets and student predictions are made: the paper's Π-VAT, or another method's way."""
        noise: float = field(default=0.0, metadata=NEUTRAL)
        """With pi_model: standard deviation of Gaussian noise added to the student's view."""
        teacher_decay: float = field(default=0.999, metadata=NEUTRAL)
        """With mean_teacher: share of its weights that the teacher keeps in a step; less at first."""
        threshold: float = field(default=0.95, metadata=NEUTRAL)
        """With fixmatch: confidence from which on a prediction is a target."""
        warmup_fraction: float = 2 / 282
        """Share of the run before the graph and the prototype losses come in; 1 means never."""
        nodes: Literal["generated", "labelled_images"] = "generated"
        """Class nodes of the graph: learned prototypes, or random labelled images (ablation)."""
        prototypes_per_class: int = 20
        """K, class nodes per class."""
        embedding_size: int = 32
        """Size of the generator's two embeddings."""
        hidden_size: int = 64
        """Hidden size of the generator's MLP."""
        num_heads: int = 1
        """Attention heads of the graph."""
        scale: float = 1.0
        """Factor on the dot products of the attention."""
        prototype_update: PrototypeUpdate = "per_image"
        """Whether prototypes are refined in every image's graph, once for all, or not."""
        anchor_weight: float = 1.0
        """λ3, weight of the anchor loss."""
        divergence_weight: float = 1.0
        """λ4, weight of the divergence loss."""
        prototype_weight: float = 0.1
        """λ5, weight of the classification of the refined prototypes."""
        margin_length: float = 0.1
        """margin_l of the anchor's magnitude part."""
        margin_angle: float = 0.15
        """margin_a of the anchor's angle part."""
        margin_divergence: float = 0.75
        """margin_d of the divergence loss."""
        detach_boundary_margin: bool = False
        """Keep the boundary part from pushing the centres apart through its margin."""
        divergence_reduction: Literal["mean", "sum"] = "mean"
        """Mean over pairs of prototypes, or the paper's sum."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.margin_divergence < 1:
                raise ValueError(f"margin_divergence must be below 1, got {self.margin_divergence}")

    model: GraphClassifier

    def chosen_comparison(self) -> ComparisonName:
        return self.config.comparison

    def build_model(self, backbone: Backbone, num_classes: int) -> GraphClassifier:
        config = self.config
        K = config.prototypes_per_class
        # The linear layer is drawn before the nodes and the graph, so that the backbone and the
        # linear layer start from the same numbers as in every other method.
        linear = nn.Linear(backbone.feature_size, num_classes)
        nodes: PrototypeGenerator | LabelledImageNodes
        if config.nodes == "labelled_images":
            nodes = LabelledImageNodes(num_classes, K, backbone.input_shape)
        else:
            nodes = PrototypeGenerator(
                num_classes,
                K,
                backbone.feature_size,
                embedding_size=config.embedding_size,
                hidden_size=config.hidden_size,
            )
        graph = ManifoldGraph(
            backbone.feature_size,
            num_heads=config.num_heads,
            prototype_update=config.prototype_update,
            scale=config.scale,
        )
        return GraphClassifier(backbone, linear, nodes, graph)

    def data_request(self) -> DataRequest:
        config = self.config
        per_class = config.prototypes_per_class if config.nodes == "labelled_images" else 0
        return replace(super().data_request(), images_per_class=per_class)

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        model = self.model
        nodes = self._nodes_of_this_step(batch, context)

        def logits_of(images: Tensor) -> Tensor:
            return model.classify(model.features(images), nodes)

        # The clean pass, and the only one that moves batch-norm running statistics.
        features = model.features(torch.cat([batch.labelled["image"], first]))
        embeddings = None if nodes is None else model.graph.embedding(features)
        logits = model.classify(features, nodes, embeddings)
        labelled_logits, clean_logits = logits.split([len(batch.labels), len(first)])
        with frozen_running_statistics(model):
            predictions = self.comparison.predictions(model, logits_of, clean_logits, second, context)

        terms = {
            "classification": F.cross_entropy(labelled_logits, batch.labels),
            **self.unlabelled_terms(predictions, clean_logits, context.progress),
        }
        health = prediction_health(clean_logits, self.shard)
        if nodes is not None:
            terms |= self.prototype_terms(features, batch.labels, nodes, embeddings)
            graph_health = self._graph_health(features, batch.labels, nodes, clean_logits)
            return StepOutput(terms, lambda: {**health(), **graph_health()})
        return StepOutput(terms, health)

    def inference_model(self) -> nn.Module:
        evaluated = self.comparison.evaluated(self.model)
        assert isinstance(evaluated, GraphClassifier)
        return evaluated.frozen()

    def _nodes_of_this_step(self, batch: Batch, context: StepContext) -> Nodes | None:
        """The class nodes, or None as long as the warm-up lasts."""
        model = self.model
        graph_is_on = context.progress >= self.config.warmup_fraction
        model.graph_is_on.fill_(graph_is_on)
        if isinstance(model.nodes, LabelledImageNodes):
            assert batch.class_images is not None, "class images were asked for"
            model.nodes.draw(batch.class_images)
        if not graph_is_on:
            return None
        return model.class_nodes()

    def prototype_terms(
        self, features: Tensor, labels: Tensor, nodes: Nodes, embeddings: Tensor | None
    ) -> dict[str, Tensor]:
        """L_anc, L_div and L_clf,P, weighted; the anchor looks at the images of all processes."""
        config, C = self.config, self.model.num_classes
        own_features = features
        features, labels = self.shard.gather(features), self.shard.gather(labels)
        prototypes = nodes.prototypes
        centres = class_centres(prototypes, C)
        prototype_classes = torch.arange(C, device=labels.device).repeat_interleave(
            config.prototypes_per_class
        )
        similarity = cosine_similarity(torch.cat([features, prototypes]), centres)
        # What `nearest_centre` says, from cosines that are there already.
        pseudo_labels = similarity.detach()[len(labels) : len(features)].argmax(dim=1)
        classes = torch.cat([labels, pseudo_labels, prototype_classes])

        anchor = (
            anchor_magnitude(centres, features, margin=config.margin_length)
            + anchor_angle(similarity, classes, margin=config.margin_angle)
            + anchor_boundary(similarity, classes, centres, detach_margin=config.detach_boundary_margin)
        )
        spread = divergence(
            prototypes, C, margin=config.margin_divergence, reduction=config.divergence_reduction
        )
        prototype_classification = self.model.prototype_loss(
            nodes, own_features, prototype_classes, embeddings
        )
        return {
            "anchor": config.anchor_weight * anchor,
            "divergence": config.divergence_weight * spread,
            "prototypes": config.prototype_weight * prototype_classification,
        }

    def _graph_health(
        self, features: Tensor, labels: Tensor, nodes: Nodes, clean_logits: Tensor
    ) -> Callable[[], dict[str, float]]:
        """Whether the graph is of use: to whom images listen, and what the prototypes are like.

        `own_class_attention`: attention of a labelled image to the prototypes of its own class.
        `attention_entropy`: 1 if images listen to all prototypes alike.
        `prototype_similarity`: mean cosine of the prototypes of one class, if there are several.
        `pseudo_label_agreement`: share of unlabelled images whose nearest centre is of the class
        that the model predicts.
        """
        C, graph = self.model.num_classes, self.model.graph
        dtype = self.model.linear.weight.dtype  # whatever precision the passes had
        features, predictions = features.detach().to(dtype), clean_logits.detach()
        prototypes, node_embeddings, _ = (tensor.detach().to(dtype) for tensor in nodes)

        @torch.no_grad()
        def health() -> dict[str, float]:
            weights = graph.image_attention(graph.embedding(features), node_embeddings)
            pseudo_labels = nearest_centre(features[len(labels) :], class_centres(prototypes, C))
            signs = {
                "own_class_attention": own_class_attention(weights[: len(labels)], labels, C),
                "attention_entropy": attention_entropy(weights),
                "pseudo_label_agreement": (pseudo_labels == predictions.argmax(dim=1)).float().mean(),
            }
            if len(prototypes) > C:
                signs["prototype_similarity"] = prototype_similarity(prototypes, C)
            return health_values(**signs)

        return health
