"""Linear layers with ReLU between them, computed by compiled functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrl_vmfer.fast.kernels import Kernels, load_kernels, pointers
from torchrl_vmfer.fast.linear_stack import LinearStack
from torchrl_vmfer.fast.memory import empty_tensors
from torchrl_vmfer.networks import LocAndScale

__all__ = ["CompiledStack", "make_stack"]


_MIN_ROWS = 16  # the kernels pad batches to panels of 16 or 32 rows
_SINGLE = torch.float32
_LIMIT = 1.0 - torch.finfo(torch.float32).resolution  # of actions, as in networks.drawn_action


class CompiledStack(LinearStack):
    """A :class:`LinearStack` that calls the functions of ``networks.c``.

    It uses PyTorch's matrix products for fewer than 16 rows, if PyTorch has several threads, if a
    tensor is not in single precision on the CPU, or if autograd records the computation.

    Args:
        params: as in :class:`LinearStack`, for at least one layer.
        kernels: the compiled functions.

    Attributes:
        num_outputs: the number of outputs of a network.
    """

    def __init__(self, params: Sequence[Tensor], kernels: Kernels) -> None:
        super().__init__(params)
        self._kernels = kernels
        self._weights, self._biases = params[::2], params[1::2]
        weights = self._weights
        self._is_ensemble = weights[0].ndim == 3
        self._count = len(weights[0]) if self._is_ensemble else 1
        self._num_layers = len(weights)
        self._features, self.num_outputs = weights[0].shape[-1], weights[-1].shape[-2]
        sizes = [self._features, *(weight.shape[-2] for weight in weights)]
        self._sizes = (ctypes.c_long * len(sizes))(*sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_stack, (self._params,)  # compiled functions cannot be copied

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs for ``[*, B, features]``, or ``[N, B, features]`` for an ensemble."""
        if not self._can_compute(inputs):
            return super().__call__(inputs)
        return self._outputs(inputs, None)

    def with_units(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """The outputs, and what :meth:`parameter_gradients` requires."""
        if not self._can_compute(inputs):
            return super().with_units(inputs)
        size = self._kernels.units_size(self._num_layers, self._sizes, self._num_rows(inputs))
        (units,) = empty_tensors([self._count * size])
        return self._outputs(inputs, units), units

    def parameter_gradients(self, slope: Tensor, units: Any) -> list[Tensor]:
        """The gradients of all weights and biases, given the gradient of the outputs."""
        if not isinstance(units, Tensor):  # from PyTorch's matrix products
            return super().parameter_gradients(slope, units)
        found = empty_tensors(*(tensor.shape for tensor in self._params))
        self._gradients(slope, units, pointers(found[::2]), pointers(found[1::2]))
        return found

    def with_gradients(self, inputs: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
        """The outputs, and the gradient of their mean with respect to some columns of inputs."""
        if not self._can_compute(inputs):
            return super().with_gradients(inputs, columns)
        outputs, units = self.with_units(inputs)
        first, end, _ = columns.indices(self._features)
        found = outputs.new_empty(*outputs.shape[:-1], end - first)
        slope = torch.full_like(outputs, 1 / self.num_outputs)
        self._gradients(slope, units, None, None, found, first, end - first)
        return outputs, found

    def can_act(self, observation: Tensor) -> bool:
        """Whether :meth:`act` can be used."""
        return observation.ndim == 1 and self._can_compute(observation, 1)

    def act(self, observation: Tensor, noise: Tensor | None, deviation: float = -1.0) -> Tensor:
        """The action of a policy for one observation.

        Args:
            observation: the inputs ``[features]``.
            noise: standard normal numbers; ``None`` for none.
            deviation: the standard deviation of the noise on the action of a deterministic policy,
                the tanh of the outputs. Negative for a Gaussian policy, as
                :class:`~torchrl_vmfer.networks.LocAndScale` defines it.
        """
        is_gaussian = deviation < 0
        observation = observation.contiguous()
        action = observation.new_empty(self.num_outputs // 2 if is_gaussian else self.num_outputs)
        has_memory = self._kernels.act(
            self._num_layers,
            self._sizes,
            observation.data_ptr(),
            pointers(self._weights),
            pointers(self._biases),
            None if noise is None else noise.data_ptr(),
            deviation,
            _LIMIT if is_gaussian else 1.0,
            *LocAndScale.bounds,
            action.data_ptr(),
        )
        _check_memory(has_memory)
        return action

    def _can_compute(self, inputs: Tensor, min_rows: int = _MIN_ROWS) -> bool:
        return (
            inputs.shape[-1] == self._features
            and (not self._is_ensemble or (inputs.ndim == 3 and len(inputs) == self._count))
            and self._num_rows(inputs) >= min_rows
            and torch.get_num_threads() == 1
            and inputs.is_cpu
            and inputs.dtype is _SINGLE
            and self._has_plain_params()
            and not (torch.is_grad_enabled() and self._records_gradients(inputs))
        )

    def _records_gradients(self, inputs: Tensor) -> bool:
        return inputs.requires_grad or any(tensor.requires_grad for tensor in self._params)

    def _has_plain_params(self) -> bool:
        # At each call, because the memory of a parameter may be replaced.
        for tensor in self._params:
            if not (tensor.is_cpu and tensor.dtype is _SINGLE and tensor.is_contiguous()):
                return False
        return True

    def _num_rows(self, inputs: Tensor) -> int:
        """The number of rows that each network reads."""
        return inputs.shape[-2] if self._is_ensemble else inputs.numel() // self._features

    def _outputs(self, inputs: Tensor, units: Tensor | None) -> Tensor:
        rows, stride = self._num_rows(inputs), 0
        outputs = inputs.new_empty(*inputs.shape[:-1], self.num_outputs)
        if self._is_ensemble and inputs.stride(0) == 0:
            inputs = inputs[0]  # all networks read the same inputs
        else:
            stride = rows * self._features
        inputs = inputs.contiguous()
        has_memory = self._kernels.outputs(
            self._num_layers,
            self._sizes,
            self._count,
            rows,
            inputs.data_ptr(),
            stride,
            pointers(self._weights),  # now: the memory of a tensor may have been replaced
            pointers(self._biases),
            outputs.data_ptr(),
            None if units is None else units.data_ptr(),
        )
        _check_memory(has_memory)
        return outputs

    def _gradients(
        self,
        slope: Tensor,
        units: Tensor,
        weights: Any,
        biases: Any,
        of_inputs: Tensor | None = None,
        first: int = 0,
        count: int = 0,
    ) -> None:
        slope = slope.contiguous()
        has_memory = self._kernels.gradients(
            self._num_layers,
            self._sizes,
            self._count,
            slope.numel() // (self._count * self.num_outputs),
            pointers(self._weights),
            units.data_ptr(),
            slope.data_ptr(),
            weights,
            biases,
            None if of_inputs is None else of_inputs.data_ptr(),
            first,
            count,
        )
        _check_memory(has_memory)


def make_stack(params: Sequence[Tensor]) -> LinearStack:
    """Makes a stack that uses compiled functions where they are available."""
    kernels = load_kernels()
    return LinearStack(params) if kernels is None or not params else CompiledStack(params, kernels)


def _check_memory(has_memory: int) -> None:
    if not has_memory:
        raise MemoryError("There is not enough memory for the hidden units of a batch.")
