"""The seam: every private name of torch, TorchRL and tensordict that the package relies on."""

from __future__ import annotations

from torch import Tensor


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether a backward pass through the tensor calls functions of the user."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
