"""How images go through the backbone: in which precision, and with how much memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manigraph.nn.batch_norm import repeated_pass, tracking_layers
from manigraph.nn.dropout import Dropout, RandomState, dropout_of
from manigraph.nn.normalised_activation import Chain
from manigraph.sharding import ALONE, Shard

if TYPE_CHECKING:
    from manigraph.nn.classifier import Classifier


@dataclass(frozen=True)
class Passes:
    """How a classifier's backbone is run. Its features, the graph and all losses are float32 in any case."""

    dtype: torch.dtype = torch.float32
    """Precision of convolutions and matrix products; batch norm and weights stay float32."""
    parts: int = 1
    """Parts in which a batch goes through; only one part's activations are in memory at a time."""

    def __call__(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """Features of the images."""
        only_evaluates = not (torch.is_grad_enabled() or backbone.training)
        if self.parts == 1 or len(images) % self.parts or only_evaluates:
            return self._pass(backbone, images)
        # Every part draws the dropout masks of the whole batch and keeps its own.
        masks = RandomState(images.device)
        features = []
        whole = _dropout_shard(backbone)
        for part in range(self.parts):
            shard = Shard(whole.rank + part * whole.size, self.parts * whole.size)
            is_last = part == self.parts - 1
            with nullcontext() if is_last else masks.replay(), dropout_of(backbone, shard):
                own = images[part :: self.parts]
                features.append(forgetful(backbone, lambda x: self._pass(backbone, x), own))
        return torch.stack(features, dim=1).flatten(0, 1)

    def _pass(self, backbone: nn.Module, images: Tensor) -> Tensor:
        features: Tensor
        # Evaluation is float32 in any case, as is the trained model that is loaded later.
        if self.dtype == torch.float32 or not backbone.training:
            features = backbone(images)
            return features
        with torch.autocast(images.device.type, self.dtype):
            features = backbone(images)
        return features.to(images.dtype)


def forgetful(module: nn.Module, function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`function(values)` whose inner results are thrown away, and computed again for the gradient.

    The second time, dropout masks are the same and batch-norm running statistics stay still.
    """
    shard = _dropout_shard(module)
    tracking = tracking_layers(module)

    @contextmanager
    def again() -> Iterator[None]:
        with repeated_pass(module, tracking), dropout_of(module, shard):
            yield

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _EnteredAnew(again)

    result: Tensor = checkpoint(function, values, use_reentrant=False, context_fn=contexts)
    return result


class _EnteredAnew(AbstractContextManager[None]):
    """A context that can be entered several times: some methods go back through one pass twice."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make

    def __enter__(self) -> None:
        self._entered = self._make()
        self._entered.__enter__()

    def __exit__(self, *details: Any) -> None:
        self._entered.__exit__(*details)


def _dropout_shard(module: nn.Module) -> Shard:
    """Which part of the batch dropout draws its masks for at present."""
    return next((layer.shard for layer in module.modules() if isinstance(layer, Dropout)), ALONE)


class Layers(Chain):
    """Layers one after the other, of which only some inner results need to be kept."""

    recompute = False
    """Keep only what goes into a convolution, a linear layer or a block of layers."""

    def forward(self, values: Tensor) -> Tensor:
        if not self.recompute or not torch.is_grad_enabled():
            return super().forward(values)
        for group in self._groups():
            values = forgetful(group, group, values)
        return values

    def _groups(self) -> Iterator[Chain]:
        group: list[nn.Module] = []
        for layer in self:
            starts = isinstance(layer, (nn.Conv2d, nn.Linear)) or next(layer.children(), None) is not None
            if starts and group:
                yield Chain(*group)
                group = []
            group.append(layer)
        yield Chain(*group)


@contextmanager
def full_precision(model: "Classifier") -> Iterator[None]:
    """Run the backbone in float32, whatever precision is set."""
    before = model.passes
    model.passes = replace(before, dtype=torch.float32)
    try:
        yield
    finally:
        model.passes = before
