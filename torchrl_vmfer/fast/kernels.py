"""The functions of the C files of this folder, which ``setup.py`` compiles at installation.

There is one library for each instruction set. Without a C compiler, the fast path uses PyTorch's
matrix products.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kernels", "are_plain", "load_kernels", "pointers", "reload", "why_unavailable"]

_FOLDER = Path(__file__).parent
_SWITCH = "VMFER_KERNELS"


class Kernels:
    """The compiled functions. The C files document their arguments.

    Args:
        library: the compiled file.
    """

    def __init__(self, library: Path) -> None:
        compiled = ctypes.CDLL(str(library))
        p, n = ctypes.c_void_p, ctypes.c_long
        x, d = ctypes.c_float, ctypes.c_double
        # networks.c
        self.units_size = _declared(compiled.units_size, n, p, n)
        self.outputs = _declared(compiled.outputs, n, p, n, n, p, n, p, p, p, p)
        self.gradients = _declared(compiled.gradients, n, p, n, n, p, p, p, p, p, p, n, n)
        # policy.c
        self.act = _declared(compiled.act, n, p, p, p, p, p, d, d, d, d, p)
        # agreement.c
        self.agreement = _declared(compiled.agreement, n, n, n, p, p, p, p, p)
        self.follow_lowest = _declared(compiled.follow_lowest, n, n, n, p, p, p, p, p)
        # quantiles.c
        self.quantile_huber = _declared(compiled.quantile_huber, n, n, n, n, p, p, p, p, p)
        # factors.c
        self.accept_slots = _declared(compiled.accept_slots, n, p, n, p, d, n, p)
        self.store_factors = _declared(compiled.store_factors, n, p, p, d, d, n, p, p, n)
        # ranks.c
        self.ranks_fill = _declared(compiled.ranks_fill, p, n, p)
        self.ranks_update = _declared(compiled.ranks_update, p, n, p, p)
        self.ranks_draw = _declared(compiled.ranks_draw, p, n, p, p, p, p, p)
        self.ranks_at = _declared(compiled.ranks_at, n, p, p, n, n, d, p)
        # rows.c
        self.read_rows = _declared(compiled.read_rows, n, p, p, n, n, p, p)
        self.write_rows = _declared(compiled.write_rows, n, p, p, n, n, p, p)
        # squashed.c
        policy = (n, n, p, x, x, p, p, p)
        self.squashed_draw = _declared(compiled.squashed_draw, *policy)
        self.squashed_slopes = _declared(compiled.squashed_slopes, *policy, p, p, p, x, p, n, p, p)
        # td_loss.c
        self.td_loss = _declared(
            compiled.td_loss, n, n, p, n, p, p, p, p, x, n, p, n, p, p, p, p, p
        )


def _declared(function: Any, *arguments: Any) -> Callable[..., int]:
    function.argtypes, function.restype = arguments, ctypes.c_long
    return function


def pointers(tensors: Sequence[Tensor]) -> Any:
    """The addresses of tensors, as an argument of compiled functions."""
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def are_plain(*tensors: Tensor) -> bool:
    """Whether compiled functions support tensors: single precision, on the CPU, no gradient."""
    # The size stands for torch.float32: this file does not import torch.
    return all(
        tensor.is_cpu
        and tensor.is_floating_point()
        and tensor.dtype.itemsize == 4
        and not tensor.requires_grad
        for tensor in tensors
    )


def load_kernels() -> Kernels | None:
    """Returns the compiled functions, or ``None`` if they were not compiled."""
    return _load()[0]


def why_unavailable() -> str:
    """Why there are no compiled functions; empty if there are."""
    return _load()[1]


def reload() -> None:
    """Forgets the compiled functions, so that the next use finds them again."""
    _load.cache_clear()


@functools.cache
def _load() -> tuple[Kernels | None, str]:
    if os.environ.get(_SWITCH) == "0":
        return None, f"{_SWITCH}=0"
    files = [_FOLDER / f"_{name}{EXTENSION_SUFFIXES[0]}" for name in _instruction_sets()]
    built = [file for file in files if file.exists()]
    if not built:
        return None, "torchrl_vmfer was installed without a C compiler, or for another processor"
    return Kernels(built[0]), ""


def _instruction_sets() -> tuple[str, ...]:
    """The instruction sets of this processor for which there may be a library, the best first."""
    import torch  # only here: whoever imports this module may not need torch

    x86 = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}
    return x86.get(torch.backends.cpu.get_cpu_capability(), ("neon",))
