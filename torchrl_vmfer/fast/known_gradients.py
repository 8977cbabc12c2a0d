"""Losses whose gradients were found along with them, so that autograd need not be started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchrl_vmfer.fast.plain_network import PlainNetwork

__all__ = ["backward", "with_known_gradients"]


class _KnownGradients(torch.autograd.Function):
    """A loss whose gradients were found along with it."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        """Takes the gradients of the parameters."""
        ctx.gradients, ctx.parameters = gradients, parameters
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Hands them on, once."""
        if ctx.gradients is None:
            raise RuntimeError(
                "This loss has already gone through a backward pass: compute it anew, or use "
                "fast=False."
            )
        gradients, ctx.gradients = ctx.gradients, None  # a loss that is kept shall not keep them
        return None, None, *(gradient * known for known in gradients)


def with_known_gradients(
    loss: Tensor,
    network: PlainNetwork,
    pull_back: Callable[..., Sequence[Tensor]],
    *slopes: Tensor,
) -> Tensor:
    """A loss with given slopes at the outputs of a network, for whose parameters it is."""
    if not torch.is_grad_enabled():
        return loss
    slopes = tuple(slope.to(network.tensors[0].dtype) for slope in slopes)
    return _KnownGradients.apply(loss, pull_back(*slopes), *network.tensors)


def backward(loss: Tensor) -> None:
    """``loss.backward()``, in fewer steps for a loss of the fast path, and once only."""
    node: Any = loss.grad_fn
    if (
        getattr(node, "_forward_cls", None) is not _KnownGradients
        or node.gradients is None
        or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in node.parameters)
    ):
        loss.backward()
        return
    for parameter, gradient in zip(node.parameters, node.gradients, strict=True):
        if parameter.requires_grad:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    node.gradients = None  # they are the parameters' now
