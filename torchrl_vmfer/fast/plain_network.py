"""Stacks of linear layers, single or as an ensemble, as batched matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.modules import (
    MLP,
    Actor,
    BatchRenorm1d,
    SafeModule,
    SafeSequential,
    TanhModule,
    ValueOperator,
)

from torchrl_vmfer._torchrl import has_module_hooks
from torchrl_vmfer.batch_renorm import BatchRenorm
from torchrl_vmfer.fast.compiled_stack import make_stack
from torchrl_vmfer.fast.linear_stack import LinearStack, linear
from torchrl_vmfer.networks import LocAndScale

__all__ = ["NotPlainError", "PlainNetwork", "slope_of_loc_and_scale"]

# Elementwise activations, which therefore also apply to an ensemble.
_ACTIVATIONS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Softplus),
    *(nn.Mish, nn.Identity),
)
# Layers that normalize with running statistics in evaluation mode.
_NORMALIZATIONS = (nn.BatchNorm1d, BatchRenorm1d, BatchRenorm)
# Containers that only forward tensors.
_WRAPPERS = (TensorDictModule, SafeModule, Actor, ValueOperator)
_ALL = slice(None)


class NotPlainError(TypeError):
    """Raised for a network, an option or a batch that has no fast path."""


class Squash(nn.Module):
    """A tanh scaled to two bounds, as in TorchRL's ``TanhModule``."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.low, self.high = low, high

    def stretch(self, squashed: Tensor) -> Tensor:
        """Scales [-1, 1] to the bounds."""
        return self.low + (self.high - self.low) * (squashed + 1) / 2

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes the tanh, scaled to the bounds."""
        return self.stretch(inputs.tanh())


class Linear(NamedTuple):
    """The parameters of a linear layer, with a leading dimension for an ensemble."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Applies the layer."""
        return linear(inputs, self.weight, self.bias)


class Normalization(NamedTuple):
    """The tensors of a normalization layer, with a leading dimension for an ensemble."""

    eps: float
    mean: Tensor
    variance: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Normalizes with the running statistics."""
        scale = self.weight / (self.variance + self.eps).sqrt()
        centered = inputs - self.mean.unsqueeze(-2)
        return torch.addcmul(self.bias.unsqueeze(-2), centered, scale.unsqueeze(-2))


class PlainNetwork:
    """A stack of linear layers and activations, or an ensemble of ``N`` such stacks.

    Args:
        module: the module that defines the order of the layers.
        params: its parameters, with a leading dimension ``N`` for an ensemble. They are not
            copied: optimizers may change them in place.
        last: a module without parameters that is applied after the stack.
        in_eval_mode: whether the stack may also have batch normalization, in evaluation mode.

    Raises:
        NotPlainError: if the module is not such a stack.
    """

    def __init__(
        self,
        module: nn.Module,
        params: TensorDictBase,
        last: nn.Module | None = None,
        in_eval_mode: bool = False,
    ) -> None:
        is_alone = not params.batch_size
        self._steps = list(_steps(module, params, is_alone, in_eval_mode))
        self._steps += [] if last is None else [last]
        if self._steps and getattr(self._steps[0], "inplace", False):
            raise NotPlainError("the network begins by changing its inputs in place")

    def detached(self, chosen: slice | Tensor = _ALL) -> PlainNetwork:
        """Some of the stacks, by default all of them, with detached parameters.

        The parameters of a slice share memory with the original ones: see :meth:`shares_memory`.
        """
        network = PlainNetwork.__new__(PlainNetwork)
        network._steps = [
            step
            if isinstance(step, nn.Module)
            else type(step)(*(p.detach()[chosen] if isinstance(p, Tensor) else p for p in step))
            for step in self._steps
        ]
        return network

    @property
    def last(self) -> Any:
        """The last layer or activation; ``None`` if there is none."""
        return self._steps[-1] if self._steps else None

    def without_last(self) -> PlainNetwork:
        """The network without its last layer or activation."""
        network = PlainNetwork.__new__(PlainNetwork)
        network._steps = self._steps[:-1]
        return network

    @property
    def size(self) -> int:
        """The number of stacks of an ensemble."""
        return len(self.tensors[0])

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All weights, biases and running statistics."""
        layers = (step for step in self._steps if isinstance(step, tuple))
        return [tensor for layer in layers for tensor in layer if isinstance(tensor, Tensor)]

    def parameters(self) -> Iterator[Tensor]:
        """Iterates over :attr:`tensors`."""
        return iter(self.tensors)

    def shares_memory(self, other: PlainNetwork) -> bool:
        """Whether the parameters of another network start at the same memory addresses."""
        return [t.data_ptr() for t in self.tensors] == other._addresses

    @cached_property
    def _addresses(self) -> list[int]:
        """The memory addresses of the detached tensors, which never change."""
        return [tensor.data_ptr() for tensor in self.tensors]

    @cached_property
    def _parts(self) -> tuple[list[Tensor], list[Any]]:
        """The parameters of the leading linear layers with ReLU, and the remaining steps."""
        linear_params: list[Tensor] = []
        for position, step in enumerate(self._steps):
            if isinstance(step, Linear) and step.bias is not None and position % 2 == 0:
                linear_params += [step.weight, step.bias]
            elif not (type(step) is nn.ReLU and position % 2 == 1):
                break
        # The last item is a linear layer: a ReLU after it belongs to the remaining steps.
        return linear_params, self._steps[max(0, len(linear_params) - 1) :]

    @cached_property
    def linear_stack(self) -> LinearStack:
        """The leading linear layers with ReLU."""
        return make_stack(self._parts[0])

    @property
    def following(self) -> list[Any]:
        """The steps after :attr:`linear_stack`."""
        return self._parts[1]

    def __call__(self, inputs: Tensor) -> Any:
        """Applies one stack to ``[B, features]``, or ``N`` stacks to ``[N, B, features]``."""
        return _applied(self._parts[1], self.linear_stack(inputs))

    def with_pull_back(self, inputs: Tensor) -> tuple[Any, Callable[..., Sequence[Tensor]]]:
        """The outputs, and a function from their gradients to those of :attr:`tensors`.

        Requires a detached network. An update takes only a few milliseconds, so the overhead of
        autograd and of copies of the hidden units is noticeable.
        """
        layers, following = self._parts
        if not layers or any(isinstance(step, tuple) for step in following):
            network = self.detached()
            for tensor in network.tensors:
                tensor.requires_grad_()
            outputs = network(inputs)
            return _detached(outputs), lambda *g: torch.autograd.grad(outputs, network.tensors, g)
        stack = self.linear_stack
        last, units = stack.with_units(inputs)
        outputs, slope = _with_slope(following, last)
        return outputs, lambda *g: stack.parameter_gradients(slope(*g), units)

    def with_gradients(self, inputs: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
        """The outputs, and the gradient of their mean with respect to some columns of the inputs.

        Requires a detached network.
        """
        if self._parts[1]:
            return self._with_gradients_by_autograd(inputs, columns)
        return self.linear_stack.with_gradients(inputs, columns)

    def _with_gradients_by_autograd(self, inputs: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
        # In inference mode, autograd requires copies of the tensors.
        with torch.inference_mode(False), torch.enable_grad():
            inputs = inputs.clone() if inputs.is_inference() else inputs.detach()
            before, after, _ = columns.indices(inputs.shape[-1])
            points = inputs[..., columns].requires_grad_()
            outputs = self(torch.cat([inputs[..., :before], points, inputs[..., after:]], -1))
            (gradients,) = torch.autograd.grad(outputs.mean(-1).sum(), points)
        return outputs.detach(), gradients


def _applied(steps: Sequence[Any], inputs: Any) -> Any:
    for step in steps:
        inputs = step(inputs)
    return inputs


def _with_slope(steps: Sequence[nn.Module], inputs: Tensor) -> tuple[Any, Callable[..., Tensor]]:
    """The outputs of the steps, and a function from their gradients to those of the inputs."""
    if not steps:
        return inputs, lambda gradient: gradient
    first = steps[0]
    if len(steps) == 1 and isinstance(first, (nn.Tanh, Squash)):
        squashed = inputs.tanh()
        if isinstance(first, nn.Tanh):
            return squashed, lambda gradient: torch.ops.aten.tanh_backward(gradient, squashed)
        slope = (first.high - first.low) / 2
        return first.stretch(squashed), lambda gradient: torch.ops.aten.tanh_backward(
            gradient * slope, squashed
        )
    if len(steps) == 1 and type(first) is LocAndScale:
        loc, scale = first(inputs)
        return (loc, scale), partial(slope_of_loc_and_scale, inputs, scale)
    # A copy, because steps may change it in place.
    outputs = _applied(steps, inputs.requires_grad_().clone())
    return _detached(outputs), lambda *g: torch.autograd.grad(outputs, inputs, g)[0]


def slope_of_loc_and_scale(
    inputs: Tensor, scale: Tensor, of_loc: Tensor, of_scale: Tensor
) -> Tensor:
    """The gradient of the inputs of a ``LocAndScale``, given those of its outputs."""
    log_scale = inputs.chunk(2, dim=-1)[1]
    low, high = LocAndScale.bounds
    is_free = (log_scale > low) & (log_scale < high)
    return torch.cat([of_loc, of_scale * scale * is_free], -1)


def _detached(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.detach()
    return tuple(output.detach() for output in outputs)


def _steps(
    module: Any, params: TensorDictBase | None, is_alone: bool, in_eval_mode: bool
) -> Iterator[Any]:
    options = (is_alone, in_eval_mode)
    if has_module_hooks(module):
        raise NotPlainError(f"{type(module).__name__} has hooks")
    if type(module) in _WRAPPERS:
        yield from _steps(module.module, _child(params, "module"), *options)
    elif type(module) in (nn.Sequential, MLP):
        for name, child in _children(module):
            yield from _steps(child, _child(params, name), *options)
    elif type(module) in (TensorDictSequential, SafeSequential):
        parts: list[tuple[str, Any]] = list(_children(module.module))
        keys: list[Any] = [(list(part.in_keys), list(part.out_keys)) for _, part in parts]
        for (_, written), (read, _) in pairwise(keys):
            if len(written) != 1 or written != read:
                raise NotPlainError("the modules of the policy are not a chain")
        for name, part in parts:
            yield from _steps(part, _child(_child(params, "module"), name), *options)
    elif type(module) is TanhModule and params is not None and is_alone:
        if module.clamp or len(module.out_keys) != 1:
            raise NotPlainError("the TanhModule clamps, or has several outputs")
        (key,) = module.out_keys
        name = key if isinstance(key, str) else "_".join(key)
        yield Squash(params.get(f"{name}_low"), params.get(f"{name}_high"))
    elif type(module) is nn.Linear and params is not None:
        yield Linear(params.get("weight"), params.get("bias", None))
    elif type(module) in _NORMALIZATIONS and params is not None and in_eval_mode:
        names = ("running_mean", "running_var", "weight", "bias")
        tensors = [params.get(name, None) for name in names]
        if any(tensor is None for tensor in tensors):
            raise NotPlainError(f"{type(module).__name__} has no running statistics or weights")
        yield Normalization(module.eps, *tensors)
    elif type(module) in _ACTIVATIONS or (is_alone and not _is_stateful(module)):
        yield module
    else:
        raise NotPlainError(f"{type(module).__name__} is not a plain layer")


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Like ``named_children``, but also yields modules that occur more than once."""
    for name, part in module.named_modules(remove_duplicate=False):
        if name and "." not in name:
            yield name, part


def _is_stateful(module: nn.Module) -> bool:
    return any(True for _ in chain(module.parameters(), module.buffers()))


def _child(params: TensorDictBase | None, name: str) -> TensorDictBase | None:
    return None if params is None else params.get(name, None)
