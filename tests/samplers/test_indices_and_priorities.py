"""Indices and priorities in every form that TorchRL and users pass."""

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from helpers.sampler_buffers import (
    assert_priorities,
    distinct_priorities,
    filled_buffer,
    grid,
    grid_buffer,
    rows,
)


class TestIndices:
    def test_none_and_minus_one_mean_no_slot(self, make_sampler):
        buffer = filled_buffer(make_sampler(), 3)
        sampler, storage = buffer.sampler, buffer.storage
        sampler.update_priority(torch.tensor([1, -1, 0]), torch.tensor([2.0, 2.5, 1.5]))
        assert_priorities(sampler, [1.5, 2.0, 1.0])
        sampler.mark_update(None, storage=storage)
        sampler.mark_update(torch.tensor([-1, -1]), storage=storage)
        sampler.update_priority(None, torch.empty(0), storage=storage)
        sampler.update_priority(torch.tensor([-1]), torch.tensor([2.5]), storage=storage)
        assert_priorities(sampler, [1.5, 2.0, 1.0])
        sampler.mark_update(torch.tensor([-1, 0]), storage=storage)
        assert_priorities(sampler, [sampler.default_priority, 2.0, 1.0])

    def test_minus_one_rows_of_many_dimensions_are_skipped(self, make_sampler):
        buffer = grid_buffer(make_sampler(), 2, 3)
        buffer.extend(grid(0, 2, 3))
        index = torch.tensor([[-1, -1], [1, 0], [0, 2]])
        buffer.update_priority(index, torch.tensor([2.5, 2.0, 1.5]))
        assert_priorities(buffer.sampler, [1.0, 1.0, 1.5, 2.0, 1.0, 1.0])

    @pytest.mark.parametrize(
        "index",
        [
            2,
            np.int64(2),
            torch.tensor(2),
            torch.tensor([2]),
            np.array([2]),
            [2],
            torch.tensor([[2]]),
        ],
        ids=repr,
    )
    def test_one_slot_may_be_given_in_any_form(self, make_sampler, index):
        buffer = filled_buffer(make_sampler(), 4)
        buffer.update_priority(index, 2.0)
        assert_priorities(buffer.sampler, [1.0, 1.0, 2.0, 1.0])

    @pytest.mark.parametrize(
        "priority",
        [
            [2.0, 1.0, 1.5],
            np.array([2.0, 1.0, 1.5]),
            np.array([2.0, 1.0, 1.5], np.float32),
            torch.tensor([2.0, 1.0, 1.5]),
            torch.tensor([2.0, 1.0, 1.5], dtype=torch.float64),
            torch.tensor([2.0, 1.0, 1.5], dtype=torch.bfloat16),
            torch.tensor([[2.0], [1.0], [1.5]]),
            torch.tensor([2.0, 1.0, 1.5], requires_grad=True),
        ],
        ids=["list", "numpy", "numpy32", "float", "double", "bfloat16", "column", "requires_grad"],
    )
    def test_priorities_may_be_given_in_any_form(self, make_sampler, priority):
        buffer = filled_buffer(make_sampler(), 5)
        buffer.update_priority(torch.tensor([4, 0, 2]), priority)
        assert_priorities(buffer.sampler, [1.0, 1.0, 1.5, 1.0, 2.0])

    @pytest.mark.parametrize(
        "priority", [2, 2.0, np.float32(2), torch.tensor(2), torch.tensor(2.0)]
    )
    def test_one_priority_may_apply_to_all_indices(self, make_sampler, priority):
        buffer = filled_buffer(make_sampler(), 4)
        buffer.update_priority(torch.tensor([3, 1]), priority)
        assert_priorities(buffer.sampler, [1.0, 2.0, 1.0, 2.0])

    @pytest.mark.parametrize("batch_size", [1, 3, 1000])
    def test_batches_may_be_smaller_or_larger_than_the_buffer(self, make_sampler, batch_size):
        buffer = filled_buffer(make_sampler(), 3, batch_size=batch_size)
        batch = buffer.sample()
        assert batch.shape == (batch_size,)
        assert batch["index"].dtype == torch.int64
        assert torch.equal(batch["row"], batch["index"])

    @pytest.mark.parametrize("column", [False, True])
    def test_extend_reads_priorities_from_the_data(self, make_sampler, column):
        factor = torch.tensor([1.5, 2.5, 1.25, 2.0])
        data = rows(0, 4).set("factor", factor.unsqueeze(1) if column else factor)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=make_sampler(), priority_key="factor"
        )
        buffer.extend(data)
        assert_priorities(buffer.sampler, factor)

    @pytest.mark.parametrize("column", [False, True])
    @pytest.mark.parametrize("dim_extend", [0, 1])
    def test_extend_reads_a_priority_for_each_cell(self, make_sampler, column, dim_extend):
        """With ``dim_extend=1``, TorchRL's default, time is the second dimension of the data."""
        factor = distinct_priorities(6).reshape(2, 3)
        data = grid(0, 2, 3).set("factor", factor.unsqueeze(2) if column else factor)
        shape = (3, 2) if dim_extend else (2, 3)
        buffer = grid_buffer(
            make_sampler(), *shape, priority_key="factor", dim_extend=dim_extend, batch_size=32
        )
        buffer.extend(data)
        stored = factor.T if dim_extend else factor
        assert_priorities(buffer.sampler, stored.flatten())
        batch = buffer.sample()
        assert torch.equal(batch["factor"].flatten(), stored[batch["index"].unbind(-1)])
