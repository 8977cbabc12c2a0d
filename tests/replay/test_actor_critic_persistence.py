"""All ways to save and load a buffer with both samplers and its prefetched batches."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictRoundRobinWriter,
)
from torchrl.envs import ObservationNorm

from helpers.actor_critic import (
    BATCH,
    CAPACITY,
    assert_equal,
    assert_same_future,
    make,
    rows,
    used_buffer,
)
from torchrl_vmfer import ActorCriticReplayBuffer


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
def test_a_restored_buffer_continues_like_the_original(transport, critic, actor, tmp_path):
    source = used_buffer(critic, actor)
    target = make(critic, actor, seed=99)
    target.extend(rows(500, CAPACITY))  # is replaced
    target.sample()
    target = transport(source, target, tmp_path)
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
    prefetched = source.state_dict()["prefetched"]
    assert [one["batch"]["device"] for one in prefetched] == ["cpu"] * 3
    target = make("rank_per", "vmf_uncertainty", seed=99, storage=storage, prefetch=3)
    target = transport(source, target, tmp_path)
    assert_same_future(source, target, rounds=8)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("transport", [by_dumps, by_state_dict, by_checkpoint])
def test_a_restored_buffer_and_its_state_share_nothing_with_the_source(
    transport, storage, tmp_path
):
    source = used_buffer(storage=storage)
    state = source.state_dict()
    targets = [make("rank_per", "vmf_rank", seed=seed, storage=storage) for seed in (98, 99)]
    transport(source, targets[0], tmp_path)
    for one in (source, targets[0]):
        one.extend(rows(900, CAPACITY))
        one.update_actor_priority(torch.arange(CAPACITY), 1.75)
        one.update_priority(torch.arange(CAPACITY), 3.0)
        for entry in one[0].values(True, True):
            entry.zero_().sub_(7)
    targets[1].load_state_dict(state)
    twin = used_buffer(storage=storage)
    assert_equal(targets[1][:], twin[:])
    assert_same_future(twin, targets[1])


@pytest.mark.parametrize(("written", "capacity"), [(40, CAPACITY + 1), (CAPACITY - 1,) * 2])
def test_a_full_ring_does_not_load_into_one_of_another_size(written, capacity):
    source = make()
    source.extend(rows(0, written))
    other = ActorCriticReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)
    message = f"capacity {CAPACITY}, but this storage has the capacity {capacity}"
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(source.state_dict())


def test_only_live_rows_are_saved(tmp_path):
    sizes = {}
    for capacity in (32, 100_000):
        buffer = ActorCriticReplayBuffer(
            storage=LazyTensorStorage(capacity),
            writer=TensorDictRoundRobinWriter(track_generations=True),
            critic_sampler=PrioritizedSampler(capacity, alpha=0.7, beta=0.5),
            batch_size=BATCH,
        )
        buffer.extend(rows(0, 20))
        buffer.dumps(tmp_path / str(capacity))
        files = [file for file in (tmp_path / str(capacity)).rglob("*") if file.is_file()]
        sizes[capacity] = sum(file.stat().st_size for file in files)
    assert sizes[100_000] < sizes[32] + 500


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_strings_in_stored_rows_survive_a_restore(storage, tmp_path):
    source, target = make(storage=storage), make(storage=storage, seed=99)
    data = rows(0, 20)
    data["name"] = NonTensorStack(*(NonTensorData(np.str_(f"row {i}")) for i in range(20)))
    source.extend(data)
    source.dumps(tmp_path)
    target.loads(tmp_path)
    batch, restored = source.sample(), target.sample()
    assert list(restored["name"]) == list(batch["name"])
    assert torch.equal(restored["number"], batch["number"])


def test_an_entry_that_only_pickle_could_save_is_reported(tmp_path):
    buffer = make()
    data = rows(0, 3)
    data["secret"] = NonTensorStack(*(NonTensorData(object()) for _ in range(3)))
    buffer.extend(data)
    with pytest.raises(
        TypeError, match=r"'secret'.* holds an object of type object.*store tensors"
    ):
        buffer.dumps(tmp_path)


def test_rows_with_other_non_tensor_entries_do_not_load():
    named, plain = make(), make()
    data = rows(0, 5)
    plain.extend(data.clone())
    data["name"] = NonTensorStack(*(NonTensorData(f"row {i}") for i in range(5)))
    named.extend(data)
    for source, target in ((named, plain), (plain, named)):
        with pytest.raises(ValueError, match=r"entry 'name' is .*missing"):
            target.load_state_dict(source.state_dict())


def test_a_failed_save_leaves_the_older_one_intact(tmp_path, monkeypatch):
    source = used_buffer()
    source.dumps(tmp_path)
    reference = pickle.loads(pickle.dumps(source))
    source.extend(rows(500, 9))

    def full_disk(state, stream, *args, **kwargs):
        stream.write(b"half of it")
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full_disk)
        with pytest.raises(OSError, match="No space"):
            source.dumps(tmp_path)
    target = make("rank_per", "vmf_rank", seed=99)
    target.loads(tmp_path)
    assert_same_future(reference, target)


def test_the_state_of_a_transform_does_not_load_into_a_buffer_without_one():
    normalize = ObservationNorm(loc=1.0, scale=2.0, in_keys=["observation"])
    source, target = (
        ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH, **kwargs)
        for kwargs in ({"transform": normalize}, {})
    )
    with pytest.raises(ValueError, match="this buffer has no transform"):
        target.load_state_dict(source.state_dict())


def test_a_full_grid_loads_if_its_capacity_was_rounded_up():
    source, target = (
        ActorCriticReplayBuffer(storage=LazyTensorStorage(20, ndim=2), batch_size=BATCH)
        for _ in range(2)
    )
    grid = TensorDict({"number": torch.arange(21).view(3, 7)}, [3, 7])
    source.extend(grid)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target[:]["number"].flatten(), source[:]["number"].flatten())
    for capacity in (14, 42):
        other = ActorCriticReplayBuffer(
            storage=LazyTensorStorage(capacity, ndim=2), batch_size=BATCH
        )
        with pytest.raises(ValueError, match="construct it with the same capacity"):
            other.load_state_dict(source.state_dict())


DAMAGES = {
    "writer": lambda state: state["writer"].pop("_cursor"),
    "critic_sampler": lambda state: state.update(critic_sampler={"sampler": "Other"}),
    "rows": lambda state: state["storage"]["rows"][0]["tensors"].update(action=torch.zeros(32, 7)),
    "generator": lambda state: state.update(generator=(torch.zeros(3, dtype=torch.uint8), "cpu")),
    "storage": lambda state: state.pop("storage"),
    "prefetched": lambda state: state.pop("prefetched"),
}


@pytest.mark.parametrize("critic", ["rank_per", "uniform", "per", "without_replacement"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_failed_load_changes_nothing(name, critic, tmp_path):
    buffer = used_buffer(critic)
    reference = pickle.loads(pickle.dumps(buffer))
    other = used_buffer(critic)
    other.extend(rows(700, 11))
    state = other.state_dict()
    state["actor_sampler"]["priorities"].fill_(1.0)
    DAMAGES[name](state)
    with pytest.raises((KeyError, ValueError, RuntimeError, TypeError)):
        buffer.load_state_dict(state)
    with pytest.raises(OSError, match="nowhere"):
        buffer.loads(tmp_path / "nowhere")
    assert_same_future(reference, buffer)


def test_a_state_saved_on_another_device_is_loaded_onto_that_of_the_storage():
    source = used_buffer("rank_per", "vmf_uncertainty", prefetch=2)
    state = source.state_dict()
    for part in (*state["storage"]["rows"], *(one["batch"] for one in state["prefetched"])):
        part["device"] = "cuda:7"  # the tensors themselves were loaded onto the CPU
    target = make("rank_per", "vmf_uncertainty", seed=99, prefetch=2)
    target.load_state_dict(state)
    assert_same_future(source, target)
