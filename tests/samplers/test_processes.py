"""Copies of a buffer, pickled and in a spawned process."""

import numpy as np
import pytest
import torch

from helpers.sampler_buffers import (
    MAKERS,
    exact_probabilities,
    filled_buffer,
)

CHILD = """
import torch
from tensordict import TensorDict

reports = {}
for case, buffer in buffers.items():
    probabilities = buffer.sampler.probabilities().tolist()
    batch = buffer.sample()
    written = buffer.extend(TensorDict({"row": torch.arange(100, 103)}, [3]))
    reports[case] = probabilities, batch["row"].tolist(), batch["index"].tolist(), written.tolist()
queue.put(reports)
"""


@pytest.fixture(scope="module")
def spawned():
    """Buffers of 10 slots after a spawned process has sampled them and written 3 rows."""
    buffers = {}
    for name, make in MAKERS.items():
        for count in (9, 10):
            buffer = filled_buffer(make(), count, batch_size=64).share()
            buffer.update_priority(torch.arange(count), torch.linspace(2.5, 1.1, count))
            buffer.sample()
            buffers[name, count] = buffer
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    # The target is a builtin, so that the child does not import this module.
    worker = context.Process(
        target=exec, args=(CHILD, {"buffers": buffers, "queue": queue}), daemon=True
    )
    worker.start()
    reports = queue.get(timeout=60)
    worker.join()
    return {case: (buffer, *reports[case]) for case, buffer in buffers.items()}


@pytest.mark.parametrize("count", [9, 10])
@pytest.mark.parametrize("name", MAKERS)
def test_a_spawned_worker_draws_from_the_same_probabilities(spawned, name, count):
    buffer, probabilities, row, index, _ = spawned[name, count]
    expected = exact_probabilities(buffer.sampler, np.linspace(2.5, 1.1, count))
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6)
    assert row == index
