"""From images as they are stored to what a trained run says about them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manigraph.engine import TrainedRun, load
from manigraph.nn import FrozenGraphClassifier
from manigraph.nn.manifold_graph import Nodes
from manigraph.runs import RunDirectory

if TYPE_CHECKING:
    from manigraph.inference.predictions import FilePrediction


@dataclass(frozen=True, eq=False)
class Answers:
    """What a run says about B images."""

    logits: Tensor
    """(B, C)."""
    features: Tensor
    """(B, D): f, before any graph; what the linear layer gets if there is none."""
    final_features: Tensor
    """(B, D): what the linear layer gets."""
    logits_without_graph: Tensor | None
    """(B, C): what the linear layer would say of the features before the graph; None if there is no graph."""
    attention: Tensor | None
    """(B, P): w_bp, how much each image hears of each class node, mean over heads; None likewise."""

    @property
    def probabilities(self) -> Tensor:
        """(B, C)."""
        return self.logits.softmax(dim=1)

    @property
    def predicted(self) -> Tensor:
        """(B,): the most probable class."""
        return self.logits.argmax(dim=1)


class Predictor:
    """A trained run, ready to be asked about images.

    Args:
        run: Its directory.
        trained: What `engine.load` made of it.
        views: Whether logits are averaged over shifted and mirrored views of each image; all else it says is
            of the image itself.
    """

    def __init__(self, run: RunDirectory, trained: TrainedRun, *, views: bool = False) -> None:
        self.run = run
        self.trained = trained
        self.model: Any = trained.model.eval()
        self.over_views = trained.over_views().eval() if views else None
        self.class_names = trained.class_names

    @classmethod
    def load(cls, path: Path | str, *, views: bool = False) -> "Predictor":
        """Read a run directory; nothing is unpickled."""
        run = RunDirectory.open(Path(path))
        return cls(run, load(run), views=views)

    @property
    def nodes(self) -> Nodes | None:
        """The class nodes of its graph, class by class; None if there is no graph, or it was never on."""
        return self.model.nodes if isinstance(self.model, FrozenGraphClassifier) else None

    @property
    def node_classes(self) -> Tensor:
        """(P,): the class of each node; empty if there is no graph."""
        C, nodes = len(self.class_names), self.nodes
        per_class = 0 if nodes is None else len(nodes.prototypes) // C
        return torch.arange(C).repeat_interleave(per_class)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Answers:
        """What the run says about images, all at once.

        Args:
            images: As the run's data set stores them: (B, channels, height, width) or (B, size).
        """
        inputs, model, nodes = self.trained.preprocessing(images), self.model, self.nodes
        averaged = None if self.over_views is None else self.over_views(inputs)
        if nodes is None:
            final = model.final_features(inputs)
            return Answers(model(inputs) if averaged is None else averaged, final, final, None, None)
        features = model.backbone(inputs)
        g = model.graph.embedding(features)
        refined = model.graph.refine_images(features, nodes.embeddings, nodes.messages, g)
        attention = model.graph.image_attention(g, nodes.embeddings).mean(dim=1)
        logits = model.linear(refined) if averaged is None else averaged
        return Answers(logits, features, refined, model.linear(features), attention)

    def predict_files(self, places: Iterable[Path | str], **how: Any) -> "Iterator[FilePrediction]":
        """What the run says about image files and folders of them; see `predictions.predict_files`.

        Any number of files takes the same memory:

        >>> predictor = Predictor.load("runs/photos-40-manifold_graph-seed0")
        >>> for answer in predictor.predict_files(["new_photos"]):
        ...     print(answer.path.name, answer.class_name, f"{answer.probability:.2f}")
        cat-1.png cat 0.99
        dog-1.png dog 0.98
        """
        from manigraph.inference.predictions import predict_files

        return predict_files(self, places, **how)
