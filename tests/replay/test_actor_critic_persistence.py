"""Saving and loading a buffer with both samplers and its prefetched batches, in every way."""

import pickle
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

from helpers.actor_critic import (
    BATCH,
    CAPACITY,
    assert_equal,
    assert_same_future,
    factors,
    generator,
    make,
    rows,
    stored_factors,
    used_buffer,
)
from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler


def by_dumps(source, target, folder):
    source.dumps(folder / "missing" / "nested")
    target.loads(folder / "missing" / "nested")
    return target


def by_state_dict(source, target, folder):
    target.load_state_dict(source.state_dict())
    return target


def by_pickle(source, target, folder):
    return pickle.loads(pickle.dumps(source))


def by_checkpoint(source, target, folder, form="directory"):
    Checkpoint(replay_buffer=source, format=form).save(folder / "checkpoint")
    result = Checkpoint(replay_buffer=target, format=form).load(folder / "checkpoint")
    assert result.loaded == {"replay_buffer"}
    return target


TRANSPORTS = {
    "dumps": by_dumps,
    "state_dict": by_state_dict,
    "pickle": by_pickle,
    "checkpoint": by_checkpoint,
    "checkpoint_archive": partial(by_checkpoint, form="archive"),
}
each_transport = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)


@each_transport
@pytest.mark.parametrize(
    ("critic", "actor"),
    [
        ("uniform", "vmf_uncertainty"),
        ("per", "vmf_rank"),
        ("rank_per", "per"),
        ("without_replacement", "uniform"),
    ],
)
def test_a_restored_buffer_goes_on_as_the_original(transport, critic, actor, tmp_path):
    source = used_buffer(critic, actor)
    target = transport(source, make(critic, actor, seed=99), tmp_path)
    assert len(target) == len(source)
    assert target.write_count == source.write_count
    assert_equal(target[:], source[:])
    assert_same_future(source, target)


@pytest.mark.parametrize(
    ("storage", "transport"),
    [
        pytest.param(storage, transport, id=f"{storage.__name__}-{name}")
        for storage in (LazyTensorStorage, LazyMemmapStorage)
        for name, transport in TRANSPORTS.items()
        # TorchRL's memory-mapped storages cannot be pickled.
        if (storage, name) != (LazyMemmapStorage, "pickle")
    ],
)
def test_prefetched_batches_survive_a_restore(transport, storage, tmp_path):
    source = used_buffer("rank_per", "vmf_uncertainty", storage=storage, prefetch=3)
    assert len(source._prefetch_queue) == 3
    target = make("rank_per", "vmf_uncertainty", seed=99, storage=storage, prefetch=3)
    target = transport(source, target, tmp_path)
    assert_same_future(source, target, rounds=8)


@pytest.mark.parametrize("transport", [by_dumps, by_pickle, by_checkpoint])
def test_a_prefetched_batch_keeps_its_device_and_nested_batch_size(transport, tmp_path):
    source = make(prefetch=2)
    data = rows(0, 20)
    data["agents"] = TensorDict({"action": torch.zeros(20, 4, 2)}, [20, 4])
    source.extend(data)
    source.sample()
    target = transport(source, make(prefetch=2), tmp_path)
    batch, restored = source.sample(), target.sample()
    assert restored.device == batch.device == torch.device("cpu")
    assert restored["agents"].batch_size == batch["agents"].batch_size == (BATCH, 4)


@pytest.mark.parametrize("transport", [by_dumps, by_state_dict, by_checkpoint])
def test_a_restore_replaces_what_the_buffer_held(transport, tmp_path):
    source = used_buffer(prefetch=2)
    target = make("rank_per", "vmf_rank", seed=99, prefetch=2)
    target.extend(rows(500, CAPACITY))
    target.update_actor_priority(torch.arange(CAPACITY), 2.0)
    target.sample()
    target = transport(source, target, tmp_path)
    assert_same_future(source, target, rounds=8)


@pytest.mark.parametrize("transport", [by_dumps, by_state_dict, by_checkpoint])
def test_a_restored_buffer_shares_nothing_with_its_source(transport, tmp_path):
    source = used_buffer()
    target = transport(source, make("rank_per", "vmf_rank", seed=99), tmp_path)
    reference = pickle.loads(pickle.dumps(source))
    source.extend(rows(900, CAPACITY))
    source.update_actor_priority(torch.arange(CAPACITY), 1.75)
    source.update_priority(torch.arange(CAPACITY), 3.0)
    source.sample()
    assert_same_future(reference, target)


def test_a_state_dict_is_not_changed_by_the_buffer_that_loaded_it():
    source = used_buffer()
    state = source.state_dict()
    other = make("rank_per", "vmf_rank", seed=98)
    other.load_state_dict(state)
    other.extend(rows(700, CAPACITY))
    other.update_actor_priority(torch.arange(CAPACITY), 1.5)
    other.update_priority(torch.arange(CAPACITY), 1.5)
    target = make("rank_per", "vmf_rank", seed=99)
    target.load_state_dict(state)
    assert_same_future(source, target)


def test_a_buffer_made_of_factories_can_be_pickled():
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        critic_sampler=lambda: RankPrioritizedSampler(alpha=0.6),
        actor_sampler=lambda: VMFSampler("rank"),
        batch_size=BATCH,
        generator=generator(),
    )
    buffer.extend(rows(0, 20))
    assert_same_future(buffer, pickle.loads(pickle.dumps(buffer)))


def files_below(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_the_storage_is_saved_once(tmp_path):
    buffer = used_buffer("uniform", "vmf_uncertainty")
    plain = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), batch_size=BATCH, generator=generator()
    )
    plain.extend(rows(0, 20))
    buffer.dumps(tmp_path / "both")
    plain.dumps(tmp_path / "plain")
    both = files_below(tmp_path / "both")
    added = both - files_below(tmp_path / "plain")
    assert sum("observation.memmap" in name for name in both) == 2  # and that of "next"
    assert {name for name in added if name.endswith(".memmap")} == set()
    size = sum((tmp_path / "both" / name).stat().st_size for name in added)
    # 32 factors of four bytes and the envelopes of two small files.
    assert size < 8_000


def test_saving_again_into_the_same_folder_saves_the_present_state(tmp_path):
    source = used_buffer(prefetch=2)
    source.dumps(tmp_path)
    source.extend(rows(200, 7))
    source.update_actor_priority(torch.arange(CAPACITY), factors(CAPACITY, 8))
    source.sample()
    source.dumps(tmp_path)
    target = make("rank_per", "vmf_rank", seed=99, prefetch=2)
    target.loads(tmp_path)
    assert_same_future(source, target, rounds=6)


def test_a_plain_buffers_files_load_with_default_factors(tmp_path):
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    plain.extend(rows(0, 20))
    plain.dumps(tmp_path)
    buffer = make()
    buffer.extend(rows(100, CAPACITY))
    buffer.update_actor_priority(torch.arange(CAPACITY), 2.0)
    buffer.loads(tmp_path)
    assert sorted(set(buffer.sample_actor(2000)["number"].tolist())) == list(range(20))
    assert stored_factors(buffer.actor_sampler).tolist() == [1.0] * 20


def buffer_with_factors():
    buffer = make("uniform")
    buffer.extend(rows(0, 20))
    buffer.update_actor_priority(torch.arange(20), torch.linspace(1, 2.5, 20))
    return buffer, buffer.actor_sampler.probabilities()


def test_a_folder_that_is_not_there_leaves_the_actors_factors(tmp_path):
    buffer, before = buffer_with_factors()
    with pytest.raises(OSError, match="nowhere"):
        buffer.loads(tmp_path / "nowhere")
    assert torch.equal(buffer.actor_sampler.probabilities(), before)


def test_an_incomplete_state_leaves_the_actors_factors():
    buffer, before = buffer_with_factors()
    state = buffer.state_dict()
    del state["_writer"]
    state["actor_sampler"]["keys"].fill_(1.0)
    with pytest.raises(KeyError, match="_writer"):
        buffer.load_state_dict(state)
    assert torch.equal(buffer.actor_sampler.probabilities(), before)
