"""Fixture that runs a test with every sampler."""

import pytest

from helpers.sampler_buffers import MAKERS


@pytest.fixture(params=MAKERS)
def make_sampler(request):
    return MAKERS[request.param]
