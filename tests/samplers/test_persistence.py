"""Saving and loading the samplers, alone, inside a buffer and in a TorchRL checkpoint."""

from copy import deepcopy
from types import NoneType

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    TensorDictReplayBuffer,
)

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler


def rows(count):
    return TensorDict({"row": torch.arange(count)}, [count])


def fresh_buffer(sampler, storage=LazyTensorStorage, **kwargs):
    return TensorDictReplayBuffer(storage=storage(10), sampler=sampler, batch_size=64, **kwargs)


def used_buffer(sampler, storage=LazyTensorStorage, **kwargs):
    """A buffer that has wrapped around, with distinct priorities except for two new slots."""
    buffer = fresh_buffer(sampler, storage, **kwargs)
    buffer.extend(rows(8))
    buffer.update_priority(torch.arange(8), torch.tensor([2, 1.1, 2.5, 1.6, 1.2, 2.2, 1.4, 1.9]))
    buffer.sample()
    buffer.extend(rows(4))
    return buffer


@pytest.mark.parametrize("make", [lambda: VMFSampler("rank"), RankPrioritizedSampler])
@pytest.mark.parametrize("length", [1000, 1024, 1025])
def test_a_loaded_sampler_rounds_as_one_that_has_grown(make, length):
    sampler, storage = make(), LazyTensorStorage(2000)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=8)
    for start in range(0, length, 125):
        count = min(125, length - start)
        buffer.extend(rows(count))
        buffer.update_priority(torch.arange(start, start + count), 1 + torch.rand(count))
        buffer.sample()
    loaded = make()
    loaded.load_state_dict(sampler.state_dict())
    assert torch.equal(loaded.probabilities(storage), sampler.probabilities(storage))


def numbers(state):
    return {name: value for name, value in state.items() if not isinstance(value, (str, NoneType))}


def draws(buffer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    buffer.set_rng(generator)
    return torch.stack([buffer.sample()["index"] for _ in range(5)])


def assert_same(actual, expected):
    """Asserts equal probabilities, defaults and draws, now and after the same further use."""
    for _ in range(2):
        probabilities = actual.sampler.probabilities(), expected.sampler.probabilities()
        assert torch.equal(*probabilities)
        assert actual.sampler.default_priority == expected.sampler.default_priority
        assert torch.equal(draws(actual), draws(expected))
        for buffer in (actual, expected):
            buffer.extend(rows(1))
            buffer.update_priority(torch.tensor([9, 0]), torch.tensor([1.3, 2.6]))


class TestFiles:
    def test_a_new_sampler_loads_a_saved_state(self, make_sampler, tmp_path):
        saved = used_buffer(make_sampler())
        saved.sampler.dumps(tmp_path)
        sampler = make_sampler()
        sampler.loads(tmp_path)
        assert torch.equal(sampler.probabilities(), saved.sampler.probabilities())
        assert sampler.default_priority == saved.sampler.default_priority

    @pytest.mark.parametrize("as_text", [False, True])
    def test_missing_folders_are_created(self, make_sampler, tmp_path, as_text):
        folder = tmp_path / "not" / "yet" / "there"
        saved = used_buffer(make_sampler())
        saved.sampler.dumps(str(folder) if as_text else folder)
        sampler = make_sampler()
        sampler.loads(str(folder) if as_text else folder)
        assert torch.equal(sampler.probabilities(), saved.sampler.probabilities())

    @pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
    def test_a_new_buffer_resumes_from_a_saved_one(self, make_sampler, tmp_path, storage):
        saved = used_buffer(make_sampler(), storage)
        saved.dumps(tmp_path / "missing")
        loaded = fresh_buffer(make_sampler(), storage)
        loaded.loads(tmp_path / "missing")
        assert_same(loaded, saved)

    def test_loading_replaces_the_contents_of_a_used_buffer(self, make_sampler, tmp_path):
        saved = fresh_buffer(make_sampler())
        saved.extend(rows(3))
        saved.dumps(tmp_path)
        loaded = used_buffer(make_sampler())
        loaded.loads(tmp_path)
        np.testing.assert_allclose(loaded.sampler.probabilities(), [1 / 3] * 3, rtol=1e-12)
        assert loaded.sampler.default_priority == 1.0
        assert draws(loaded).max() == 2

    def test_the_generator_is_saved_with_the_buffer(self, make_sampler, tmp_path):
        saved = used_buffer(make_sampler(), generator=torch.Generator().manual_seed(8))
        saved.dumps(tmp_path)
        loaded = fresh_buffer(make_sampler())
        loaded.loads(tmp_path)
        assert torch.equal(loaded.sample()["index"], saved.sample()["index"])

    def test_saving_again_replaces_the_older_state(self, make_sampler, tmp_path):
        buffer = used_buffer(make_sampler())
        buffer.sampler.dumps(tmp_path)
        buffer.update_priority(torch.tensor([4]), torch.tensor([2.7]))
        buffer.sampler.dumps(tmp_path)
        sampler = make_sampler()
        sampler.loads(tmp_path)
        assert torch.equal(sampler.probabilities(), buffer.sampler.probabilities())

    def test_a_buffer_saved_with_a_uniform_sampler_starts_with_default_priorities(
        self, make_sampler, tmp_path
    ):
        saved = fresh_buffer(RandomSampler())
        saved.extend(rows(6))
        saved.dumps(tmp_path)
        for loaded in (fresh_buffer(make_sampler()), used_buffer(make_sampler())):
            loaded.loads(tmp_path)
            assert draws(loaded).max() < 6
            np.testing.assert_allclose(loaded.sampler.probabilities(), [1 / 6] * 6, rtol=1e-12)

    def test_an_empty_sampler_can_be_saved(self, make_sampler, tmp_path):
        make_sampler().dumps(tmp_path)
        buffer = used_buffer(make_sampler())
        buffer.sampler.loads(tmp_path)
        assert buffer.sampler.probabilities().shape == (0,)
        assert buffer.sampler.default_priority == 1.0

    def test_a_saved_file_does_not_change_with_the_sampler(self, make_sampler, tmp_path):
        buffer = used_buffer(make_sampler())
        before = buffer.sampler.probabilities()
        buffer.sampler.dumps(tmp_path)
        buffer.update_priority(torch.arange(10), torch.linspace(1.1, 2.6, 10))
        sampler = make_sampler()
        sampler.loads(tmp_path)
        assert torch.equal(sampler.probabilities(), before)

    def test_a_damaged_file_is_reported_by_name_and_changes_nothing(self, make_sampler, tmp_path):
        used_buffer(make_sampler()).sampler.dumps(tmp_path)
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:200])
        buffer = used_buffer(make_sampler())
        before = buffer.sampler.probabilities()
        with pytest.raises(RuntimeError, match=file.name):
            buffer.sampler.loads(tmp_path)
        assert torch.equal(buffer.sampler.probabilities(), before)


@pytest.fixture
def small_files_only():
    """Makes writes beyond 64 kB fail as on a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(active):
        soft = 2**16 if active else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, limits[1]))

    yield set_limit
    set_limit(False)


class TestFailingSave:
    def test_a_full_disk_leaves_the_older_file_intact(
        self, make_sampler, tmp_path, small_files_only
    ):
        older = used_buffer(make_sampler())
        older.sampler.dumps(tmp_path)
        larger = make_sampler()
        larger.mark_update(torch.arange(10**5))
        small_files_only(True)
        with pytest.raises((OSError, RuntimeError)):
            larger.dumps(tmp_path)
        small_files_only(False)

        sampler = make_sampler()
        sampler.loads(tmp_path)
        assert torch.equal(sampler.probabilities(), older.sampler.probabilities())

        larger.dumps(tmp_path)
        sampler.loads(tmp_path)
        assert sampler.probabilities().shape == (10**5,)

    def test_an_interrupted_save_leaves_the_older_file_intact(
        self, make_sampler, tmp_path, monkeypatch
    ):
        older = used_buffer(make_sampler())
        older.sampler.dumps(tmp_path)

        def write_half(state, stream):
            stream.write(b"half")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", write_half)
            with pytest.raises(KeyboardInterrupt):
                used_buffer(make_sampler()).sampler.dumps(tmp_path)
        sampler = make_sampler()
        sampler.loads(tmp_path)
        assert torch.equal(sampler.probabilities(), older.sampler.probabilities())


class TestStateDict:
    @pytest.mark.parametrize("is_used", [False, True])
    def test_contains_only_tensors_numbers_strings_and_none(self, make_sampler, is_used):
        sampler = used_buffer(make_sampler()).sampler if is_used else make_sampler()
        plain = (torch.Tensor, int, float, str, type(None))
        for key, value in sampler.state_dict().items():
            assert isinstance(key, str)
            assert isinstance(value, plain)

    @pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
    def test_a_loaded_buffer_resumes_with_identical_draws(self, make_sampler, storage):
        saved = used_buffer(make_sampler(), storage)
        loaded = fresh_buffer(make_sampler(), storage)
        loaded.load_state_dict(saved.state_dict())
        assert_same(loaded, saved)

    def test_a_used_buffer_discards_its_own_order(self, make_sampler):
        saved, loaded = used_buffer(make_sampler()), used_buffer(make_sampler())
        loaded.update_priority(torch.arange(10), torch.linspace(1.1, 2.6, 10))
        loaded.sample()
        loaded.load_state_dict(saved.state_dict())
        assert_same(loaded, saved)

    def test_a_state_does_not_change_with_its_sampler(self, make_sampler):
        buffer = used_buffer(make_sampler())
        before = buffer.sampler.probabilities()
        state = buffer.sampler.state_dict()
        buffer.update_priority(torch.arange(10), torch.linspace(1.1, 2.6, 10))
        sampler = make_sampler()
        sampler.load_state_dict(state)
        assert torch.equal(sampler.probabilities(), before)

    def test_changing_a_state_does_not_affect_the_samplers(self, make_sampler):
        source = used_buffer(make_sampler())
        before = source.sampler.probabilities()
        state = source.sampler.state_dict()
        loaded = fresh_buffer(make_sampler())
        loaded.extend(rows(10))
        loaded.sampler.load_state_dict(state)
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.fill_(1.0)
        assert torch.equal(source.sampler.probabilities(), before)
        assert torch.equal(loaded.sampler.probabilities(), before)

    def test_a_loaded_sampler_does_not_write_into_the_state(self, make_sampler):
        state = used_buffer(make_sampler()).sampler.state_dict()
        before = deepcopy(state)
        loaded = fresh_buffer(make_sampler())
        loaded.extend(rows(10))
        loaded.sampler.load_state_dict(state)
        loaded.update_priority(torch.arange(10), torch.linspace(1.1, 2.6, 10))
        torch.testing.assert_close(
            {name: torch.as_tensor(value) for name, value in numbers(state).items()},
            {name: torch.as_tensor(value) for name, value in numbers(before).items()},
            rtol=0,
            atol=0,
        )

    def test_a_state_loads_before_the_storage_does(self, make_sampler):
        """TorchRL's checkpoint loads its components in the order of their names."""
        source = used_buffer(make_sampler())
        loaded = fresh_buffer(make_sampler())
        loaded.sampler.load_state_dict(source.sampler.state_dict())
        loaded.storage.load_state_dict(source.storage.state_dict())
        loaded.writer.load_state_dict(source.writer.state_dict())
        assert_same(loaded, source)

    @pytest.mark.parametrize("missing", ["sampler", "priorities", "max_priority", "alpha", "beta"])
    def test_an_incomplete_state_is_rejected_and_changes_nothing(self, missing):
        buffer = used_buffer(RankPrioritizedSampler(0.7, 0.5))
        before, default = buffer.sampler.probabilities(), buffer.sampler.default_priority
        state = fresh_buffer(RankPrioritizedSampler(0.7, 0.4)).sampler.state_dict()
        del state[missing]
        with pytest.raises((KeyError, ValueError), match=missing):
            buffer.sampler.load_state_dict(state)
        assert torch.equal(buffer.sampler.probabilities(), before)
        assert buffer.sampler.default_priority == default
        assert buffer.sampler.beta == 0.5

    def test_a_state_with_another_alpha_is_rejected_and_changes_nothing(self):
        state = used_buffer(RankPrioritizedSampler(0.6, 0.4)).sampler.state_dict()
        buffer = used_buffer(RankPrioritizedSampler(0.7, 0.5))
        before = buffer.sampler.probabilities()
        with pytest.raises(ValueError, match=r"alpha=0\.6, but this sampler has alpha=0\.7"):
            buffer.sampler.load_state_dict(state)
        assert torch.equal(buffer.sampler.probabilities(), before)
        assert buffer.sampler.beta == 0.5

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
    def test_a_state_with_a_bad_priority_is_rejected_and_changes_nothing(self, make_sampler, bad):
        buffer = used_buffer(make_sampler())
        before = buffer.sampler.probabilities()
        state = buffer.sampler.state_dict()
        state["priorities"] = torch.tensor([1.0, 2.0, bad])
        with pytest.raises(ValueError, match=r"2 .*(nan|inf|-1)"):
            buffer.sampler.load_state_dict(state)
        assert torch.equal(buffer.sampler.probabilities(), before)

    @pytest.mark.parametrize(
        ("saver", "loader"),
        [(VMFSampler, RankPrioritizedSampler), (RankPrioritizedSampler, VMFSampler)],
    )
    def test_a_state_of_another_class_is_reported_by_name(self, saver, loader):
        state = used_buffer(saver()).sampler.state_dict()
        buffer = used_buffer(loader())
        before = buffer.sampler.probabilities()
        with pytest.raises(ValueError, match=saver.__name__):
            buffer.sampler.load_state_dict(state)
        assert torch.equal(buffer.sampler.probabilities(), before)

    def test_factors_may_be_loaded_into_another_mode(self):
        state = used_buffer(VMFSampler("uncertainty")).sampler.state_dict()
        loaded, expected = VMFSampler("rank"), used_buffer(VMFSampler("rank")).sampler
        loaded.load_state_dict(state)
        assert torch.equal(loaded.probabilities(), expected.probabilities())


class TestTorchRLCheckpoint:
    @pytest.mark.parametrize("format", ["directory", "archive"])
    def test_a_sampler_can_be_a_component(self, make_sampler, tmp_path, format):
        saved = used_buffer(make_sampler())
        Checkpoint(vmf_sampler=saved.sampler).save(tmp_path / "checkpoint", format=format)
        sampler = make_sampler()
        Checkpoint(vmf_sampler=sampler).load(tmp_path / "checkpoint")
        assert torch.equal(sampler.probabilities(), saved.sampler.probabilities())
        assert sampler.default_priority == saved.sampler.default_priority

    def test_a_buffer_can_be_a_component(self, make_sampler, tmp_path):
        saved = used_buffer(make_sampler())
        Checkpoint(replay_buffer=saved).save(tmp_path / "checkpoint")
        loaded = fresh_buffer(make_sampler())
        Checkpoint(replay_buffer=loaded).load(tmp_path / "checkpoint")
        assert_same(loaded, saved)

    def test_a_sampler_that_was_never_used_can_be_saved(self, make_sampler, tmp_path):
        Checkpoint(vmf_sampler=make_sampler()).save(tmp_path / "checkpoint")
        sampler = used_buffer(make_sampler()).sampler
        Checkpoint(vmf_sampler=sampler).load(tmp_path / "checkpoint")
        assert sampler.probabilities().shape == (0,)


@pytest.mark.parametrize("beta", [np.linspace(0.4, 1, 10)[3], torch.tensor(0.7)])
def test_a_beta_that_came_from_an_array_can_be_saved(beta, tmp_path):
    sampler = RankPrioritizedSampler()
    sampler.beta = beta
    sampler.dumps(tmp_path)
    loaded = RankPrioritizedSampler()
    loaded.loads(tmp_path)
    assert loaded.beta == float(beta)
