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

With `anchored_view="student"` they act on what the student sees instead, towards the class whose centre is
nearest to the clean view: not in the paper, and a quarter less to compute, since clean views of unlabelled
images need no gradient then. With FixMatch's `target_decay` a teacher looks at these, with a graph and
prototypes of its own.

The graph and the prototypes do not ask where the consistency term comes from: with `comparison` it is Mean
Teacher's (the teacher has a graph and prototypes of its own, which follow) or FixMatch's, as the paper
proposes for future work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.algorithms.base import health_values, prediction_health
from manigraph.algorithms.comparisons import (
    ComparisonAlgorithm,
    ComparisonName,
    NoiseConfig,
    PiVATConfig,
    Predictions,
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
    Attention,
    GraphClassifier,
    LabelledImageNodes,
    ManifoldGraph,
    PrototypeGenerator,
    PrototypeUpdate,
    frozen_running_statistics,
)
from manigraph.nn.backbones.base import Backbone
from manigraph.nn.manifold_graph import Nodes


class GraphPasses(NamedTuple):
    """What the passes of a step gave."""

    labelled_logits: Tensor
    clean_logits: Tensor
    """Of the first views."""
    predictions: Predictions
    features: Tensor
    """Of labelled, then of unlabelled images: those that the prototype losses act on."""
    embeddings: Tensor | None
    """Of these in the graph, once it is on."""
    clean_features: Tensor
    """Of the first views: those that say to which class an unlabelled image is closest."""
    looking: GraphClassifier
    """The network these are of: the student, or its teacher."""
    looking_nodes: Nodes | None
    """The class nodes of that network."""


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
        target_decay: float = field(default=0.0, metadata=NEUTRAL)
        """With fixmatch: above 0, targets are a teacher's that keeps this share of its weights in a step
        (less at first), and that predicts in the end; 0 means the network's own."""
        anchored_view: Literal["clean", "student"] = field(default="clean", metadata=NEUTRAL)
        """Views that prototype losses act on: clean ones, as in the paper, or what the student sees. The
        latter goes with pi_model and fixmatch, no entropy and no balance; a quarter less to compute."""
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
        attention: Attention = field(default="dot", metadata=NEUTRAL)
        """By dot products, as in the paper, or by cosines of what tells features apart (`nn.ManifoldGraph`),
        for networks whose features have much in common, such as resnet9."""
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
            if self.target_decay > 0 and self.comparison != "fixmatch":
                raise ValueError(f"target_decay needs comparison fixmatch, got {self.comparison}")
            if not self.margin_divergence < 1:
                raise ValueError(f"margin_divergence must be below 1, got {self.margin_divergence}")
            if self.anchored_view == "student" and (
                self.learns_from_clean_predictions or self.comparison not in ("pi_model", "fixmatch")
            ):
                raise ValueError(
                    "anchored_view student needs comparison pi_model or fixmatch, and entropy_weight and "
                    "balance_weight 0"
                )

    model: GraphClassifier

    @classmethod
    def keeps_average(cls, config: Config) -> bool:
        return config.comparison == "mean_teacher" or config.target_decay > 0

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
            attention=config.attention,
        )
        return GraphClassifier(backbone, linear, nodes, graph)

    def data_request(self) -> DataRequest:
        config = self.config
        per_class = config.prototypes_per_class if config.nodes == "labelled_images" else 0
        return replace(super().data_request(), images_per_class=per_class)

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        nodes = self._nodes_of_this_step(batch, context)
        if self.config.anchored_view == "student":
            passes = self._passes_with_the_student(batch, nodes, context)
        else:
            passes = self._passes_with_clean_views(batch, nodes, context)
        terms = {
            "classification": F.cross_entropy(passes.labelled_logits, batch.labels),
            **self.unlabelled_terms(passes.predictions, passes.clean_logits, context.progress),
        }
        health = prediction_health(passes.clean_logits, self.shard)
        if nodes is not None:
            pseudo_labels = None if self.config.anchored_view == "clean" else self._nearest_centres(passes)
            terms |= self.prototype_terms(
                passes.features, batch.labels, nodes, passes.embeddings, pseudo_labels
            )
            graph_health = self._graph_health(passes, batch.labels, nodes)
            return StepOutput(terms, lambda: {**health(), **graph_health()})
        return StepOutput(terms, health)

    def _passes_with_clean_views(
        self, batch: Batch, nodes: Nodes | None, context: StepContext
    ) -> GraphPasses:
        """The paper's: labelled images with the first views, of which everything is learned."""
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        model = self.model
        sizes = [len(batch.labels), len(first)]

        def logits_of(images: Tensor) -> Tensor:
            return model.classify(model.features(images), nodes)

        # The clean pass, and the only one that moves batch-norm running statistics.
        features = model.features(torch.cat([batch.labelled["image"], first]))
        embeddings = None if nodes is None else model.graph.embedding(features)
        labelled_logits, clean_logits = model.classify(features, nodes, embeddings).split(sizes)
        first_logits = self.comparison.first_logits(model, first, clean_logits)
        with frozen_running_statistics(model):
            predictions = self.comparison.predictions(model, logits_of, first_logits, second, context)
        clean_features = features[len(batch.labels) :]
        return GraphPasses(
            labelled_logits, clean_logits, predictions, features, embeddings, clean_features, model, nodes
        )

    def _passes_with_the_student(
        self, batch: Batch, nodes: Nodes | None, context: StepContext
    ) -> GraphPasses:
        """Labelled images with the student's views; the first views, without gradient, are only looked at."""
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        model = self.model
        student_view = self.comparison.student_view(second, context)
        assert student_view is not None, "the configuration has a comparison that knows it"
        looking = self.comparison.target_model(model)
        assert isinstance(looking, GraphClassifier), "the model or a copy of it"
        with torch.no_grad():  # and the only pass that moves running statistics, a teacher's if there is one
            clean_features = looking.features(first)
            looking_nodes = nodes if looking is model or nodes is None else looking.class_nodes()
            clean_logits = looking.classify(clean_features, looking_nodes)
        with frozen_running_statistics(model):
            features = model.features(torch.cat([batch.labelled["image"], student_view]))
        embeddings = None if nodes is None else model.graph.embedding(features)
        logits = model.classify(features, nodes, embeddings)
        labelled_logits, student_logits = logits.split([len(batch.labels), len(first)])
        return GraphPasses(
            labelled_logits,
            clean_logits,
            Predictions(clean_logits, student_logits),
            features,
            embeddings,
            clean_features,
            looking,
            looking_nodes,
        )

    def inference_model(self) -> nn.Module:
        evaluated = self.comparison.evaluated(self.model)
        assert isinstance(evaluated, GraphClassifier)
        return evaluated.frozen()

    def _nodes_of_this_step(self, batch: Batch, context: StepContext) -> Nodes | None:
        """The class nodes, or None as long as the warm-up lasts."""
        model = self.model
        graph_is_on = context.progress >= self.config.warmup_fraction
        # A teacher has a graph of its own.
        for network in dict.fromkeys((model, self.comparison.evaluated(model))):
            assert isinstance(network, GraphClassifier)
            network.graph_is_on.fill_(graph_is_on)
            if isinstance(network.nodes, LabelledImageNodes):
                assert batch.class_images is not None, "class images were asked for"
                network.nodes.draw(batch.class_images)
        if not graph_is_on:
            return None
        return model.class_nodes()

    def prototype_terms(
        self,
        features: Tensor,
        labels: Tensor,
        nodes: Nodes,
        embeddings: Tensor | None,
        pseudo_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """L_anc, L_div and L_clf,P, weighted; the anchor looks at the images of all processes.

        Args:
            features: Of labelled and unlabelled images.
            labels: Of the first of them.
            nodes: The class nodes.
            embeddings: The graph's of these features, where they are known.
            pseudo_labels: Of the unlabelled images of all processes; None means their nearest centres.
        """
        config, C = self.config, self.model.num_classes
        own_features = features
        features, labels = self.shard.gather(features), self.shard.gather(labels)
        prototypes = nodes.prototypes
        centres = class_centres(prototypes, C)
        prototype_classes = torch.arange(C, device=labels.device).repeat_interleave(
            config.prototypes_per_class
        )
        similarity = cosine_similarity(torch.cat([features, prototypes]), centres)
        if pseudo_labels is None:  # what `nearest_centre` says, from cosines that are there already
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

    def _nearest_centres(self, passes: GraphPasses) -> Tensor:
        """Classes of the unlabelled images of all processes, as the network that looked at them has it."""
        assert passes.looking_nodes is not None, "the graph is on"
        centres = class_centres(passes.looking_nodes.prototypes, self.model.num_classes)
        return nearest_centre(self.shard.gather(passes.clean_features), centres)

    def _graph_health(
        self, passes: GraphPasses, labels: Tensor, nodes: Nodes
    ) -> Callable[[], dict[str, float]]:
        """Whether the graph is of use: to whom images listen, and what the prototypes are like.

        `own_class_attention`: attention of a labelled image to the prototypes of its own class.
        `attention_entropy`: 1 if images listen to all prototypes alike.
        `prototype_similarity`: mean cosine of the prototypes of one class, if there are several.
        `pseudo_label_agreement`: share of unlabelled images whose nearest centre is of the class
        that the model predicts.
        """
        C = self.model.num_classes
        dtype = self.model.linear.weight.dtype  # whatever precision the passes had

        def constant(tensor: Tensor) -> Tensor:
            return tensor.detach().to(dtype)

        labelled, clean = constant(passes.features[: len(labels)]), constant(passes.clean_features)
        graph, looking_graph = self.model.graph, passes.looking.graph
        assert passes.looking_nodes is not None, "the graph is on"
        prototypes, node_embeddings = constant(nodes.prototypes), constant(nodes.embeddings)
        looking_prototypes = constant(passes.looking_nodes.prototypes)
        looking_embeddings = constant(passes.looking_nodes.embeddings)
        predictions = passes.clean_logits.detach()

        @torch.no_grad()
        def health() -> dict[str, float]:
            weights = graph.image_attention(graph.embedding(labelled), node_embeddings)
            others = looking_graph.image_attention(looking_graph.embedding(clean), looking_embeddings)
            pseudo_labels = nearest_centre(clean, class_centres(looking_prototypes, C))
            signs = {
                "own_class_attention": own_class_attention(weights, labels, C),
                "attention_entropy": attention_entropy(torch.cat([weights, others])),
                "pseudo_label_agreement": (pseudo_labels == predictions.argmax(dim=1)).float().mean(),
            }
            if len(prototypes) > C:
                signs["prototype_similarity"] = prototype_similarity(prototypes, C)
            return health_values(**signs)

        return health
