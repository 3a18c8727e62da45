"""The lean step of every method, made from the modules that hold its weights and memories.

Weights of terms are those of the method's `Config`; L is the number of labelled images, which come first.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.bench.lean_parts import (
    Step,
    Update,
    away_from,
    batch_norms,
    entropy,
    first_probe,
    kl,
    partners_and_share,
    ramp_up,
    squared_error,
    still,
)
from manigraph.contract import Batch
from manigraph.functional import (
    anchor_angle,
    anchor_boundary,
    anchor_magnitude,
    divergence,
    message_parts,
    propagated_labels,
    prototype_cross_entropy,
)


def supervised(modules: Any, update: Update) -> Step:
    """Cross-entropy."""
    model = modules.model

    def step(batch: Batch) -> None:
        logits = model.linear(model.backbone(batch.labelled["image"]))
        update(F.cross_entropy(logits, batch.labels))

    return step


def pseudo_label(modules: Any, update: Update) -> Step:
    """The likeliest class is the label."""
    model, config = modules.model, modules.config

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
        logits = model.linear(model.backbone(images))
        ramp = min(
            1.0, max(0.0, (update.progress - config.ramp_start) / (config.ramp_end - config.ramp_start))
        )
        update(
            F.cross_entropy(logits[:L], batch.labels)
            + ramp * config.pseudo_label_weight * F.cross_entropy(logits[L:], logits[L:].argmax(dim=1))
        )

    return step


# Consistency


def pi_model(modules: Any, update: Update) -> Step:
    """Two views; KL, entropy."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["first"]])))
        with still(norms):
            student = model.linear(model.backbone(batch.unlabelled["second"]))
        log_probs = F.log_softmax(clean[L:], dim=1)
        update(
            F.cross_entropy(clean[:L], batch.labels)
            + config.consistency_weight * kl(log_probs.detach(), student)
            + config.entropy_weight * entropy(log_probs)
        )

    return step


def fast_swa(modules: Any, update: Update) -> Step:
    """A Π-model with squared error, and the mean of its weights now and then."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)
    update.average += [p.detach().clone() for p in update.parameters]
    averaged = 0

    def due(step: int) -> int:
        since = step / update.steps - (1 - update.swa_fraction)
        return max(0, math.floor(since / update.swa_every + 1e-9))

    def step(batch: Batch) -> None:
        nonlocal averaged
        L = len(batch.labels)
        with torch.no_grad():
            target = model.linear(model.backbone(batch.unlabelled["first"])).softmax(dim=1)
        with still(norms):
            features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["second"]]))
        logits = model.linear(features)
        weight = ramp_up(update.progress, config.ramp_fraction) * config.consistency_weight
        update(F.cross_entropy(logits[:L], batch.labels) + weight * squared_error(target, logits[L:]))
        if due(update.step) > due(update.step - 1):
            averaged += 1
            with torch.no_grad():
                torch._foreach_lerp_(update.average, update.parameters, 1 / averaged)

    return step


def sntg(modules: Any, update: Update) -> Step:
    """A Π-model with squared error, and a contrast of features by class."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        with torch.no_grad():
            target = model.linear(model.backbone(batch.unlabelled["first"]))
        with still(norms):
            features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["second"]]))
        logits = model.linear(features)

        classes = torch.cat([batch.labels, target.argmax(dim=1)])
        i, j = torch.triu_indices(len(classes), len(classes), offset=1, device=classes.device)
        distances = torch.pdist(features) / math.sqrt(features.shape[1])
        pairs = torch.where(classes[i] == classes[j], distances, F.relu(config.margin - distances))
        ramp = ramp_up(update.progress, config.ramp_fraction)
        update(
            F.cross_entropy(logits[:L], batch.labels)
            + ramp * config.consistency_weight * squared_error(target.softmax(dim=1), logits[L:])
            + ramp * config.neighbours_weight * pairs.square().mean()
        )

    return step


def mean_teacher(modules: Any, update: Update) -> Step:
    """The student follows a teacher, the teacher the student."""
    model, teacher, config = modules.model, modules.comparison.teacher.model, modules.config
    teacher_weights = list(teacher.parameters())

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        logits = model.linear(model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["first"]])))
        with torch.no_grad():
            target = teacher.linear(teacher.backbone(batch.unlabelled["second"])).softmax(dim=1)
        weight = ramp_up(update.progress, config.ramp_fraction) * config.consistency_weight
        kept = min(config.teacher_decay, (1 + update.step) / (10 + update.step))
        update(F.cross_entropy(logits[:L], batch.labels) + weight * squared_error(target, logits[L:]))
        with torch.no_grad():
            torch._foreach_lerp_(teacher_weights, update.parameters, 1 - kept)

    return step


def temporal_ensembling(modules: Any, update: Update) -> Step:
    """The target is the mean of an image's earlier predictions; no image is in a batch twice."""
    model, config = modules.model, modules.config
    ensemble, count, decay = modules.ensemble.ensemble, modules.ensemble.count, config.ensemble_decay

    def step(batch: Batch) -> None:
        L, positions = len(batch.labels), batch.positions
        logits = model.linear(model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]])))
        with torch.no_grad():
            probs = logits[L:].softmax(dim=1)
            earlier, times = ensemble[positions], count[positions].unsqueeze(1)
            target = torch.where(times > 0, earlier / (1 - decay ** times.to(probs.dtype)), probs)
            ensemble[positions] = decay * earlier + (1 - decay) * probs
            count[positions] += 1
        weight = ramp_up(update.progress, config.ramp_fraction) * config.consistency_weight
        update(F.cross_entropy(logits[:L], batch.labels) + weight * squared_error(target, logits[L:]))

    return step


def fixmatch(modules: Any, update: Update) -> Step:
    """Sure classes of weak views for strong ones."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        with torch.no_grad():
            weak = model.linear(model.backbone(batch.unlabelled["first"]))
        with still(norms):
            features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["second"]]))
        logits = model.linear(features)
        confidence, classes = weak.softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(logits[L:], classes, reduction="none")
        consistency = (losses * (confidence >= config.threshold)).mean()
        update(F.cross_entropy(logits[:L], batch.labels) + config.consistency_weight * consistency)

    return step


# Adversarial images


def vat(modules: Any, update: Update) -> Step:
    """One view and its perturbation, at one network: the dropout masks are the same in all three passes."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        images = batch.unlabelled["image"]
        random: Any = torch.cuda if images.is_cuda else torch
        labelled = model.linear(model.backbone(batch.labelled["image"]))
        masks = random.get_rng_state()
        log_probs = F.log_softmax(model.linear(model.backbone(images)), dim=1)
        with still(norms):
            random.set_rng_state(masks)
            probe = first_probe(images, config.xi, update.generator)
            gradient = away_from(log_probs.detach(), model.linear(model.backbone(probe)), probe)
            random.set_rng_state(masks)
            student = model.linear(model.backbone(images + config.epsilon * gradient))
        update(
            F.cross_entropy(labelled, batch.labels)
            + config.consistency_weight * kl(log_probs.detach(), student)
            + config.entropy_weight * entropy(log_probs)
        )

    return step


def pi_vat(modules: Any, update: Update) -> Step:
    """Two views, the second one perturbed away from the prediction of the first."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L, second = len(batch.labels), batch.unlabelled["second"]
        clean = model.linear(model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["first"]])))
        log_probs = F.log_softmax(clean[L:], dim=1)
        with still(norms):
            probe = first_probe(second, config.xi, update.generator)
            gradient = away_from(log_probs.detach(), model.linear(model.backbone(probe)), probe)
            student = model.linear(model.backbone(second + config.epsilon * gradient))
        update(
            F.cross_entropy(clean[:L], batch.labels)
            + config.consistency_weight * kl(log_probs.detach(), student)
            + config.entropy_weight * entropy(log_probs)
        )

    return step


def deep_cotraining(modules: Any, update: Update) -> Step:
    """Two networks; the clean pass of each also gives the gradient that makes its adversarial images."""
    views, config = [modules.model, *modules.other_views], modules.config
    norms = [layer for view in views for layer in batch_norms(view)]

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]]).requires_grad_(True)
        logits = [view.linear(view.backbone(images)) for view in views]
        differences = []
        with still(norms):
            for own, partner in zip(logits, reversed(views), strict=True):
                classes = torch.cat([batch.labels, own[L:].argmax(dim=1)])
                misled = F.cross_entropy(own, classes, reduction="sum")
                (gradient,) = torch.autograd.grad(misled, images, retain_graph=True)
                adversarial = images.detach() + config.pixel_epsilon * gradient.sign()
                answer = F.log_softmax(partner.linear(partner.backbone(adversarial)), dim=1)
                differences.append(-(own.softmax(dim=1) * answer).sum(dim=1).mean())

        log_probs = F.log_softmax(torch.stack(logits)[:, L:], dim=2)
        mean = log_probs.logsumexp(dim=0) - math.log(2)
        agreement = (log_probs.exp() * (log_probs - mean)).sum(dim=2).mean()
        ramp = ramp_up(update.progress, config.ramp_fraction)
        update(
            sum(F.cross_entropy(own[:L], batch.labels) for own in logits)
            + ramp * config.agreement_weight * agreement
            + ramp * config.difference_weight * sum(differences),
            inputs=update.parameters,  # not the images
        )

    return step


# Memories and graphs


def memory(modules: Any, update: Update) -> Step:
    """A key and a value of each class, written from labelled images and read for all."""
    model, config, slots = modules.model, modules.config, modules.memory

    def step(batch: Batch) -> None:
        L, labels = len(batch.labels), batch.labels
        features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
        logits = model.linear(features)
        with torch.no_grad():
            members = F.one_hot(labels, len(slots.keys)).T.to(features.dtype)
            number = members.sum(dim=1, keepdim=True)
            rate = config.memory_rate / (1 + number)
            slots.keys -= rate * (number * slots.keys - members @ features[:L])
            slots.values -= rate * (number * slots.values - members @ logits[:L].softmax(dim=1))
            slots.values /= slots.values.sum(dim=1, keepdim=True)
            slots.is_known[labels] = True

        distance = torch.cdist(features[L:], slots.keys, compute_mode="donot_use_mm_for_euclid_dist")
        address = (-distance).masked_fill(~slots.is_known, -torch.inf).softmax(dim=1)
        remembered = torch.cat([slots.values[labels], address @ slots.values])
        log_remembered = remembered.clamp_min(torch.finfo(remembered.dtype).tiny).log()
        log_probs = F.log_softmax(logits, dim=1)
        distances = (log_probs.exp() * (log_probs - log_remembered)).sum(dim=1)
        update(
            F.cross_entropy(logits[:L], labels)
            - config.memory_entropy_weight * (remembered * log_remembered).sum(dim=1).mean()
            + config.memory_divergence_weight * (remembered.amax(dim=1) * distances).mean()
        )

    return step


def compact_clustering(modules: Any, update: Update) -> Step:
    """Labels walk over the graph of the batch, in float64; walks stay within a class."""
    model, config = modules.model, modules.config

    def step(batch: Batch) -> None:
        L = len(batch.labels)
        features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
        logits = model.linear(features)
        z = features.double()
        log_walk = F.log_softmax(config.scale * (z @ z.T), dim=1)
        posteriors = propagated_labels(log_walk, batch.labels, model.num_classes, smoothing=config.smoothing)
        mass = posteriors.sum(dim=0)
        ideal = posteriors @ (posteriors / mass.masked_fill(mass == 0, 1)).T
        walk = log_walk.exp()
        within_class = walk * (posteriors @ posteriors.T)
        smallest = torch.finfo(walk.dtype).tiny ** 0.5
        total = (ideal * log_walk).sum()
        for _ in range(config.num_steps - 1):
            walk = within_class @ walk
            total = total + (ideal * walk.clamp_min(smallest).log()).sum()
        clustering = -total / (config.num_steps * len(z))
        update(
            F.cross_entropy(logits[:L], batch.labels) + config.clustering_weight * clustering.to(logits.dtype)
        )

    return step


def manifold_graph(modules: Any, update: Update) -> Step:
    """Π-VAT on features that a graph of one head refines, and the losses of the prototypes."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)
    graph, C, K = model.graph, model.num_classes, config.prototypes_per_class
    weight, bias = graph.message.weight, graph.message.bias
    prototype_classes = torch.arange(C, device=weight.device).repeat_interleave(K)

    def logits_of(features: Tensor, g: Tensor, nodes: Tensor) -> Tensor:
        context = F.softmax(config.scale * (g @ nodes.T), dim=1) @ nodes
        refined = features + F.linear(torch.cat([g, context], dim=1), weight, bias)
        logits: Tensor = model.linear(F.leaky_relu(refined, 0.1))
        return logits

    def step(batch: Batch) -> None:
        L, second = len(batch.labels), batch.unlabelled["second"]
        prototypes = model.nodes()
        nodes = F.leaky_relu(graph.embed(prototypes), 0.1)
        features = model.backbone(torch.cat([batch.labelled["image"], batch.unlabelled["first"]]))
        g = F.leaky_relu(graph.embed(features), 0.1)
        clean = logits_of(features, g, nodes)
        log_probs = F.log_softmax(clean[L:], dim=1)
        with still(norms):
            probe = first_probe(second, config.xi, update.generator)
            probed = model.backbone(probe)
            answer = logits_of(probed, F.leaky_relu(graph.embed(probed), 0.1), nodes)
            gradient = away_from(log_probs.detach(), answer, probe)
            perturbed = model.backbone(second + config.epsilon * gradient)
        student = logits_of(perturbed, F.leaky_relu(graph.embed(perturbed), 0.1), nodes)

        centres = prototypes.view(C, K, -1).mean(dim=1)
        similarity = F.normalize(torch.cat([features, prototypes])) @ F.normalize(centres).T
        pseudo_labels = similarity[L : len(features)].argmax(dim=1)
        classes = torch.cat([batch.labels, pseudo_labels, prototype_classes])
        anchor = (
            anchor_magnitude(centres, features, margin=config.margin_length)
            + anchor_angle(similarity, classes, margin=config.margin_angle)
            + anchor_boundary(similarity, classes, centres)
        )
        parts = message_parts(
            prototypes, nodes.unsqueeze(1), g.unsqueeze(1), weight, bias, scale=config.scale
        )
        of_prototypes = prototype_cross_entropy(
            parts, model.linear.weight, model.linear.bias, prototype_classes
        )
        update(
            F.cross_entropy(clean[:L], batch.labels)
            + config.consistency_weight * kl(log_probs.detach(), student)
            + config.entropy_weight * entropy(log_probs)
            + config.anchor_weight * anchor
            + config.divergence_weight * divergence(prototypes, C, margin=config.margin_divergence)
            + config.prototype_weight * of_prototypes
        )

    return step


# Mixed images


def mixup(modules: Any, update: Update) -> Step:
    """Labelled images are mixed with labelled ones, unlabelled with unlabelled ones."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L, U = len(batch.labels), len(batch.unlabelled["image"])
        images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
        with torch.no_grad():
            guess = model.linear(model.backbone(images))[L:].softmax(dim=1)
        labelled_partners, labelled_share = partners_and_share(images, L, config.alpha, update.generator)
        partners, share = partners_and_share(images, U, config.alpha, update.generator)
        partners, share = torch.cat([labelled_partners, L + partners]), torch.cat([labelled_share, share])
        probs = torch.cat([F.one_hot(batch.labels, model.num_classes).to(guess.dtype), guess])
        probs = probs[partners].lerp(probs, share.view(-1, 1))
        with still(norms):
            mixed = images[partners].lerp(images, share.view(-1, 1, 1, 1))
            log_probs = F.log_softmax(model.linear(model.backbone(mixed)), dim=1)
        losses = -(probs * log_probs).sum(dim=1)
        update(losses[:L].mean() + config.mixed_consistency_weight * losses[L:].mean())

    return step


def mixmatch(modules: Any, update: Update) -> Step:
    """Two views give a guess; all images are mixed with all."""
    model, config, norms = modules.model, modules.config, batch_norms(modules.model)

    def step(batch: Batch) -> None:
        L, U = len(batch.labels), len(batch.unlabelled["view1"])
        second = batch.unlabelled["view2"]
        images = torch.cat([batch.labelled["image"], batch.unlabelled["view1"], second])
        with torch.no_grad():
            first_probs = model.linear(model.backbone(images[: L + U]))[L:].softmax(dim=1)
            with still(norms):
                second_probs = model.linear(model.backbone(second)).softmax(dim=1)
            guess = ((first_probs + second_probs) / 2) ** (1 / config.temperature)
            guess = guess / guess.sum(dim=1, keepdim=True)
        partners, share = partners_and_share(images, len(images), config.alpha, update.generator)
        probs = torch.cat([F.one_hot(batch.labels, model.num_classes).to(guess.dtype), guess, guess])
        probs = probs[partners].lerp(probs, share.view(-1, 1))
        with still(norms):
            mixed = images[partners].lerp(images, share.view(-1, 1, 1, 1))
            logits = model.linear(model.backbone(mixed))
        weight = min(1.0, update.progress / config.ramp_fraction) * config.mixed_consistency_weight
        update(
            F.cross_entropy(logits[:L], probs[:L]) + weight * F.mse_loss(logits[L:].softmax(dim=1), probs[L:])
        )

    return step
