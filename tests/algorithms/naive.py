"""Training steps written out from METHOD with the looped references; float64 and without dropout.

Each function works on a copy of the method's model and returns the terms, weighted, and the running
statistics as the clean pass leaves them.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.contract import Batch, StepContext
from tests.helpers import running_statistics
from tests.reference import adversarial, consistency, graph, prototypes


@dataclass(frozen=True)
class NaiveStep:
    """What a step should give."""

    model: Any
    """The copy whose parameters the terms depend on."""
    terms: dict[str, Tensor]
    statistics: dict[str, Tensor]


def ramp(config: Any, context: StepContext) -> float:
    """exp(-5 (1 - t)²) while t, the place within the ramp, is below 1."""
    t = 1.0 if config.ramp_fraction == 0 else context.step / context.total_steps / config.ramp_fraction
    return math.exp(-5 * (1 - t) ** 2) if t < 1 else 1.0


def confident(threshold: float) -> Callable[[Tensor, Tensor], Tensor]:
    """FixMatch's distance."""
    return lambda target, student: consistency.confident_cross_entropy(target, student, threshold=threshold)


def baseline_terms(
    config: Any,
    context: StepContext,
    labelled: Tensor,
    labels: Tensor,
    target: Tensor,
    student: Tensor,
    clean: Tensor | None = None,
    distance: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """L_clf,I + λ1 L_con + λ2 L_em, and the balance of the classes; the target is the clean prediction."""
    if distance is None:
        distance = {"kl": consistency.kl, "mse": consistency.mse}[config.consistency]
    clean = target if clean is None else clean
    factor = ramp(config, context)
    balanced = target
    shares = [share / sum(config.class_shares) for share in config.class_shares] or None
    if config.balance_memory:  # the first step: nothing but this batch is remembered, in float32
        known = target.detach()[: config.balance_memory].float().double()
        balanced = target + consistency.balancing_bias(known, num_iterations=3, shares=shares)
    return {
        "classification": consistency.cross_entropy(labelled, labels),
        "consistency": factor * config.consistency_weight * distance(balanced, student),
        "entropy": factor * config.entropy_weight * consistency.entropy(clean),
        "balance": config.balance_weight * consistency.class_imbalance(clean, shares),
    }


def vat_noise(
    config: Any,
    context: StepContext,
    forward: Callable[[Tensor], Tensor],
    images: Tensor,
    reference_logits: Tensor,
) -> Tensor:
    """r = ε d, d found from the next random numbers of the step's generator."""
    start = torch.empty_like(images).normal_(generator=context.generator)
    direction = adversarial.vat_direction(
        forward,
        images,
        reference_logits,
        start,
        xi=config.xi,
        num_power_iterations=config.num_power_iterations,
    )
    noise: Tensor = config.epsilon * direction
    return noise


def supervised(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    model = copy.deepcopy(algorithm.model)
    labelled = model.linear(model.backbone(batch.labelled["image"]))
    terms = {"classification": consistency.cross_entropy(labelled, batch.labels)}
    return NaiveStep(model, terms, running_statistics(model))


def compared(
    model: Any, config: Any, batch: Batch, student_view: Tensor
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Logits of labelled images, first views and the student's views; statistics after the clean pass.

    Labelled images go with the first views if entropy or balance learn from these, else with the student's.
    """
    L, first = len(batch.labels), batch.unlabelled["first"]
    if config.entropy_weight > 0 or config.balance_weight > 0:
        clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], first])))
        statistics = running_statistics(model)
        return clean[:L], clean[L:], model.linear(model.backbone(student_view)), statistics
    target = model.linear(model.backbone(first))
    statistics = running_statistics(model)
    learning = model.linear(model.backbone(torch.cat([batch.labelled["image"], student_view])))
    return learning[:L], target, learning[L:], statistics


def pi_model(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Target p(x1), student p(x2 + noise)."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    second = batch.unlabelled["second"]
    noise = torch.empty_like(second).normal_(generator=context.generator)
    labelled, target, student, statistics = compared(model, config, batch, second + config.noise * noise)
    terms = baseline_terms(config, context, labelled, batch.labels, target, student)
    return NaiveStep(model, terms, statistics)


def vat(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Target p(x), student p(x + r), r found at x against p(x)."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    images = batch.unlabelled["image"]

    def logits_of(x: Tensor) -> Tensor:
        logits: Tensor = model.linear(model.backbone(x))
        return logits

    labelled, target = logits_of(batch.labelled["image"]), logits_of(images)
    statistics = running_statistics(model)
    student = logits_of(images + vat_noise(config, context, logits_of, images, target))
    terms = baseline_terms(config, context, labelled, batch.labels, target, student)
    return NaiveStep(model, terms, statistics)


def pi_vat(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Target p(x1), student p(x2 + r), r found at x2 against p(x1) (or p(x2))."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    first, second = batch.unlabelled["first"], batch.unlabelled["second"]

    def logits_of(x: Tensor) -> Tensor:
        logits: Tensor = model.linear(model.backbone(x))
        return logits

    clean = logits_of(torch.cat([batch.labelled["image"], first]))
    statistics = running_statistics(model)
    labelled, target = clean[: len(batch.labels)], clean[len(batch.labels) :]
    against = target if config.adversarial_reference == "target" else logits_of(second)
    student = logits_of(second + vat_noise(config, context, logits_of, second, against))
    terms = baseline_terms(config, context, labelled, batch.labels, target, student)
    return NaiveStep(model, terms, statistics)


def mean_teacher(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Target p'(x2) of the teacher, student p(x1)."""
    model, teacher = copy.deepcopy(algorithm.model), teacher_of(algorithm)
    first, second = batch.unlabelled["first"], batch.unlabelled["second"]
    clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], first])))
    labelled, student = clean[: len(batch.labels)], clean[len(batch.labels) :]
    target = teacher.linear(teacher.backbone(second)).detach()
    terms = baseline_terms(algorithm.config, context, labelled, batch.labels, target, student, clean=student)
    return NaiveStep(model, terms, running_statistics(nn.ModuleList([model, teacher])))


def teacher_of(algorithm: Any) -> Any:
    """A copy of the teacher's network."""
    return copy.deepcopy(algorithm.comparison.teacher.model)


def fixmatch(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Target: the class of p(x1), or of the teacher's, where it is sure. Student: p(strong view)."""
    model, config = copy.deepcopy(algorithm.model), algorithm.config
    untouched = running_statistics(model)
    labelled, target, student, statistics = compared(model, config, batch, batch.unlabelled["second"])
    clean = target
    if config.target_decay > 0:
        target, teacher_statistics = taught_by_the_first_views(algorithm, batch)
        if config.entropy_weight == config.balance_weight == 0:  # the student does not look at first views
            statistics = untouched
        statistics = both_statistics(statistics, teacher_statistics)
    distance = confident(config.threshold)
    terms = baseline_terms(config, context, labelled, batch.labels, target, student, clean, distance)
    return NaiveStep(model, terms, statistics)


def taught_by_the_first_views(algorithm: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The teacher's logits of them, as constants, and its statistics afterwards."""
    teacher = teacher_of(algorithm)
    target: Tensor = teacher.linear(teacher.backbone(batch.unlabelled["first"])).detach()
    return target, running_statistics(teacher)


def both_statistics(student: dict[str, Tensor], teacher: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbered as in an algorithm with a teacher, whose layers come after the student's."""
    layers = len({name.partition(".")[0] for name in student})
    numbered = {name.partition(".")[::2]: value for name, value in teacher.items()}
    return student | {f"{layers + int(number)}.{name}": value for (number, name), value in numbered.items()}


def class_nodes(model: Any, batch: Batch) -> Tensor:
    """The generated prototypes, or the features of the labelled images in their place."""
    if batch.class_images is not None:
        features: Tensor = model.backbone(batch.class_images)
        return features
    first, last = (layer for layer in model.nodes.mlp if isinstance(layer, nn.Linear))
    return prototypes.generated_prototypes(
        model.nodes.instance_embedding,
        model.nodes.class_embedding,
        prototypes.Layer(first.weight, first.bias),
        prototypes.Layer(last.weight, last.bias),
    )


def graph_weights(model: Any) -> graph.GraphWeights:
    embed, message = model.graph.embed, model.graph.message
    return graph.GraphWeights(embed.weight, embed.bias, message.weight, message.bias)


def edge_settings(config: Any, nodes: Tensor) -> dict[str, Any]:
    """With cosines, features are seen from the mean prototype, a constant."""
    origin = nodes.detach().mean(dim=0) if config.attention == "cosine" else None
    return {"num_heads": config.num_heads, "scale": config.scale, "origin": origin}


def anchor_terms(
    config: Any, features: Tensor, labels: Tensor, nodes: Tensor, C: int, pseudo_labels: Any = None
) -> dict[str, Tensor]:
    """The three parts of L_anc, on the raw features of all images and on the prototypes.

    The class of an unlabelled image is that of the nearest centre, unless its clean view has another.
    """
    K = len(nodes) // C
    centres = prototypes.class_centres(nodes, C)
    if pseudo_labels is None:
        pseudo_labels = prototypes.nearest_centre(features[len(labels) :], centres)
    classes = torch.tensor([*labels.tolist(), *pseudo_labels, *(c for c in range(C) for _ in range(K))])
    similarity = prototypes.similarity(torch.cat([features, nodes]), centres)
    boundary = prototypes.anchor_boundary(
        similarity, classes, centres, detach_margin=config.detach_boundary_margin
    )
    return {
        "magnitude": prototypes.anchor_magnitude(centres, features, margin=config.margin_length),
        "angle": prototypes.anchor_angle(similarity, classes, margin=config.margin_angle).value,
        "boundary": boundary.value,
    }


def prototype_terms(
    config: Any, model: Any, features: Tensor, labels: Tensor, nodes: Tensor, pseudo_labels: Any = None
) -> dict[str, Tensor]:
    """λ3 L_anc, λ4 L_div and λ5 L_clf,P."""
    C = model.linear.out_features
    spread = prototypes.divergence(
        nodes, C, margin=config.margin_divergence, reduction=config.divergence_reduction
    )
    settings = edge_settings(config, nodes)
    weights = graph_weights(model)
    if config.prototype_update == "per_image":
        refined = list(graph.refined_batch(features, nodes, weights, **settings).prototypes)
    elif config.prototype_update == "shared":
        refined = [graph.refined_graph(nodes, weights, **settings)]
    else:
        refined = [nodes]
    classes = torch.tensor([c for _ in refined for c in range(C) for _ in range(len(nodes) // C)])
    logits = model.linear(torch.cat(refined))
    return {
        "anchor": config.anchor_weight
        * consistency.added(anchor_terms(config, features, labels, nodes, C, pseudo_labels).values()),
        "divergence": config.divergence_weight * spread,
        "prototypes": config.prototype_weight * consistency.cross_entropy(logits, classes),
    }


def manifold_graph(algorithm: Algorithm[Any], batch: Batch, context: StepContext) -> NaiveStep:
    """Π-VAT on features refined in the graph of each image, and the losses of the prototypes."""
    model: Any = copy.deepcopy(algorithm.model)
    config = algorithm.config
    first, second = batch.unlabelled["first"], batch.unlabelled["second"]
    clean_features = None
    taught = config.comparison == "fixmatch" and config.target_decay > 0
    teacher = teacher_of(algorithm) if taught or config.comparison == "mean_teacher" else None
    looking: Any = teacher if taught else model
    if config.anchored_view == "student":
        clean_features = looking.backbone(first)
        statistics = running_statistics(model)
        shown = second
        if config.comparison == "pi_model":
            shown = second + config.noise * torch.empty_like(second).normal_(generator=context.generator)
        features = model.backbone(torch.cat([batch.labelled["image"], shown]))
    else:
        features = model.backbone(torch.cat([batch.labelled["image"], first]))
        statistics = running_statistics(model)
    nodes = class_nodes(model, batch)

    def classified(raw: Tensor, network: Any = model, its_nodes: Tensor = nodes) -> Tensor:
        settings = edge_settings(config, its_nodes)
        refined = graph.refined_batch(raw, its_nodes, graph_weights(network), **settings)
        logits: Tensor = network.linear(refined.images)
        return logits

    def logits_of(x: Tensor) -> Tensor:
        return classified(model.backbone(x))

    logits = classified(features)
    labelled, clean = logits[: len(batch.labels)], logits[len(batch.labels) :]
    target, distance = clean, None
    if clean_features is not None:
        student, clean = clean, classified(clean_features, looking, class_nodes(looking, batch))
        target = clean
        distance = confident(config.threshold) if config.comparison == "fixmatch" else None
    elif config.comparison == "pi_vat":
        against = clean if config.adversarial_reference == "target" else logits_of(second)
        student = logits_of(second + vat_noise(config, context, logits_of, second, against))
    elif config.comparison == "mean_teacher":
        assert teacher is not None
        target = classified(teacher.backbone(second), teacher, class_nodes(teacher, batch)).detach()
        student = clean
    elif config.comparison == "fixmatch":
        student, distance = logits_of(second), confident(config.threshold)
        if teacher is not None:
            target = classified(teacher.backbone(first), teacher, class_nodes(teacher, batch)).detach()
    else:
        noise = torch.empty_like(second).normal_(generator=context.generator)
        student = logits_of(second + config.noise * noise)
    terms = baseline_terms(
        config, context, labelled, batch.labels, target, student, clean=clean, distance=distance
    )
    pseudo_labels = None
    if clean_features is not None:
        centres = prototypes.class_centres(class_nodes(looking, batch), model.linear.out_features)
        pseudo_labels = prototypes.nearest_centre(clean_features, centres)
    terms |= prototype_terms(config, model, features, batch.labels, nodes, pseudo_labels)
    if teacher is not None:
        statistics = both_statistics(statistics, running_statistics(teacher))
    return NaiveStep(model, terms, statistics)


STEPS: dict[str, Callable[[Algorithm[Any], Batch, StepContext], NaiveStep]] = {
    "supervised": supervised,
    "pi_model": pi_model,
    "vat": vat,
    "pi_vat": pi_vat,
    "mean_teacher": mean_teacher,
    "fixmatch": fixmatch,
    "manifold_graph": manifold_graph,
}
