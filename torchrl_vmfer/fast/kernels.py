"""The functions of the C files of this folder, compiled on first use.

The compiled library is cached for each processor and compiler. Without a C compiler, the fast path
uses PyTorch's matrix products.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kernels", "are_plain", "load_kernels", "pointers", "reload", "why_unavailable"]

_SOURCES = [
    Path(__file__).with_name(f"{name}.c")
    for name in (
        *("networks", "squashed", "td_loss", "quantiles", "agreement"),
        *("policy", "factors", "ranks", "rows"),
    )
]
_OPTIONS = ("-std=gnu11", "-O3", "-fPIC", "-shared")
_NATIVE = ("-march=native", "-mcpu=native")  # of x86 and of ARM; a compiler may reject one of them
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
    """Returns the compiled functions, or ``None`` where they cannot be compiled."""
    return _load()[0]


def why_unavailable() -> str:
    """Why there are no compiled functions; empty if there are."""
    return _load()[1]


def reload() -> None:
    """Forgets the compiled functions, so that the next use compiles or finds them again."""
    _load.cache_clear()


@functools.cache
def _load() -> tuple[Kernels | None, str]:
    if os.environ.get(_SWITCH) == "0":
        return None, f"{_SWITCH}=0"
    name = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if name is None:
        return None, "no C compiler was found"
    try:
        # CC may have arguments: "gcc -m64".
        return _compiled([name] if shutil.which(name) else shlex.split(name)), ""
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        return None, f"{name} failed ({lines[0].strip() if lines else error})"
    except (OSError, ValueError) as error:  # ValueError: unclosed quotes in CC
        return None, f"{name} or its output could not be used ({error})"


def _compiled(compiler: list[str]) -> Kernels:
    """The compiled functions, from the cache if they are there."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    sources = [source.read_text() for source in _SOURCES]
    identity = (*sources, version, *compiler[1:], *_OPTIONS, *_processor())
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    name, cache = f"kernels-{digest}.so", _cache_directory()
    if cache is not None and (cache / name).exists():
        return Kernels(cache / name)
    can_write = cache is not None and os.access(cache, os.W_OK)
    # Several processes may compile at the same time. A loaded library can be deleted.
    with tempfile.TemporaryDirectory(dir=cache if can_write else None) as folder:
        library = Path(folder) / name
        _compile(compiler, str(library))
        kernels = Kernels(library)
        if cache is not None and can_write:
            library.replace(cache / name)
    return kernels


def _compile(compiler: list[str], output: str) -> None:
    for position, native in enumerate(_NATIVE):
        command = [*compiler, *_OPTIONS, native, *map(str, _SOURCES), "-lm", "-o", output]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
            return
        except subprocess.CalledProcessError:
            if position == len(_NATIVE) - 1:
                raise


def _processor() -> list[str]:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = ("model name", "flags", "Features")
    found = {line for line in lines if line.split("\t")[0].strip() in names}
    return [platform.machine(), platform.processor(), *sorted(found)]


def _cache_directory() -> Path | None:
    """The folder of compiled libraries, or ``None`` if it could not be created."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(base) / "torchrl_vmfer"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return directory
