"""What graph and prototype losses cost alone: against written-out graphs, and as classes grow in number.

`python -m manigraph.bench.graph CLASSES` measures one number of classes in a process of its own and prints a
line of JSON.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.algorithms.manifold_graph import ManifoldGraphMethod
from manigraph.bench.memory import memory_status
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.catalogue import BACKBONES
from manigraph.functional import class_centres, cosine_similarity, divergence, nearest_centre
from manigraph.functional.graph import LEAKY_SLOPE
from manigraph.functional.prototypes import anchor_boundary, anchor_magnitude

TARGET = Target("at least", 50.0)
OURS = "graph and prototype losses, ours"
WRITTEN_OUT = "graphs of P + 1 nodes and all triplets, written out"
LABELLED, UNLABELLED = 32, 128
CLASSES = (10, 32, 100, 316, 1000)
"""For the growth; P is 20 times as many."""


@dataclass(frozen=True)
class GraphCase:
    """Features of a batch, and a method whose graph they go through."""

    method: ManifoldGraphMethod
    features: Tensor
    """(L + U, D), a leaf."""
    labels: Tensor
    """(L,)"""


def graph_case(classes: int, prototypes_per_class: int = 20) -> GraphCase:
    """The paper's shapes, D = 128 as CNN-13 at width 1 has it; features of noise."""
    torch.manual_seed(0)
    backbone = BACKBONES.get("cnn13")((3, 8, 8))
    config = ManifoldGraphMethod.Config(prototypes_per_class=prototypes_per_class)
    method = ManifoldGraphMethod(config, backbone, classes)
    features = torch.randn(LABELLED + UNLABELLED, backbone.feature_size).requires_grad_(True)
    return GraphCase(method, features, torch.randint(0, classes, (LABELLED,)))


def our_loss(case: GraphCase) -> Tensor:
    """Classification of the refined images, and all losses of the prototypes."""
    model = case.method.model
    nodes = model.class_nodes()
    embeddings = model.graph.embedding(case.features)
    logits = model.classify(case.features, nodes, embeddings)
    terms = case.method.prototype_terms(case.features, case.labels, nodes, embeddings)
    return F.cross_entropy(logits[:LABELLED], case.labels) + torch.stack(list(terms.values())).sum()


# Written out, as one would from the paper


def written_out_graphs(case: GraphCase, images: int) -> Tensor:
    """Classification of images and prototypes, each image with its own graph; of the first few images."""
    model, config = case.method.model, case.method.config
    graph, C = model.graph, model.num_classes
    prototypes = model.nodes()
    own = case.features[:images].unsqueeze(1)
    nodes = torch.cat([own, prototypes.expand(images, -1, -1)], dim=1)  # (b, P + 1, D)
    g = F.leaky_relu(graph.embed(nodes), LEAKY_SLOPE)
    scores = config.scale * g @ g.mT  # (b, P + 1, P + 1)
    itself = torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    weights = scores.masked_fill(itself, -torch.inf).softmax(dim=2)
    refined = F.leaky_relu(nodes + graph.message(torch.cat([g, weights @ g], dim=2)), LEAKY_SLOPE)
    logits = model.linear(refined)
    classes = torch.arange(C).repeat_interleave(config.prototypes_per_class).repeat(images)
    labels = case.labels[:images]
    return F.cross_entropy(logits[: len(labels), 0], labels) + config.prototype_weight * F.cross_entropy(
        logits[:, 1:].flatten(0, 1), classes
    )


def written_out_losses(case: GraphCase) -> Tensor:
    """Anchor and divergence, every triplet a number."""
    method, config, C = case.method, case.method.config, case.method.model.num_classes
    prototypes = method.model.nodes()
    centres = class_centres(prototypes, C)
    pseudo_labels = nearest_centre(case.features[LABELLED:], centres)
    own_classes = torch.arange(C).repeat_interleave(config.prototypes_per_class)
    classes = torch.cat([case.labels, pseudo_labels, own_classes])
    similarity = cosine_similarity(torch.cat([case.features, prototypes]), centres)
    terms = []
    for c in range(C):
        members, others = similarity[classes == c, c], similarity[classes != c, c]
        terms.append((others - members.unsqueeze(1) + config.margin_angle).clamp_min(0).square().flatten())
    triplets = torch.cat(terms)
    angle = triplets.sum() / (triplets > 0).sum().clamp_min(1)
    anchor = (
        anchor_magnitude(centres, case.features, margin=config.margin_length)
        + angle
        + anchor_boundary(similarity, classes, centres)
    )
    return config.anchor_weight * anchor + config.divergence_weight * divergence(
        prototypes, C, margin=config.margin_divergence
    )


def time_written_out(classes: int, images: int, patience: Patience, on_round: Callable[[int], None]) -> Ratio:
    """Written out by ours; of the graphs only a few images fit, and their time is scaled to all."""
    cases = [graph_case(classes) for _ in range(3)]
    contenders: dict[str, Work] = {
        OURS: lambda: our_loss(cases[0]).backward(),
        "graphs": lambda: written_out_graphs(cases[1], images).backward(),
        "losses": lambda: written_out_losses(cases[2]).backward(),
    }
    seconds = take_turns(contenders, patience, on_round)
    factor = (LABELLED + UNLABELLED) / images
    pairs = zip(seconds["graphs"], seconds["losses"], strict=True)
    seconds[WRITTEN_OUT] = [factor * graphs + losses for graphs, losses in pairs]
    setting = f"{classes} classes, 20 prototypes each, forward and backward, graphs of {images} images scaled"
    return ratio_of(seconds, WRITTEN_OUT, OURS, setting=setting, target=TARGET)


def run_graph_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """C = 100; below scale 1 with few classes."""
    classes, images = (100, 4) if scale >= 1 else (5, 4)
    with torch.random.fork_rng():
        patience = Patience(tolerance=0.05).scaled(scale)
        return [time_written_out(classes, images, patience, lambda n: tell(f"graphs: round {n}"))]


# Growth with the number of classes


@dataclass(frozen=True)
class Growth:
    """Graph and prototype losses alone, forward and backward, of 32 + 128 images."""

    classes: int
    prototypes: int
    milliseconds: float
    """Median."""
    extra_mib: float
    """Peak of the process's memory over what it had before the first step."""
    repeats: int


def measure_growth(classes: int, most_seconds: float = 60.0) -> Growth:
    """In this process, which should have done nothing else."""
    case = graph_case(classes)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak until now
    before = memory_status()["VmRSS"]
    seconds: list[float] = []
    while len(seconds) < 10 and (len(seconds) < 2 or sum(seconds) < most_seconds):
        began = time.perf_counter()
        our_loss(case).backward()
        seconds.append(time.perf_counter() - began)
    return Growth(
        classes=classes,
        prototypes=20 * classes,
        milliseconds=round(1000 * statistics.median(seconds[1:]), 2),
        extra_mib=round(memory_status()["VmHWM"] - before, 1),
        repeats=len(seconds) - 1,
    )


def run_growth_benchmark(scale: float, tell: Callable[[str], None]) -> list[Growth]:
    """Each number of classes in a process of its own; below scale 1 the small ones."""
    growths = []
    for classes in CLASSES if scale >= 1 else CLASSES[:2]:
        tell(f"{classes} classes")
        command = [sys.executable, "-m", __name__, str(classes)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        growths.append(Growth(**json.loads(output.splitlines()[-1])))
    return growths


if __name__ == "__main__":
    from dataclasses import asdict

    from manigraph.training.memory import keep_freed_memory

    keep_freed_memory()  # as training does
    print(json.dumps(asdict(measure_growth(int(sys.argv[1])))))
