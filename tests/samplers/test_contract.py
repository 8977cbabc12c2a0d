"""The samplers inside TorchRL's replay buffers: every storage, writer, index and setting."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    CompressedListStorage,
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler

ALPHA, BETA = 0.7, 0.5
MAKERS = {
    "uncertainty": partial(VMFSampler, "uncertainty"),
    "rank": partial(VMFSampler, "rank"),
    "rank_prioritized": partial(RankPrioritizedSampler, ALPHA, BETA),
}
every_vmf_mode = pytest.mark.parametrize("mode", ["uncertainty", "rank"])


@pytest.fixture(params=MAKERS)
def make_sampler(request):
    return MAKERS[request.param]


def exact_probabilities(sampler, keys):
    """P of every slot by its definition, one slot at a time."""
    keys = np.asarray(keys, np.float32)
    if isinstance(sampler, VMFSampler) and sampler.mode == "uncertainty":
        weights = keys.astype(np.float64)
    else:
        alpha = getattr(sampler, "alpha", 1.0)
        weights = np.empty(len(keys))
        for slot, key in enumerate(keys):
            higher, equal = (keys > key).sum(), (keys == key).sum()
            weights[slot] = np.mean(np.arange(higher + 1, higher + equal + 1) ** -alpha)
    return weights / weights.sum()


def assert_keys(sampler, keys, storage=None):
    expected = exact_probabilities(sampler, keys)
    actual = sampler.probabilities(storage).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def rows(first, count):
    return TensorDict({"row": torch.arange(first, first + count)}, [count])


def filled_buffer(sampler, count=10, capacity=10, **kwargs):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, **kwargs)
    buffer.extend(rows(0, count))
    return buffer


def distinct_keys(count):
    """Keys in (1, 2.5], none twice, neither rising nor falling."""
    return torch.linspace(2.5, 1.1, count)[torch.randperm(count, generator=seeded(0))]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class TestConstruction:
    def test_a_buffer_needs_no_other_argument(self, make_sampler):
        buffer = ReplayBuffer(sampler=make_sampler())
        index = buffer.extend(rows(100, 6))
        buffer.update_priority(index, torch.tensor([1.0, 2.0, 1.0, 2.5, 1.0, 1.5]))
        batch, info = buffer.sample(32, return_info=True)
        assert torch.equal(batch["row"], info["index"] + 100)
        assert_keys(buffer.sampler, [1.0, 2.0, 1.0, 2.5, 1.0, 1.5])

    @pytest.mark.parametrize("sampler_class", [VMFSampler, RankPrioritizedSampler])
    def test_a_sampler_may_be_given_as_a_class(self, sampler_class):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=sampler_class, batch_size=4
        )
        buffer.extend(rows(0, 5))
        assert type(buffer.sampler) is sampler_class
        assert buffer.sample()["index"].shape == (4,)

    def test_a_sampler_may_be_given_as_a_function(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=make_sampler, batch_size=4
        )
        buffer.extend(rows(0, 5))
        assert buffer.sample()["index"].max() < 5

    @pytest.mark.parametrize(
        ("sampler", "text"),
        [
            (
                VMFSampler("rank", initial_factor=1.5, smoothing=0.9),
                "VMFSampler(mode='rank', initial_factor=1.5, smoothing=0.9)",
            ),
            (RankPrioritizedSampler(0.7, 0.5), "RankPrioritizedSampler(alpha=0.7, beta=0.5)"),
        ],
    )
    def test_repr_says_how_the_sampler_was_made(self, sampler, text):
        assert repr(sampler) == text
        assert text in repr(filled_buffer(sampler))

    def test_can_sample_as_soon_as_the_storage_holds_something(self, make_sampler):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=make_sampler())
        assert not buffer.sampler.can_sample(buffer.storage, 4)
        buffer.add(rows(0, 1)[0])
        assert buffer.sampler.can_sample(buffer.storage, 4)
        buffer.empty()
        assert not buffer.sampler.can_sample(buffer.storage, 4)


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


class TestStorages:
    @pytest.mark.parametrize("storage", STORAGES)
    def test_keys_follow_the_slots_of_every_storage(self, make_sampler, storage):
        """Factors survive what is written elsewhere; a written slot starts afresh."""
        buffer = ReplayBuffer(
            storage=STORAGES[storage](),
            sampler=make_sampler(),
            writer=RoundRobinWriter(compilable=storage.endswith("compilable")),
            batch_size=64,
        )
        row_of = dict(enumerate(range(-10, 0))) if storage == "tensor" else {}
        key_of = dict.fromkeys(row_of, 1.0)

        def note(slots, first):
            for row, slot in enumerate(slots, first):
                row_of[slot], key_of[slot] = row, buffer.sampler.default_priority

        def check():
            batch, info = buffer.sample(return_info=True)
            assert batch["row"].tolist() == [row_of[slot] for slot in info["index"].tolist()]
            assert_keys(buffer.sampler, [key_of[slot] for slot in range(len(buffer))])

        note(buffer.extend(rows(0, 7)).tolist(), first=0)
        check()
        index = torch.tensor([0, 3, 6, 5])
        keys = torch.tensor([1.25, 2.5, 1.75, 2.0])
        buffer.update_priority(index, keys)
        key_of.update(zip(index.tolist(), keys.tolist(), strict=True))
        check()
        note(buffer.extend(rows(7, 8)).tolist(), first=7)
        assert len(buffer) == (15 if storage == "list_without_bound" else 10)
        check()
        note([buffer.add(rows(15, 1)[0])], first=15)
        check()

    def test_one_extend_may_be_larger_than_the_storage(self, make_sampler):
        buffer = filled_buffer(make_sampler(), 4, capacity=5, batch_size=64)
        buffer.update_priority(torch.arange(4), torch.tensor([2.5, 1.5, 2.0, 1.25]))
        buffer.extend(rows(4, 12))
        batch = buffer.sample()
        assert len(buffer) == 5
        assert set(batch["row"].tolist()) == set(range(11, 16))
        assert_keys(buffer.sampler, [1.0] * 5)

    def test_growing_does_not_disturb_the_keys_that_are_there(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=ListStorage(), sampler=make_sampler(), batch_size=16
        )
        keys = np.empty(0, np.float32)
        for size in [1, 1, 2, 5, 30, 100, 3]:
            index = buffer.extend(rows(0, size))
            given = distinct_keys(size)
            buffer.update_priority(index, given)
            keys = np.append(keys, given.numpy())
            assert buffer.sample()["index"].max() < len(keys)
            assert_keys(buffer.sampler, keys)

    def test_memory_follows_the_content_and_not_the_capacity(self, make_sampler):
        buffer = ReplayBuffer(storage=ListStorage(), sampler=make_sampler(), batch_size=8)
        assert buffer.storage.max_size == 2**63 - 1
        buffer.extend(rows(0, 3))
        buffer.sample()
        assert len(pickle.dumps(buffer.sampler)) < 10_000


def grid(first, *shape):
    count = torch.Size(shape).numel()
    return TensorDict({"row": torch.arange(first, first + count).reshape(shape)}, shape)


def grid_buffer(sampler, num_rows, *shape, buffer_class=TensorDictReplayBuffer, **kwargs):
    capacity = num_rows * torch.Size(shape).numel()
    storage = LazyTensorStorage(capacity, ndim=1 + len(shape))
    return buffer_class(storage=storage, sampler=sampler, **{"dim_extend": 0} | kwargs)


class TestManyDimensions:
    @pytest.mark.parametrize("shape", [(3,), (2, 3)])
    def test_each_cell_has_a_key_of_its_own(self, make_sampler, shape):
        ndim, cells = 1 + len(shape), int(np.prod(shape))
        buffer = grid_buffer(make_sampler(), 5, *shape, batch_size=64)
        index = buffer.extend(grid(0, 4, *shape))
        assert index.shape == (4 * cells, ndim)
        keys = distinct_keys(4 * cells)
        buffer.update_priority(index, keys)
        assert_keys(buffer.sampler, keys)

        batch = buffer.sample()
        at = torch.stack(batch["index"].unbind(-1)).numpy()
        flat = np.ravel_multi_index(at, (5, *shape))
        assert batch["row"].tolist() == flat.tolist()

        factor = 1.05 + 0.01 * torch.arange(64)
        buffer.update_priority(batch["index"], factor)
        keys = keys.numpy()
        for slot, key in zip(flat, factor.numpy(), strict=True):
            keys[slot] = key
        assert_keys(buffer.sampler, keys)

    @pytest.mark.filterwarnings("ignore:Using `add:UserWarning")
    @pytest.mark.parametrize("shape", [(3,), (2, 3)])
    def test_writing_over_the_end_resets_all_cells_of_the_rows_it_writes(self, make_sampler, shape):
        cells = int(np.prod(shape))
        buffer = grid_buffer(make_sampler(), 5, *shape, buffer_class=ReplayBuffer)
        keys = distinct_keys(4 * cells).numpy()
        buffer.update_priority(buffer.extend(grid(0, 4, *shape)), torch.from_numpy(keys))
        buffer.extend(grid(100, 2, *shape))
        fresh = np.full(cells, buffer.sampler.default_priority, np.float32)
        assert len(buffer) == 5 * cells
        assert_keys(buffer.sampler, np.concatenate([fresh, keys[cells:], fresh]))

        buffer.add(grid(200, *shape))
        assert_keys(buffer.sampler, np.concatenate([fresh, fresh, keys[2 * cells :], fresh]))

    def test_index_of_a_plain_buffer_comes_as_a_tuple_and_is_taken_back(self, make_sampler):
        buffer = grid_buffer(make_sampler(), 4, 3, buffer_class=ReplayBuffer, batch_size=8)
        buffer.extend(grid(0, 4, 3))
        _, info = buffer.sample(return_info=True)
        assert isinstance(info["index"], tuple)
        buffer.update_priority(info["index"], torch.full((8,), 2.0))
        buffer.sampler.update_priority(
            (torch.tensor([1]), torch.tensor([2])), 2.5, storage=buffer.storage
        )
        keys = np.ones((4, 3))
        keys[info["index"][0], info["index"][1]] = 2.0
        keys[1, 2] = 2.5
        assert_keys(buffer.sampler, keys.reshape(-1))

    def test_capacity_may_be_rounded_up_at_the_first_write(self, make_sampler):
        """A storage of 100 cells in rows of 3 makes itself 102 cells large."""
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100, ndim=2),
            sampler=make_sampler(),
            dim_extend=0,
            batch_size=2000,
        )
        assert buffer.storage.max_size == 100
        buffer.extend(grid(0, 40, 3))
        assert len(buffer) == buffer.storage.max_size == 102
        assert_keys(buffer.sampler, [1.0] * 102)
        # 2000 even draws miss a given one of 102 cells with a probability of 3e-9.
        torch.manual_seed(0)
        cells = buffer.sample()["index"] @ torch.tensor([3, 1])
        assert cells.unique().tolist() == list(range(102))


class TestWriters:
    @pytest.mark.parametrize("writer_class", [RoundRobinWriter, TensorDictRoundRobinWriter])
    def test_writers_with_generations_tell_the_age_of_each_sample(self, make_sampler, writer_class):
        buffer = filled_buffer(
            make_sampler(), writer=writer_class(track_generations=True), batch_size=32
        )
        index = torch.arange(10)
        buffer.update_priority(index, distinct_keys(10))
        buffer.extend(rows(10, 4))
        batch = buffer.sample()
        assert torch.equal(batch["index_generation"], (batch["index"] < 4).long())
        fresh = torch.full((4,), buffer.sampler.default_priority)
        assert_keys(buffer.sampler, torch.cat([fresh, distinct_keys(10)[4:]]))

    def test_write_at_resets_the_slots_it_names(self, make_sampler):
        buffer = filled_buffer(make_sampler())
        keys = distinct_keys(10)
        buffer.update_priority(torch.arange(10), keys)
        buffer.writer.write_at(torch.tensor([7, 2]), rows(50, 2))
        keys[[7, 2]] = buffer.sampler.default_priority
        assert_keys(buffer.sampler, keys)

    def test_what_a_max_value_writer_rejects_leaves_the_keys_alone(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4),
            sampler=make_sampler(),
            writer=TensorDictMaxValueWriter(rank_key="row"),
            batch_size=32,
        )
        buffer.extend(rows(10, 4))
        keys = torch.tensor([1.5, 2.5, 2.0, 1.25])
        buffer.update_priority(torch.arange(4), keys)

        assert buffer.add(rows(0, 1)[0]) is None
        assert_keys(buffer.sampler, keys)
        assert (buffer.extend(rows(3, 2)) == -1).all()
        assert_keys(buffer.sampler, keys)

        # Row 50 takes the place of the lowest, row 10 in slot 0; row 5 finds none.
        index = buffer.extend(TensorDict({"row": torch.tensor([5, 50])}, [2]))
        assert index.tolist() == [-1, 0]
        keys[0] = buffer.sampler.default_priority
        assert_keys(buffer.sampler, keys)
        assert set(buffer.sample()["row"].tolist()) <= {50, 11, 12, 13}

    def test_priorities_of_rejected_rows_are_skipped(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(4),
            sampler=make_sampler(),
            writer=TensorDictMaxValueWriter(rank_key="row"),
            priority_key="factor",
        )
        data = rows(10, 4).set("factor", torch.tensor([1.5, 2.5, 2.0, 1.25]))
        buffer.extend(data)
        buffer.extend(
            TensorDict({"row": torch.tensor([5, 50]), "factor": torch.tensor([2.25, 1.75])}, [2])
        )
        assert_keys(buffer.sampler, [1.75, 2.5, 2.0, 1.25])

    def test_a_dataset_that_cannot_be_written_is_sampled(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=TensorStorage(rows(0, 6)),
            sampler=make_sampler(),
            writer=ImmutableDatasetWriter(),
            batch_size=32,
        )
        batch = buffer.sample()
        assert torch.equal(batch["row"], batch["index"])
        buffer.update_priority(torch.tensor([2, 4]), torch.tensor([2.0, 1.5]))
        assert_keys(buffer.sampler, [1.0, 1.0, 2.0, 1.0, 1.5, 1.0])


class TestIndices:
    def test_none_and_minus_one_stand_for_no_slot(self, make_sampler):
        buffer = filled_buffer(make_sampler(), 3)
        sampler, storage = buffer.sampler, buffer.storage
        sampler.update_priority(torch.tensor([1, -1, 0]), torch.tensor([2.0, 2.5, 1.5]))
        assert_keys(sampler, [1.5, 2.0, 1.0])
        sampler.mark_update(None, storage=storage)
        sampler.mark_update(torch.tensor([-1, -1]), storage=storage)
        sampler.update_priority(None, torch.empty(0), storage=storage)
        sampler.update_priority(torch.tensor([-1]), torch.tensor([2.5]), storage=storage)
        assert_keys(sampler, [1.5, 2.0, 1.0])
        sampler.mark_update(torch.tensor([-1, 0]), storage=storage)
        assert_keys(sampler, [sampler.default_priority, 2.0, 1.0])

    def test_minus_one_rows_of_many_dimensions_are_skipped(self, make_sampler):
        buffer = grid_buffer(make_sampler(), 2, 3)
        buffer.extend(grid(0, 2, 3))
        index = torch.tensor([[-1, -1], [1, 0], [0, 2]])
        buffer.update_priority(index, torch.tensor([2.5, 2.0, 1.5]))
        assert_keys(buffer.sampler, [1.0, 1.0, 1.5, 2.0, 1.0, 1.0])

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
    def test_one_slot_may_be_named_in_any_form(self, make_sampler, index):
        buffer = filled_buffer(make_sampler(), 4)
        buffer.update_priority(index, 2.0)
        assert_keys(buffer.sampler, [1.0, 1.0, 2.0, 1.0])

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
    def test_priorities_may_come_in_any_form(self, make_sampler, priority):
        buffer = filled_buffer(make_sampler(), 5)
        buffer.update_priority(torch.tensor([4, 0, 2]), priority)
        assert_keys(buffer.sampler, [1.0, 1.0, 1.5, 1.0, 2.0])

    @pytest.mark.parametrize(
        "priority", [2, 2.0, np.float32(2), torch.tensor(2), torch.tensor(2.0)]
    )
    def test_one_priority_serves_all_indices(self, make_sampler, priority):
        buffer = filled_buffer(make_sampler(), 4)
        buffer.update_priority(torch.tensor([3, 1]), priority)
        assert_keys(buffer.sampler, [1.0, 2.0, 1.0, 2.0])

    @pytest.mark.parametrize("batch_size", [1, 3, 1000])
    def test_batches_may_be_smaller_or_larger_than_the_buffer(self, make_sampler, batch_size):
        buffer = filled_buffer(make_sampler(), 3, batch_size=batch_size)
        batch = buffer.sample()
        assert batch.shape == (batch_size,)
        assert batch["index"].dtype == torch.int64
        assert torch.equal(batch["row"], batch["index"])

    @pytest.mark.parametrize("column", [False, True])
    def test_extend_takes_priorities_along_with_the_data(self, make_sampler, column):
        factor = torch.tensor([1.5, 2.5, 1.25, 2.0])
        data = rows(0, 4).set("factor", factor.unsqueeze(1) if column else factor)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=make_sampler(), priority_key="factor"
        )
        buffer.extend(data)
        assert_keys(buffer.sampler, factor)

    @pytest.mark.parametrize("column", [False, True])
    @pytest.mark.parametrize("dim_extend", [0, 1])
    def test_extend_takes_a_priority_for_each_cell(self, make_sampler, column, dim_extend):
        """With ``dim_extend=1``, TorchRL's default, time is the second dimension of the data."""
        factor = distinct_keys(6).reshape(2, 3)
        data = grid(0, 2, 3).set("factor", factor.unsqueeze(2) if column else factor)
        shape = (3, 2) if dim_extend else (2, 3)
        buffer = grid_buffer(
            make_sampler(), *shape, priority_key="factor", dim_extend=dim_extend, batch_size=32
        )
        buffer.extend(data)
        stored = factor.T if dim_extend else factor
        assert_keys(buffer.sampler, stored.flatten())
        batch = buffer.sample()
        assert torch.equal(batch["factor"].flatten(), stored[batch["index"].unbind(-1)])


class TestStorageChangedBehindTheSampler:
    def test_data_that_were_there_before_have_the_default_key(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=TensorStorage(rows(0, 6)), sampler=make_sampler(), batch_size=16
        )
        buffer.update_priority(torch.tensor([5]), torch.tensor([2.0]))
        assert_keys(buffer.sampler, [1.0] * 5 + [2.0])
        assert torch.equal(*buffer.sample().select("row", "index").values())

    def test_set_sampler_takes_over_a_used_buffer(self, make_sampler):
        buffer = filled_buffer(RandomSampler(), 7, batch_size=16)
        buffer.set_sampler(make_sampler())
        assert buffer.sample()["index"].max() < 7
        assert_keys(buffer.sampler, [1.0] * 7)
        buffer.extend(rows(7, 1))
        assert_keys(buffer.sampler, [1.0] * 8)

    def test_priorities_may_be_given_before_the_first_sample(self, make_sampler):
        buffer = filled_buffer(RandomSampler(), 3)
        buffer.set_sampler(make_sampler())
        buffer.update_priority(torch.tensor([1]), torch.tensor([2.5]))
        assert_keys(buffer.sampler, [1.0, 2.5, 1.0])

    @pytest.fixture
    def two_buffers(self, make_sampler):
        """A writing buffer and a reading one, on one storage and writer."""
        storage, writer = LazyTensorStorage(10), TensorDictRoundRobinWriter()
        other = TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=4)
        buffer = TensorDictReplayBuffer(
            storage=storage, writer=writer, sampler=make_sampler(), batch_size=64
        )
        other.extend(rows(0, 8))
        buffer.update_priority(torch.arange(8), distinct_keys(8))
        return other, buffer

    def test_writes_through_another_buffer_reset_the_slots(self, two_buffers):
        other, buffer = two_buffers
        other.extend(rows(8, 5))
        default = torch.tensor([buffer.sampler.default_priority])
        keys = torch.cat([default.expand(3), distinct_keys(8)[3:], default.expand(2)])
        assert_keys(buffer.sampler, keys)

    @pytest.mark.parametrize("refill", [1, 3, 8, 10])
    def test_another_buffer_may_empty_and_refill_the_storage(self, two_buffers, refill):
        other, buffer = two_buffers
        buffer.sample()
        other.empty()
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            buffer.sample()
        other.extend(rows(50, refill))
        batch = buffer.sample()
        assert set(batch["row"].tolist()) <= set(range(50, 50 + refill))
        assert_keys(buffer.sampler, [1.0] * refill)

    @pytest.mark.parametrize("refill", [1, 3, 8, 10])
    def test_a_storage_refilled_between_two_samples_is_noticed(self, two_buffers, refill):
        other, buffer = two_buffers
        buffer.sample()
        other.empty()
        other.extend(rows(50, refill))
        batch = buffer.sample()
        assert set(batch["row"].tolist()) <= set(range(50, 50 + refill))
        assert_keys(buffer.sampler, [1.0] * refill, buffer.storage)

    @pytest.mark.parametrize("saved", [3, 10])
    def test_another_buffer_may_load_the_storage(self, two_buffers, tmp_path, saved):
        other, buffer = two_buffers
        filled_buffer(RandomSampler(), saved).dumps(tmp_path)
        buffer.sample()
        other.loads(tmp_path)
        batch = buffer.sample()
        assert torch.equal(batch["row"], batch["index"])
        assert batch["index"].max() < saved
        assert len(buffer.sampler.probabilities()) == saved

    def test_probabilities_can_be_brought_in_step_with_the_storage(self, two_buffers):
        other, buffer = two_buffers
        other.empty()
        other.extend(rows(0, 2))
        assert_keys(buffer.sampler, [1.0, 1.0], buffer.storage)


class TestEmpty:
    def test_an_empty_buffer_cannot_be_sampled(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sampler=make_sampler(), batch_size=4
        )
        with pytest.raises(RuntimeError, match=r"Cannot sample from an empty storage\."):
            buffer.sample()
        assert buffer.sampler.probabilities().shape == (0,)

    def test_nothing_is_remembered_of_what_was_there_before(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=64)
        buffer.update_priority(torch.arange(10), distinct_keys(10))
        buffer.sample()
        buffer.empty()
        assert buffer.sampler.probabilities().shape == (0,)
        with pytest.raises(RuntimeError, match="empty storage"):
            buffer.sample()
        buffer.extend(rows(20, 3))
        assert buffer.sampler.default_priority == 1.0
        assert_keys(buffer.sampler, [1.0] * 3)
        assert set(buffer.sample()["row"].tolist()) <= {20, 21, 22}


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
    # A builtin as the target: the child need not import this module.
    worker = context.Process(
        target=exec, args=(CHILD, {"buffers": buffers, "queue": queue}), daemon=True
    )
    worker.start()
    reports = queue.get(timeout=60)
    worker.join()
    return {case: (buffer, *reports[case]) for case, buffer in buffers.items()}


class TestProcesses:
    def test_a_pickled_buffer_draws_as_the_original(self, make_sampler):
        buffer = filled_buffer(make_sampler(), 8, batch_size=64)
        buffer.update_priority(torch.arange(8), distinct_keys(8))
        buffer.sample()
        copy = pickle.loads(pickle.dumps(buffer))
        assert_keys(copy.sampler, distinct_keys(8))
        torch.manual_seed(3)
        expected = buffer.sample()
        torch.manual_seed(3)
        assert torch.equal(copy.sample()["index"], expected["index"])

        copy.extend(rows(8, 2))
        copy.update_priority(torch.tensor([0]), torch.tensor([2.6]))
        assert_keys(buffer.sampler, distinct_keys(8))

    @pytest.mark.parametrize("count", [9, 10])
    @pytest.mark.parametrize("name", MAKERS)
    def test_a_spawned_worker_draws_from_the_same_probabilities(self, spawned, name, count):
        buffer, probabilities, row, index, _ = spawned[name, count]
        expected = exact_probabilities(buffer.sampler, np.linspace(2.5, 1.1, count))
        np.testing.assert_allclose(probabilities, expected, rtol=1e-6)
        assert row == index


class TestRandomness:
    def test_the_state_of_the_generator_decides_the_sample(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        buffer.update_priority(torch.arange(10), distinct_keys(10))
        state = buffer._rng.get_state()
        first, second = buffer.sample()["index"], buffer.sample()["index"]
        torch.manual_seed(0)
        buffer._rng.set_state(state)
        assert torch.equal(buffer.sample()["index"], first)
        assert not torch.equal(first, second)

        twin = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        twin.update_priority(torch.arange(10), distinct_keys(10))
        assert torch.equal(twin.sample()["index"], first)

    def test_a_generator_leaves_the_global_one_alone(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        torch.manual_seed(1)
        before = torch.get_rng_state()
        np.random.seed(1)  # noqa: NPY002 - TorchRL's own prioritised sampler draws from it
        numpy_before = np.random.get_state()[1]  # noqa: NPY002
        buffer.sample()
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002

    def test_without_a_generator_the_global_seed_decides(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32)
        buffer.update_priority(torch.arange(10), distinct_keys(10))
        torch.manual_seed(7)
        first, second = buffer.sample()["index"], buffer.sample()["index"]
        torch.manual_seed(7)
        assert torch.equal(buffer.sample()["index"], first)
        assert not torch.equal(first, second)

    def test_draws_do_not_depend_on_how_the_keys_came_about(self, make_sampler):
        """One history sorts from scratch, the other updates after a draw."""
        keys = distinct_keys(10)
        direct = filled_buffer(make_sampler(), batch_size=64, generator=seeded(1))
        direct.update_priority(torch.arange(10), keys)
        winding = filled_buffer(make_sampler(), batch_size=64, generator=seeded(2))
        for slot in torch.randperm(10, generator=seeded(3)).tolist():
            winding.update_priority(slot, 1.01)
            winding.sample()
            winding.update_priority(slot, keys[slot])
        winding._rng.set_state(seeded(1).get_state())
        assert torch.equal(winding.sample()["index"], direct.sample()["index"])


class TestPrefetch:
    def test_batches_drawn_ahead_hold_live_rows(self, make_sampler):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(50), sampler=make_sampler(), batch_size=16, prefetch=3
        )
        for start in range(0, 50, 5):
            buffer.extend(rows(start, 5))
            for _ in range(4):
                batch = buffer.sample()
                assert torch.equal(batch["row"], batch["index"])
                assert batch["index"].max() < len(buffer)
                buffer.update_priority(batch["index"], 1 + torch.rand(16, generator=seeded(start)))
        torch.testing.assert_close(
            buffer.sampler.probabilities().sum().item(), 1.0, rtol=1e-12, atol=0
        )


@pytest.fixture
def meta_default_device():
    """Any tensor made without a device lands where it has no data."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


class TestDefaults:
    @pytest.mark.usefixtures("meta_default_device")
    def test_a_cpu_storage_works_under_another_default_device(self, make_sampler, tmp_path):
        storage = LazyTensorStorage(10, device="cpu")
        buffer = TensorDictReplayBuffer(storage=storage, sampler=make_sampler(), batch_size=16)
        buffer.extend(TensorDict({"row": torch.arange(6, device="cpu")}, [6], device="cpu"))
        buffer.add(TensorDict({"row": torch.tensor(6, device="cpu")}, [], device="cpu"))
        batch = buffer.sample()
        assert batch.device.type == batch["index"].device.type == "cpu"
        assert batch["row"].tolist() == batch["index"].tolist()
        assert_keys(buffer.sampler, [1.0] * 7)
        buffer.sampler.dumps(tmp_path)
        buffer.sampler.loads(tmp_path)
        assert_keys(buffer.sampler, [1.0] * 7)

    @pytest.mark.usefixtures("meta_default_device")
    @pytest.mark.parametrize("kind", ["tensor", "number", "array"])
    def test_priorities_stay_on_the_cpu_under_another_default_device(self, make_sampler, kind):
        storage = LazyTensorStorage(10, device="cpu")
        buffer = TensorDictReplayBuffer(storage=storage, sampler=make_sampler())
        index = buffer.extend(TensorDict({"row": torch.arange(3, device="cpu")}, [3], device="cpu"))
        priority = {
            "tensor": torch.tensor([2.0, 2.0], device="cpu"),
            "number": 2.0,
            "array": np.array([2.0, 2.0]),
        }[kind]
        # Not through the buffer, which itself moves priorities to the default device.
        buffer.sampler.update_priority(index[:2], priority, storage=storage)
        assert_keys(buffer.sampler, [2.0, 2.0, 1.0])

    @pytest.mark.usefixtures("meta_default_device")
    def test_cells_are_drawn_on_the_cpu_under_another_default_device(self, make_sampler):
        with torch.device("cpu"):
            buffer = grid_buffer(make_sampler(), 4, 3)
            buffer.extend(grid(0, 4, 3))
        row, column = buffer.sampler.sample(buffer.storage, 8)[0]
        assert row.device.type == column.device.type == "cpu"
        assert set((3 * row + column).tolist()) <= set(range(12))

    def test_a_double_default_dtype_changes_no_dtype_and_no_probability(self, make_sampler):
        single = filled_buffer(make_sampler(), batch_size=32)
        single.update_priority(torch.arange(10), distinct_keys(10))
        torch.set_default_dtype(torch.float64)
        try:
            double = filled_buffer(make_sampler(), batch_size=32)
            double.update_priority(torch.arange(10), distinct_keys(10))
            batch = double.sample()
        finally:
            torch.set_default_dtype(torch.float32)
        dtypes = {key: value.dtype for key, value in single.sample().items()}
        assert {key: value.dtype for key, value in batch.items()} == dtypes
        assert torch.equal(batch["row"], batch["index"])
        torch.testing.assert_close(
            double.sampler.probabilities(), single.sampler.probabilities(), rtol=1e-6, atol=0
        )


class TestImportanceWeights:
    @every_vmf_mode
    @pytest.mark.parametrize("buffer_class", [ReplayBuffer, TensorDictReplayBuffer])
    def test_a_vmf_sampler_never_emits_them(self, mode, buffer_class):
        """TorchRL's losses would weight the actor loss by them, unasked."""
        buffer = buffer_class(
            storage=LazyTensorStorage(10), sampler=VMFSampler(mode), batch_size=16
        )
        buffer.extend(rows(0, 5))
        buffer.update_priority(torch.arange(5), distinct_keys(5))
        batch, info = buffer.sample(return_info=True)
        assert set(info) == {"index"}
        assert set(batch.keys()) <= {"row", "index"}

    def test_rank_prioritized_weights_undo_the_bias_up_to_beta(self):
        buffer = filled_buffer(RankPrioritizedSampler(ALPHA, BETA), batch_size=64)
        buffer.update_priority(torch.arange(10), torch.tensor([0.0] * 4 + [1.0, 7.0, 1.0, 2, 3, 0]))
        batch = buffer.sample()
        probability = exact_probabilities(
            buffer.sampler, [0.0] * 4 + [1.0, 7.0, 1.0, 2.0, 3.0, 0.0]
        )
        expected = (probability.min() / probability[batch["index"].numpy()]) ** BETA
        assert batch["priority_weight"].dtype == torch.float32
        np.testing.assert_allclose(batch["priority_weight"].numpy(), expected, rtol=1e-6)


class TestEnsemble:
    def test_buffers_of_an_ensemble_keep_their_own_keys(self, make_sampler):
        members = [filled_buffer(make_sampler(), size) for size in (3, 7)]
        for member in members:
            member.update_priority(torch.tensor([1]), torch.tensor([2.0]))
        ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=32)
        batch = ensemble.sample()
        assert batch.shape == (2, 16)
        assert batch["row"][0].max() < 3
        assert batch["row"][1].max() < 7
        assert_keys(members[0].sampler, [1.0, 2.0, 1.0])
