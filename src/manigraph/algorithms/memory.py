"""Semi-Supervised Deep Learning with Memory, MA-DNN (Chen, Zhu, Gong 2018).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| k_c ← k_c - η Σ_i (k_c - f_i) / (1 + n_c), v_c likewise | `functional.updated_slots`, `nn.ClassMemory` |
| w_c = exp(-‖f - k_c‖) / Σ_k exp(-‖f - k_k‖) | `functional.class_address` |
| p̂ = Σ_c w_c v_c | `functional.memory_logits` |
| H(p̂), the model entropy | `functional.entropy` |
| max(p̂) KL(p ‖ p̂), the memory-prediction divergence | `functional.memory_divergence` |

The memory keeps for each class the place of its features (key) and what is predicted for it (value). The
labelled images of a step are written into it, then it is read for all images: a labelled one has the value of
its class, an unlabelled one those of the classes whose keys are near. Both terms are means over labelled and
unlabelled images. Gradient flows into the features that are looked up and into the network's prediction, none
into the memory. So the model entropy draws features towards one of the keys, and the divergence lets the
network say what the memory says, the more the surer that is.

Different from the authors' code: a class of which no image has been seen has no weight in w; there it has key
0 and a uniform value and draws images to it. There the distance is a sum of absolute differences and a value
is read by its column; here it is Euclidean, and p̂ a weighted mean. Their weight is 1 for the sum of both
terms; here each has its own. With `balance_memory` the memory's predictions of unlabelled images are balanced
before the network follows them; the values stay as they are. Entropy (of the network) and balance are not in
the paper. The one pass is clean and moves batch-norm running statistics.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import UnlabelledAlgorithm, UnlabelledConfig, ramp_up
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import entropy, memory_divergence
from manigraph.nn import ClassMemory
from manigraph.nn.backbones.base import Backbone


class MemorySSL(UnlabelledAlgorithm["MemorySSL.Config"]):
    """The network follows a memory of how the classes looked and were predicted."""

    @dataclass(frozen=True)
    class Config(UnlabelledConfig):
        """Settings of SSL with memory."""

        memory_entropy_weight: float = 1.0
        """Weight of the model entropy: of the memory's prediction."""
        memory_divergence_weight: float = 1.0
        """Weight of the divergence of the network's prediction from the memory's."""
        memory_rate: float = 0.5
        """η, how fast the memory follows the labelled images."""
        entropy_weight: float = 0.0
        """Weight of the entropy of the network's prediction; not in the paper."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 < self.memory_rate <= 1:
                raise ValueError(f"memory_rate must be above 0 and at most 1, got {self.memory_rate}")

    def __init__(self, config: "MemorySSL.Config", backbone: Backbone, num_classes: int) -> None:
        super().__init__(config, backbone, num_classes)
        self.memory = ClassMemory(num_classes, backbone.feature_size, config.memory_rate)

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        config, L = self.config, len(batch.labels)

        # The only pass: it is clean and moves batch-norm running statistics.
        features = self.model.features(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
        logits = self.model.linear(features)
        self.memory.update(features[:L], logits[:L], batch.labels)
        labelled_memory, unlabelled_memory = self.memory.of_classes(batch.labels), self.memory(features[L:])
        self.target_balance(unlabelled_memory)
        bias = self.target_balance.bias.to(unlabelled_memory.dtype, copy=True)

        ramp = ramp_up(context.progress, config.ramp_fraction)
        model_entropy = entropy(torch.cat([labelled_memory, unlabelled_memory]))
        divergence = memory_divergence(logits, torch.cat([labelled_memory, unlabelled_memory + bias]))
        return StepOutput(
            {
                "classification": F.cross_entropy(logits[:L], batch.labels),
                "memory_entropy": ramp * config.memory_entropy_weight * model_entropy,
                "memory_divergence": ramp * config.memory_divergence_weight * divergence,
                **self.extra_terms(logits[L:], context.progress),
            },
            prediction_health(logits[L:], self.shard),
        )
