"""Compiles the C files of :mod:`torchrl_vmfer.fast`: one library for each instruction set.

They are optional. Without a C compiler, the package is installed without them, and the recipes say
so when they start.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(str(file) for file in Path("torchrl_vmfer/fast").glob("*.c"))
X86 = {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4"]}


def libraries() -> list[Extension]:
    """The libraries for this kind of processor."""
    if sys.platform == "win32":  # the sources are for GCC and Clang
        return []
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    variants: dict[str, list[str]] = X86 if is_x86 else {"neon": []}
    return [
        Extension(
            f"torchrl_vmfer.fast._{name}",
            SOURCES,
            extra_compile_args=["-std=gnu11", "-O3", *options],
            libraries=["m"],
            optional=True,
        )
        for name, options in variants.items()
    ]


setup(ext_modules=libraries())
