"""Fixtures of the tests of the fast path."""

from contextlib import contextmanager

import pytest
import torch


@pytest.fixture(params=["double precision", "another device"])
def other_defaults(request):
    """A context in which new tensors have another precision, or another device."""

    @contextmanager
    def context():
        if request.param == "another device":
            with torch.device("meta"):
                yield
            return
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    return context
