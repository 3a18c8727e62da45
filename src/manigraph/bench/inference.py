"""Prediction with the graph, against backbone and linear layer alone."""

from collections.abc import Callable

import torch

from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.nn.classifier import FrozenGraphClassifier

TARGET = Target("at least", 0.97)
BATCH = 256
BARE = "backbone and linear layer"
FULL = "with the graph"


def contenders(setting: NetworkSetting) -> dict[str, Work]:
    """The model as it is used in the end and its backbone with the linear layer, on the same images."""
    job = setting.job("manifold_graph")
    job.trainer.algorithm.model.graph_is_on.fill_(True)  # type: ignore[operator]
    model = job.trainer.inference_model().eval()
    assert isinstance(model, FrozenGraphClassifier)
    assert model.prototype_embeddings is not None, "the graph is on"
    images = torch.randn(BATCH, 3, setting.side, setting.side).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def bare() -> None:
        model.linear(model.backbone(images))

    @torch.inference_mode()
    def full() -> None:
        model(images)

    return {FULL: full, BARE: bare}


def run_inference_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """Images per second of the full model by those of the bare one: times, the other way round."""
    ratios = []
    settings = [NetworkSetting(), NetworkSetting(classes=100), NetworkSetting(width=0.25)]
    for setting in settings if scale >= 1 else [TINY]:
        with torch.random.fork_rng():
            patience = Patience(most_seconds=60).scaled(scale)
            seconds = take_turns(contenders(setting), patience, _telling(tell, setting.name))
        name = f"{BATCH} images at a time, {setting.name.split(',')[0]}, {setting.classes} classes"
        ratios.append(ratio_of(seconds, BARE, FULL, setting=name, target=TARGET))
    return ratios


def _telling(tell: Callable[[str], None], setting: str) -> Callable[[int], None]:
    return lambda rounds: tell(f"inference, {setting}: round {rounds}")
