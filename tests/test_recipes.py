"""Every number of the paper's protocol (METHOD 5 and 6), stated once more, beside what the recipes say."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from manigraph.algorithms.base import Algorithm
from manigraph.build import build_algorithm, split_dataset
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import Config
from manigraph.contract import Batch, StepContext, StepOutput
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.data.sources.base import Dataset
from manigraph.recipes.parts import aim_of
from manigraph.training.loop import Trainer
from tests.helpers import seeded


@dataclass(frozen=True)
class Paper:
    """A row of the paper's protocol."""

    recipe: str
    algorithm: str
    epsilon: float
    error: tuple[float, float]
    classes: int
    labelled: int
    unlabelled: int
    validation: int
    test: int
    flip: bool
    zca: bool
    margin_angle: float = 0.15
    margin_divergence: float = 0.75


SVHN: Any = {"classes": 10, "labelled": 1000, "validation": 1000, "unlabelled": 71_257, "test": 26_032}
CIFAR10: Any = {"classes": 10, "labelled": 4000, "validation": 1000, "unlabelled": 45_000, "test": 10_000}
CIFAR100: Any = {"classes": 100, "labelled": 10_000, "validation": 2500, "unlabelled": 37_500, "test": 10_000}
HUNDRED: Any = {"margin_angle": 0.05, "margin_divergence": 0.9}

# VAT's 3.5 is for pixels from -0.5 to 0.5; the mean of the three deviations by which they are divided is
# (0.19803012 + 0.20101562 + 0.19703614) / 3 = 0.19869393, and 3.5 / 0.19869393 = 17.615.
PAPER = [
    Paper("svhn", "pi_vat", 17.615, (4.50, 0.24), **SVHN, flip=False, zca=False),
    Paper("svhn", "manifold_graph", 7.0, (3.35, 0.17), **SVHN, flip=False, zca=False),
    Paper("cifar10", "pi_vat", 8.0, (9.20, 0.02), **CIFAR10, flip=True, zca=True),
    Paper("cifar10", "manifold_graph", 8.0, (8.27, 0.19), **CIFAR10, flip=True, zca=True),
    Paper("cifar100", "pi_vat", 30.0, (34.94, 0.24), **CIFAR100, flip=True, zca=True),
    Paper("cifar100", "manifold_graph", 27.0, (33.83, 0.62), **CIFAR100, flip=True, zca=True, **HUNDRED),
]
SMALL = ["svhn_small", "cifar10_small", "cifar100_small", "fashion_mnist", "folder"]
REDUCED = ["svhn_16px", "cifar10_16px", "cifar100_16px"]

each_row = pytest.mark.parametrize("row", PAPER, ids=lambda row: f"{row.recipe}-{row.algorithm}")
each_small = pytest.mark.parametrize("name", SMALL)
each_method = pytest.mark.parametrize("algorithm", ["pi_vat", "manifold_graph"])


def config_of(row: Paper) -> Config[Any]:
    return RECIPES.get(row.recipe)(row.algorithm)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@each_row
def test_losses_of_the_paper(row: Paper) -> None:
    method = config_of(row).method
    assert method.epsilon == pytest.approx(row.epsilon, abs=5e-4)
    assert (method.consistency_weight, method.entropy_weight) == (1.0, 0.1)  # λ1, λ2
    assert (method.consistency, method.ramp_fraction) == ("kl", 0.0)
    assert (method.balance_weight, method.balance_memory) == (0.0, 0)
    assert method.adversarial_reference == "target"
    assert method.num_power_iterations == 1
    assert 1e-2 <= method.xi <= 1
    if row.algorithm == "manifold_graph":
        assert method.nodes == "generated"
        assert method.prototypes_per_class == 20
        assert (method.embedding_size, method.hidden_size) == (32, 64)
        assert (method.num_heads, method.scale, method.prototype_update) == (1, 1.0, "per_image")
        assert (method.anchor_weight, method.divergence_weight, method.prototype_weight) == (1.0, 1.0, 0.1)
        assert method.margin_length == 0.1
        assert method.margin_angle == row.margin_angle
        assert method.margin_divergence == row.margin_divergence
        assert (method.divergence_reduction, method.detach_boundary_margin) == ("mean", False)
        assert round(method.warmup_fraction * 282_000) == 2000


@each_row
def test_images_of_the_paper(row: Paper) -> None:
    config = config_of(row)
    assert config.data.name == row.recipe
    assert (config.batch.labelled, config.batch.unlabelled) == (32, 128)
    assert config.augmentation == AugmentationConfig(translation=2, flip=row.flip, rotation=0.0, scale=0.0)
    expected = PreprocessingConfig(
        kind="standardise",
        mean=(0.4376821, 0.4437697, 0.47280442),
        std=(0.19803012, 0.20101562, 0.19703614),
    )
    assert config.preprocessing == (PreprocessingConfig(kind="zca") if row.zca else expected)
    assert config.preprocessing.zca_regulariser <= 1e-8


@each_row
def test_split_of_the_paper(row: Paper) -> None:
    """On data sets of the real sizes, whose images are a pixel each, no two alike."""
    num_train = row.labelled + row.unlabelled + row.validation
    count = num_train + row.test
    numbers = torch.arange(count)
    pixels = torch.stack([numbers % 256, numbers // 256 % 256, numbers // 65_536], dim=1)
    dataset = Dataset(
        name=row.recipe,
        images=pixels.to(torch.uint8).view(count, 3, 1, 1),
        classes=numbers % row.classes,
        class_names=[str(c) for c in range(row.classes)],
        train=torch.arange(num_train),
        test=torch.arange(num_train, count),
    )
    config = config_of(row)
    assert not config.data.labelled_in_pool
    split = split_dataset(config.data, dataset, seed=0)
    sizes = [len(part) for part in (split.labelled, split.unlabelled, split.validation, split.test)]
    assert sizes == [row.labelled, row.unlabelled, row.validation, row.test]
    per_class = dataset.classes[split.labelled].bincount()
    assert per_class.max() - per_class.min() <= 1


@each_row
def test_network_of_the_paper(row: Paper) -> None:
    config = config_of(row)
    assert (config.backbone.name, config.backbone.width, config.backbone.dropout) == ("cnn13", 1.0, None)
    with torch.device("meta"):
        plain = build_algorithm(RECIPES.get(row.recipe)("pi_vat"), (3, 32, 32), row.classes)
        algorithm = build_algorithm(config, (3, 32, 32), row.classes)
    rates = [layer.p for layer in algorithm.modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.3, 0.3]
    # A classifier of C rows has 129 C numbers; with ten classes the whole is 3.12 M.
    assert parameters(plain) - 129 * (row.classes - 10) == pytest.approx(3.12e6, abs=0.005e6)
    if row.algorithm == "manifold_graph":
        assert 0.015 <= parameters(algorithm) / parameters(plain) - 1 <= 0.025
    else:
        assert parameters(algorithm) == parameters(plain)


class Still(Algorithm[Any]):
    """A method of one weight, to see what the loop writes into its optimiser."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(()))

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        return StepOutput({"weight": self.weight.square()})


def rates_in_use(config: Config[Any], step: int) -> tuple[float, float]:
    """Learning rate and momentum with which the optimiser made the update of a step."""
    trainer = Trainer(Still(), config.schedule, config.training, seeded())
    trainer.step = step
    trainer.train_step(Batch({}, torch.zeros(0), {}))
    (group,) = trainer.optimizer.param_groups
    return group["lr"], group["momentum"]


STEPS_OF_THE_PAPER = [
    (0, 2e-4, 0.95),
    (1_000, 1.1e-3, 0.95),
    (2_000, 2e-3, 0.95),
    (62_000, 1.1e-2, 0.90),
    (122_000, 2e-2, 0.85),
    (182_000, 1.1e-2, 0.90),
    (242_000, 2e-3, 0.95),
    (262_000, 1.01e-3, 0.95),
    (281_999, 2e-5, 0.95),
]


@each_row
@pytest.mark.parametrize(("step", "learning_rate", "momentum"), STEPS_OF_THE_PAPER)
def test_optimiser_of_the_paper(row: Paper, step: int, learning_rate: float, momentum: float) -> None:
    config = config_of(row)
    in_use = rates_in_use(config, step)
    # One step of the last line is 5e-8.
    assert in_use == pytest.approx((learning_rate, momentum), rel=1e-6, abs=6e-8)


@each_row
def test_optimiser_settings_of_the_paper(row: Paper) -> None:
    config = config_of(row)
    training = config.training
    assert (training.steps, training.weight_decay) == (282_000, 2e-4)
    assert (training.ema_decay, training.max_gradient_norm, training.select) == (0.0, 0.0, "last")
    optimizer = Trainer(Still(), config.schedule, training, seeded()).optimizer
    assert type(optimizer) is torch.optim.SGD
    (group,) = optimizer.param_groups
    assert (group["nesterov"], group["weight_decay"], group["dampening"]) == (True, 2e-4, 0)


@each_row
def test_error_that_the_paper_reports(row: Paper) -> None:
    aim = aim_of(RECIPES.get(row.recipe))
    assert aim is not None
    assert aim.errors[row.algorithm] == row.error


def test_other_recipes_are_not_in_the_paper() -> None:
    aiming = {name for name in RECIPES if aim_of(RECIPES.get(name)) is not None}
    assert aiming == {row.recipe for row in PAPER}


@each_small
@each_method
def test_small_versions_keep_the_shape_of_the_schedule(name: str, algorithm: str) -> None:
    """At the same share of the run: the same rates, and the graph comes in at the same place."""
    config, whole = RECIPES.get(name)(algorithm), RECIPES.get("cifar10")(algorithm)
    assert config.training.steps == 3000
    for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9):
        small = rates_in_use(config, round(share * config.training.steps))
        assert small == pytest.approx(rates_in_use(whole, round(share * whole.training.steps)))
    if algorithm == "manifold_graph":
        assert config.method.warmup_fraction == whole.method.warmup_fraction


@each_small
@each_method
def test_small_versions_are_smaller_and_otherwise_the_same(name: str, algorithm: str) -> None:
    config = RECIPES.get(name)(algorithm)
    assert (config.backbone.name, config.backbone.width) == ("cnn13", 0.25)
    assert (config.batch.labelled, config.batch.unlabelled) == (32, 64)
    assert config.training.weight_decay == 2e-4
    if name.endswith("_small"):
        whole = RECIPES.get(name.removesuffix("_small"))(algorithm)
        for part in ("method", "data", "preprocessing", "augmentation", "schedule", "seed"):
            assert getattr(config, part) == getattr(whole, part)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_recipe_is_complete_for_every_method(name: str, algorithm: str) -> None:
    config = RECIPES.get(name)(algorithm)
    assert config.algorithm == algorithm
    assert isinstance(config.method, ALGORITHMS.get(algorithm).Config)
    assert math.isfinite(config.schedule.max_learning_rate)


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_protocol_of_the_small_tables_is_the_same_for_all_methods(name: str, algorithm: str) -> None:
    config, other = RECIPES.get(name)(algorithm), RECIPES.get(name)("supervised")
    shared = ("augmentation", "batch", "data")
    assert [getattr(config, part) for part in shared] == [getattr(other, part) for part in shared]
    assert (config.data.image_size, config.augmentation.translation) == (16, 1)
    backbone = config.backbone
    noisy = algorithm in ("pi_model", "temporal_ensembling", "sntg", "fast_swa")
    assert (backbone.name, backbone.width, backbone.dropout) == ("cnn13", 0.125, None if noisy else 0)
    assert config.training.steps == 6000
    training = config.training
    assert (config.schedule.max_learning_rate, training.weight_decay, training.decay_at_labels) == (
        0.1,
        5e-3,
        250,
    )
    averages = (config.training.ema_decay, config.training.swa_fraction)
    assert averages == (0.99, 0) or algorithm in ("mean_teacher", "fast_swa")


def test_what_methods_have_of_their_own_in_the_small_tables() -> None:
    epsilons = {name: RECIPES.get("svhn_16px")(name).method.epsilon for name in ("pi_vat", "vat")}
    assert epsilons == {"pi_vat": 3.5, "vat": 7.0}
    graph = RECIPES.get("cifar10_16px")("manifold_graph").method
    assert (graph.epsilon, graph.scale, graph.threshold, graph.prototypes_per_class) == (2.0, 8.0, 0.8, 20)
    fixmatch = RECIPES.get("svhn_16px")("fixmatch").method
    assert (fixmatch.threshold, fixmatch.ramp_fraction) == (0.8, 0)
    for name in ("pi_model", "vat", "pi_vat", "manifold_graph"):
        method = RECIPES.get("svhn_16px")(name).method
        assert (method.consistency, method.ramp_fraction) == ("mse", 0.4)


HALF_HOUR = {"svhn_30min": 250, "cifar10_30min": 4000}


@pytest.mark.parametrize("name", HALF_HOUR)
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_methods_of_half_an_hour_have_one_network_and_one_size_of_image(name: str, algorithm: str) -> None:
    config = RECIPES.get(name)(algorithm)
    assert (config.backbone.name, config.backbone.width) == ("resnet9", 0.25)
    assert (config.data.labels, config.data.image_size) == (HALF_HOUR[name], None)
    assert config.augmentation.translation == 2
    assert (config.training.half_size_fraction > 0) == (algorithm == "manifold_graph")


def test_only_the_combination_of_half_an_hour_has_all_parts() -> None:
    for name in HALF_HOUR:
        config = RECIPES.get(name)("manifold_graph")
        method, training = config.method, config.training
        assert (method.comparison, method.target_decay, method.threshold) == ("fixmatch", 0.99, 0.8)
        assert (method.prototypes_per_class, method.prototype_update) == (5, "shared")
        assert (training.half_size_fraction, training.weight_decay, training.ema_decay) == (0.6, 1e-3, 0)
        assert (training.muon_turn, training.steps) == (
            (0.3, 10_500) if name == "cifar10_30min" else (0, 11_000)
        )
        assert RECIPES.get(name)("fixmatch").training.muon_turn == 0
        assert config.preprocessing.kind == "standardise", "whitening would blow up strong views"
        assert RECIPES.get(name)("fixmatch").method.target_decay == 0
    assert RECIPES.get("svhn_30min")("pi_vat").method.epsilon == 7.0
    assert RECIPES.get("cifar10_30min")("pi_vat").method.epsilon == 4.0
