"""Fixtures of the tests of compiled updates."""

import pytest
import torch

from torchrl_vmfer.compiled.extension import modules


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["avx512", "avx2", "portable"])
def module(request):
    """Each extension module that this processor can run."""
    if request.param not in modules():
        pytest.skip(f"no module for {request.param}")
    return modules()[request.param]
