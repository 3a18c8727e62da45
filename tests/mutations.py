"""Breaks the code on purpose, one change at a time, and says which test notices.

Run from the root of the project: `python -m tests.mutations [word ...]`; words choose mutations by a
part of their description. Works on a copy, prints a Markdown table, and ends with an error if a
mutation survives. `tests/test_mutations.py` sees to it that every entry still finds its place.
"""

import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from manigraph.native.compiling import compile_all

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in one file of the package."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Where it should be noticed, each as it is typed behind `pytest`; one after the other, until one fails.
    `tests_for` chooses by the file where there are none."""


def group(prefix: str, file: str, tests: tuple[str, ...], *changes: tuple[str, str, str]) -> list[Mutation]:
    """Mutations of one file: what is wrong, the text as it is, and as it becomes."""
    return [Mutation(f"{prefix}: {what}", file, old, new, tests) for what, old, new in changes]


def followed(case: str) -> str:
    """The test that two processes compute what one does, of one method."""
    return f"tests/processes/test_following.py::test_two_processes_follow_one[float64-{case}]"


CONTRACT = "tests/algorithms/test_contract.py"
STEPS = "tests/algorithms/test_steps.py"
COMPARISONS = "algorithms/comparisons.py"
GRAPH = "algorithms/manifold_graph.py"
PARTS = "algorithms/parts.py"
CONSISTENCY = "functional/consistency.py"
ADVERSARIAL = "functional/adversarial.py"
PROTOTYPES = "functional/prototypes.py"
EDGES = "functional/graph.py"
CONVOLUTION = "native/convolution.c"
CLASSIFICATION = "functional/prototype_classification.py"
BALANCE = "nn/target_balance.py"
LOOP = "training/loop.py"
SESSION = "session.py"

NO_CONTEXT = "with __import__('contextlib').nullcontext():"
FROZEN = "with frozen_running_statistics(self.model):"
FROZEN_STUDENT = "with frozen_running_statistics(model):\n            labelled_logits, student_logits"
FROZEN_GRAPH = "with frozen_running_statistics(model):\n            predictions"
SPLIT = "labelled_logits, clean_logits = model.classify(features, nodes, embeddings).split(sizes)"
CLEAN_PASS = "labelled_logits, clean_logits = forward(torch.cat([labelled, first])).split(sizes)"
CLEAN_PASS_ALONE = (
    "with torch.no_grad():\n            clean_logits = self.comparison.target_model(model)(first)"
)
STUDENT_PASS = "forward(torch.cat([labelled, student_view])).split(sizes)"
PASSES_ALONE = (
    "return ComparedPasses(labelled_logits, clean_logits, predictions, labelled_features, student_features)"
)
GRAPH_CLEAN_PASS = 'features = model.features(torch.cat([batch.labelled["image"], first]))'
PREDICTIONS = "self.comparison.predictions(model, forward, first_logits, second, context)"
GRAPH_PREDICTIONS = "self.comparison.predictions(model, logits_of, first_logits, second, context)"

MAGNITUDE = "anchor_magnitude(centres, features, margin=config.margin_length)"
ANGLE = "anchor_angle(similarity, classes, margin=config.margin_angle)"
BOUNDARY = "anchor_boundary(similarity, classes, centres, detach_margin=config.detach_boundary_margin)"

MUTATIONS = [
    # Inner loops in C
    *group(
        "native",
        CONVOLUTION,
        ("tests/nn/test_convolution.py",),
        ("kernels of the gradient not turned", "(turned ? 8 - p : p)", "p"),
        ("last tiles reach beyond the image", "if (column + j < width)\n", "if (1)\n"),
        ("short sums forgotten at the end", "if (blocks > 0)\n", "if (blocks > 9)\n"),
        (
            "short sums added in part",
            "ELEMENTS * pairs);\n                blocks",
            "pairs);\n                blocks",
        ),
        ("one thread's gradient", "for (int k = 0; k < team; k++)", "for (int k = 0; k < 1; k++)"),
        ("a coefficient of B", "y[0] = 4 * x[0] - 5 * x[2]", "y[0] = 4 * x[0] - 4 * x[2]"),
        ("a coefficient of A", "y[3] = near_gap + 8 * far_gap + x[5];", "y[3] = near_gap + 8 * far_gap;"),
        ("a coefficient of G", "{1.f / 24, -1.f / 12, 1.f / 6},", "{1.f / 24, 1.f / 12, 1.f / 6},"),
    ),
    *group(
        "native",
        "nn/convolution.py",
        ("tests/nn/test_convolution.py",),
        ("all gradients whatever is asked for", "bool(torch._C._will_engine_execute_node(node))", "True"),
        ("in mixed precision too", '            and not torch.is_autocast_enabled("cpu")\n', ""),
        ("bias forgotten", "            and self.bias is None\n", ""),
        ("any border", '            and self.padding_mode == "zeros"\n', ""),
    ),
    *group(
        "native",
        "native/convolution.py",
        ("tests/nn/test_convolution.py",),
        ("with groups too", "        and images[1] == inputs\n", ""),
        ("any layout", "        and images.is_contiguous(memory_format=torch.channels_last)\n", ""),
        ("where most is thrown away", "        and height * width >= LEAST_USE * tiles * TILE**2\n", ""),
        ("gradients as they lie in memory", "_in_layout(images), _in_layout(gradient)", "images, gradient"),
    ),
    *group(
        "native",
        "native/triplets.c",
        ("tests/native/test_triplets.py",),
        ("members among the others", "n < members && classes[n] != first + c;", "n < members;"),
        ("members without gradient", "        gradient[j] -= 2 * all;\n", ""),
        ("bad numbers left out", "none = gap <= 0;", "none = ~(gap > 0);"),
        ("terms of zero count", "number += gap > 0;", "number += gap >= 0;"),
        ("no margin", "+ centre] - margin;", "+ centre];"),
    ),
    *group(
        "native",
        "native/batch_norm.c",
        ("tests/nn/test_normalised_activation.py",),
        ("running variance of the batch", "(double)(s->rows - 1)", "(double)s->rows"),
        ("mean rounded", "load(a->bias + c) - load(a->rest + c) * scale", "load(a->bias + c)"),
        ("a thread's rows counted twice", "centre += apart * share;", "centre += apart;"),
    ),
    *group(
        "native",
        "nn/normalised_activation.py",
        ("tests/nn/test_normalised_activation.py",),
        ("frozen statistics move", "    if layer.track_running_stats:\n", "    if True:\n"),
        ("hooks not called", "return not (_has_hooks(layer) or", "return not (False or"),
        ("in evaluation too", "or not layer.training ", ""),
    ),
    *group(
        "native",
        "native/__init__.py",
        ("tests/native/test_native.py", "tests/nn/test_convolution.py"),
        ("under modes that look at operations", "None if _get_current_dispatch_mode() is not None else ", ""),
        ("never off", "if not _is_on or", "if"),
    ),
    *group(
        "native prototype classification",
        "native/prototype_classification.c",
        ("tests/native/test_prototype_classification.py",),
        ("no gradient of what is without the image", "            own += error;\n", ""),
        (
            "gradient of the prototypes' mean turned round",
            "load(to_others + d) - heard",
            "load(to_others + d) + heard",
        ),
        (
            "gradient of the share without the prototypes' mean",
            "error * (load(image + i * D + d) - mean);",
            "error * load(image + i * D + d);",
        ),
        ("no gradient of the images", "load(to_image + i * D + d) + shared", "load(to_image + i * D + d)"),
        ("own class not subtracted", "            logits[own] -= scale;\n", ""),
        ("classes that fill up count", "-INFINITY;", "0;"),
        (
            "no number becomes zero",
            "where(x < -87.3f, (vec){0}, sum * (vec)power)",
            "where(x >= -87.3f, sum * (vec)power, (vec){0})",
        ),
        ("small probabilities are zero", "x < -87.3f", "x < -40.f"),
        ("rounded logarithm of two", "    r += n * 2.12194440e-4f;\n", ""),
        (
            "short sums forgotten at the end",
            "            sum_up(s, &own);\n#pragma omp barrier",
            "#pragma omp barrier",
        ),
        ("rows one after the other", "if (++blocks % A_FEW == 0)", "if (0)"),
        ("losses of one thread", "add_losses(all_losses, all_losses[k]);", ";"),
        ("gradients of one thread", "            sum += from[k * step + n];\n", ";"),
        ("product of sums beyond all numbers", "if (to->product > 0x1p400)", "if (0)"),
        ("any class", "if (classes[p] < 0 || classes[p] >= C)", "if (0)"),
    ),
    *group(
        "native prototype classification",
        "native/prototype_classification.py",
        ("tests/native/test_prototype_classification.py",),
        ("any layout", "[tensor.contiguous() for tensor in inputs]", "list(inputs)"),
        ("any number of features", "        and D % lanes() == 0\n", ""),
        ("in any precision", "tensor.dtype == torch.float32 and tensor.is_cpu for", "tensor.is_cpu for"),
        ("any sizes", "        and [tuple(tensor.shape) for tensor in inputs] == sizes\n", ""),
        ("any number of classes", "        and classes.shape == (P,)\n", ""),
        ("without images", "        and B * P * C * D > 0\n", ""),
        ("wrong classes pass", "    if is_wrong:", "    if False:"),
    ),
    # Consistency methods: Π-model, Π-VAT, Mean Teacher and FixMatch share their step
    *group(
        "comparisons",
        COMPARISONS,
        (STEPS, f"{CONTRACT} -k 'pi_vat or pi_model and not graph and not sntg and not swa'"),
        (
            "student's logits read from the target",
            "distance(target, predictions.student_logits)",
            "distance(target, predictions.target_logits)",
        ),
        (
            "target's logits read from the student",
            "self.target_balance(predictions.target_logits)",
            "self.target_balance(predictions.student_logits)",
        ),
        ("student detached", "predictions.student_logits)", "predictions.student_logits.detach())"),
        (
            "consistency dropped",
            '            "consistency": ramp * config.consistency_weight * consistency,\n',
            "",
        ),
        ("entropy and balance dropped", "            **self.extra_terms(clean_logits, progress),\n", ""),
        ("entropy of the student", "extra_terms(clean_logits,", "extra_terms(predictions.student_logits,"),
        (
            "targets never balanced",
            "self.target_balance(predictions.target_logits)",
            "predictions.target_logits",
        ),
        ("weight ignored", "ramp * config.consistency_weight", "ramp"),
        ("ramp left off", "ramp * config.consistency_weight", "config.consistency_weight"),
        ("second view is the first", PREDICTIONS, PREDICTIONS.replace("second", "first")),
        ("batch norm frozen in the clean pass", CLEAN_PASS, f"{FROZEN}\n                {CLEAN_PASS}"),
        (
            "batch norm not frozen in the other passes",
            f"with frozen_running_statistics(model):\n                predictions = {PREDICTIONS}",
            f"{NO_CONTEXT}\n                predictions = {PREDICTIONS}",
        ),
        (
            "labelled images not learned",
            "F.cross_entropy(passes.labelled_logits, batch.labels)",
            "0 * passes.labelled_logits.sum()",
        ),
    ),
    # Where nothing is learned from the first views, labelled images go with the student
    *group(
        "comparisons without clean gradient",
        COMPARISONS,
        (f"{STEPS} -k 'other_settings and not manifold'",),
        (
            "labelled images not learned",
            PASSES_ALONE,
            PASSES_ALONE.replace("labelled_logits", "labelled_logits.detach()"),
        ),
        (
            "labelled images in a pass of their own",
            STUDENT_PASS,
            "forward(labelled), forward(student_view); forward(torch.cat([labelled, student_view]))",
        ),
        (
            "labelled images in the clean pass",
            CLEAN_PASS_ALONE,
            CLEAN_PASS_ALONE.replace("(first)", "(torch.cat([labelled, first]))[len(labelled) :]"),
        ),
        (
            "the student sees the first view",
            "self.comparison.student_view(second, context)",
            "self.comparison.student_view(first, context)",
        ),
        (
            "the target sees the second view",
            CLEAN_PASS_ALONE,
            CLEAN_PASS_ALONE.replace("first", "second"),
        ),
        (
            "running statistics frozen in the clean pass",
            CLEAN_PASS_ALONE,
            CLEAN_PASS_ALONE.replace("no_grad():", "no_grad(), frozen_running_statistics(model):"),
        ),
        (
            "running statistics moved by the student's pass",
            FROZEN_STUDENT,
            FROZEN_STUDENT.replace("with frozen_running_statistics(model):", NO_CONTEXT),
        ),
        (
            "also where entropy and balance learn from the first views",
            "if not self.config.learns_from_clean_predictions:",
            "if True:",
        ),
        (
            "clean gradient for nothing",
            "if not self.config.learns_from_clean_predictions:",
            "if False:",
        ),
        (
            "target and student exchanged",
            "Predictions(clean_logits, student_logits)",
            "Predictions(student_logits, clean_logits)",
        ),
    ),
    *group(
        "clean predictions",
        PARTS,
        (f"{STEPS} -k 'other_settings and not manifold'", "tests/algorithms/test_mixing.py"),
        (
            "balance does not learn from them",
            "return self.entropy_weight > 0 or self.balance_weight > 0",
            "return self.entropy_weight > 0",
        ),
        (
            "entropy does not learn from them",
            "return self.entropy_weight > 0 or self.balance_weight > 0",
            "return self.balance_weight > 0",
        ),
        (
            "learned from only by entropy and balance together",
            "return self.entropy_weight > 0 or self.balance_weight > 0",
            "return self.entropy_weight > 0 and self.balance_weight > 0",
        ),
    ),
    *group(
        "VAT",
        "algorithms/vat.py",
        (f"{STEPS} -k vat", f"{CONTRACT} -k 'vat and not pi_vat'"),
        (
            "student's logits read from the target",
            "(config.consistency, target, student_logits)",
            "(config.consistency, target, target_logits)",
        ),
        (
            "target's logits read from the student",
            "self.target_balance(target_logits)",
            "self.target_balance(student_logits)",
        ),
        (
            "student detached",
            "(config.consistency, target, student_logits)",
            "(config.consistency, target, student_logits.detach())",
        ),
        (
            "consistency dropped",
            '                "consistency": ramp * config.consistency_weight * consistency,\n',
            "",
        ),
        (
            "entropy and balance dropped",
            "                **self.extra_terms(target_logits, context.progress),\n",
            "",
        ),
        ("ramp left off", "ramp * config.consistency_weight", "config.consistency_weight"),
        (
            "batch norm frozen in the clean pass",
            "with gradient_of_clean_pass(config):",
            "with gradient_of_clean_pass(config), frozen_running_statistics(self.model):",
        ),
        ("batch norm not frozen in the perturbed passes", FROZEN, NO_CONTEXT),
    ),
    *group(
        "Manifold Graph",
        GRAPH,
        ("tests/algorithms/test_manifold_graph.py", f"{STEPS} -k manifold", f"{CONTRACT} -k manifold_graph"),
        (
            "consistency, entropy and balance dropped",
            "**self.unlabelled_terms(passes.predictions, passes.clean_logits, context.progress),\n",
            "",
        ),
        ("second view is the first", GRAPH_PREDICTIONS, GRAPH_PREDICTIONS.replace("second", "first")),
        (
            "batch norm frozen in the clean pass",
            GRAPH_CLEAN_PASS,
            f"with frozen_running_statistics(model):\n            {GRAPH_CLEAN_PASS}",
        ),
        (
            "batch norm not frozen in the perturbed passes",
            FROZEN_GRAPH,
            f"{NO_CONTEXT}\n            predictions",
        ),
        (
            "the student predicts where the teacher should",
            "self.comparison.evaluated(self.model)",
            "self.model",
        ),
    ),
    Mutation(
        "Supervised: batch norm frozen in the clean pass",
        "algorithms/supervised.py",
        'logits = self.model(batch.labelled["image"])',
        "with __import__('manigraph').nn.frozen_running_statistics(self.model):\n"
        '            logits = self.model(batch.labelled["image"])',
        (f"{CONTRACT} -k supervised",),
    ),
    # Consistency, entropy, ramp
    Mutation(
        "KL: student detached instead of the target",
        CONSISTENCY,
        "target_log_probs = F.log_softmax(target_logits.detach(), dim=1)\n"
        "    student_log_probs = F.log_softmax(student_logits, dim=1)",
        "target_log_probs = F.log_softmax(target_logits, dim=1)\n"
        "    student_log_probs = F.log_softmax(student_logits.detach(), dim=1)",
    ),
    Mutation(
        "KL: target not detached",
        CONSISTENCY,
        "log_softmax(target_logits.detach(),",
        "log_softmax(target_logits,",
    ),
    Mutation(
        "KL: the wrong way round",
        CONSISTENCY,
        "(target_log_probs.exp() * (target_log_probs - student_log_probs))",
        "(student_log_probs.exp() * (student_log_probs - target_log_probs))",
    ),
    Mutation(
        "MSE: student detached instead of the target",
        CONSISTENCY,
        "target_probs = F.softmax(target_logits.detach(), dim=1)\n"
        "    student_probs = F.softmax(student_logits, dim=1)",
        "target_probs = F.softmax(target_logits, dim=1)\n"
        "    student_probs = F.softmax(student_logits.detach(), dim=1)",
    ),
    Mutation(
        "MSE: target not detached",
        CONSISTENCY,
        "F.softmax(target_logits.detach(),",
        "F.softmax(target_logits,",
    ),
    Mutation("MSE: mean over classes", CONSISTENCY, ".square().sum(dim=1).mean()", ".square().mean()"),
    *group(
        "extra terms",
        PARTS,
        (STEPS, f"{CONTRACT} -k 'vat and not pi_vat'"),
        (
            "entropy of a detached prediction",
            "entropy(clean_logits)",
            "entropy(clean_logits.detach())",
        ),
        (
            "entropy dropped",
            '            "entropy": ramp * config.entropy_weight * entropy(clean_logits)\n'
            "            if config.entropy_weight > 0\n            else none,\n",
            "",
        ),
        (
            "balance dropped",
            '            "balance": config.balance_weight\n'
            "            * class_imbalance(self.shard.gather(clean_logits), self.class_shares)\n"
            "            if config.balance_weight > 0\n            else none,\n",
            "",
        ),
        (
            "softmax applied twice",
            "](target_logits, student_logits)",
            "](target_logits.softmax(1), student_logits.softmax(1))",
        ),
    ),
    Mutation(
        "balanced targets: bias turned round",
        BALANCE,
        "return target_logits + self",
        "return target_logits - self",
    ),
    Mutation(
        "balanced targets: the oldest remembered",
        BALANCE,
        "[everybodys, self.recent_logits])[: self.memory]",
        "[everybodys, self.recent_logits])[-self.memory :]",
    ),
    Mutation(
        "balanced targets: empty places of the memory counted",
        BALANCE,
        "known = newest_first[: int(self.count)]",
        "known = newest_first",
    ),
    Mutation(
        "balanced targets: nothing remembered", BALANCE, "self.recent_logits.copy_(newest_first)", "pass"
    ),
    Mutation("ramp ignored", PARTS, "ramp = ramp_up(progress, config.ramp_fraction)", "ramp = 1.0"),
    Mutation("ramp left off the entropy", PARTS, "ramp * config.entropy_weight", "config.entropy_weight"),
    Mutation("balance weight ignored", PARTS, "config.balance_weight\n            * class", "class"),
    # The virtual adversarial perturbation
    Mutation(
        "VAT: direction turned round",
        ADVERSARIAL,
        "return epsilon * direction",
        "return -epsilon * direction",
    ),
    Mutation(
        "VAT: direction random",
        ADVERSARIAL,
        "unit_per_image(gradient)",
        "unit_per_image(direction.detach())",
    ),
    Mutation("VAT: probing step ignored", ADVERSARIAL, "images + xi * direction", "images + direction"),
    Mutation(
        "VAT: one length for the batch",
        ADVERSARIAL,
        "flat / lengths.clamp_min(tiny)",
        "flat / lengths.mean()",
    ),
    Mutation(
        "VAT: zero gradient divided by zero", ADVERSARIAL, "keepdim=True).clamp_min(tiny)", "keepdim=True)"
    ),
    Mutation(
        "VAT: gradients of parameters accumulated",
        ADVERSARIAL,
        "(gradient,) = torch.autograd.grad(distance, direction)",
        "distance.backward(); gradient = direction.grad",
    ),
    Mutation(
        "VAT: power step under autocast",
        ADVERSARIAL,
        ", torch.autocast(images.device.type, enabled=False)",
        "",
    ),
    Mutation(
        "VAT: first direction from the global random numbers",
        ADVERSARIAL,
        ".normal_(generator=generator)",
        ".normal_()",
    ),
    Mutation(
        "VAT: masks of the power step its own",
        "algorithms/vat.py",
        "perturbation(config, self.model, same_network,",
        "perturbation(config, self.model, self.model,",
    ),
    Mutation(
        "VAT: masks of the student its own",
        "algorithms/vat.py",
        "student_logits = same_network(",
        "student_logits = self.model(",
    ),
    *group(
        "Π-VAT",
        COMPARISONS,
        (STEPS, f"{CONTRACT} -k pi_vat", "tests/algorithms/test_manifold_graph.py"),
        (
            "masks of each power step its own",
            "perturbation(self.config, model, probe,",
            "perturbation(self.config, model, forward,",
        ),
        (
            "found against the student's own view",
            'adversarial_reference == "own_view"',
            'adversarial_reference == "target"',
        ),
        ("student without the perturbation", "forward(second + noise)", "forward(second)"),
    ),
    *group(
        "Π-model",
        COMPARISONS,
        (STEPS,),
        (
            "noise ignored",
            "second + noise * context.normal_like(second) if noise > 0 else second",
            "second",
        ),
    ),
    # The method
    Mutation("anchor magnitude dropped", GRAPH, f"{MAGNITUDE}\n            + ", ""),
    Mutation("anchor angle dropped", GRAPH, f"            + {ANGLE}\n", ""),
    Mutation("anchor boundary dropped", GRAPH, f"            + {BOUNDARY}\n", ""),
    Mutation(
        "divergence dropped", GRAPH, '            "divergence": config.divergence_weight * spread,\n', ""
    ),
    Mutation(
        "prototype classification dropped",
        GRAPH,
        '            "prototypes": config.prototype_weight * prototype_classification,\n',
        "",
    ),
    Mutation(
        "anchor on detached features",
        GRAPH,
        "cosine_similarity(torch.cat([features, prototypes]), centres)",
        "cosine_similarity(torch.cat([features.detach(), prototypes]), centres)",
    ),
    Mutation(
        "anchor on images only",
        GRAPH,
        "classes = torch.cat([labels, pseudo_labels, prototype_classes])",
        "classes = torch.cat([labels, pseudo_labels])\n        similarity = similarity[: len(features)]",
    ),
    Mutation(
        "pseudo-labels of the labelled images for the others",
        GRAPH,
        "[len(labels) : len(features)].argmax(dim=1)",
        "[: len(features) - len(labels)].argmax(dim=1)",
    ),
    Mutation(
        "embeddings of the clean pass detached",
        GRAPH,
        f"else model.graph.embedding(features)\n        {SPLIT}",
        f"else model.graph.embedding(features.detach())\n        {SPLIT}",
    ),
    Mutation(
        "students decide their own class",
        GRAPH,
        'None if self.config.anchored_view == "clean" else self._nearest_centres(passes)',
        "None",
    ),
    Mutation(
        "clean views beside anchored students with gradient",
        GRAPH,
        "with torch.no_grad():  # and the only pass",
        "with torch.enable_grad():  # and the only pass",
    ),
    Mutation(
        "the teacher's graph with the student's prototypes",
        GRAPH,
        "looking_nodes = nodes if looking is model or nodes is None else looking.class_nodes()",
        "looking_nodes = nodes",
    ),
    Mutation(
        "anchored students move running statistics",
        GRAPH,
        "with frozen_running_statistics(model):\n            features",
        "if True:\n            features",
    ),
    Mutation(
        "pseudo-labels instead of labels",
        GRAPH,
        "classes = torch.cat([labels, pseudo_labels, prototype_classes])",
        "classes = torch.cat([nearest_centre(features, centres), prototype_classes])",
    ),
    Mutation(
        "classes of the prototypes in the wrong order",
        GRAPH,
        "torch.arange(C, device=labels.device).repeat_interleave(\n"
        "            config.prototypes_per_class\n        )",
        "torch.arange(C, device=labels.device).repeat(config.prototypes_per_class)",
    ),
    Mutation(
        "student classified from raw features",
        GRAPH,
        GRAPH_PREDICTIONS,
        GRAPH_PREDICTIONS.replace("logits_of", "lambda x: model.classify(model.features(x), None)"),
    ),
    Mutation(
        "labelled images classified from raw features",
        GRAPH,
        SPLIT,
        f"{SPLIT}\n        labelled_logits = model.linear(features[: len(batch.labels)])",
    ),
    Mutation("graph comes in a step late", GRAPH, "context.progress >= self", "context.progress > self"),
    Mutation("graph on from the start", GRAPH, "if not graph_is_on:", "if False:"),
    Mutation("graph_is_on not remembered", GRAPH, "network.graph_is_on.fill_(graph_is_on)", "pass"),
    Mutation("class images not drawn", GRAPH, "network.nodes.draw(batch.class_images)", "pass"),
    Mutation(
        "class images move the running statistics",
        "nn/classifier.py",
        "with dropout_of(self.backbone, ALONE), frozen_running_statistics(self.backbone):",
        "with dropout_of(self.backbone, ALONE):",
    ),
    Mutation(
        "margin of the boundary never detached",
        GRAPH,
        "detach_margin=config.detach_boundary_margin",
        "detach_margin=False",
    ),
    Mutation(
        "class nodes detached",
        GRAPH,
        "return model.class_nodes()",
        "return Nodes(*(t.detach() for t in model.class_nodes()))",
    ),
    # Losses on prototypes
    Mutation(
        "magnitude: average length not detached",
        PROTOTYPES,
        "vector_norm(features.detach(), dim=1)",
        "vector_norm(features, dim=1)",
    ),
    Mutation(
        "magnitude: margin ignored",
        PROTOTYPES,
        "(relative_length - 1).abs() - margin",
        "(relative_length - 1).abs()",
    ),
    Mutation("magnitude: not squared", PROTOTYPES, "return excess.square().mean()", "return excess.mean()"),
    Mutation(
        "angle: sorted the wrong way",
        PROTOTYPES,
        "-torch.inf).sort(dim=1)",
        "-torch.inf).sort(dim=1, descending=True)",
    ),
    Mutation("angle: ties counted", PROTOTYPES, "right=True", "right=False"),
    Mutation("angle: sums in float32", PROTOTYPES, "similarity.double().T", "similarity.float().T"),
    Mutation(
        "angle: mean over all members instead of non-zero terms",
        PROTOTYPES,
        "total / number.clamp_min(1)",
        "total / similarity.numel()",
    ),
    Mutation(
        "angle: divided by zero without terms", PROTOTYPES, "total / number.clamp_min(1)", "total / number"
    ),
    Mutation("angle: margin ignored", PROTOTYPES, "by_centre[row, order] - margin", "by_centre[row, order]"),
    Mutation(
        "angle: members among the non-members",
        PROTOTYPES,
        "by_centre.masked_fill(is_member, -torch.inf)",
        "by_centre",
    ),
    *group(
        "angle in parts",
        PROTOTYPES,
        ("tests/functional/test_anchor_angle.py",),
        ("members of other centres", "classes - start, margin", "classes, margin"),
        ("numbers of one part", "number += part.number", "number = part.number"),
        ("sum of one part", "total += part.total", "total = part.total"),
        (
            "gradient of the first part only",
            "gradient[:, own] = part.gradient.T",
            "gradient[:, own] = part.gradient.T if start == 0 else 0",
        ),
        (
            "the last centres left out",
            "range(0, num_classes, centres_at_once)",
            "range(0, num_classes - centres_at_once + 1, centres_at_once)",
        ),
        (
            "members of no centre of the part not left out",
            "    order = order[is_member.any(dim=0)[order]]\n    row = classes[order]\n",
            "    row = classes[order].clamp(0, num_centres - 1)\n",
        ),
    ),
    *group(
        "triplets",
        PROTOTYPES,
        ("tests/functional/test_anchor_angle.py",),
        (
            "no gradient of non-members",
            "2 * (below * by_centre - _running_sums(thresholds).gather(1, below))",
            "torch.zeros_like(by_centre)",
        ),
        ("no gradient of members", "2 * (above * threshold - sum_above)", "0"),
        (
            "members pushed away like non-members",
            "    gradient[row, order] = 2 * (above * threshold - sum_above)\n",
            "",
        ),
        (
            "gradient of members turned round",
            "(above * threshold - sum_above)",
            "(sum_above - above * threshold)",
        ),
        ("thresholds not sorted for the gradient", "thresholds, _ = grid.sort(dim=1)", "thresholds = grid"),
        (
            "members that are not there have a threshold",
            "threshold.new_full((num_centres, int(sizes.max())), torch.inf)",
            "threshold.new_zeros((num_centres, int(sizes.max())))",
        ),
        (
            "non-members pushed away from thresholds above them",
            "torch.searchsorted(thresholds, by_centre)",
            "sizes.unsqueeze(1) - torch.searchsorted(thresholds, by_centre)",
        ),
        ("squares not squared", ".pow(power).cumsum(dim=1)", ".cumsum(dim=1)"),
        (
            "factor on the loss not on the gradient",
            "gradient * output_gradient.to(gradient.dtype), None",
            "gradient, None",
        ),
    ),
    Mutation(
        "boundary: mean instead of mean over non-zero terms",
        PROTOTYPES,
        "shortfall.sum() / (shortfall > 0).sum().clamp_min(1)",
        "shortfall.mean()",
    ),
    Mutation(
        "boundary: a centre is its own neighbour",
        PROTOTYPES,
        "centre_similarity.masked_fill(itself, -torch.inf)",
        "centre_similarity",
    ),
    Mutation("boundary: margin always detached", PROTOTYPES, "if detach_margin:", "if True:"),
    Mutation(
        "boundary: nearest centre for farthest",
        PROTOTYPES,
        "-torch.inf).amax(dim=1)",
        "torch.inf).amin(dim=1)",
    ),
    Mutation(
        "divergence: larger of the two",
        PROTOTYPES,
        "torch.minimum(1 - length_gap,",
        "torch.maximum(1 - length_gap,",
    ),
    Mutation(
        "divergence: average length not detached",
        PROTOTYPES,
        "2 * lengths.detach().mean()",
        "2 * lengths.mean()",
    ),
    *group(
        "divergence",
        PROTOTYPES,
        ("tests/functional/test_prototypes.py",),
        ("sum instead of mean", 'if reduction == "mean" else 1', "if False else 1"),
        ("mean instead of sum", 'if reduction == "mean" else 1', "if True else 1"),
        ("each pair counted twice", ".triu(1)", ""),
        ("prototypes paired with themselves", ".triu(1)", ".triu(0)"),
        ("not by what is left of 1", "(1 - margin) * max(1, pairs)", "max(1, pairs)"),
    ),
    Mutation("divergence: factor 2 forgotten", PROTOTYPES, "/ (2 * lengths", "/ (lengths"),
    Mutation(
        "pseudo-label by dot product",
        PROTOTYPES,
        "cosine_similarity(features.detach(), centres.detach())",
        "(features @ centres.T)",
    ),
    Mutation(
        "centres over the wrong axis",
        PROTOTYPES,
        "return prototypes.view(num_classes, -1, prototypes.shape[1]).mean(dim=1)",
        "return prototypes.view(-1, num_classes, prototypes.shape[1]).mean(dim=0)",
    ),
    # The graph
    Mutation(
        "graph: self edge not masked",
        EDGES,
        "            scores.diagonal(rows.start, dim1=1, dim2=2).fill_(-torch.inf)\n",
        "",
    ),
    Mutation(
        "graph: scale left off the edges among prototypes",
        EDGES,
        "torch.bmm(g[:, rows], g.mT).mul_(scale)",
        "torch.bmm(g[:, rows], g.mT)",
    ),
    *group(
        "graph in parts",
        EDGES,
        ("tests/functional/test_graph.py",),
        ("self edges of the first part in all", "scores.diagonal(rows.start,", "scores.diagonal(0,"),
        (
            "the last prototypes left out",
            "range(0, count, at_once)",
            "range(0, max(1, count - at_once + 1), at_once)",
        ),
        (
            "only the prototypes of the part heard",
            "mul_(scale)  # (H, r, P)\n",
            "mul_(scale)  # (H, r, P)\n            scores[:, :, rows.stop :] = -torch.inf\n",
        ),
        (
            "scale ignored",
            "_weights_again(g, log_normaliser, rows, scale)\n",
            "_weights_again(g, log_normaliser, rows, 1.0)\n",
        ),
        (
            "self edge not masked in the backward pass",
            "    weights.diagonal(rows.start, dim1=1, dim2=2).fill_(0)\n",
            "",
        ),
        (
            "self edges of the first part in all of the backward pass",
            "weights.diagonal(rows.start,",
            "weights.diagonal(0,",
        ),
    ),
    *group(
        "graph's gradient",
        EDGES,
        ("tests/functional/test_graph.py",),
        (
            "not of what is averaged",
            "                to_g.baddbmm_(weights.mT, to_mean[:, rows])\n",
            "",
        ),
        (
            "not of who is heard",
            "                to_g.baddbmm_(to_scores.mT, g[:, rows], alpha=scale)\n",
            "",
        ),
        (
            "not of who hears",
            "                to_g[:, rows].baddbmm_(to_scores, g, alpha=scale)\n",
            "",
        ),
        (
            "neither of z_p nor of the mean",
            "torch.baddbmm(constant[:, rows], to_mean[:, rows], g.mT)",
            "torch.bmm(to_mean[:, rows], g.mT)",
        ),
        (
            "not of z_p",
            "(to_log_normaliser - torch.linalg.vecdot(to_mean, mean))",
            "(-torch.linalg.vecdot(to_mean, mean))",
        ),
        (
            "not through the mean in each weight",
            "(to_log_normaliser - torch.linalg.vecdot(to_mean, mean))",
            "to_log_normaliser",
        ),
        ("not times the weights", "to_mean[:, rows], g.mT).mul_(weights)", "to_mean[:, rows], g.mT)"),
        (
            "scale left off who is heard",
            "(to_scores.mT, g[:, rows], alpha=scale)",
            "(to_scores.mT, g[:, rows])",
        ),
        ("scale left off who hears", "(to_scores, g, alpha=scale)", "(to_scores, g)"),
    ),
    Mutation(
        "graph: z_p without its largest weight",
        EDGES,
        "scores.amax(dim=2) - weights.amax(dim=2).log_()",
        "scores.amax(dim=2)",
    ),
    Mutation(
        "graph: edges among prototypes under autocast",
        EDGES,
        "with torch.autocast(g.device.type, enabled=False):\n        # Sums",
        NO_CONTEXT + "\n        # Sums",
    ),
    Mutation(
        "graph: edges among prototypes in half precision",
        EDGES,
        "g.to(torch.promote_types(g.dtype, torch.float32))",
        "g",
    ),
    Mutation(
        "graph: α without z_p",
        EDGES,
        "torch.sigmoid(scores - log_normaliser.T.unsqueeze(1))",
        "torch.sigmoid(scores)",
    ),
    Mutation(
        "graph: scale left off α",
        EDGES,
        "scale)  # (H, B, P)\n    return torch.sigmoid",
        "1.0)  # (H, B, P)\n    return torch.sigmoid",
    ),
    Mutation(
        "graph: image not in the prototypes' rows",
        EDGES,
        "total = total + share.unsqueeze(2) * (",
        "total = total + 0 * share.unsqueeze(2) * (",
    ),
    Mutation(
        "graph: prototypes' mean not replaced by the image's share",
        EDGES,
        "of_image.unsqueeze(1) - of_prototypes)",
        "of_image.unsqueeze(1) + 0 * of_prototypes)",
    ),
    Mutation(
        "graph: first head's share for all heads",
        EDGES,
        "parts.share.unbind(1),",
        "parts.share[:, :1].expand_as(parts.share).unbind(1),",
    ),
    Mutation(
        "graph: residual forgotten",
        EDGES,
        "F.leaky_relu(features + message,",
        "F.leaky_relu(message,",
    ),
    Mutation("graph: slope 0.01", EDGES, "LEAKY_SLOPE = 0.1", "LEAKY_SLOPE = 0.01"),
    *group(
        "graph: what images hear",
        EDGES,
        ("tests/functional/test_graph.py",),
        (
            "the own half of φ2 for the context",
            "weight[:, H * E :].unflatten",
            "weight[:, : H * E].unflatten",
        ),
        ("the context half of φ2 for itself", "weight[:, : g.shape[1]].T", "weight[:, g.shape[1] :].T"),
        ("a whole bias from each head", "(bias / H)", "bias"),
        ("no bias", "(bias / H)", "(0 * bias)"),
        (
            "first head only",
            "in zip(weights.unbind(1), messages, strict=True)",
            "in [(weights[:, 0], messages[0])]",
        ),
        ("no residual", "torch.addmm(features, g, ", "torch.addmm(0 * features, g, "),
        (
            "scale forgotten",
            "prototype_embeddings, scale=scale)  # (B, H, P)\n    g =",
            "prototype_embeddings)\n    g =",
        ),
    ),
    Mutation(
        "graph: message halves exchanged",
        EDGES,
        "own_weight, context_weight = weight.chunk(2, dim=1)",
        "context_weight, own_weight = weight.chunk(2, dim=1)",
    ),
    # The classification of all refined prototypes, which computes its own gradient
    *group(
        "prototype classification",
        CLASSIFICATION,
        ("tests/functional/test_prototype_classification.py",),
        (
            "no gradient of what is without the image",
            "    to_part.without_image.add_(back[0] if of_one_image else back.sum(dim=0))\n",
            "",
        ),
        (
            "gradient of what is without the image turned round",
            "to_part.without_image.add_(",
            "to_part.without_image.sub_(",
        ),
        (
            "no gradient of the prototypes' mean",
            "        if of_one_image:\n"
            "            to_part.of_prototypes[h].addcmul_(share[0].unsqueeze(1), back[0], value=-1)\n"
            "        else:\n"
            "            to_part.of_prototypes[h].sub_("
            "torch.mul(share.unsqueeze(2), back, out=change).sum(dim=0))\n",
            "",
        ),
        (
            "gradient of the prototypes' mean turned round where there is one image",
            "back[0], value=-1)",
            "back[0], value=1)",
        ),
        (
            "gradient of the prototypes' mean turned round",
            "to_part.of_prototypes[h].sub_(",
            "to_part.of_prototypes[h].add_(",
        ),
        (
            "no gradient of the images",
            "        to_part.of_image[h].unsqueeze(1).baddbmm_(share.unsqueeze(1), back)\n",
            "",
        ),
        (
            "gradient of the images turned round",
            "baddbmm_(share.unsqueeze(1), back)",
            "baddbmm_(share.unsqueeze(1), back, alpha=-1)",
        ),
        (
            "no gradient of the share",
            "        torch.sum(change.mul_(back), dim=2, out=to_part.shares[h])\n",
            "",
        ),
        (
            "gradient of the share turned round",
            "torch.sum(change.mul_(back), ",
            "torch.sum(-change.mul_(back), ",
        ),
        (
            "gradient of the share without the prototypes' mean",
            "torch.sum(change.mul_(back), ",
            "torch.sum(part.of_image[h].unsqueeze(1) * back, ",
        ),
        (
            "gradient of the share with the change of the last head",
            "        if h < len(part.shares) - 1:\n",
            "        if False:\n",
        ),
        ("no gradient of the weights", "to_weight.addmm_(errors.T, block.rows)", "pass"),
        (
            "gradient of the weights turned round",
            "to_weight.addmm_(errors.T, ",
            "to_weight.addmm_(-errors.T, ",
        ),
        ("no gradient of the bias", "to_bias.add_(errors.sum(dim=0))", "pass"),
        ("gradient of the bias turned round", "to_bias.add_(", "to_bias.sub_("),
        (
            "gradient of the last images only",
            "to_bias.add_(errors.sum(dim=0))",
            "to_bias.copy_(errors.sum(dim=0))",
        ),
        (
            "slope 0.01 in the value",
            "F.leaky_relu_(block.features, LEAKY_SLOPE)",
            "F.leaky_relu_(block.features, 0.01)",
        ),
        ("slope 0.01 in the gradient", "block.features, LEAKY_SLOPE, True", "block.features, 0.01, True"),
        ("no slope in the gradient", "block.features, LEAKY_SLOPE, True", "block.features, 1.0, True"),
        ("value not a mean over prototypes", ".mean(dtype=torch.float64)", ".sum(dtype=torch.float64) / B"),
        ("value not a mean over images", ".mean(dtype=torch.float64)", ".sum(dtype=torch.float64) / P"),
        (
            "value of the own probability that may be 0",
            "if own.amin() > torch.finfo(own.dtype).tiny:",
            "if True:",
        ),
        ("logits instead of losses", "return own.log_().neg_()", "return own.neg_()"),
        ("value without the normaliser", "block.logits.logsumexp(dim=1) - ", "-"),
        ("gradient not a mean over prototypes", "gradient /= B * P", "gradient /= B"),
        ("gradient not a mean over images", "gradient /= B * P", "gradient /= P"),
        (
            "gradient divided once for every block",
            "        for gradient in gradients:\n            gradient /= B * P\n",
            "            for gradient in gradients:\n                gradient /= B * P\n",
        ),
        (
            "one class taken for another",
            "classes.repeat(images)",
            "classes.clamp(max=C - 2).repeat(images)",
        ),
        (
            "classes image by image",
            "classes.repeat(images)",
            "classes.repeat_interleave(images)",
        ),
        ("classes not in the gradient", "weight.new_full((), -1)", "weight.new_full((), 0)"),
        (
            "last images left out",
            "                if len(part.shares[0]) < images_at_once:\n",
            "                if len(part.shares[0]) < images_at_once:\n                    continue\n",
        ),
        (
            "all images at once",
            "min(B, max(1, rows // P)), min(P, rows)",
            "B, min(P, rows)",
        ),
        ("all prototypes at once", "min(B, max(1, rows // P)), min(P, rows)", "min(B, max(1, rows // P)), P"),
        (
            "last prototypes left out",
            "range(0, P, prototypes_at_once)",
            "range(0, P - prototypes_at_once + 1, prototypes_at_once)",
        ),
        (
            "classes of the first prototypes",
            "block = space.block(classes[nodes], images_at_once)",
            "block = space.block(classes[: nodes.stop - first], images_at_once)",
        ),
        (
            "classes of the first prototypes with the last images",
            "space.block(classes[nodes], len(",
            "space.block(classes.flip(0)[nodes], len(",
        ),
        (
            "shares of the first prototypes",
            "parts.share[:, :, nodes]",
            "parts.share[:, :, : nodes.stop - nodes.start]",
        ),
        (
            "gradient into the first prototypes",
            "_by_images(MessageParts(*gradients[:4]), nodes, ",
            "_by_images(MessageParts(*gradients[:4]), slice(0, nodes.stop - first), ",
        ),
        (
            "first head only",
            "        before = block.features\n",
            "        break\n",
        ),
        ("last head only", "        before = block.features\n", ""),
        (
            "gradient of the first head only",
            "for h in reversed(range(len(part.shares))):",
            "for h in range(1):",
        ),
        (
            "first head's share for all heads",
            "torch.addcmul(before, share.",
            "torch.addcmul(before, part.shares[0].",
        ),
        (
            "prototypes' mean not replaced by the image's share",
            "torch.sub(of_image.unsqueeze(1), of_prototypes, ",
            "torch.sub(of_image.unsqueeze(1), 0 * of_prototypes, ",
        ),
        ("computed in what autocast made of the parts", "[tensor.to(weight.dtype) for", "[tensor for"),
        ("factor on the loss not on the gradient", "(output_gradient * gradient for", "(gradient for"),
    ),
    Mutation(
        "generator: instance-major",
        "nn/prototypes.py",
        "condition.flatten(0, 1)",
        "condition.transpose(0, 1).flatten(0, 1)",
    ),
    # State
    Mutation(
        "freezing: running statistics used in training mode",
        "nn/batch_norm.py",
        "layer.track_running_stats = False",
        "layer.eval()",
    ),
    Mutation(
        "freezing: not undone after an exception",
        "nn/batch_norm.py",
        "    try:\n        yield\n    finally:\n        for layer in tracking:\n"
        "            layer.track_running_stats = True",
        "    yield\n    for layer in tracking:\n        layer.track_running_stats = True",
    ),
    Mutation("masks: stream not put back", "nn/dropout.py", "self._write(present)", "pass"),
    *group(
        "dropout",
        "nn/dropout.py",
        ("tests/nn/test_dropout.py",),
        ("what is kept not scaled", ".mul_(STEPS / kept)", ""),
        (
            "rate of what is kept for that of what is dropped",
            "round((1 - self.p) * STEPS)",
            "round(self.p * STEPS)",
        ),
        ("threshold as if quarters had no sign", "kept - STEPS // 2", "kept"),
        ("threshold a quarter off", "kept - STEPS // 2", "kept - STEPS // 4"),
        ("large quarters kept instead of small ones", "torch.lt(", "torch.gt("),
        ("words without negative ones", "words.random_(-(1 << 63), None)", "words.random_()"),
        ("in evaluation too", "if not self.training or kept in", "if kept in"),
    ),
    Mutation("frozen model: nodes in training mode", "nn/classifier.py", "model.eval()\n", "model.train()\n"),
    # Schedule
    Mutation(
        "schedule: momentum not applied",
        "training/schedule.py",
        'group["lr"], group["momentum"] = rates',
        'group["lr"] = rates.learning_rate',
    ),
    Mutation(
        "schedule: momentum written to a key nobody reads",
        "training/schedule.py",
        'group["lr"], group["momentum"] = rates',
        'group["lr"], group["betas"] = rates',
    ),
    Mutation(
        "schedule: momentum the wrong way round",
        "training/schedule.py",
        "_line(t, top, bottom)",
        "_line(t, bottom, top)",
    ),
    Mutation(
        "schedule: no ending",
        "training/schedule.py",
        "_line(min(t, 1.0), high / 10, high / 1000)",
        "high / 10",
    ),
]


MUTATIONS += [
    Mutation(
        "data: shifts do not move rows",
        "data/augmentation.py",
        "H, device=device) + down",
        "H, device=device) + 0 * down",
    ),
    Mutation(
        "data: mirrored images shifted the wrong way",
        "data/augmentation.py",
        "mirrored, -right, right",
        "mirrored, right, right",
    ),
    Mutation(
        "data: nothing mirrored",
        "data/augmentation.py",
        "+ B * mirrored.view(B)",
        "+ 0 * mirrored.view(B)",
    ),
    Mutation(
        "data: mirrored border like the edge",
        "data/augmentation.py",
        '0 if padding == "edge" else distance',
        "0",
    ),
    Mutation(
        "data: rotation stretches wide images",
        "data/augmentation.py",
        "-sine * (H / W)",
        "-sine",
    ),
    Mutation(
        "data: two views share their random numbers",
        "data/batches.py",
        "augment(stored, augmentation, self._generator, self._shard)",
        "augment(stored, augmentation, torch.Generator().manual_seed(0), self._shard)",
    ),
    Mutation(
        "data: labelled view not augmented",
        "data/batches.py",
        'self._view(self.labelled_view if kind == "weak" else kind, chosen',
        'self._view("plain", chosen',
    ),
    Mutation(
        "data: unlabelled images drawn from the labelled",
        "data/batches.py",
        "IndexStream(unlabelled, generator)",
        "IndexStream(labelled, generator)",
    ),
    Mutation(
        "data: random generator not in the state",
        "data/batches.py",
        'self._generator.set_state(state["generator"])',
        "pass",
    ),
    Mutation(
        "data: place in the permutation not in the state",
        "data/batches.py",
        "stream.waiting = state[name].clone()",
        "pass",
    ),
    Mutation(
        "data: labelled image may be drawn for validation",
        "data/split.py",
        "rest = dataset.train[~torch.isin(dataset.train, chosen)]",
        "rest = dataset.train",
    ),
    Mutation(
        "data: copies may be drawn for validation",
        "data/split.py",
        "candidates[~dataset.has_copy[candidates]]",
        "candidates",
    ),
    Mutation(
        "data: validation images stay unlabelled",
        "data/split.py",
        "rest[~torch.isin(rest, validation)]",
        "rest",
    ),
    Mutation(
        "data: a class may lose its last label to validation",
        "data/split.py",
        "num_validation, keep=1)",
        "num_validation)",
    ),
    Mutation(
        "data: shares ignore sizes",
        "data/split.py",
        "total * sizes[c] - counts[c] * whole",
        "-counts[c]",
    ),
    Mutation(
        "data: a split of other images is accepted",
        "data/split.py",
        "if origin not in (None, dataset.digest):",
        "if False:",
    ),
    Mutation(
        "data: figures in 0 to 255 instead of 0 to 1",
        "data/preprocessing.py",
        "return 255.0 if images.dtype == torch.uint8 else 1.0",
        "return 1.0",
    ),
    Mutation(
        "data: whitening without the mean",
        "data/preprocessing.py",
        "cls((mean + 0.5).float()",
        "cls((0 * mean).float()",
    ),
    Mutation(
        "data: PCA instead of ZCA",
        "data/preprocessing.py",
        "((vectors * gains) @ vectors.T)",
        "(vectors * gains)",
    ),
    Mutation(
        "data: whitening fitted on all images",
        "data/preprocessing.py",
        "return ZCA.fit(images, indices, ",
        "return ZCA.fit(images, None, ",
    ),
    Mutation(
        "data: standardisation fitted on all images",
        "data/preprocessing.py",
        "return Standardise.fit(images, indices)",
        "return Standardise.fit(images)",
    ),
    Mutation(
        "data: whitening after the shift",
        "data/prepared.py",
        "return images if self._preprocessing.is_pixelwise else self._preprocessing(images)",
        "return images",
    ),
    Mutation(
        "data: EXIF rotation ignored",
        "data/decode.py",
        "ImageOps.exif_transpose(image)",
        "image",
    ),
    Mutation(
        "data: 16 bits cut off",
        "data/decode.py",
        "((values * 255 + 32767) // 65535)",
        "(values & 255)",
    ),
    Mutation(
        "data: transparent pixels black",
        "data/decode.py",
        'image.size, "white")',
        'image.size, "black")',
    ),
    Mutation(
        "data: damaged image kept as black",
        "data/sources/folder.py",
        "            failed[row] = result\n",
        "            failed.pop(row, result)\n",
    ),
    Mutation(
        "data: old pixels after a change of the file",
        "data/cache.py",
        "entry[:-1] == status",
        "entry[0] == status[0]",
    ),
    Mutation(
        "data: figures measured on validation images too",
        "build.py",
        "seen = torch.cat([split.labelled, split.unlabelled])",
        "seen = torch.cat([split.labelled, split.unlabelled, split.validation])",
    ),
    Mutation(
        "data: seed not used for the weights",
        "build.py",
        "torch.manual_seed(config.seed)",
        "torch.manual_seed(0)",
    ),
    Mutation(
        "data: validation images trained on",
        "build.py",
        "unlabelled=pool,",
        "unlabelled=torch.cat([split.unlabelled, split.validation]),",
    ),
    Mutation(
        "data: dropout depends on the number of weights",
        "build.py",
        "torch.manual_seed(_derived_seed(config.seed, 3))",
        "pass",
    ),
    Mutation(
        "data: best weights not used",
        "training/selection.py",
        "chosen.load_state_dict(self._weights)",
        "pass",
    ),
    Mutation(
        "data: worst weights chosen",
        "training/selection.py",
        "if error < self.error:",
        "if True:",
    ),
    Mutation(
        "data: choice on test not shown",
        "training/selection.py",
        'return "test" if rule == "test" else "validation"',
        'return "test"',
    ),
    Mutation(
        "data: leak of labelled images into test not an error",
        "data/check.py",
        'severity = "error" if much else "warning"',
        'severity = "note"',
    ),
    Mutation(
        "data: contradicting labels not seen",
        "data/check.py",
        "!= dataset.classes[index]:",
        "!= dataset.classes[other]:",
    ),
    # Training: what is kept, what is shared among processes, what is measured
    Mutation(
        "training: momentum not kept",
        LOOP,
        '**prefixed("momentum", momentum),',
        '**prefixed("momentum", {}),',
    ),
    Mutation(
        "training: torch's random numbers not restored",
        LOOP,
        'torch.set_rng_state(random["torch"].cpu())',
        "pass",
    ),
    Mutation(
        "training: random numbers of the method not restored",
        LOOP,
        "self.generator.set_state(state)",
        "pass",
    ),
    Mutation(
        "training: average not restored",
        LOOP,
        'self.average.load_state_dict(snapshot.part("average"))',
        "pass",
    ),
    Mutation(
        "training: scale of float16 not restored",
        LOOP,
        'self.scaler.load_state_dict(snapshot.values["scaler"])',
        "pass",
    ),
    Mutation(
        "training: place of the batches not restored",
        SESSION,
        'self.job.batches.load_state_dict(snapshot.part("batches"))',
        "pass",
    ),
    Mutation(
        "training: best weights not restored",
        SESSION,
        'self.selection.restore(Snapshot(snapshot.part("selection"), snapshot.values["selection"]))',
        "pass",
    ),
    Mutation(
        "training: lines after the checkpoint stay",
        SESSION,
        'journal.keep(lambda line: line["step"] <= step)',
        "journal.keep(lambda line: True)",
    ),
    Mutation(
        "training: evaluations after the checkpoint stay",
        SESSION,
        'line["step"] <= evaluated and not line["final"]',
        'not line["final"]',
    ),
    Mutation(
        "training: teachers follow before the update",
        LOOP,
        "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n"
        "        self.algorithm.after_step(context)\n",
        "        self.algorithm.after_step(context)\n"
        "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n",
    ),
    Mutation(
        "training: an evaluation counted as made before it is",
        LOOP,
        "                on_evaluate()\n                self.evaluated_at = self.step",
        "                self.evaluated_at = self.step\n                on_evaluate()",
    ),
    Mutation(
        "training: a checkpoint exists before its tensors do",
        "training/checkpoint.py",
        "        write_bytes(tensors_path, content)\n        before_commit()\n",
        "        before_commit()\n",
    ),
    Mutation(
        "training: checksum of the tensors not looked at",
        "training/checkpoint.py",
        "if not whole or not tensors_whole:",
        "if not whole:",
    ),
    Mutation(
        "training: checksum of the values not looked at",
        "training/checkpoint.py",
        "if not whole or not tensors_whole:",
        "if not tensors_whole:",
    ),
    Mutation(
        "training: checkpoint of another run taken",
        "training/checkpoint.py",
        'if value["run"] != self.run_id:',
        "if False:",
    ),
    Mutation(
        "training: lines written again and again",
        "runs/journal.py",
        "        self._waiting.clear()",
        "        pass",
    ),
    Mutation(
        "training: lines lost on a full disk",
        "runs/journal.py",
        "            if error.errno not in DISK_IS_FULL:\n                raise\n",
        "            self._waiting.clear()\n",
        ("tests/resume/test_resume.py::test_a_disk_that_is_full_for_a_while_costs_nothing",),
    ),
    Mutation(
        "training: the lock never held",
        "runs/directory.py",
        "fcntl.flock(file, kind | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_UN)",
        ("tests/resume/test_resume.py::test_a_run_that_is_being_trained_is_left_alone",),
    ),
    Mutation(
        "training: the estimate leaves its traces",
        "training/estimate.py",
        "    trainer.restore(before)\n",
        "",
        ("tests/resume/test_resume.py::test_an_estimate_leaves_no_trace",),
    ),
    Mutation(
        "training: SWA from the first step on",
        LOOP,
        "self.step > (1 - config.swa_fraction) * config.steps",
        "self.step > 0",
    ),
    Mutation(
        "training: SWA with the statistics of other weights",
        LOOP,
        "                update_bn(images, self.inference_model())",
        "                pass",
    ),
    Mutation(
        "training: float16 without a scale", LOOP, 'enabled=config.precision == "float16"', "enabled=False"
    ),
    Mutation(
        "training: power step in low precision",
        PARTS,
        "    with full_precision(model):\n        return virtual",
        "    if True:\n        return virtual",
    ),
    Mutation(
        "training: VAT's reference in low precision",
        PARTS,
        "    if model.passes.dtype == torch.float32:\n        return logits",
        "    if True:\n        return logits",
    ),
    Mutation(
        "training: running statistics move twice where passes are repeated",
        "nn/batch_norm.py",
        "layer.track_running_stats, layer.momentum = tracking[name], 0.0",
        "layer.track_running_stats = tracking[name]",
    ),
    Mutation(
        "training: each part of a batch with masks of its own",
        "nn/passes.py",
        "with nullcontext() if is_last else masks.replay(), dropout_of(backbone, shard):",
        "with nullcontext():",
    ),
    Mutation(
        "processes: dropout masks of each its own",
        "nn/dropout.py",
        "self.shard.own(mask)",
        "mask[: len(values)]",
    ),
    Mutation(
        "processes: batch norm of each its own",
        "algorithms/base.py",
        "            share_batch_norm(self)",
        "            pass",
    ),
    Mutation(
        "processes: gradient through the shared mean forgotten",
        "nn/batch_norm.py",
        "gradient - mean_gradient.view(shape) - normalised * mean_product.view(shape)",
        "gradient",
    ),
    Mutation(
        "processes: running variance not the unbiased one",
        "nn/batch_norm.py",
        "unbiased = var * (count / (count - 1))",
        "unbiased = var",
    ),
    Mutation(
        "processes: gathered rows send back their own gradient only",
        "sharding.py",
        "        torch.distributed.all_reduce(total)\n",
        "",
    ),
    Mutation(
        "processes: the anchor looks at its own images only",
        GRAPH,
        "features, labels = self.shard.gather(features), self.shard.gather(labels)",
        "pass",
    ),
    Mutation(
        "processes: balanced targets over their own images only",
        BALANCE,
        "self.shard.gather(target_logits.float())",
        "target_logits.float()",
    ),
    Mutation(
        "processes: balance term over its own images only",
        PARTS,
        "self.shard.gather(clean_logits)",
        "clean_logits",
    ),
    Mutation(
        "processes: noise of each its own",
        "contract.py",
        "return self.shard.own(images.new_empty(shape).normal_(generator=self.generator))",
        "return images.new_empty(images.shape).normal_(generator=self.generator)",
    ),
    Mutation(
        "processes: augmentation of each its own",
        "data/batches.py",
        "augment(stored, augmentation, self._generator, self._shard)",
        "augment(stored, augmentation, self._generator)",
    ),
]


# Methods that came later, each group with the tests that are about it
TEACHER_TESTS = (
    "tests/nn/test_teacher.py",
    f"{STEPS} -k mean_teacher",
    f"{CONTRACT} -k 'mean_teacher and not graph and not sntg and not swa'",
)
FIXMATCH_TESTS = (
    "tests/functional/test_pseudo_labels.py",
    f"{STEPS} -k fixmatch",
    f"{CONTRACT} -k 'fixmatch and not graph'",
    "tests/data/test_batches.py",
)
STRONG_TESTS = ("tests/data/test_batches.py", "tests/data/test_preprocessing.py", "tests/test_engine.py")
MIXING_TESTS = (
    "tests/functional/test_mixing.py",
    "tests/algorithms/test_mixing.py",
    f"{CONTRACT} -k 'mixup or mixmatch'",
)
ENSEMBLE_TESTS = (
    "tests/functional/test_ensemble.py tests/nn/test_ensemble.py",
    "tests/algorithms/test_temporal_ensembling.py",
    f"{CONTRACT} -k temporal_ensembling",
)
SNTG_TESTS = (
    "tests/functional/test_neighbours.py tests/algorithms/test_sntg.py",
    f"{CONTRACT} -k sntg",
)
COTRAINING_TESTS = (
    "tests/functional/test_cotraining.py tests/nn/test_cotrained.py tests/algorithms/test_deep_cotraining.py",
    f"{CONTRACT} -k deep_cotraining",
)
MEMORY_TESTS = (
    "tests/functional/test_class_memory.py tests/nn/test_class_memory.py tests/algorithms/test_memory.py",
    f"{CONTRACT} -k memory",
)
CLUSTERING_TESTS = (
    "tests/functional/test_clustering.py tests/algorithms/test_compact_clustering.py",
    f"{CONTRACT} -k compact_clustering",
)
MEMORY_READ = (
    "labelled_memory, unlabelled_memory = self.memory.of_classes(batch.labels), self.memory(features[L:])"
)
SWA_TESTS = (
    "tests/training/test_schedule.py tests/training/test_weight_average.py tests/algorithms/test_fast_swa.py",
    "tests/training/test_loop.py",
)

MUTATIONS += [
    *group(
        "mean_teacher",
        COMPARISONS,
        TEACHER_TESTS,
        (
            "the student sees the teacher's view",
            "Predictions(self.teacher(second), clean_logits)",
            "Predictions(self.teacher(second), forward(second))",
        ),
        (
            "the student is its own teacher",
            "Predictions(self.teacher(second), clean_logits)",
            "Predictions(forward(second), clean_logits)",
        ),
        (
            "target and student exchanged",
            "Predictions(self.teacher(second), clean_logits)",
            "Predictions(clean_logits, self.teacher(second))",
        ),
        ("never follows", "self.teacher.follow(model, self.config.teacher_decay)", "pass"),
        ("the student predicts in the end", "return self.teacher.model", "return model"),
    ),
    *group(
        "mean_teacher",
        "nn/teacher.py",
        TEACHER_TESTS,
        ("in the gradient", "    @torch.no_grad()\n    def forward", "    def forward"),
        (
            "trained like the student",
            "copy.deepcopy(student).requires_grad_(False)",
            "copy.deepcopy(student)",
        ),
        ("shares the student's weights", "copy.deepcopy(student)", "copy.copy(student)"),
        (
            "decay the wrong way round",
            "list(student.parameters()), 1 - kept)",
            "list(student.parameters()), kept)",
        ),
        ("decay ignored", "kept = min(decay, (1 + n) / (10 + n))", "kept = (1 + n) / (10 + n)"),
        ("no rule for the first steps", "kept = min(decay, (1 + n) / (10 + n))", "kept = decay"),
        (
            "the second update counted as the first",
            "n = int(self.num_updates)",
            "n = max(0, int(self.num_updates) - 1)",
        ),
        ("updates not counted", "self.num_updates.add_(1)", "pass"),
        ("running statistics copied", "if not isinstance(own, _BatchNorm):", "if True:"),
        ("other buffers not copied", "buffer.copy_(newest)", "pass"),
        ("in evaluation mode", "self.model(images)", "self.model.eval()(images)"),
    ),
    *group(
        "mean_teacher",
        "algorithms/mean_teacher.py",
        ("tests/test_engine.py -k second_one",),
        ("an average of the average", "return True", "return False"),
    ),
    *group(
        "fixmatch",
        COMPARISONS,
        FIXMATCH_TESTS,
        ("threshold ignored", "threshold=self.config.threshold", "threshold=0.0"),
        ("the student's view is weak", 'second_view = "strong"', 'second_view = "weak"'),
        (
            "weak view as student",
            "return Predictions(clean_logits, forward(second))\n",
            "return Predictions(clean_logits, clean_logits)\n",
        ),
        (
            "target of the strong view",
            "return Predictions(clean_logits, forward(second))\n",
            "return Predictions(forward(second), clean_logits)\n",
        ),
        ("the teacher is not asked", "if target is model:", "if True:"),
        (
            "the teacher is not asked where it looks alone",
            "self.comparison.target_model(model)(first)",
            "model(first)",
        ),
        ("the teacher never follows", "self.teacher.follow(model, self.config.target_decay)", "pass"),
        ("the student of a teacher predicts in the end", "return self.target_model(model)", "return model"),
    ),
    *group(
        "fixmatch",
        "functional/pseudo_labels.py",
        FIXMATCH_TESTS,
        ("mean over the sure ones", "(losses * sure).mean()", "losses.sum() / sure.sum().clamp_min(1)"),
        ("sure ones not chosen", "(losses * sure).mean()", "losses.mean()"),
        ("unsure at the threshold", "confidence >= threshold", "confidence > threshold"),
        (
            "probabilities as targets",
            "F.cross_entropy(student_logits, classes,",
            "F.cross_entropy(student_logits, target_logits.softmax(dim=1),",
        ),
        (
            "sure by the student",
            "target_logits.softmax(dim=1).max(dim=1)",
            "student_logits.softmax(dim=1).max(dim=1)",
        ),
        ("softmax applied twice", "(student_logits, classes,", "(student_logits.softmax(dim=1), classes,"),
    ),
    *group(
        "memories",
        "nn/memory.py",
        ("tests/nn/test_memory.py",),
        (
            "in the trained model",
            "module.state_dict().items() if name not in remembered",
            "module.state_dict().items()",
        ),
        ("read from a file", " if not name.startswith(memories)", ""),
        (
            "anything may be missing",
            "module.load_state_dict({**kept, **known}, assign=assign)",
            "module.load_state_dict(known, strict=False, assign=assign)",
        ),
    ),
    *group(
        "bad batches",
        "nn/memory.py",
        ("tests/nn/test_memory.py", "tests/training/test_loop.py -k 'bad or memor'"),
        (
            "no memory is restored",
            "if not (isinstance(child, Memory) and child.is_written_between_steps)",
            "if not isinstance(child, Memory)",
        ),
        (
            "memories alone are restored",
            "if not (isinstance(child, Memory) and child.is_written_between_steps)",
            "if isinstance(child, Memory) and not child.is_written_between_steps",
        ),
        (
            "what no step writes is restored too",
            "if not (isinstance(child, Memory) and child.is_written_between_steps)",
            "if True",
        ),
        ("memories taken for written between steps", "ClassVar[bool] = False", "ClassVar[bool] = True"),
    ),
    *group(
        "bad batches",
        LOOP,
        ("tests/training/test_loop.py -k bad",),
        ("nothing is restored", "                buffer.copy_(value)\n", "                pass\n"),
        ("nothing to restore", "buffers = buffers_changed_in_steps(self.algorithm)", "buffers = []"),
        ("restored to what they have become", "[buffer.clone() for buffer in buffers]", "list(buffers)"),
    ),
    *group(
        "bad batches",
        "algorithms/temporal_ensembling.py",
        ("tests/training/test_loop.py -k bad",),
        (
            "remembered in the step",
            "        self._newest = (positions, clean_logits.detach().softmax(dim=1))\n",
            "        self.ensemble.update(positions, clean_logits.detach().softmax(dim=1))\n"
            "        self._newest = (positions[:0], clean_logits.detach()[:0])\n",
        ),
    ),
    *group(
        "data",
        "data/batches.py",
        STRONG_TESTS,
        (
            "strong views not strong",
            "strongly_augment(shifted, self._strong, self._generator, self._shard, scale=images.white)",
            "shifted",
        ),
        (
            "strong views not shifted",
            "shifted = augment(original, augmentation, self._generator, self._shard)",
            "shifted = original",
        ),
        ("strong views whitened before", "images.original(indices)", "images.stored(indices)"),
        (
            "settings of strong views ignored",
            "self._strong = StrongAugmentationConfig() if strong is None else strong",
            "self._strong = StrongAugmentationConfig()",
        ),
        ("strong views not told what white is", ", scale=images.white", ""),
        (
            "strong vectors not prepared first",
            "images.prepare_original(original), self._strong",
            "original, self._strong",
        ),
        (
            "positions are indices",
            "positions = torch.searchsorted(self._sorted_pool, taken.contiguous())",
            "positions = taken",
        ),
        (
            "positions are places in the batch",
            "positions = torch.searchsorted(self._sorted_pool, taken.contiguous())",
            "positions = torch.arange(len(taken))",
        ),
        ("positions in a pool that is not sorted", "unlabelled.sort().values", "unlabelled"),
    ),
    *group(
        "data",
        "data/prepared.py",
        STRONG_TESTS,
        (
            "originals are whitened",
            "return self._images.index_select(0, indices)\n",
            "return self.stored(indices)\n",
        ),
        (
            "strong views not whitened",
            '"""Network input from what `original` gave."""\n        return self._preprocessing(images)',
            '"""Network input from what `original` gave."""\n        return self.prepare(images)',
        ),
    ),
    *group(
        "data",
        "build.py",
        STRONG_TESTS,
        ("white of the data set ignored", "progress, white=dataset.white)", "progress)"),
        (
            "room for too few images",
            "algorithm.expect_images(len(pool))",
            "algorithm.expect_images(config.batch.unlabelled)",
        ),
    ),
    *group(
        "strong_augmentation",
        "data/strong_augmentation.py",
        ("tests/data/test_strong_augmentation.py",),
        (
            "the same operations for all images",
            "kinds = (which * len(OPERATIONS)).long()",
            "kinds = (which[:1] * len(OPERATIONS)).long().expand_as(which)",
        ),
        ("the last operation never drawn", "(which * len(OPERATIONS))", "(which * (len(OPERATIONS) - 1))"),
        ("magnitude ignored", "neutral + config.magnitude * (", "neutral + ("),
        (
            "magnitude scales from zero",
            "neutral + config.magnitude * (low + (high - low) * levels - neutral)",
            "config.magnitude * (low + (high - low) * levels)",
        ),
        (
            "one operation only",
            "zip(kinds.unbind(dim=1), amounts.unbind(dim=1), strict=True)",
            "[(kinds[:, 0], amounts[:, 0])]",
        ),
        (
            "nothing cut out",
            "_squares(square, view, config.cutout).to(torch.uint8)",
            "torch.zeros_like(view)",
        ),
        ("the square black", "add_(fill * inside)", "add_(0 * inside)"),
        (
            "largest square never drawn",
            "draws.new_tensor([longest + 1, H, W])",
            "draws.new_tensor([longest, H, W])",
        ),
        (
            "rows and columns exchanged",
            "(covered(row, H).unsqueeze(2) & covered(column, W).unsqueeze(1))",
            "(covered(column, H).unsqueeze(2) & covered(row, W).unsqueeze(1))",
        ),
        (
            "what is outside is black",
            "F.pad(images, (1, 1, 1, 1), value=fill)",
            "F.pad(images, (1, 1, 1, 1))",
        ),
        ("turned about a pixel's corner", "view(H, 1) + 0.5", "view(H, 1)"),
        ("turned the wrong way", "cosine * right - sine * down", "cosine * right + sine * down"),
        ("solarised one value late", "torch.where(values < threshold", "torch.where(values <= threshold"),
        ("a bit too many is kept", "2 ** (8 - kept)", "2 ** (7 - kept).clamp(min=0)"),
        ("nine bits in one of many draws", ".clamp(max=8)", ""),
        (
            "grey is the mean of the channels",
            "(19595 * red + 38470 * green + 7471 * blue + 32768) >> 16",
            "(red + green + blue) // 3",
        ),
        (
            "contrast about middle grey",
            "_mixed(mean.unsqueeze(2), ",
            "_mixed(torch.full_like(mean, 128).unsqueeze(2), ",
        ),
        (
            "images not put back in their order",
            ".index_select(0, order.argsort())",
            ".index_select(0, order)",
        ),
        ("the image itself is changed", "return images.clone()", "return images"),
        (
            "random numbers of the whole world",
            "size, generator=generator, device=device, dtype=torch.float32))\n    which",
            "size, device=device, dtype=torch.float32))\n    which",
        ),
    ),
    *group(
        "pseudo_label",
        "algorithms/pseudo_label.py",
        ("tests/algorithms/test_pseudo_label.py", f"{CONTRACT} -k pseudo_label"),
        ("ramp ignored", "ramp * config.pseudo_label_weight", "config.pseudo_label_weight"),
        ("weight ignored", "ramp * config.pseudo_label_weight", "ramp"),
        ("threshold ignored", "threshold=config.threshold", "threshold=0.0"),
        ("targets never balanced", "self.target_balance(unlabelled_logits)", "unlabelled_logits"),
        (
            "nothing taught",
            "confident_cross_entropy(target_logits, unlabelled_logits,",
            "confident_cross_entropy(target_logits, target_logits,",
        ),
        (
            "term dropped",
            '                "pseudo_label": ramp * config.pseudo_label_weight * pseudo_label,\n',
            "",
        ),
        (
            "entropy and balance dropped",
            "                **self.extra_terms(unlabelled_logits, context.progress),\n",
            "",
        ),
        (
            "health of the labelled images",
            "prediction_health(unlabelled_logits,",
            "prediction_health(labelled_logits,",
        ),
    ),
    *group(
        "pseudo_label",
        "algorithms/parts.py",
        ("tests/algorithms/test_pseudo_label.py", "tests/algorithms/test_mixing.py"),
        ("ramp begins at once", "(progress - start) / (end - start)", "progress / end"),
        ("ramp below zero before it begins", "0.0 if progress <= start else ", ""),
        ("ramp goes on climbing", "if progress >= end:", "if end == 0:"),
    ),
    *group(
        "mixing",
        "algorithms/mixing.py",
        MIXING_TESTS,
        (
            "nobody shuffled",
            "torch.randperm(B, generator=generator, device=images.device)",
            "torch.arange(B, device=images.device)",
        ),
        (
            "shuffled by the global random numbers",
            "torch.randperm(B, generator=generator, ",
            "torch.randperm(B, ",
        ),
        ("λ' = max(λ, 1 - λ) missing", "    share = torch.maximum(share, 1 - share)\n", ""),
        (
            "one λ for the batch",
            "share = shard.own(symmetric_beta(uniforms, alpha))",
            "share = shard.own(symmetric_beta(uniforms, alpha))[:1].expand(len(images))",
        ),
        ("labels not mixed", "mix(probs, shard.gather(probs)[partners], share)", "probs"),
        ("labels of another partner", "shard.gather(probs)[partners]", "shard.gather(probs).flip(0)"),
        ("images not mixed", "mix(images, shard.gather(images)[partners], share)", "images"),
    ),
    *group(
        "mixing",
        PARTS,
        MIXING_TESTS,
        (
            "clean pass never in the gradient",
            "return nullcontext() if config.learns_from_clean_predictions else torch.no_grad()",
            "return torch.no_grad()",
        ),
        (
            "clean pass in the gradient for nothing",
            "return nullcontext() if config.learns_from_clean_predictions else torch.no_grad()",
            "return nullcontext()",
        ),
    ),
    *group(
        "mixing",
        "functional/mixing.py",
        MIXING_TESTS,
        ("shares exchanged", "share * first + (1 - share) * second", "share * second + (1 - share) * first"),
        ("α ignored", "u.log() / alpha", "u.log()"),
        ("λ never below a half", "cosine.sign() * ratio.sqrt()", "ratio.sqrt()"),
        (
            "mean of logits instead of probabilities",
            "F.log_softmax(logits, dim=2).logsumexp(dim=0) - math.log(len(logits))",
            "logits.mean(dim=0)",
        ),
        ("sum of probabilities instead of their mean", " - math.log(len(logits))", ""),
        ("temperature ignored", "logits.detach() / temperature", "logits.detach()"),
        ("temperature the wrong way round", "logits.detach() / temperature", "logits.detach() * temperature"),
        ("guess not constant", "logits.detach() / temperature", "logits / temperature"),
        ("target of the cross-entropy not constant", "-(target_probs.detach() * F", "-(target_probs * F"),
        ("target of the squared error not constant", "(target_probs.detach() - F", "(target_probs - F"),
        ("squared error summed over classes", ".square().mean()", ".square().sum(dim=1).mean()"),
        ("cross-entropy averaged over classes", ".sum(dim=1).mean()", ".mean()"),
    ),
    *group(
        "mixup",
        "algorithms/mixup.py",
        ("tests/algorithms/test_mixing.py", f"{CONTRACT} -k mixup"),
        ("running statistics moved by the mixed pass", FROZEN, NO_CONTEXT),
        (
            "unmixed images learned",
            "torch.cat([mixed_labelled.images, mixed_unlabelled.images])",
            "torch.cat([labelled, unlabelled])",
        ),
        (
            "unmixed guesses learned",
            "soft_cross_entropy(mixed_unlabelled.probs,",
            "soft_cross_entropy(guess,",
        ),
        ("unmixed labels learned", "soft_cross_entropy(mixed_labelled.probs,", "soft_cross_entropy(classes,"),
        ("targets never balanced", "self.target_balance(clean_logits).softmax", "clean_logits.softmax"),
        ("ramp ignored", "ramp * config.mixed_consistency_weight", "config.mixed_consistency_weight"),
        ("entropy of mixed predictions", "extra_terms(clean_logits,", "extra_terms(unlabelled_logits,"),
        (
            "health of mixed predictions",
            "prediction_health(clean_logits,",
            "prediction_health(unlabelled_logits,",
        ),
        (
            "softmax applied twice",
            "self.target_balance(clean_logits).softmax(dim=1)",
            "self.target_balance(clean_logits.softmax(dim=1)).softmax(dim=1)",
        ),
    ),
    *group(
        "mixmatch",
        "algorithms/mixmatch.py",
        ("tests/algorithms/test_mixing.py", f"{CONTRACT} -k mixmatch"),
        ("guesses not sharpened", "sharpen(guess, config.temperature)", "sharpen(guess, 1.0)"),
        (
            "guess of the first view alone",
            "[first_logits.detach(), *(self.model(view) for view in others)]",
            "[first_logits.detach()]",
        ),
        (
            "softmax applied twice",
            "sharpen(guess, config.temperature)",
            "sharpen(guess.exp(), config.temperature)",
        ),
        ("running statistics moved by the mixed pass", FROZEN, NO_CONTEXT),
        (
            "targets never balanced",
            "self.target_balance(mean_log_probs(torch.stack(view_logits)))",
            "mean_log_probs(torch.stack(view_logits))",
        ),
        (
            "cross-entropy instead of the squared error",
            "consistency = soft_squared_error(",
            "consistency = soft_cross_entropy(",
        ),
        ("ramp ignored", "ramp * config.mixed_consistency_weight", "config.mixed_consistency_weight"),
        ("α ignored", "config.alpha,\n", "1.0,\n"),
        (
            "unlabelled images in the labelled term",
            "soft_cross_entropy(labelled_probs, labelled_logits)",
            "soft_cross_entropy(mixed.probs, mixed_logits)",
        ),
        (
            "health of mixed predictions",
            "prediction_health(first_logits,",
            "prediction_health(unlabelled_logits,",
        ),
    ),
    *group(
        "temporal_ensembling",
        "algorithms/temporal_ensembling.py",
        ENSEMBLE_TESTS,
        (
            "updated before it is read",
            "        target_logits = self._target_logits(positions, clean_logits.detach())\n"
            "        self._newest = (positions, clean_logits.detach().softmax(dim=1))\n",
            "        self.ensemble.update(positions, clean_logits.detach().softmax(dim=1))\n"
            "        target_logits = self._target_logits(positions, clean_logits.detach())\n"
            "        self._newest = (positions[:0], clean_logits.detach()[:0])\n",
        ),
        ("never updated", "self.ensemble.update(*self._newest)", "pass"),
        (
            "updated after every other step",
            "self.ensemble.update(*self._newest)",
            "context.step % 2 or self.ensemble.update(*self._newest)",
        ),
        ("logits remembered", "clean_logits.detach().softmax(dim=1))", "clean_logits.detach())"),
        ("targets remembered", "clean_logits.detach().softmax(dim=1))", "target_logits.softmax(dim=1))"),
        (
            "images without a target compared too",
            "known = targets.known.unsqueeze(1)",
            "known = torch.ones_like(targets.known).unsqueeze(1)",
        ),
        (
            "targets never balanced",
            "self.target_balance(target_logits), own_logits)",
            "target_logits, own_logits)",
        ),
        (
            "images without a target balanced",
            "return torch.where(known, self.target_balance(target_logits), own_logits)",
            "return self.target_balance(target_logits)",
        ),
        ("a probability of zero", "targets.probs.clamp_min(smallest).log()", "targets.probs.log()"),
        ("ramp ignored", "ramp * config.consistency_weight", "config.consistency_weight"),
        ("probabilities where logits belong", "targets.probs.clamp_min(smallest).log()", "targets.probs"),
    ),
    *group(
        "temporal_ensembling",
        "functional/ensemble.py",
        ENSEMBLE_TESTS,
        (
            "decay the wrong way round",
            "decay * ensemble + (1 - decay) * probs",
            "(1 - decay) * ensemble + decay * probs",
        ),
        (
            "bias correction by one prediction too many",
            "count.to(ensemble.dtype)",
            "(count + 1).to(ensemble.dtype)",
        ),
        ("divided by zero without a prediction", "torch.where(count > 0, weight, 1)", "weight"),
    ),
    *group(
        "temporal_ensembling",
        "nn/ensemble.py",
        ENSEMBLE_TESTS,
        (
            "bias correction missing",
            "bias_corrected(self.ensemble[positions], count, decay=self.decay)",
            "self.ensemble[positions]",
        ),
        ("one count for all images", "self.count[images] += 1", "self.count += 1"),
        ("never counted", "self.count[images] += 1", "pass"),
        ("an image twice counts twice", " / shares.sum(dim=1, keepdim=True)", ""),
        (
            "position ignored",
            "count = self.count[positions]",
            "positions = torch.arange(len(positions)); count = self.count[positions]",
        ),
    ),
    *group(
        "sntg",
        "algorithms/sntg.py",
        SNTG_TESTS,
        (
            "labels ignored",
            "torch.cat([batch.labels, target_logits.argmax(dim=1)])",
            "torch.cat([passes.labelled_logits.argmax(dim=1), target_logits.argmax(dim=1)])",
        ),
        (
            "the student's graph",
            "target_logits.argmax(dim=1)",
            "passes.predictions.student_logits.argmax(dim=1)",
        ),
        ("margin ignored", "margin=config.margin", "margin=0.0"),
        (
            "detached features",
            "passes.student_features]",
            "passes.student_features.detach()]",
        ),
        (
            "detached features of labelled images",
            "passes.labelled_features,",
            "passes.labelled_features.detach(),",
        ),
        (
            "targets never balanced",
            "self.target_balance(passes.predictions.target_logits)",
            "passes.predictions.target_logits",
        ),
        (
            "neighbours dropped",
            '                "neighbours": ramp * config.neighbours_weight * neighbours,\n',
            "",
        ),
        ("ramp left off the neighbours", "ramp * config.neighbours_weight", "config.neighbours_weight"),
        ("ramp left off the consistency", "ramp * config.consistency_weight", "config.consistency_weight"),
    ),
    *group(
        "sntg",
        COMPARISONS,
        SNTG_TESTS,
        ("features of the target's view", PREDICTIONS, PREDICTIONS.replace("forward", "model")),
        (
            "detached features without clean gradient",
            PASSES_ALONE,
            PASSES_ALONE.replace("student_features", "student_features.detach()"),
        ),
        (
            "features of images exchanged without clean gradient",
            "labelled_features, student_features = forward.features.split(sizes)",
            "student_features, labelled_features = forward.features.split(sizes[::-1])",
        ),
        (
            "student's features are those of labelled images too",
            "            labelled_features, forward.features = forward.features.split(sizes)\n",
            "            labelled_features, _ = forward.features.split(sizes)\n",
        ),
    ),
    *group(
        "sntg",
        "functional/neighbours.py",
        SNTG_TESTS,
        (
            "neighbours and strangers exchanged",
            "neighbours = classes[i] == classes[j]",
            "neighbours = classes[i] != classes[j]",
        ),
        ("strangers pushed without end", "(margin - distances).clamp_min(0)", "(margin - distances)"),
        ("not squared", ".clamp_min(0)).square()", ".clamp_min(0))"),
        ("sum over features", "torch.pdist(features) / math.sqrt(D)", "torch.pdist(features)"),
        ("sum over pairs", "terms.sum() / max(len(terms), 1)", "terms.sum()"),
        ("divided by zero with one image", "max(len(terms), 1)", "len(terms)"),
    ),
    *group(
        "deep_cotraining",
        "algorithms/deep_cotraining.py",
        COTRAINING_TESTS,
        ("adversarial image of the own view", "partner(misleading)", "view(misleading)"),
        ("no adversarial image", "partner(misleading)", "partner(images.detach())"),
        ("images learn", "misleading = images.detach() + noise", "misleading = images + noise"),
        ("gradient of another view", "gradient_sign(images, of_view,", "gradient_sign(images, clean[0],"),
        ("clean passes tell in low precision", "self.model.passes.dtype == torch.float32 and ", ""),
        (
            "target of the difference detached",
            "prediction_cross_entropy(target, partner",
            "prediction_cross_entropy(target.detach(), partner",
        ),
        (
            "target of the partner",
            "prediction_cross_entropy(target, partner(misleading))",
            "prediction_cross_entropy(partner(images), partner(misleading))",
        ),
        ("agreement on labelled images too", "view_disagreement(logits[:, L:])", "view_disagreement(logits)"),
        (
            "labels not used for adversarial images",
            "torch.cat([batch.labels, target[L:].argmax(dim=1)])",
            "target.argmax(dim=1)",
        ),
        ("masks of the gradient its own", "with_masks(view, same_masks)", "view"),
        ("gradient in low precision", "with full_precision(view):", NO_CONTEXT),
        ("one view learns the labels", "classification.sum()", "classification[0]"),
        (
            "running statistics of the other views not frozen",
            "frozen_running_statistics(self)",
            "frozen_running_statistics(self.model)",
        ),
        ("always the same partners", "turn = step % others", "turn = 0"),
        (
            "all begin with the same weights",
            "self.build_model(backbone.another(), num_classes)",
            "__import__('copy').deepcopy(self.model)",
        ),
        ("one view predicts", "CoTrainedViews(self.views)", "self.model"),
        (
            "entropy of the first view",
            "self.extra_terms(logits[:, L:].flatten(0, 1),",
            "self.extra_terms(logits[0, L:],",
        ),
        ("ramp left off the agreement", "ramp * config.agreement_weight", "config.agreement_weight"),
        ("ramp left off the difference", "ramp * config.difference_weight", "config.difference_weight"),
        ("targets never balanced", "if self.config.balance_memory == 0:", "if True:"),
        (
            "labelled targets balanced",
            "torch.cat([logits[:, :num_labelled].detach(),",
            "torch.cat([logits[:, :num_labelled].detach() + bias[:1],",
        ),
        (
            "balanced targets not constant",
            "logits[:, num_labelled:].detach()",
            "logits[:, num_labelled:]",
        ),
    ),
    *group(
        "deep_cotraining",
        "functional/cotraining.py",
        COTRAINING_TESTS,
        (
            "towards the class instead of away",
            "return epsilon * gradient.sign()",
            "return -epsilon * gradient.sign()",
        ),
        ("gradient instead of its sign", "return epsilon * gradient.sign()", "return epsilon * gradient"),
        (
            "entropy of the views not taken off",
            "from_mean = log_probs - mean_log_probs(logits)",
            "from_mean = -mean_log_probs(logits)",
        ),
        ("mean of logits", "mean_log_probs(logits)  #", "logits.mean(dim=0).log_softmax(dim=1)  #"),
        ("gradient found under autocast", ", torch.autocast(images.device.type, enabled=False)", ""),
        (
            "gradients of parameters accumulated",
            "(gradient,) = torch.autograd.grad(distance, images, retain_graph=True)",
            "distance.backward(retain_graph=True); gradient = images.grad",
        ),
    ),
    *group(
        "deep_cotraining",
        "nn/cotrained.py",
        COTRAINING_TESTS,
        (
            "mean of logits predicts",
            "mean_log_probs(torch.stack([view(images) for view in self.views]))",
            "torch.stack([view(images) for view in self.views]).mean(dim=0)",
        ),
    ),
    *group(
        "memory",
        "algorithms/memory.py",
        MEMORY_TESTS,
        (
            "read before it is written",
            f"        self.memory.update(features[:L], logits[:L], batch.labels)\n        {MEMORY_READ}\n",
            f"        {MEMORY_READ}\n        self.memory.update(features[:L], logits[:L], batch.labels)\n",
        ),
        ("never written", "        self.memory.update(features[:L], logits[:L], batch.labels)\n", ""),
        (
            "labelled images looked up by their features",
            "self.memory.of_classes(batch.labels)",
            "self.memory(features[:L])",
        ),
        (
            "looked up with detached features",
            "self.memory(features[L:])",
            "self.memory(features[L:].detach())",
        ),
        (
            "entropy of the network",
            "entropy(torch.cat([labelled_memory, unlabelled_memory]))",
            "entropy(logits)",
        ),
        (
            "entropy of unlabelled images alone",
            "entropy(torch.cat([labelled_memory, unlabelled_memory]))",
            "entropy(unlabelled_memory)",
        ),
        ("targets never balanced", "unlabelled_memory + bias", "unlabelled_memory"),
        ("ramp left off the entropy", "ramp * config.memory_entropy_weight", "config.memory_entropy_weight"),
        (
            "ramp left off the divergence",
            "ramp * config.memory_divergence_weight",
            "config.memory_divergence_weight",
        ),
    ),
    *group(
        "memory",
        "functional/class_memory.py",
        MEMORY_TESTS,
        (
            "sure and unsure count the same",
            "(memory_log_probs.amax(dim=1).exp() * distance).mean()",
            "distance.mean()",
        ),
        (
            "divergence the wrong way round",
            "(log_probs.exp() * (log_probs - memory_log_probs))",
            "(memory_log_probs.exp() * (memory_log_probs - log_probs))",
        ),
        ("unseen classes have a say", ".masked_fill(~is_known, -torch.inf)", ""),
        ("the farthest class", "(-distance).masked_fill", "distance.masked_fill"),
        ("the 1 in 1 + n missing", "rate / (1 + number)", "rate / number.clamp_min(1)"),
        ("values not normalised", "values / values.sum(dim=1, keepdim=True)", "values"),
        (
            "keys without the old ones",
            "keys - share * (number * keys - members @ features)",
            "keys - share * (keys - members @ features)",
        ),
        ("prediction of zero", "probs.clamp_min(torch.finfo(probs.dtype).tiny).log()", "probs.log()"),
    ),
    *group(
        "memory",
        "nn/class_memory.py",
        MEMORY_TESTS,
        (
            "logits remembered instead of probabilities",
            "logits.detach().to(dtype).softmax(dim=1)",
            "logits.detach().to(dtype)",
        ),
        ("classes never known", "self.is_known[labels] = True", "pass"),
        (
            "all classes known",
            "torch.zeros(num_classes, dtype=torch.bool)",
            "torch.ones(num_classes, dtype=torch.bool)",
        ),
        ("values never written", "self.values.copy_(values)", "pass"),
    ),
    *group(
        "compact_clustering",
        "algorithms/compact_clustering.py",
        CLUSTERING_TESTS,
        ("gradient never through the labels", "if config.detach_propagation:", "if True:"),
        ("gradient always through the labels", "if config.detach_propagation:", "if False:"),
        ("scale ignored", ", scale=config.scale)", ")"),
        ("smoothing ignored", "smoothing=config.smoothing", "smoothing=1e-5"),
        ("one step only", "num_steps=config.num_steps", "num_steps=1"),
        ("in float32", "features.double()", "features.float()"),
        ("ramp ignored", "ramp * config.clustering_weight", "config.clustering_weight"),
        (
            "detached features",
            "self._clustering(self.shard.gather(features),",
            "self._clustering(self.shard.gather(features.detach()),",
        ),
        (
            "labels balanced too",
            "torch.cat([posteriors[: len(labels)], self._balanced(posteriors[len(labels) :])])",
            "self._balanced(posteriors)",
        ),
        (
            "never balanced",
            "weighted = posteriors * self.target_balance.bias.to(posteriors.dtype).exp()",
            "weighted = posteriors",
        ),
        (
            "balanced without normalising",
            "return weighted / weighted.sum(dim=1, keepdim=True)",
            "return weighted",
        ),
        (
            "term dropped",
            '                "clustering": ramp * config.clustering_weight * clustering.to(logits.dtype),\n',
            "",
        ),
    ),
    *group(
        "compact_clustering",
        "functional/clustering.py",
        CLUSTERING_TESTS,
        ("not by class on the way", "transitions * (posteriors @ posteriors.T)", "transitions"),
        ("classes of any size alike", "(posteriors / mass.masked_fill(mass == 0, 1)).T", "posteriors.T"),
        ("divided by zero without a class", "mass.masked_fill(mass == 0, 1)", "mass"),
        ("sum over steps", "return loss / num_steps", "return loss"),
        ("a step too many", "range(2, num_steps + 1)", "range(1, num_steps + 1)"),
        (
            "sum over images",
            "loss = -(ideal * log_transitions).sum(dim=1).mean()",
            "loss = -(ideal * log_transitions).sum()",
        ),
        (
            "labels walk one step only",
            "torch.linalg.solve(system, to_labelled @ known)",
            "to_labelled @ known",
        ),
        (
            "staying where one is",
            "log_transitions.masked_fill(itself, -torch.inf)[L:]",
            "log_transitions[L:]",
        ),
        ("no smoothing", "walk = (1 - smoothing) * walk + smoothing * to_any[L:]", "pass"),
        (
            "columns normalised",
            "F.log_softmax(scale * (features @ features.T), dim=1)",
            "F.log_softmax(scale * (features @ features.T), dim=0)",
        ),
    ),
    *group(
        "fast_swa",
        "algorithms/weight_averaging.py",
        SWA_TESTS,
        (
            "the teacher predicts",
            "        return self.model\n",
            "        return self.comparison.evaluated(self.model)\n",
        ),
        ("allowed without an average", "needs_weight_average = True", "needs_weight_average = False"),
    ),
    *group(
        "fast_swa",
        "training/schedule.py",
        SWA_TESTS,
        ("no cycles", "if progress >= self.cosine:", "if False:"),
        ("one long cycle", "progress -= cycles * self.cycle", "progress -= self.cycle"),
        (
            "the cosine ends with its first part",
            "math.pi * progress / self.cosine_zero",
            "math.pi * progress / self.cosine",
        ),
        ("rounding at the border of cycles", "/ self.cycle + 1e-9) + 1", "/ self.cycle) + 1"),
        ("the rate twice as high", "self.max_learning_rate / 2 * (1", "self.max_learning_rate * (1"),
        (
            "momentum the lowest",
            "            self.max_momentum,\n        )",
            "            self.min_momentum,\n        )",
        ),
        ("shape ignored", 'if self.shape == "cosine_cycles" else', "if False else"),
    ),
    *group(
        "fast_swa",
        LOOP,
        SWA_TESTS,
        ("interval ignored", "if config.swa_every == 0:", "if True:"),
        (
            "an interval early",
            "math.floor(since / config.swa_every + 1e-9)",
            "math.ceil(since / config.swa_every - 1e-9)",
        ),
        (
            "rounding at the border of intervals",
            "math.floor(since / config.swa_every + 1e-9)",
            "math.floor(since / config.swa_every)",
        ),
        ("weights before the average begins", "max(0, math.floor(", "(math.floor("),
        (
            "the average predicts before there is one",
            "if self.average is None or self.average.n_averaged == 0:",
            "if self.average is None:",
        ),
    ),
    *group(
        "readout",
        "readout.py",
        ("tests/test_readout.py",),
        (
            "true classes of unlabelled images told",
            "known = torch.where(torch.isin(graph, labelled), dataset.classes[graph], UNLABELLED)",
            "known = dataset.classes[graph]",
        ),
        (
            "evaluated images labelled with the first class",
            "np.full(len(joined) - N, UNLABELLED)",
            "np.zeros(len(joined) - N, dtype=np.int64)",
        ),
        (
            "evaluated images always in the graph",
            "np.concatenate([features, evaluated]) if transductive else features",
            "np.concatenate([features, evaluated])",
        ),
        (
            "classes in the order in which they are known",
            "spread[:, model.classes_] = ",
            "spread[:, : len(model.classes_)] = ",
        ),
        ("neighbours one way only", "one_way.maximum(one_way.T)", "one_way"),
        ("α is scikit-learn's", "LabelSpreading(alpha=ALPHA, ", "LabelSpreading("),
        (
            "features not of length 1",
            "F.normalize(features.double(), dim=1).numpy()",
            "features.double().numpy()",
        ),
        (
            "neighbours in the graph ignored",
            "kneighbors_graph(features, neighbours,",
            "kneighbors_graph(features, NEIGHBOURS,",
        ),
        ("neighbours of evaluated images ignored", "n_neighbors=neighbours", "n_neighbors=NEIGHBOURS"),
        ("spreading instead of propagation", 'if method == "label_propagation":', "if False:"),
        (
            "images no label comes to have the first class",
            "own_logits.double().softmax(dim=1))",
            "torch.zeros(()))",
        ),
        (
            "only labelled images in the graph",
            'torch.cat([labelled, indices_of(run, "unlabelled")])',
            "torch.cat([labelled, labelled])",
        ),
        (
            "rows of the graph in another order than their labels",
            "graph_features, features = outputs(before_linear, graph)",
            "graph_features, features = outputs(before_linear, graph.flip(0))",
        ),
    ),
    *group(
        "readout",
        "nn/classifier.py",
        ("tests/test_readout.py", "tests/nn/test_classifier.py"),
        (
            "raw features instead of refined ones",
            "self.graph.refine_images(features, self.prototype_embeddings, self.messages)",
            "features",
        ),
    ),
    # Two processes, of methods that look at more than one image at a time
    Mutation(
        "processes: strong views of each its own",
        "data/batches.py",
        "strongly_augment(shifted, self._strong, self._generator, self._shard, scale",
        "strongly_augment(shifted, self._strong, self._generator, scale",
        (followed("fixmatch"),),
    ),
    Mutation(
        "processes: partners among its own images only",
        "algorithms/mixing.py",
        "        mix(images, shard.gather(images)[partners], share),\n"
        "        mix(probs, shard.gather(probs)[partners], share),\n",
        "        mix(images, images[partners % len(images)], share),\n"
        "        mix(probs, probs[partners % len(images)], share),\n",
        ("tests/algorithms/test_mixing.py -k processes", followed("mixmatch")),
    ),
    Mutation(
        "processes: ensemble of its own images only",
        "nn/ensemble.py",
        "        positions = self.shard.gather(positions)\n"
        "        probs = self.shard.gather(probs.to(self.ensemble.dtype))\n",
        "        probs = probs.to(self.ensemble.dtype)\n",
        ("tests/nn/test_ensemble.py", followed("temporal_ensembling")),
    ),
    Mutation(
        "processes: neighbours among its own images only",
        "algorithms/sntg.py",
        "            self.shard.gather(torch.cat([passes.labelled_features, passes.student_features])),\n"
        "            self.shard.gather(torch.cat([batch.labels, target_logits.argmax(dim=1)])),\n",
        "            torch.cat([passes.labelled_features, passes.student_features]),\n"
        "            torch.cat([batch.labels, target_logits.argmax(dim=1)]),\n",
        (followed("sntg-pi_model"),),
    ),
    Mutation(
        "processes: class memory of its own images only",
        "nn/class_memory.py",
        "            self.shard.gather(features.detach().to(dtype)),\n"
        "            self.shard.gather(logits.detach().to(dtype).softmax(dim=1)),\n"
        "            labels,\n",
        "            features.detach().to(dtype),\n"
        "            logits.detach().to(dtype).softmax(dim=1),\n"
        "            self.shard.own(labels),\n",
        ("tests/nn/test_class_memory.py", followed("memory")),
    ),
    Mutation(
        "processes: clusters of its own images only",
        "algorithms/compact_clustering.py",
        "self._clustering(self.shard.gather(features), self.shard.gather(batch.labels))",
        "self._clustering(features, batch.labels)",
        (followed("compact_clustering"),),
    ),
]

MUTATIONS += group(
    "turns",
    "bench/turns.py",
    ("tests/bench/test_turns.py",),
    ("interval begins a rank too high", "ordered[max(0, cut - 1)]", "ordered[cut]"),
    ("interval begins a rank too low", "ordered[max(0, cut - 1)]", "ordered[max(0, cut - 2)]"),
    ("interval ends a rank too low", "ordered[n - max(1, cut)]", "ordered[n - max(1, cut + 1)]"),
    ("interval ends a rank too high", "ordered[n - max(1, cut)]", "ordered[n - max(1, cut - 1)]"),
    ("interval of 90 %", "while below <= 0.025", "while below <= 0.05"),
    ("interval of the values as they came", "ordered = sorted(values)", "ordered = list(values)"),
    ("order never reversed", "names if turn % 2 == 0 else reversed(names)", "names"),
    ("order always reversed", "names if turn % 2 == 0 else reversed(names)", "reversed(names)"),
    ("warm-up counted", "if turn >= 0:", "if True:"),
    ("no warm-up", "range(-patience.warm_up, patience.most_rounds)", "range(patience.most_rounds)"),
    (
        "warm-up instead of rounds",
        "range(-patience.warm_up, patience.most_rounds)",
        "range(-patience.warm_up, patience.most_rounds - patience.warm_up)",
    ),
    ("never settled", " or _is_settled(seconds, patience.tolerance)", ""),
    ("settled with the first ratio", "return all(", "return any("),
    ("settled by seconds", "_half_width(_ratios(times, first))", "_half_width(times)"),
    ("settled by the whole interval", "(high - low) / 2 / statistics", "(high - low) / statistics"),
    ("settled by seconds' share", "(high - low) / 2 / statistics.median(ratios)", "(high - low) / 2"),
    ("time without end", "time.perf_counter() - began > patience.most_seconds or ", ""),
    ("one round less than the least", "turn + 1 < patience.least_rounds", "turn + 2 < patience.least_rounds"),
    ("one round more than the least", "turn + 1 < patience.least_rounds", "turn < patience.least_rounds"),
    ("ratio upside down", "[a / b for a, b", "[b / a for a, b"),
    (
        "ratio of medians",
        "ratio = statistics.median(ratios)",
        "ratio = statistics.median(seconds[what]) / statistics.median(seconds[versus])",
    ),
    ("mean instead of median", "ratio = statistics.median(ratios)", "ratio = statistics.mean(ratios)"),
    (
        "seconds for milliseconds",
        "round(1000 * statistics.median(seconds[what]), 3)",
        "round(statistics.median(seconds[what]), 3)",
    ),
    (
        "milliseconds of the other",
        "1000 * statistics.median(seconds[versus])",
        "1000 * statistics.median(seconds[what])",
    ),
    (
        "targets the wrong way round",
        'ratio <= self.bound if self.kind == "at most"',
        'ratio <= self.bound if self.kind == "at least"',
    ),
    ("a bound met exactly not reached", "ratio <= self.bound", "ratio < self.bound"),
    ("target without its sign", "{'≤' if self.kind == 'at most' else '≥'} {self", "{self"),
    ("warm-up as long where all is shorter", "self.warm_up if scale >= 1 else 1", "self.warm_up"),
)


TEST_FOLDERS = ["tests/functional", "tests/training/test_schedule.py", "tests/nn", "tests/algorithms"]
DATA_TESTS = [
    *(f"tests/data/test_{name}.py" for name in ("augmentation", "batches", "preprocessing", "split")),
    *(f"tests/data/test_{name}.py" for name in ("check", "decode", "folder")),
    "--deselect=tests/data/test_folder.py::test_the_memory_that_20000_files_take",
    "tests/test_engine.py",
]
TRAINING_TESTS = [
    *(f"tests/training/test_{name}.py" for name in ("loop", "checkpoint")),
    "tests/runs",
]
RESUME_TESTS = [
    "tests/resume/test_resume.py",
    "--deselect=tests/resume/test_resume.py::test_a_run_that_is_killed_25_times_ends_as_one_that_never_was",
    *(
        f"--deselect=tests/resume/test_resume.py::test_{name}"
        for name in (
            "a_disk_that_is_full_for_a_while_costs_nothing",
            "a_disk_that_stays_full_ends_the_run_which_can_go_on",
            "another_number_of_threads_is_told",
            "resume_on_the_command_line",
        )
    ),
]
TIME_LIMIT = 1200
"""Seconds after which tests that do not end count as having noticed."""
MUTATIONS += group(
    "views",
    "nn/views.py",
    ("tests/nn/test_views.py",),
    ("mean of logits", "self.model(view).log_softmax(dim=1)", "self.model(view)"),
    ("sum for the mean", " - math.log(len(log_probs))", ""),
    ("never mirrored", "if self.mirror:", "if False:"),
    ("never shifted", "if self.shift:", "if False:"),
    ("one neighbour twice", "(2, 1), (1, 0)", "(2, 1), (2, 1)"),
    ("padding not asked", '"replicate" if self.padding == "edge" else "reflect"', '"replicate"'),
)
MUTATIONS += group(
    "views",
    "trained.py",
    ("tests/inference/test_views.py",),
    ("mirrored though the run was not", "mirror=views.flip", "mirror=True"),
    ("padding not the run's", ", padding=views.padding", ""),
)
MUTATIONS += group(
    "muon",
    "training/muon.py",
    ("tests/training/test_muon.py",),
    ("one iteration less", "_ITERATIONS = 4", "_ITERATIONS = 3"),
    ("a coefficient", "beta=b, alpha=c", "beta=b, alpha=b"),
    ("the first term left out", "        factor.diagonal().add_(a)\n", ""),
    ("powers do not follow", "gram = factor @ gram @ factor", "gram = factor @ gram"),
    ("the length of the gradient matters", "(product @ x) * squared_length.rsqrt()", "product @ x"),
    ("tall matrices stay turned", "return result.T if is_tall else result", "return result"),
    ("gradients are forgotten", ".mul_(momentum).add_(gradient)", ".mul_(0).add_(gradient)"),
    ("no look ahead", "gradient.add(total, alpha=momentum)", "total.clone()"),
    ("SGD's step comes too", "for weight in weights if weight.ndim != 4]", "for weight in weights]"),
    ("others have no momentum", 'self.state[weight]["momentum_buffer"] = buffer', "pass"),
    ("others have no decay", 'weight_decay=group["weight_decay"]', "weight_decay=0.0"),
    (
        "a weight of nothing is divided by it",
        "vector_norm(weight).clamp_min(smallest))",
        "vector_norm(weight))",
    ),
    ("the angle depends on the length", "(angle * length /", "(angle /"),
    ("the wrong way", "weight.sub_(direction", "weight.add_(direction"),
    ("longer with every step", "        weight.mul_(length / torch", "        (length / torch"),
)
MUTATIONS += group(
    "recipes",
    "bench/recipes.py",
    ("tests/test_bench_training.py",),
    (
        "small images have no time of their own",
        "((True, small), (False, 1 - small))",
        "((True, 0.5), (False, 0.5))",
    ),
    ("only one size is tried", "{later, config.training.half_size_steps} - {0}", "{later} - {0}"),
    ("sizes that were not tried count", "return mean / tried", "return mean"),
    ("stand-ins are not reduced", "else image_size or known.size", "else known.size"),
)
MUTATIONS += group(
    "reproduce",
    "cli/reproduce.py",
    ("tests/experiments/test_reproduce.py",),
    ("splits are not tried", "split_dataset(data, dataset, of_data[0].seed)", "pass"),
)
MUTATIONS += group(
    "muon",
    LOOP,
    ("tests/training/test_muon.py",),
    ("never", "        if turn == 0:\n", "        if True:\n"),
    ("nothing is refused", "not any(p.ndim == 4 for p in parameters)", "False"),
    ("another angle", "Muon(parameters, turn=turn,", "Muon(parameters, turn=1.0,"),
)
MUTATIONS += group(
    "grid",
    "experiments/grid.py",
    ("tests/experiments/test_grid.py", "tests/inference/test_views.py"),
    ("cells of a run apart", "groups.setdefault(run_name(cell), [])", "groups.setdefault(cell.digest(), [])"),
    ("first cell trains, however asked", 'key=lambda cell: cell.read_out != ""', "key=lambda cell: 0"),
    ("a run that failed tried again", "if failed is None else replace(failed, cell=cell)", ""),
    (
        "nothing claimed",
        '        with path.open("ab") as file:\n            if _is_ours(file):',
        '        with path.open("ab") as file:\n            if True:',
    ),
    ("run of another name for each way to ask", "replace(cell, read_out='').digest()", "cell.digest()"),
    ("views not asked", "evaluate_run(run, part, views=True)", "evaluate_run(run, part)"),
    ("one cell of a lost run", "for cell in answer.thing]", "for cell in answer.thing[:1]]"),
)

MUTATIONS += group(
    "cosines",
    "nn/manifold_graph.py",
    ("tests/nn/test_manifold_graph.py",),
    ("what is common stays", "features = features - self.origin.to(features.dtype)", "pass"),
    ("any length", "COSINE_LENGTH * F.normalize(heads, dim=2)", "heads"),
    ("one length for all heads", "F.normalize(heads, dim=2)", "F.normalize(heads, dim=(1, 2))"),
    ("another length", "COSINE_LENGTH = 3.0", "COSINE_LENGTH = 1.0"),
    ("origin stays", "self.origin.copy_(prototypes.detach().mean(dim=0))", "pass"),
)
MUTATIONS += group(
    "cosines",
    GRAPH,
    (f"{STEPS} -k cosine",),
    ("never asked for", "            attention=config.attention,\n", ""),
)


def tests_for(mutation: Mutation) -> tuple[str, ...]:
    """The tests that may notice, in the order in which they are tried.

    Those of the file itself and of its folder come first, so that it is noticed sooner.
    """
    file = mutation.file
    if mutation.tests:
        return mutation.tests
    if mutation.what.startswith("training:"):
        if file.startswith(("nn/", "algorithms/")):
            return ("tests/nn/test_passes.py",)
        resume = " ".join(RESUME_TESTS)
        return (resume,) if file == SESSION else (" ".join(TRAINING_TESTS), resume)
    if mutation.what.startswith("processes:"):
        return (
            followed("manifold_graph-generated" if file == GRAPH else "pi_vat"),
            "tests/nn/test_passes.py",
        )
    if not file.startswith(("functional/", "nn/", "algorithms/", "training/schedule")):
        return (" ".join(DATA_TESTS),)
    folder, name = file.rsplit("/", 1)
    own = f"tests/{folder}/test_{name}"
    folders = sorted(TEST_FOLDERS, key=lambda tests: not tests.startswith(f"tests/{folder}"))
    return (own, *folders) if (ROOT / own).is_file() else tuple(folders)


WARM = multiprocessing.get_context("forkserver")
"""Starts processes in which torch is imported already, which takes longer than most tests."""
WARM.set_forkserver_preload(["numpy", "pytest", "torch", "torch._dynamo", "torch.distributed"])


def run_tests(folder: Path, arguments: list[str]) -> None:
    """In a process of its own: the answer of pytest in a file, its code as that of the process."""
    import pytest

    os.setsid()
    with (folder / "answer.txt").open("w", encoding="utf-8") as answer:
        os.dup2(answer.fileno(), 1)
        os.dup2(answer.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # only what is broken is compiled again
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "manigraph")]:
        del sys.modules[name]  # of the project that is not broken
    sys.dont_write_bytecode = False
    sys.path[:0] = [str(folder), str(folder / "src")]
    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(int(code))


class Copy:
    """The project somewhere else, where it may be broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.writes = 0
        self.sound: set[str] = set()
        """Tests that pass where nothing is broken, of those that were asked about."""
        self.failing: set[str] = set()
        """Tests that fail although nothing is broken."""

    def failed_tests(self, command: str, *options: str) -> list[str]:
        """Names of the tests that fail."""
        arguments = ["-q", "-p", "no:cacheprovider", "--tb=no", *options, *shlex.split(command)]
        process = WARM.Process(target=run_tests, args=(self.folder, arguments))
        process.start()
        process.join(TIME_LIMIT)
        if process.exitcode is None:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return [f"no end within {TIME_LIMIT} s: {command}"]
        if process.exitcode < 0:
            return [f"signal {-process.exitcode}: {command}"]
        answer = (self.folder / "answer.txt").read_text(encoding="utf-8")
        failed: list[str] = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", answer, flags=re.MULTILINE)
        if process.exitcode not in (0, 1) or bool(failed) != bool(process.exitcode):
            raise RuntimeError(f"{command}: {answer}")
        return failed

    def write(self, file: Path, text: str) -> None:
        """With a time that no other text of the file had, or what is compiled would be taken for this."""
        self.writes += 1
        file.write_text(text, encoding="utf-8")
        os.utime(file, (2 * self.writes, 2 * self.writes))
        if file.suffix in (".c", ".h"):
            compile_all(file.parent)

    def noticing(self, mutation: Mutation) -> list[str]:
        """The first test that notices the mutation, if any does; known failures do not count."""
        file = self.folder / "src" / "manigraph" / mutation.file
        original = file.read_text(encoding="utf-8")
        broken = original.replace(mutation.old, mutation.new)
        if original.count(mutation.old) != 1:
            raise ValueError(f"{mutation.what}: found {original.count(mutation.old)} times in {file}")
        commands = list(tests_for(mutation))
        while commands:
            deselected = [f"--deselect={name}" for name in sorted(self.failing)]
            self.write(file, broken)
            failed = self.failed_tests(commands[0], "--maxfail=1", *deselected)
            self.write(file, original)
            if not failed:
                del commands[0]
            elif self.is_sound(failed[0]):
                return failed
            else:
                self.failing.update(self.failed_tests(commands[0]))
        return []

    def is_sound(self, test: str) -> bool:
        """Whether a test passes where nothing is broken."""
        if test not in self.sound and test.startswith("tests/"):
            if self.failed_tests(shlex.quote(test)):
                if "::" not in test:
                    raise RuntimeError(f"{test} cannot be read, although nothing is broken")
                self.failing.add(test)
                return False
            self.sound.add(test)
        return True


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if all(word.lower() in m.what.lower() for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        print("| mutation | file | noticed by |\n|---|---|---|")
        for mutation in chosen:
            noticed = copy.noticing(mutation)
            survivors += not noticed
            names = dict.fromkeys(name.removeprefix("tests/").split("[")[0] for name in noticed)
            tests = "<br>".join(f"`{name}`" for name in names)
            print(f"| {mutation.what} | `{mutation.file}` | {tests or '**nothing**'} |", flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
