"""Losses with precomputed gradients, which need no autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchrl_vmfer._torchrl import has_tensor_hooks
from torchrl_vmfer.fast.plain_network import PlainNetwork

__all__ = ["backward", "with_known_gradients"]


class _KnownGradients(torch.autograd.Function):
    """A loss with precomputed gradients."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        """Stores the gradients of the parameters."""
        ctx.known_gradients, ctx.parameters = gradients, parameters
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the stored gradients. Can be called only once."""
        if ctx.known_gradients is None:
            raise RuntimeError(
                "This loss has already gone through a backward pass: compute it again, or use "
                "fast=False."
            )
        # A reference to the loss must not keep the gradients in memory.
        gradients, ctx.known_gradients = ctx.known_gradients, None
        return None, None, *(gradient * known for known in gradients)


def with_known_gradients(
    loss: Tensor,
    network: PlainNetwork,
    pull_back: Callable[..., Sequence[Tensor]],
    *slopes: Tensor,
) -> Tensor:
    """Attaches parameter gradients to a loss, given its gradients at the network outputs."""
    if not torch.is_grad_enabled():
        return loss
    parameters = network.tensors
    slopes = tuple(slope.to(parameters[0].dtype) for slope in slopes)
    gradients = [
        _in_layout_of(parameter, gradient)
        for parameter, gradient in zip(parameters, pull_back(*slopes), strict=True)
    ]
    return _KnownGradients.apply(loss, gradients, *parameters)


def _in_layout_of(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the parameter's strides.

    Fused optimizers read the memory of parameter and gradient in the same order. Autograd ensures
    that the layouts agree, but :func:`backward` bypasses autograd.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def backward(loss: Tensor) -> None:
    """Calls ``loss.backward()``, or assigns precomputed gradients directly. Works only once."""
    node: Any = loss.grad_fn
    gradients = getattr(node, "known_gradients", None)
    if (
        gradients is None
        or loss.retains_grad
        or has_tensor_hooks(loss)
        or any(has_tensor_hooks(parameter) for parameter in node.parameters)
    ):
        loss.backward()
        return
    for parameter, gradient in zip(node.parameters, gradients, strict=True):
        if parameter.requires_grad:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    node.known_gradients = None  # they belong to the parameters now
