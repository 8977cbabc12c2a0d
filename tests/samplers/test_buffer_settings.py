"""Samplers in all kinds of buffers, and indices and priorities in every form."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    TensorDictReplayBuffer,
)

from helpers.sampler_buffers import (
    assert_priorities,
    distinct_priorities,
    filled_buffer,
    grid,
    grid_buffer,
    rows,
)
from torchrl_vmfer import MixedSampler, OldSampler, RankPrioritizedSampler, VMFSampler


def test_repr_shows_the_arguments():
    mixed = MixedSampler(RankPrioritizedSampler(0.7, 0.5), OldSampler(2), 0.25)
    first, second = "RankPrioritizedSampler(alpha=0.7, beta=0.5)", "OldSampler(exponent=2.0)"
    assert repr(mixed) == f"MixedSampler(first={first}, second={second}, share=0.25)"
    sampler = VMFSampler("rank", initial_factor=1.5, smoothing=0.9)
    assert repr(sampler) == (
        "VMFSampler(mode='rank', power=1.0, initial_factor=1.5, smoothing=0.9, pool_size=None)"
    )
    assert repr(sampler) in repr(filled_buffer(sampler))


@pytest.fixture
def meta_default_device():
    """Creates tensors without an explicit device on the meta device, which stores no data."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("meta_default_device")
def test_everything_stays_on_the_cpu_under_another_default_device(make_sampler, tmp_path):
    storage = LazyTensorStorage(10, device="cpu")
    buffer = TensorDictReplayBuffer(storage=storage, sampler=make_sampler(), batch_size=16)
    buffer.extend(TensorDict({"row": torch.arange(4, device="cpu")}, [4], device="cpu"))
    batch = buffer.sample()
    assert batch.device.type == batch["index"].device.type == "cpu"
    assert batch["row"].tolist() == batch["index"].tolist()
    two = torch.tensor([2.0, 2.0], device="cpu")
    index = torch.arange(2, device="cpu")
    for priority in (two, 2.0, np.array([2.0, 2.0])):
        # Not through the buffer, which moves priorities to the default device.
        buffer.sampler.update_priority(index, priority, storage=storage)
        assert_priorities(buffer.sampler, [2.0, 2.0, 1.0, 1.0])
    buffer.sampler.dumps(tmp_path)
    buffer.sampler.loads(tmp_path)
    assert_priorities(buffer.sampler, [2.0, 2.0, 1.0, 1.0])


def test_a_double_default_dtype_changes_no_dtype_and_no_probability(make_sampler):
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            buffer = filled_buffer(make_sampler(), batch_size=32)
            buffer.update_priority(torch.arange(10), distinct_priorities(10))
            types = {key: value.dtype for key, value in buffer.sample().items()}
        finally:
            torch.set_default_dtype(torch.float32)
        found.append((types, buffer.sampler.probabilities()))
    (single_types, single), (double_types, double) = found
    assert single_types == double_types
    torch.testing.assert_close(double, single, rtol=1e-6, atol=0)


def test_none_and_minus_one_mean_no_slot(make_sampler):
    buffer = filled_buffer(make_sampler(), 3)
    sampler, storage = buffer.sampler, buffer.storage
    sampler.update_priority(torch.tensor([1, -1, 0]), torch.tensor([2.0, 2.5, 1.5]))
    sampler.mark_update(None, storage=storage)
    sampler.mark_update(torch.tensor([-1, -1]), storage=storage)
    sampler.update_priority(None, torch.empty(0), storage=storage)
    sampler.update_priority(torch.tensor([-1]), torch.tensor([2.5]), storage=storage)
    assert_priorities(sampler, [1.5, 2.0, 1.0])
    sampler.mark_update(torch.tensor([-1, 0]), storage=storage)
    assert_priorities(sampler, [sampler.default_priority, 2.0, 1.0])
    cells = grid_buffer(make_sampler(), 2, 3)
    cells.extend(grid(0, 2, 3))
    index = torch.tensor([[-1, -1], [1, 0], [0, 2]])
    cells.update_priority(index, torch.tensor([2.5, 2.0, 1.5]))
    assert_priorities(cells.sampler, [1.0, 1.0, 1.5, 2.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "priority",
    [
        [2.0, 1.0, 1.5],
        np.array([2.0, 1.0, 1.5]),
        np.array([2.0, 1.0, 1.5], np.float32),
        torch.tensor([2.0, 1.0, 1.5], dtype=torch.float64),
        torch.tensor([2.0, 1.0, 1.5], dtype=torch.bfloat16),
        torch.tensor([[2.0], [1.0], [1.5]]),
        torch.tensor([2.0, 1.0, 1.5], requires_grad=True),
        *(2, 2.0, np.float32(2), torch.tensor(2), torch.tensor(2.0)),
    ],
    ids=repr,
)
def test_priorities_may_be_given_in_any_form(make_sampler, priority):
    buffer = filled_buffer(make_sampler(), 5)
    buffer.update_priority(torch.tensor([4, 0, 2]), priority)
    is_one = len(torch.as_tensor(priority).shape) == 0
    first, second, third = [2.0] * 3 if is_one else [2.0, 1.0, 1.5]
    assert_priorities(buffer.sampler, [second, 1.0, third, 1.0, first])


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("dim_extend", [None, 0, 1])
def test_extend_reads_priorities_from_the_data(make_sampler, column, dim_extend):
    """With ``dim_extend=1``, TorchRL's default, time is the second dimension of the data."""
    factor = distinct_priorities(6)
    if dim_extend is None:
        data, stored = rows(0, 6), factor
        storage, options = LazyTensorStorage(10), {}
    else:
        factor = factor.reshape(2, 3)
        data, stored = grid(0, 2, 3), factor.T if dim_extend else factor
        storage, options = LazyTensorStorage(6, ndim=2), {"dim_extend": dim_extend}
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=make_sampler(), priority_key="factor", batch_size=32, **options
    )
    buffer.extend(data.set("factor", factor.unsqueeze(-1) if column else factor))
    assert_priorities(buffer.sampler, stored.flatten())
    batch = buffer.sample()
    at = batch["index"] if dim_extend is None else batch["index"].unbind(-1)
    assert torch.equal(batch["factor"].flatten(), stored[at])
