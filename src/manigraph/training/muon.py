"""SGD that turns convolutions: Muon (Jordan 2024), with weights that keep their length.

A step of SGD moves a weight mostly along the few directions in which the gradients of most images agree. Muon
gives all directions of the momentum the same size, which takes fewer steps to the same error.

Batch norm behind a convolution undoes the length of its weights, so only their direction matters. Here a step
turns that direction by an angle that is said, and leaves the length as it is; the original divides weights by
their length now and then, or uses weight decay, and the angle is what comes of it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of x ↦ a x + b x³ + c x⁵, which brings numbers from 0 to 1 near 1 (Jordan 2024)."""
_ITERATIONS = 4


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


class Muon(torch.optim.SGD):
    """SGD with Nesterov momentum, but for convolutions, which are turned.

    A convolution W with momentum M goes to W - η ‖W‖ U / ‖U‖, U being its orthogonalised direction of
    descent, shortened to the length it had: it turns by about the angle η = `turn` · rate. Weight decay is
    for the other weights.

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
        super().__init__(parameters, lr=lr, momentum=momentum, nesterov=True, weight_decay=weight_decay)
        self.turn = turn

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Turn the convolutions, and do with the others what SGD does."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        turned: list[tuple[nn.Parameter, Tensor]] = []
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.ndim == 4 and weight.grad is not None:
                    self._turn(weight, weight.grad, group["lr"] * self.turn, group["momentum"])
                    turned.append((weight, weight.grad))
                    weight.grad = None  # SGD leaves it alone
        super().step()
        for weight, gradient in turned:
            weight.grad = gradient

    def _turn(self, weight: Tensor, gradient: Tensor, angle: float, momentum: float) -> None:
        state = self.state[weight]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(weight)
        total = state["momentum_buffer"].mul_(momentum).add_(gradient)
        descent = gradient.add(total, alpha=momentum)
        # One row for each output; channels last, as the memory of both is.
        rows = orthogonalised(descent.permute(0, 2, 3, 1).flatten(1))
        outputs, inputs, height, width = weight.shape
        direction = rows.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        length = torch.linalg.vector_norm(weight)
        smallest = torch.finfo(weight.dtype).tiny  # a gradient of 0 turns nothing
        weight.sub_(direction * (angle * length / torch.linalg.vector_norm(direction).clamp_min(smallest)))
        weight.mul_(length / torch.linalg.vector_norm(weight).clamp_min(smallest))
