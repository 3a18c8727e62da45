"""The contract between a method and the training loop.

A method says which views of the data it wants, turns a batch into a loss made of named terms, and
names the weights to evaluate. It touches no optimiser, device, logger or file, so any loop can drive
it and the loop needs to know no method.
"""

from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from torch import Tensor, nn

from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import largest_class_share
from manigraph.nn import Classifier, share_batch_norm
from manigraph.nn.backbones.base import Backbone
from manigraph.sharding import ALONE, Shard

ConfigT = TypeVar("ConfigT")


class Algorithm(nn.Module, Generic[ConfigT]):
    """A semi-supervised method: its model, and how a batch becomes a loss.

    A module, so that teachers, memories and averages a method keeps are saved with the model.
    """

    Config: ClassVar[type]
    """Frozen dataclass of the method's own settings, with the paper's defaults."""
    uses_unlabelled: ClassVar[bool] = True
    """Whether the method learns from unlabelled images."""
    needs_weight_average: ClassVar[bool] = False
    """Whether the method is nothing without the loop's plain average of weights (`training.swa_fraction`)."""
    model: Classifier
    shard: Shard = ALONE
    """Which part of every batch this process holds."""

    def __init__(self, config: ConfigT, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.model = self.build_model(backbone, num_classes)

    @classmethod
    def keeps_average(cls, config: ConfigT) -> bool:
        """Whether the weights that predict are an average already, so that the loop need not keep one."""
        return False

    def build_model(self, backbone: Backbone, num_classes: int) -> Classifier:
        """Backbone and linear layer, for methods without a head of their own."""
        return Classifier(backbone, nn.Linear(backbone.feature_size, num_classes))

    def distribute(self, shard: Shard) -> None:
        """Hold a part of every batch from now on, and compute together what one process would alone.

        What goes over all images of a batch must be told: batch norm, dropout masks, memories and losses
        that are no mean over images (`self.shard.gather`). A mean over images needs nothing.
        """
        for module in self.modules():
            if hasattr(module, "shard"):
                module.shard = shard  # type: ignore[assignment]  # torch types every attribute of a module
        if shard.size > 1:
            share_batch_norm(self)

    def expect_images(self, num_unlabelled: int) -> None:
        """Make room for what is remembered of each unlabelled image; called once, before the first step."""

    def data_request(self) -> DataRequest:
        """The views this method wants."""
        raise NotImplementedError

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        """The loss of one batch, as named terms."""
        raise NotImplementedError

    def after_step(self, context: StepContext) -> None:
        """Called after each update; for teachers and averages."""

    def inference_model(self) -> nn.Module:
        """The module, images to logits, whose predictions count."""
        return self.model


def prediction_health(logits: Tensor, shard: Shard) -> Callable[[], dict[str, float]]:
    """The signs of health that every method has, from the clean predictions of its unlabelled images.

    `largest_class`: share of the predictions that fall into the most frequent class. Labelled images are left
    out where there are others: they are fitted even while all others collapse.
    """
    constant = logits.detach()
    return lambda: health_values(largest_class=largest_class_share(shard.gather(constant)))


def health_values(**signs: Tensor) -> dict[str, float]:
    """As plain numbers; rounding may have carried one past the end of its range."""
    return {name: sign.clamp(-1, 1).item() for name, sign in signs.items()}
