"""Samplers in all kinds of buffers: construction, prefetching, ensembles, default device, dtype."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
)

from helpers.sampler_buffers import (
    assert_priorities,
    distinct_priorities,
    filled_buffer,
    grid,
    grid_buffer,
    rows,
    seeded,
)
from torchrl_vmfer import MixedSampler, OldSampler, RankPrioritizedSampler, VMFSampler


class TestConstruction:
    def test_a_buffer_requires_no_other_argument(self, make_sampler):
        buffer = ReplayBuffer(sampler=make_sampler())
        index = buffer.extend(rows(100, 6))
        buffer.update_priority(index, torch.tensor([1.0, 2.0, 1.0, 2.5, 1.0, 1.5]))
        batch, info = buffer.sample(32, return_info=True)
        assert torch.equal(batch["row"], info["index"] + 100)
        assert_priorities(buffer.sampler, [1.0, 2.0, 1.0, 2.5, 1.0, 1.5])

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

    def test_repr_shows_the_arguments(self):
        mixed = MixedSampler(RankPrioritizedSampler(0.7, 0.5), OldSampler(2), 0.25)
        assert repr(mixed) == (
            "MixedSampler(first=RankPrioritizedSampler(alpha=0.7, beta=0.5), "
            "second=OldSampler(exponent=2.0), share=0.25)"
        )
        text = (
            "VMFSampler(mode='rank', power=1.0, initial_factor=1.5, smoothing=0.9, pool_size=None)"
        )
        sampler = VMFSampler("rank", initial_factor=1.5, smoothing=0.9)
        assert repr(sampler) == text
        assert text in repr(filled_buffer(sampler))

    def test_can_sample_as_soon_as_the_storage_is_not_empty(self, make_sampler):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=make_sampler())
        assert not buffer.sampler.can_sample(buffer.storage, 4)
        buffer.add(rows(0, 1)[0])
        assert buffer.sampler.can_sample(buffer.storage, 4)
        buffer.empty()
        assert not buffer.sampler.can_sample(buffer.storage, 4)


class TestPrefetch:
    def test_prefetched_batches_contain_live_rows(self, make_sampler):
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


class TestEnsemble:
    def test_buffers_of_an_ensemble_have_separate_priorities(self, make_sampler):
        members = [filled_buffer(make_sampler(), size) for size in (3, 7)]
        for member in members:
            member.update_priority(torch.tensor([1]), torch.tensor([2.0]))
        ensemble = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=32)
        batch = ensemble.sample()
        assert batch.shape == (2, 16)
        assert batch["row"][0].max() < 3
        assert batch["row"][1].max() < 7
        assert_priorities(members[0].sampler, [1.0, 2.0, 1.0])


@pytest.fixture
def meta_default_device():
    """Creates tensors without an explicit device on the meta device, which stores no data."""
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
        assert_priorities(buffer.sampler, [1.0] * 7)
        buffer.sampler.dumps(tmp_path)
        buffer.sampler.loads(tmp_path)
        assert_priorities(buffer.sampler, [1.0] * 7)

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
        # Not through the buffer, which moves priorities to the default device.
        buffer.sampler.update_priority(index[:2], priority, storage=storage)
        assert_priorities(buffer.sampler, [2.0, 2.0, 1.0])

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
        single.update_priority(torch.arange(10), distinct_priorities(10))
        torch.set_default_dtype(torch.float64)
        try:
            double = filled_buffer(make_sampler(), batch_size=32)
            double.update_priority(torch.arange(10), distinct_priorities(10))
            batch = double.sample()
        finally:
            torch.set_default_dtype(torch.float32)
        dtypes = {key: value.dtype for key, value in single.sample().items()}
        assert {key: value.dtype for key, value in batch.items()} == dtypes
        assert torch.equal(batch["row"], batch["index"])
        torch.testing.assert_close(
            double.sampler.probabilities(), single.sampler.probabilities(), rtol=1e-6, atol=0
        )
