"""Linear layers with ReLU between them, single or as an ensemble: outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["LinearStack", "linear"]


class LinearStack:
    """Linear layers with ReLU between them, computed by PyTorch's matrix products.

    Args:
        params: the weight and the bias of each layer, with a leading dimension ``N`` for an
            ensemble. They are not copied.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs for ``[*, B, features]``, or ``[N, B, features]`` for an ensemble."""
        return self._all_units(inputs)[-1]

    def with_units(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """The outputs, and what :meth:`parameter_gradients` requires."""
        *units, outputs = self._all_units(inputs)
        return outputs, units

    def parameter_gradients(self, slope: Tensor, units: Any) -> list[Tensor]:
        """The gradients of all weights and biases, given the gradient of the outputs."""
        found: list[Tensor] = []
        for inputs, gradient in zip(reversed(units), self._slopes(slope, units), strict=True):
            found += [gradient.sum(-2), _weight_gradient(gradient, inputs)]
        return found[::-1]

    def with_gradients(self, inputs: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
        """The outputs, and the gradient of their mean with respect to some columns of inputs."""
        outputs, units = self.with_units(inputs)
        # One gradient for the whole batch, until the hidden units make its rows differ.
        of_outputs = torch.full_like(outputs[..., :1, :], 1 / outputs.shape[-1])
        *_, gradient = self._slopes(of_outputs, units)
        # Products with few columns are faster if each column is contiguous.
        gradient = gradient @ self._params[0][..., columns].mT.contiguous().mT
        return outputs, gradient.expand(*outputs.shape[:-1], gradient.shape[-1])

    def _all_units(self, inputs: Tensor) -> list[Tensor]:
        """The inputs, the units of each hidden layer, and the outputs."""
        units = [inputs]
        for position in range(0, len(self._params), 2):
            if position:
                units[-1].relu_()
            units.append(linear(units[-1], *self._params[position : position + 2]))
        return units

    def _slopes(self, gradient: Tensor, hidden: Sequence[Tensor]) -> Iterator[Tensor]:
        """The gradients with respect to the output of each layer, from last to first."""
        yield gradient
        for layer in range(len(hidden) - 1, 0, -1):
            weight = self._params[2 * layer]
            # With a single output, as in critics, an elementwise product suffices.
            gradient = gradient * weight if weight.shape[-2] == 1 else gradient @ weight
            units = hidden[layer]
            if gradient.shape == units.shape:
                torch.ops.aten.threshold_backward.grad_input(
                    gradient, units, 0, grad_input=gradient
                )
            else:
                gradient = torch.ops.aten.threshold_backward(gradient.expand_as(units), units, 0)
            yield gradient


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Applies a linear layer, or one for each network of an ensemble."""
    if weight.ndim == 2:
        return functional.linear(inputs, weight, bias)
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)


def _weight_gradient(gradient: Tensor, inputs: Tensor) -> Tensor:
    # With few inputs, the transposed product is twice as fast.
    if inputs.shape[-1] < 64:
        return (inputs.mT @ gradient).mT.contiguous()
    return gradient.mT @ inputs
