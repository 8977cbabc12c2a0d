"""Stacks of linear layers, alone or side by side, as batched matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torchrl.modules import MLP, Actor, SafeModule, ValueOperator

__all__ = ["NotPlainError", "PlainNetwork"]

# Activations that treat every number alike, hence also those of several networks at once.
_ACTIVATIONS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Softplus),
    *(nn.Mish, nn.Identity),
)
# Containers that only pass tensors on.
_WRAPPERS = (TensorDictModule, SafeModule, Actor, ValueOperator)
# What a short cut would pass over.
_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


class NotPlainError(TypeError):
    """A network or a loss for which there is no fast path."""


class PlainNetwork:
    """A stack of linear layers and activations, or ``N`` such stacks side by side.

    Args:
        module: the module that says how layers follow each other.
        params: its parameters; with a leading dimension ``N`` for ``N`` stacks. They are
            referred to, not copied: optimizers may go on changing them in place.

    Raises:
        NotPlainError: if the module is anything else.
    """

    def __init__(self, module: nn.Module, params: TensorDictBase) -> None:
        self._steps = list(_steps(module, params, is_alone=not params.batch_size))

    def detached(self, count: int | None = None) -> PlainNetwork:
        """The first ``count`` stacks, without gradients for their parameters.

        It refers to the memory of the parameters: see :meth:`shares_memory`.
        """
        network = PlainNetwork.__new__(PlainNetwork)
        network._steps = [
            step
            if isinstance(step, nn.Module)
            else tuple(None if p is None else p.detach()[:count] for p in step)
            for step in self._steps
        ]
        return network

    def shares_memory(self, other: PlainNetwork) -> bool:
        """Whether the parameters of another network begin where those of this one do."""
        return all(
            isinstance(step, nn.Module) or step[0].data_ptr() == others[0].data_ptr()
            for step, others in zip(self._steps, other._steps, strict=True)
        )

    @cached_property
    def _parts(self) -> tuple[list[Tensor], list[Any]]:
        """Parameters of the leading layers with ReLU between them, and the steps that follow."""
        linear: list[Tensor] = []
        for position, step in enumerate(self._steps):
            if isinstance(step, tuple) and step[1] is not None and position % 2 == 0:
                linear += step
            elif not (type(step) is nn.ReLU and position % 2 == 1):
                break
        # What comes last is a layer: a ReLU behind it is one of the steps that follow.
        return linear, self._steps[max(0, len(linear) - 1) :]

    def __call__(self, inputs: Tensor) -> Any:
        """Applies one stack to ``[B, features]``, or ``N`` to ``[N, B, features]``."""
        layers, following = self._parts
        if layers and torch.is_grad_enabled():
            inputs = _ReLUStack.apply(inputs, *layers)
        elif layers:
            inputs = _hidden_units(inputs, layers)[-1]
        for step in following:
            inputs = step(inputs) if isinstance(step, nn.Module) else _linear(inputs, *step)
        return inputs

    def with_gradients(self, inputs: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The one output, and its gradient with respect to the last ``size`` inputs."""
        layers, following = self._parts
        if following:
            fixed, points = inputs.detach().split([inputs.shape[-1] - size, size], -1)
            points.requires_grad_()
            with torch.enable_grad():
                outputs = self(torch.cat([fixed, points], -1))
                (gradients,) = torch.autograd.grad(outputs.sum(), points)
            return outputs.detach(), gradients
        with torch.no_grad():
            *hidden, outputs = _hidden_units(inputs, layers)
            weights = layers[::2]
            *_, gradient = _gradients(torch.ones_like(outputs), hidden, weights)
            return outputs, gradient @ weights[0][..., -size:]


class _ReLUStack(torch.autograd.Function):
    """Linear layers with ReLU between them, whose backward pass makes no copies.

    In a pass of some milliseconds every copy of the hidden units is felt.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *params: Tensor) -> Tensor:
        """Takes the inputs, then weight and bias of each layer."""
        *hidden, outputs = _hidden_units(inputs, params)
        ctx.save_for_backward(*hidden, *params[::2])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of inputs, weights and biases, as far as they are asked for."""
        depth = len(ctx.saved_tensors) // 2
        hidden, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        found: list[Tensor | None] = [None] * (1 + 2 * depth)
        layers = reversed(range(depth))
        backwards = _gradients(gradient, hidden, weights)
        for layer, gradient in zip(layers, backwards, strict=True):
            if ctx.needs_input_grad[1 + 2 * layer]:
                found[1 + 2 * layer] = _weight_gradient(gradient, hidden[layer])
            if ctx.needs_input_grad[2 + 2 * layer]:
                found[2 + 2 * layer] = gradient.sum(-2)
        if ctx.needs_input_grad[0]:
            found[0] = gradient @ weights[0]
        return tuple(found)


def _hidden_units(inputs: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """The inputs, the units of each hidden layer, and the outputs."""
    units = [inputs]
    for position in range(0, len(params), 2):
        if position:
            units[-1].relu_()
        units.append(_linear(units[-1], params[position], params[position + 1]))
    return units


def _gradients(
    gradient: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]
) -> Iterator[Tensor]:
    """The gradients with respect to what each layer returns, from the last to the first."""
    yield gradient
    for layer in range(len(hidden) - 1, 0, -1):
        weight = weights[layer]
        # With one output, as critics have, a product of numbers.
        gradient = gradient * weight if weight.shape[-2] == 1 else gradient @ weight
        torch.ops.aten.threshold_backward.grad_input(
            gradient, hidden[layer], 0, grad_input=gradient
        )
        yield gradient


def _weight_gradient(gradient: Tensor, inputs: Tensor) -> Tensor:
    # With few inputs, twice as fast the other way round.
    if inputs.shape[-1] < 64:
        return (inputs.mT @ gradient).mT.contiguous()
    return gradient.mT @ inputs


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.ndim == 2:
        return functional.linear(inputs, weight, bias)
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)


def _steps(module: Any, params: TensorDictBase | None, is_alone: bool) -> Iterator[Any]:
    if any(getattr(module, f"_{kind}_hooks") for kind in _HOOKS):
        raise NotPlainError(f"{type(module).__name__} has hooks.")
    if type(module) in _WRAPPERS:
        yield from _steps(module.module, _child(params, "module"), is_alone)
    elif type(module) in (nn.Sequential, MLP):
        # Not `named_children`, which passes over a module that comes a second time.
        for name, child in module._modules.items():
            yield from _steps(child, _child(params, name), is_alone)
    elif type(module) is nn.Linear and params is not None:
        yield params.get("weight"), params.get("bias", None)
    elif type(module) in _ACTIVATIONS or (is_alone and not _is_stateful(module)):
        yield module
    else:
        raise NotPlainError(f"{type(module).__name__} is not a plain layer.")


def _is_stateful(module: nn.Module) -> bool:
    return any(True for part in module.modules() for _ in (*part._parameters, *part._buffers))


def _child(params: TensorDictBase | None, name: str) -> TensorDictBase | None:
    return None if params is None else params.get(name, None)
