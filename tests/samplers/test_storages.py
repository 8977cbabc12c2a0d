"""Priorities follow the slots of every TorchRL storage, with one or more dimensions."""

import numpy as np
import pytest
import torch
from torchrl.data import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)

from helpers.sampler_buffers import (
    assert_priorities,
    distinct_priorities,
    grid,
    grid_buffer,
    rows,
)

STORAGES = {
    "list": lambda: ListStorage(10),
    "list_without_bound": lambda: ListStorage(),
    "lazy_stack": lambda: LazyStackStorage(10),
    "compressed_list": lambda: CompressedListStorage(10),
    "lazy_tensor": lambda: LazyTensorStorage(10),
    "lazy_tensor_compilable": lambda: LazyTensorStorage(10, compilable=True),
    "lazy_memmap": lambda: LazyMemmapStorage(10),
    "tensor": lambda: TensorStorage(rows(-10, 10)),
}


@pytest.mark.parametrize("storage", STORAGES)
def test_priorities_follow_the_slots_of_every_storage(make_sampler, storage):
    """Factors survive writes to other slots; a written slot gets the default."""
    buffer = ReplayBuffer(
        storage=STORAGES[storage](),
        sampler=make_sampler(),
        writer=RoundRobinWriter(compilable=storage.endswith("compilable")),
        batch_size=64,
    )
    row_of = dict(enumerate(range(-10, 0))) if storage == "tensor" else {}
    priority_of = dict.fromkeys(row_of, 1.0)

    def note(slots, first):
        for row, slot in enumerate(slots, first):
            row_of[slot], priority_of[slot] = row, buffer.sampler.default_priority

    def check():
        batch, info = buffer.sample(return_info=True)
        assert batch["row"].tolist() == [row_of[slot] for slot in info["index"].tolist()]
        assert_priorities(buffer.sampler, [priority_of[slot] for slot in range(len(buffer))])

    note(buffer.extend(rows(0, 7)).tolist(), first=0)
    check()
    index = torch.tensor([0, 3, 6, 5])
    priorities = torch.tensor([1.25, 2.5, 1.75, 2.0])
    buffer.update_priority(index, priorities)
    priority_of.update(zip(index.tolist(), priorities.tolist(), strict=True))
    check()
    note(buffer.extend(rows(7, 8)).tolist(), first=7)
    assert len(buffer) == (15 if storage == "list_without_bound" else 10)
    check()
    note([buffer.add(rows(15, 1)[0])], first=15)
    check()


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_each_cell_has_its_own_priority(make_sampler, shape):
    ndim, cells = 1 + len(shape), int(np.prod(shape))
    buffer = grid_buffer(make_sampler(), 5, *shape, batch_size=64)
    index = buffer.extend(grid(0, 4, *shape))
    assert index.shape == (4 * cells, ndim)
    priorities = distinct_priorities(4 * cells)
    buffer.update_priority(index, priorities)
    assert_priorities(buffer.sampler, priorities)

    batch = buffer.sample()
    at = batch["index"].unbind(-1)
    flat = np.ravel_multi_index(torch.stack(at).numpy(), (5, *shape))
    assert batch["row"].tolist() == flat.tolist()

    # A plain ReplayBuffer returns a tuple.
    factor, priorities = 1.05 + 0.01 * torch.arange(64), priorities.numpy()
    for index, values in ((batch["index"], factor), (at, factor + 0.5)):
        buffer.update_priority(index, values)
        for slot, priority in zip(flat, values.numpy(), strict=True):
            priorities[slot] = priority
        assert_priorities(buffer.sampler, priorities)


@pytest.mark.filterwarnings("ignore:Using `add:UserWarning")
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_writing_past_the_end_resets_all_cells_of_the_written_rows(make_sampler, shape):
    cells = int(np.prod(shape))
    buffer = grid_buffer(make_sampler(), 5, *shape, buffer_class=ReplayBuffer)
    priorities = distinct_priorities(4 * cells).numpy()
    buffer.update_priority(buffer.extend(grid(0, 4, *shape)), torch.from_numpy(priorities))
    buffer.extend(grid(100, 2, *shape))
    fresh = np.full(cells, buffer.sampler.default_priority, np.float32)
    assert len(buffer) == 5 * cells
    assert_priorities(buffer.sampler, np.concatenate([fresh, priorities[cells:], fresh]))

    buffer.add(grid(200, *shape))
    assert_priorities(
        buffer.sampler, np.concatenate([fresh, fresh, priorities[2 * cells :], fresh])
    )


def test_capacity_may_be_rounded_up_at_the_first_write(make_sampler):
    """A storage of 100 cells in rows of 3 grows to 102 cells."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2),
        sampler=make_sampler(),
        dim_extend=0,
        batch_size=2000,
    )
    assert buffer.storage.max_size == 100
    buffer.extend(grid(0, 40, 3))
    assert len(buffer) == buffer.storage.max_size == 102
    assert_priorities(buffer.sampler, [1.0] * 102)
    # 2000 even draws miss a given one of 102 cells with a probability of 3e-9.
    torch.manual_seed(0)
    cells = buffer.sample()["index"] @ torch.tensor([3, 1])
    assert cells.unique().tolist() == list(range(102))
