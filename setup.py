"""Builds the extension modules of :mod:`torchrl_vmfer.compiled`: one per instruction set.

They are optional. Without a C compiler, the package is installed without them and says so when it
is used: training then takes TorchRL's path.
"""

import os
import platform
import sys

from setuptools import Extension, setup

FOLDER = "torchrl_vmfer/compiled"
HEADERS = ["gemm.h", "sparse.h", "networks.h", "policies.h", "updates.h", "samplers.h", "module.h"]
OPTIONS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
OPTIONS += ["-Wall", "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-braces"]
X86 = {"avx2": "-march=x86-64-v3", "avx512": "-march=x86-64-v4"}


def extensions() -> list[Extension]:
    """The extension modules for this kind of processor."""
    if sys.platform == "win32":  # the sources are for GCC and Clang
        return []
    variants: dict[str, list[str]] = {"portable": []}  # for every processor: SSE2, or NEON on ARM
    if platform.machine().lower() in ("x86_64", "amd64"):
        variants |= {name: [option] for name, option in X86.items()}
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g"]
    extra = sanitize if os.environ.get("VMFER_SANITIZE") else []
    return [
        Extension(
            f"torchrl_vmfer.compiled._{name}",
            [f"{FOLDER}/{name}.c"],
            depends=[f"{FOLDER}/{header}" for header in HEADERS],
            extra_compile_args=[*OPTIONS, *options, *extra],
            extra_link_args=extra,
            libraries=["m"],
            optional=True,
        )
        for name, options in variants.items()
    ]


setup(ext_modules=extensions())
