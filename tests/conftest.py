"""Settings of all tests, and fixtures with one or several algorithms."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from torchrl_vmfer.compiled import extension
from torchrl_vmfer.samplers.ranks import compiled_functions

# Failed assertions in helpers show their values, as in tests.
pytest.register_assert_rewrite("helpers")

from helpers.losses import CQL, CROSSQ, ENSEMBLES, REDQ, SAC, TD3, TD3_BC, TQC, Algorithm  # noqa: E402

# The same examples in every run, independent of the load of the machine.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Tests run in several processes, whose threads would compete for the same cores.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the programs that tests start

# Some virtual machines announce AMX but do not permit it: PyTorch's products in half precision then
# end with an illegal instruction. oneDNN reads this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _fixture_of(algorithm: Algorithm) -> Any:
    return pytest.fixture(name=algorithm.name)(lambda: algorithm)


td3_fixture, sac_fixture, redq_fixture, crossq_fixture, tqc_fixture, td3_bc_fixture, cql_fixture = (
    map(_fixture_of, (TD3, SAC, REDQ, CROSSQ, TQC, TD3_BC, CQL))
)


@pytest.fixture(params=[TD3, SAC], ids=lambda algorithm: algorithm.name)
def algorithm(request) -> Algorithm:
    return request.param


@pytest.fixture(params=ENSEMBLES, ids=lambda algorithm: algorithm.name)
def ensemble(request) -> Algorithm:
    """The algorithms beyond TD3 and SAC, with five critics, which all form the TD target."""
    return request.param


@pytest.fixture(params=[TD3, SAC, *ENSEMBLES], ids=lambda algorithm: algorithm.name)
def any_algorithm(request) -> Algorithm:
    return request.param


_MODULES = extension.modules


@pytest.fixture
def use_kernels(monkeypatch):
    """A function that turns the compiled functions on or off."""

    def use(wanted):
        monkeypatch.setattr(extension, "modules", _MODULES if wanted else dict)
        compiled_functions.cache_clear()
        assert (compiled_functions() is not None) == wanted

    yield use
    compiled_functions.cache_clear()
