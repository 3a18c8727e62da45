"""Networks and batches at which steps are timed, on images of noise and on the CPU."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from manigraph.bench.data import random_dataset
from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.config import Config
from manigraph.data.batches import BatchConfig
from manigraph.training.execution import Execution


@dataclass(frozen=True)
class NetworkSetting:
    """CNN-13 with the paper's settings, at some size."""

    width: float = 1.0
    labelled: int = 32
    unlabelled: int = 128
    side: int = 32
    classes: int = 10

    @property
    def name(self) -> str:
        """In words."""
        width = Fraction(self.width).limit_denominator(64)
        images = f"{self.labelled} + {self.unlabelled} images of {self.side}x{self.side}"
        classes = "" if self.classes == 10 else f", {self.classes} classes"
        return f"CNN-13 at width {width}, {images}{classes}"

    def config(self, algorithm: str) -> Config[Any]:
        """The paper's recipe at this size, with the graph on from the first step."""
        config = RECIPES.get("cifar10")(algorithm)
        if algorithm == "manifold_graph":
            config = replace(config, method=replace(config.method, warmup_fraction=0.0))
        return replace(
            config,
            data=replace(config.data, labels=1000, validation=0),
            preprocessing=replace(config.preprocessing, kind="standardise"),
            backbone=replace(config.backbone, width=self.width),
            batch=BatchConfig(labelled=self.labelled, unlabelled=self.unlabelled),
        )

    def job(self, algorithm: str) -> Job:
        """Ready to train."""
        dataset = random_dataset(4000, self.side, self.classes)
        return build(self.config(algorithm), dataset=dataset, execution=Execution(device="cpu"))


def use_usual_layout(module: nn.Module) -> None:
    """Give a network's weights torch's usual layout, in place."""
    for parameter in module.parameters():
        # `contiguous` would leave 1x1 kernels as they are, whose strides say "channels last".
        parameter.data = torch.empty(parameter.shape).copy_(parameter.data)


TINY = NetworkSetting(width=1 / 16, labelled=10, unlabelled=20, side=8)
"""For a quick look, which says little about the ratios."""
