"""One buffer, two samplers: what the critics draw, what the actor draws, and what both share."""

import contextlib
import itertools
import json
import math
import os
import pickle
import shutil
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import NonTensorData, TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.envs.transforms import CatTensors, RewardScaling

from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler

# Tests draw more than a batch where they look at a distribution.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

CAPACITY = 32
BATCH = 8

per = partial(PrioritizedSampler, CAPACITY, alpha=0.7, beta=0.5)
CRITIC_SAMPLERS = {
    "uniform": RandomSampler,
    "per": per,
    "rank_per": RankPrioritizedSampler,
    "without_replacement": SamplerWithoutReplacement,
}
ACTOR_SAMPLERS = {
    "vmf_uncertainty": VMFSampler,
    "vmf_rank": partial(VMFSampler, "rank"),
    "uniform": RandomSampler,
    "per": per,
}
PAIRS = list(itertools.product(CRITIC_SAMPLERS, ACTOR_SAMPLERS))

each_critic = pytest.mark.parametrize("critic", CRITIC_SAMPLERS)
each_pair = pytest.mark.parametrize(("critic", "actor"), PAIRS)


def rows(start, count):
    """Transitions whose every entry follows from their number; ten make a trajectory."""
    number = torch.arange(start, start + count)
    value = number[:, None].float()
    return TensorDict(
        {
            "number": number,
            "observation": value.repeat(1, 3),
            "action": -value,
            "trajectory": number // 10,
            "next": {"observation": value.repeat(1, 3) + 1, "reward": value / 2},
        },
        [count],
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(critic="uniform", actor="vmf_uncertainty", seed=0, storage=LazyTensorStorage, **kwargs):
    return ActorCriticReplayBuffer(
        storage=storage(CAPACITY),
        critic_sampler=CRITIC_SAMPLERS[critic](),
        actor_sampler=ACTOR_SAMPLERS[actor](),
        **{"batch_size": BATCH, "generator": generator(seed)} | kwargs,
    )


def factors(count, seed=0):
    return torch.rand(count, generator=generator(seed)) * (math.e - 1) + 1


def refresh_priorities(buffer, critic, actor, count, seed=0):
    """Gives the first slots distinct priorities, where the samplers take any."""
    index = torch.arange(count)
    if "per" in critic:
        buffer.update_priority(index, factors(count, seed))
    if actor != "uniform":
        buffer.update_actor_priority(index, factors(count, seed + 1))


def assert_equal(actual, expected):
    """Asserts that two batches agree in keys, values, types and shapes."""
    assert set(actual.keys(True, True)) == set(expected.keys(True, True))
    assert actual.batch_size == expected.batch_size
    for key in expected.keys(True, True):
        torch.testing.assert_close(
            actual[key], expected[key], rtol=0, atol=0, msg=lambda m, key=key: f"{key}: {m}"
        )


def assert_same_future(buffer, twin, rounds=4):
    """Asserts that two buffers draw, write and learn alike from here on."""
    for step in range(rounds):
        # Prefetching threads draw in no fixed order, so each waits for the one before.
        for one in (buffer, twin):
            one.synchronize()
        batch = buffer.sample()
        assert_equal(twin.sample(), batch)
        for one in (buffer, twin):
            one.synchronize()
        actor_batch = buffer.sample_actor()
        assert_equal(twin.sample_actor(), actor_batch)
        for one in (buffer, twin):
            one.extend(rows(1000 + 5 * step, 5))
            if "Prioritized" in type(one.critic_sampler).__name__:
                one.update_priority(batch["index"], factors(BATCH, step))
            if not isinstance(one.actor_sampler, RandomSampler):
                one.update_actor_priority(actor_batch["index"], factors(BATCH, step))


def stored_factors(sampler):
    return sampler.state_dict()["keys"]


# --- construction --------------------------------------------------------------------------


def test_default_samplers_are_uniform_for_the_critics_and_vmf_for_the_actor():
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY))
    assert type(buffer.critic_sampler) is type(buffer.sampler) is RandomSampler
    assert type(buffer.actor_sampler) is VMFSampler
    assert buffer.actor_sampler.mode == "uncertainty"


def test_a_single_sampler_argument_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"critic_sampler=.*actor_sampler="):
        ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=RandomSampler())


@pytest.mark.parametrize("as_factory", [False, True])
def test_samplers_are_taken_as_instances_and_as_factories(as_factory):
    critic, actor = RankPrioritizedSampler, partial(VMFSampler, "rank")
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        critic_sampler=critic if as_factory else critic(),
        actor_sampler=actor if as_factory else actor(),
    )
    assert type(buffer.critic_sampler) is RankPrioritizedSampler
    assert buffer.actor_sampler.mode == "rank"


@pytest.mark.parametrize(
    "first_use",
    [
        lambda buffer: buffer.actor_sampler,
        lambda buffer: buffer.extend(rows(0, 3)),
        lambda buffer: buffer.set_rng(generator(3)),
        lambda buffer: buffer.empty(),
        lambda buffer: buffer.state_dict(),
        lambda buffer: len(buffer),
    ],
    ids=["actor_sampler", "extend", "set_rng", "empty", "state_dict", "len"],
)
def test_delayed_init_draws_as_a_buffer_made_at_once(first_use):
    buffer, twin = make("rank_per", delayed_init=True), make("rank_per")
    assert not buffer.initialized
    for one in (buffer, twin):
        first_use(one)
        one.extend(rows(0, 20))
        refresh_priorities(one, "rank_per", "vmf_uncertainty", 20)
    assert_same_future(buffer, twin)


@pytest.mark.parametrize("use", ["sample_actor", "update_actor_priority"])
def test_a_delayed_buffer_on_a_filled_storage_serves_the_actor_first(use):
    storage = LazyTensorStorage(CAPACITY)
    TensorDictReplayBuffer(storage=storage).extend(rows(0, 20))
    buffer = ActorCriticReplayBuffer(storage=storage, delayed_init=True)
    if use == "sample_actor":
        assert buffer.sample_actor(BATCH)["index"].max() < 20
    else:
        buffer.update_actor_priority(torch.tensor([3]), 2.0)
        assert stored_factors(buffer.actor_sampler)[3] == 2


@pytest.mark.parametrize("actor", ACTOR_SAMPLERS)
def test_the_actor_draws_from_data_that_were_stored_before(actor):
    storage = LazyTensorStorage(CAPACITY)
    TensorDictReplayBuffer(storage=storage).extend(rows(0, 20))
    buffer = ActorCriticReplayBuffer(
        storage=storage, actor_sampler=ACTOR_SAMPLERS[actor](), generator=generator()
    )
    drawn = buffer.sample_actor(1000)["index"]
    # All 20 keys are equal: a slot is missed with probability 20 * 0.95^1000 < 1e-20 (under
    # rank mode, too, where ties share alike).
    assert drawn.unique().tolist() == list(range(20))


# --- the critics ---------------------------------------------------------------------------


@each_critic
def test_critic_batches_are_those_of_a_plain_buffer(critic):
    buffer = make(critic)
    plain = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=CRITIC_SAMPLERS[critic](),
        batch_size=BATCH,
        generator=generator(),
    )
    for step in range(8):
        for one in (buffer, plain):
            one.extend(rows(10 * step, 10))
            one.add(rows(500 + step, 1)[0])
        batch = plain.sample()
        assert_equal(buffer.sample(), batch)
        if "per" in critic:
            for one in (buffer, plain):
                one.update_priority(batch["index"], factors(BATCH, step))
        batch["td_error"] = factors(BATCH, step + 100)
        buffer.update_tensordict_priority(batch.clone())
        if critic == "rank_per":
            # In a plain buffer TorchRL silently passes over samplers that are not its own.
            plain.update_priority(batch["index"], batch["td_error"])
        else:
            plain.update_tensordict_priority(batch.clone())


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


def test_update_tensordict_priority_reaches_the_critics_sampler_only():
    buffer = make("per")
    buffer.extend(rows(0, 20))
    before = stored_factors(buffer.actor_sampler)
    batch = buffer[torch.arange(20)]
    batch["index"] = torch.arange(20)
    batch["td_error"] = torch.where(torch.arange(20) == 7, 1e9, 0.0)
    buffer.update_tensordict_priority(batch)
    # TorchRL adds 1e-8 to each priority: another slot comes up less than once in 1e10 draws.
    assert set(buffer.sample(1000)["index"].tolist()) == {7}
    assert torch.equal(stored_factors(buffer.actor_sampler), before)


# --- the actor -----------------------------------------------------------------------------

OTHER_ACTOR_SAMPLERS = {
    "rank_per": RankPrioritizedSampler,
    "without_replacement": SamplerWithoutReplacement,
    "slices": partial(SliceSampler, num_slices=2, traj_key="trajectory", strict_length=False),
}


@pytest.mark.parametrize(
    "sampler",
    [*ACTOR_SAMPLERS.values(), *OTHER_ACTOR_SAMPLERS.values()],
    ids=[*ACTOR_SAMPLERS, *OTHER_ACTOR_SAMPLERS],
)
def test_actor_batches_are_those_of_a_plain_buffer(sampler):
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        actor_sampler=sampler(),
        batch_size=BATCH,
        generator=generator(),
    )
    plain = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=sampler(),
        batch_size=BATCH,
        generator=generator(),
    )
    takes_priorities = isinstance(plain.sampler, VMFSampler | PrioritizedSampler)
    for step in range(8):
        for one in (buffer, plain):
            one.extend(rows(10 * step, 10))
        batch = plain.sample()
        assert_equal(buffer.sample_actor(), batch)
        if takes_priorities:
            priority = factors(BATCH, step)
            plain.update_priority(batch["index"], priority)
            buffer.update_actor_priority(batch["index"], priority)


class Diary(RandomSampler):
    """A user's own sampler, which notes what it is told of writes."""

    def __init__(self):
        self.told = []

    def add(self, index):
        self.told.append(("add", index))

    def extend(self, index):
        self.told.append(("extend", index.tolist()))

    def mark_update(self, index, *, storage=None):
        self.told.append(("mark_update", index if isinstance(index, int) else index.tolist()))


@pytest.mark.parametrize("side", ["critic_sampler", "actor_sampler"])
def test_either_sampler_is_told_of_writes_as_in_a_plain_buffer(side):
    # Prioritized samplers with max_priority_within_buffer=True depend on it, for one.
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(CAPACITY), **{side: Diary()})
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=Diary())
    for one in (buffer, plain):
        one.extend(rows(0, 3))
        one.add(rows(3, 1)[0])
    assert getattr(buffer, side).told == plain.sampler.told


@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
def test_actor_draws_follow_the_factors(mode):
    # Chi-square at 1e-4: a right sampler fails one seed in 10,000 per mode, and the seed is fixed.
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), actor_sampler=VMFSampler(mode), generator=generator(1)
    )
    buffer.extend(rows(0, CAPACITY))
    factor = factors(CAPACITY, seed=2)
    buffer.update_actor_priority(torch.arange(CAPACITY), factor)
    weight = factor.double().numpy()
    if mode == "rank":
        weight = 1 / (1 + np.argsort(np.argsort(-weight)))
    draws = 200_000
    drawn = buffer.sample_actor(draws, keys=["number"])
    counts = np.bincount(drawn["number"].numpy(), minlength=CAPACITY)
    expected = draws * weight / weight.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_the_actors_batch_size_is_the_argument_or_else_the_buffers():
    buffer = make()
    buffer.extend(rows(0, 20))
    assert buffer.sample_actor().batch_size == (BATCH,)
    assert buffer.sample_actor(5).batch_size == (5,)
    assert buffer.sample_actor(batch_size=50, keys=["action"]).batch_size == (50,)


def test_a_missing_batch_size_is_an_error_with_the_cure():
    buffer = make(batch_size=None)
    buffer.extend(rows(0, 20))
    with pytest.raises(RuntimeError, match=r"batch size: pass it"):
        buffer.sample_actor()


@pytest.mark.parametrize("actor", ACTOR_SAMPLERS)
def test_drawing_for_the_actor_from_an_empty_buffer_is_an_error(actor):
    with pytest.raises(RuntimeError, match="empty storage"):
        make(actor=actor).sample_actor()


# --- reading only what is asked for --------------------------------------------------------


def store_one_dimension(storage):
    buffer = make("rank_per", storage=storage)
    for start in range(0, 50, 10):
        buffer.extend(rows(start, 10))
    # 50 rows wrote 32 slots: the last 18 of them went to the front again.
    return buffer, torch.cat([torch.arange(32, 50), torch.arange(18, 32)])


def store_two_dimensions():
    buffer = make(storage=partial(LazyTensorStorage, ndim=2))
    buffer.extend(rows(0, 24).reshape(4, 6))
    return buffer, torch.arange(24).reshape(4, 6).T


STORES = {
    "tensor": partial(store_one_dimension, LazyTensorStorage),
    "memmap": partial(store_one_dimension, LazyMemmapStorage),
    "list": partial(store_one_dimension, ListStorage),
    "two_dimensions": store_two_dimensions,
}
each_store = pytest.mark.parametrize("store", STORES.values(), ids=STORES)


@each_store
@pytest.mark.parametrize(
    "keys",
    [
        ["observation"],
        [("next", "reward")],
        ["action", ("next", "observation")],
        ["next", "number"],
        None,
    ],
    ids=str,
)
def test_the_actor_receives_the_keys_asked_for_and_the_index(store, keys):
    buffer, number_at = store()
    batch = buffer.sample_actor(200, keys=keys)
    index = batch["index"]
    slots = tuple(index.unbind(-1)) if number_at.ndim > 1 else index
    wanted = torch.stack([rows(int(number), 1)[0] for number in number_at[slots]])
    stored = wanted if keys is None else wanted.select(*keys)
    expected_keys = {*stored.keys(True, True), "index"}
    assert set(batch.keys(True, True)) == expected_keys
    assert batch.batch_size == (200,)
    for key in stored.keys(True, True):
        assert torch.equal(batch[key], stored[key]), key


@each_store
@pytest.mark.parametrize("missing", ["reward", ("next", "obs")], ids=str)
def test_a_key_that_is_not_stored_is_named_in_a_key_error(store, missing):
    buffer, _ = store()
    with pytest.raises(KeyError, match=missing if isinstance(missing, str) else missing[-1]):
        buffer.sample_actor(keys=["observation", missing])


@each_store
def test_a_batch_for_the_actor_is_a_copy(store):
    buffer, _ = store()
    for keys in (None, ["observation"]):
        batch = buffer.sample_actor(keys=keys)
        batch["observation"].fill_(-77.0)
        batch["extra"] = torch.zeros(BATCH)
    assert (buffer.sample(200)["observation"] != -77).all()


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_keys_are_taken_from_what_the_transform_makes(storage):
    buffer = make(storage=storage)
    buffer.append_transform(
        CatTensors(["observation", "action"], "state_action", del_keys=False),
    )
    buffer.append_transform(RewardScaling(loc=1.0, scale=2.0, in_keys=[("next", "reward")]))
    buffer.extend(rows(0, 20))
    batch = buffer.sample_actor(keys=["state_action", ("next", "reward")])
    assert set(batch.keys(True, True)) == {"state_action", ("next", "reward"), "index"}
    number = batch["index"].float()[:, None]
    # CatTensors joins its inputs in the order of their names.
    assert torch.equal(batch["state_action"], torch.cat([-number, number.repeat(1, 3)], -1))
    # The inverse of the scaling is not applied at writing: the reward stored is number / 2.
    assert torch.equal(batch["next", "reward"], number / 2 * 2 + 1)


def test_the_importance_weights_of_an_actors_sampler_come_along():
    buffer = make(actor="per")
    buffer.extend(rows(0, 20))
    assert set(buffer.sample_actor(keys=["action"]).keys()) >= {
        "action",
        "index",
        "priority_weight",
    }


@pytest.mark.parametrize("ndim", [1, 2])
def test_the_generation_of_a_slot_comes_along_where_the_writer_counts_it(ndim):
    buffer = make(
        storage=partial(LazyTensorStorage, ndim=ndim),
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )
    if ndim == 1:
        buffer.extend(rows(0, CAPACITY))
        buffer.extend(rows(0, 10))
    else:
        buffer.extend(rows(0, CAPACITY).reshape(2, -1))
        buffer.extend(rows(0, 20).reshape(2, -1))
    batch = buffer.sample_actor(200, keys=["observation"])
    assert set(batch.keys()) == {"observation", "index", "index_generation"}
    slot = batch["index"] if ndim == 1 else batch["index"][:, 0]
    written_twice = slot < 10
    assert 0 < written_twice.sum() < 200
    generation = batch["index_generation"]
    assert (generation[written_twice] == generation[~written_twice].unique() + 1).all()
    assert torch.equal(generation, buffer.writer.generations_of(batch["index"]))


# --- two samplers side by side -------------------------------------------------------------


def test_the_two_samplers_learn_independently():
    buffer = make("rank_per", "vmf_uncertainty")
    buffer.extend(rows(0, 20))
    refresh_priorities(buffer, "rank_per", "vmf_uncertainty", 20)
    critic, actor = (stored_factors(s) for s in (buffer.critic_sampler, buffer.actor_sampler))
    assert torch.equal(critic, factors(20, 0))
    assert torch.equal(actor, factors(20, 1))
    buffer.update_priority(torch.arange(5), torch.full((5,), 9.0))
    assert torch.equal(stored_factors(buffer.actor_sampler), actor)
    critic = stored_factors(buffer.critic_sampler)
    buffer.update_actor_priority(torch.arange(5, 9), torch.full((4,), 1.25))
    assert torch.equal(stored_factors(buffer.critic_sampler), critic)
    assert stored_factors(buffer.actor_sampler)[5:9].tolist() == [1.25] * 4


@pytest.mark.parametrize("write", ["extend", "add"])
def test_a_write_gives_the_overwritten_slots_their_default_in_both_samplers(write):
    buffer = make("rank_per", "vmf_uncertainty")
    buffer.extend(rows(0, CAPACITY))
    index = torch.arange(CAPACITY)
    buffer.update_priority(index, torch.linspace(0.1, 5.0, CAPACITY))
    buffer.update_actor_priority(index, torch.full((CAPACITY,), 2.5))
    if write == "extend":
        buffer.extend(rows(100, 4))
    else:
        for number in range(100, 104):
            buffer.add(rows(number, 1)[0])
    fresh = index < 4
    actor = stored_factors(buffer.actor_sampler)
    assert torch.equal(actor, torch.where(fresh, 1.0, 2.5))
    critic = stored_factors(buffer.critic_sampler)
    # A fresh transition has the highest priority seen, so that the critics see it soon.
    assert torch.equal(critic, torch.where(fresh, 5.0, torch.linspace(0.1, 5.0, CAPACITY)))


def test_overwriting_resets_the_priority_in_a_torchrl_sampler_of_either_side():
    buffer = make("per", "per")
    buffer.extend(rows(0, CAPACITY))
    index = torch.arange(CAPACITY)
    for update in (buffer.update_priority, buffer.update_actor_priority):
        update(index, torch.where(index == 0, 1e9, 1e-9))
    assert set(buffer.sample(500)["index"].tolist()) == {0}
    assert set(buffer.sample_actor(500)["index"].tolist()) == {0}
    buffer.extend(rows(100, 3))
    # TorchRL's default is the highest priority seen: slots 0 to 2 share all the mass by three.
    assert set(buffer.sample(500)["index"].tolist()) == {0, 1, 2}
    assert set(buffer.sample_actor(500)["index"].tolist()) == {0, 1, 2}


@each_pair
def test_empty_resets_both_samplers(critic, actor):
    buffer = make(critic, actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, critic, actor, CAPACITY)
    buffer.sample()
    buffer.empty()
    assert len(buffer) == 0
    for draw in (buffer.sample, buffer.sample_actor):
        with pytest.raises(RuntimeError, match="empty storage"):
            draw()
    fresh = make(critic, actor)
    for one in (buffer, fresh):
        one.set_rng(generator(5))
        one.extend(rows(0, 12))
    assert_same_future(buffer, fresh)


@each_pair
def test_one_generator_serves_both_samplers_and_no_other(critic, actor):
    buffer = make(critic, actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, critic, actor, CAPACITY)
    twin = pickle.loads(pickle.dumps(buffer))

    global_states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sequences = []
    for one in (buffer, twin):
        one.set_rng(generator(11))
        sequences.append([draw()["index"] for draw in 3 * [one.sample_actor, one.sample]])
    assert all(torch.equal(a, b) for a, b in zip(*sequences, strict=True))
    assert torch.equal(torch.get_rng_state(), global_states[0])
    assert (np.random.get_state()[1] == global_states[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("actor", ACTOR_SAMPLERS)
def test_the_generators_state_decides_what_is_drawn(actor):
    buffer = make("rank_per", actor)
    buffer.extend(rows(0, CAPACITY))
    refresh_priorities(buffer, "rank_per", actor, CAPACITY)
    sequences = []
    for _ in range(2):
        buffer._rng.set_state(generator(12).get_state())
        sequences.append([draw()["index"] for draw in 3 * [buffer.sample_actor, buffer.sample]])
    assert all(torch.equal(a, b) for a, b in zip(*sequences, strict=True))


def test_draws_for_the_actor_advance_the_generator_of_the_critics():
    buffer, twin = make(), make()
    for one in (buffer, twin):
        one.extend(rows(0, CAPACITY))
    buffer.sample_actor()
    assert not torch.equal(buffer.sample()["index"], twin.sample()["index"])


# --- saving and loading --------------------------------------------------------------------


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


def used_buffer(critic="rank_per", actor="vmf_rank", **kwargs):
    buffer = make(critic, actor, **kwargs)
    buffer.extend(rows(0, 20))
    refresh_priorities(buffer, critic, actor, 20)
    buffer.extend(rows(20, 20))
    buffer.sample()
    buffer.sample_actor()
    buffer.synchronize()
    return buffer


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


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.makedirs, (str(self.folder),)


def plant_pickle(file, bomb):
    file.write_bytes(pickle.dumps(bomb))


def plant_archive(file, bomb):
    torch.save({"queue": [bomb], "keys": bomb}, file)


def plant_non_tensor(folder, bomb):
    """Adds an entry to a saved TensorDict that tensordict would unpickle."""
    spare = folder.with_name("spare")
    TensorDict({"bomb": NonTensorData(object())}, []).memmap(spare)
    meta = json.loads((folder / "meta.json").read_text())
    meta["bomb"] = json.loads((spare / "meta.json").read_text())["bomb"]
    (folder / "meta.json").write_text(json.dumps(meta))
    (spare / "bomb").rename(folder / "bomb")
    (folder / "bomb" / "other.pickle").write_bytes(pickle.dumps(bomb))


def plant_zipped_non_tensor(folder, bomb):
    """Puts a zip archive, which tensordict also reads, in the place of a saved TensorDict."""
    plant_non_tensor(folder, bomb)
    archive = shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)
    os.replace(archive, folder)


def saved_buffer_with_every_file(folder):
    buffer = used_buffer(prefetch=2)
    buffer.append_transform(RewardScaling(loc=0.0, scale=1.0, in_keys=[("next", "reward")]))
    buffer.dumps(folder)
    target = make("rank_per", "vmf_rank", seed=99, prefetch=2)
    target.append_transform(RewardScaling(loc=0.0, scale=1.0, in_keys=[("next", "reward")]))
    return target


def test_the_bombs_go_off_when_they_are_unpickled(tmp_path):
    for number, plant in enumerate([plant_pickle, plant_archive]):
        plant(tmp_path / "file", Bomb(tmp_path / f"marker{number}"))
        with contextlib.suppress(RuntimeError):
            torch.load(tmp_path / "file", weights_only=False)
        assert (tmp_path / f"marker{number}").exists()


@pytest.mark.parametrize("plant", [plant_pickle, plant_archive])
@pytest.mark.parametrize(
    "file", ["prefetched/queue.pt", "sampler/keys.pt", "actor_sampler/keys.pt", "transform.t"]
)
def test_loading_runs_no_code_from_a_file_that_torch_reads(plant, file, tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    assert (tmp_path / "saved" / file).exists()
    plant(tmp_path / "saved" / file, Bomb(tmp_path / "marker"))
    with pytest.raises((RuntimeError, pickle.UnpicklingError)):
        target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()


def test_loading_runs_no_code_from_a_pickled_queue(tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    plant_pickle(tmp_path / "saved" / "prefetch.pkl", Bomb(tmp_path / "marker"))
    target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()
    assert len(target) == CAPACITY


@pytest.mark.parametrize(
    ("plant", "folder"),
    [
        (plant_non_tensor, "storage"),
        (plant_non_tensor, "storage/next"),
        (plant_non_tensor, "rng_state"),
        (plant_zipped_non_tensor, "rng_state"),
    ],
)
@pytest.mark.filterwarnings("ignore:TensorDict.load_memmap:FutureWarning")
def test_loading_runs_no_code_from_a_saved_tensordict(plant, folder, tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    plant(tmp_path / "saved" / folder, Bomb(tmp_path / "marker"))
    # Whether the entry is refused or passed over is not the point here.
    with contextlib.suppress(Exception):
        target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()


# --- threads -------------------------------------------------------------------------------

WIDTH = 256


def wide_rows(number, count):
    value = torch.arange(number, number + count)[:, None].float()
    return TensorDict(
        {
            "number": value,
            "observation": value.repeat(1, WIDTH),
            "next": {"observation": value.repeat(1, WIDTH), "reward": value.clone()},
        },
        [count],
    )


def torn(batch):
    entries = batch.exclude("index", "priority_weight").values(True, True)
    columns = torch.cat([entry.reshape(len(batch), -1) for entry in entries], -1)
    return bool((columns != columns[:, :1]).any())


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_a_writer_two_readers_and_a_saver_find_no_torn_row_and_no_deadlock(storage, tmp_path):
    capacity, seconds, patience = 400, 2.5, 60
    buffer = ActorCriticReplayBuffer(
        storage=storage(capacity),
        critic_sampler=RankPrioritizedSampler(),
        actor_sampler=VMFSampler("rank"),
        batch_size=64,
        prefetch=3,
    )
    buffer.extend(wide_rows(0, 50))
    deadline = time.monotonic() + seconds
    errors, turns = [], {}

    def repeat(turn):
        def loop():
            try:
                for count in itertools.count(1):
                    turn(count)
                    turns[turn.__name__] = count
                    if time.monotonic() > deadline:
                        break
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=loop, daemon=True)

    def write(count):
        buffer.extend(wide_rows(count * 70, 70))

    def read_for_the_critics(_):
        batch = buffer.sample()
        assert not torn(batch)
        assert batch["index"].max() < len(buffer)
        buffer.update_priority(batch["index"], torch.rand(64))

    def read_for_the_actor(count):
        keys = None if count % 2 else ["number", ("next", "observation")]
        batch = buffer.sample_actor(keys=keys)
        assert not torn(batch)
        assert batch["index"].max() < len(buffer)
        buffer.update_actor_priority(batch["index"], 1 + torch.rand(64))

    def save(count):
        buffer.dumps(tmp_path / str(count % 2))
        time.sleep(0.1)

    work = [write, read_for_the_critics, read_for_the_actor, save]
    threads = [repeat(turn) for turn in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=patience)
    assert not any(thread.is_alive() for thread in threads), f"deadlock after {turns}"
    assert errors == []
    assert all(turns[turn.__name__] > 2 for turn in work), turns

    restored = ActorCriticReplayBuffer(
        storage=storage(capacity),
        critic_sampler=RankPrioritizedSampler(),
        actor_sampler=VMFSampler("rank"),
        prefetch=3,
        batch_size=64,
    )
    restored.loads(tmp_path / "1")
    assert not torn(restored.sample_actor(1000))
