"""SGD that turns convolutions: Muon (Jordan 2024), with weights that keep their length.

A step of SGD moves a weight mostly along the few directions in which the gradients of most images agree. Muon
gives all directions of the momentum the same size, which takes fewer steps to the same error.

Batch norm behind a convolution undoes the length of its weights, so only their direction matters (not in the
residual sums of `wide_resnet28_2`, whose branches keep the share they begin with). Here a step turns that
direction by an angle that is said, and leaves the length as it is. In the original a step is as long as U and
weights are brought back to their length by decay or, in small fast networks, after every step; the angle is
what comes of it, and smaller where the momentum has few directions.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.sgd import sgd

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of x ↦ a x + b x³ + c x⁵, which brings numbers from 0 to 1 near 1 (Jordan 2024)."""
_ITERATIONS = 4
"""Three to five are usual; a fifth changes little and costs as much as each of the others."""


def orthogonalised(matrix: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """U S' Vᵀ of a matrix U S Vᵀ, with S' about 1 wherever S is not small beside its own length.

    X ↦ (a + b XXᵀ + c (XXᵀ)²) X, a few times. All of it is a polynomial in the first XXᵀ, which for few
    rows is much smaller than X, so X itself is multiplied by it once, at the end.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    a, b, c = _NEWTON_SCHULZ
    gram = x @ x.T
    squared_length = gram.trace().clamp_min(torch.finfo(gram.dtype).tiny)
    gram = gram / squared_length
    product = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for iteration in range(_ITERATIONS):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        product = factor @ product if iteration else factor
        if iteration + 1 < _ITERATIONS:
            gram = factor @ gram @ factor
    result = (product @ x) * squared_length.rsqrt()
    return result.T if is_tall else result


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum, but for convolutions, which are turned.

    A convolution W with momentum M goes to W - η ‖W‖ U / ‖U‖, U being its orthogonalised direction of
    descent, shortened to the length it had: it turns by about the angle η = `turn` · rate, however long its
    gradients are. Weight decay is for the other weights.

    Args:
        parameters: Of a network; those with four dimensions are convolutions.
        turn: Angle in radians for a rate of 1.
        lr: Rate.
        momentum: Share of the sum of gradients that a step keeps.
        weight_decay: L2 penalty on all weights but convolutions.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        turn: float,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        settings = {"turn": turn, "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Turn the convolutions, and do with the others what SGD does."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if weight.ndim == 4:
                    self._turn(weight, weight.grad, group["lr"] * group["turn"], group["momentum"])
            self._descend([weight for weight in weights if weight.ndim != 4], group)

    def _descend(self, weights: list[nn.Parameter], group: dict[str, Any]) -> None:
        buffers = [self.state[weight].get("momentum_buffer") for weight in weights]
        sgd(
            weights,  # type: ignore[arg-type]
            [weight.grad for weight in weights if weight.grad is not None],
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=True,
            maximize=False,
        )
        for weight, buffer in zip(weights, buffers, strict=True):
            self.state[weight]["momentum_buffer"] = buffer

    def _turn(self, weight: Tensor, gradient: Tensor, angle: float, momentum: float) -> None:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        total = state["momentum_buffer"].mul_(momentum).add_(gradient)
        descent = gradient.add(total, alpha=momentum)
        # One row for each output; channels last, as the memory of both is.
        rows = orthogonalised(descent.permute(0, 2, 3, 1).flatten(1))
        outputs, inputs, height, width = weight.shape
        direction = rows.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        length = torch.linalg.vector_norm(weight)
        smallest = torch.finfo(weight.dtype).tiny  # a momentum of 0 turns nothing, and a weight of 0 stays
        weight.sub_(direction * (angle * length / torch.linalg.vector_norm(direction).clamp_min(smallest)))
        weight.mul_(length / torch.linalg.vector_norm(weight).clamp_min(smallest))
