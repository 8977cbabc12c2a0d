"""The actor's batch contains the requested entries, from any storage, and little else."""

from functools import partial

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
)
from torchrl.data.replay_buffers.sample_units import Sequence
from torchrl.envs.transforms import CatTensors, RewardScaling

from helpers.actor_critic import BATCH, make, rows

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


def store_one_dimension(storage):
    buffer = make("rank_per", storage=storage)
    for start in range(0, 50, 10):
        buffer.extend(rows(start, 10))
    # 50 rows in 32 slots: the last 18 rows overwrote the first ones.
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
def test_the_actor_receives_the_requested_keys_and_the_index(store, keys):
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
def test_a_missing_key_is_reported_in_a_key_error(store, missing):
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
def test_keys_are_selected_after_the_transform(storage):
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
    # The inverse of the scaling is not applied on writing: the stored reward is number / 2.
    assert torch.equal(batch["next", "reward"], number / 2 * 2 + 1)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("keys", [["name"], ["observation", "name"], ["name", ("next", "reward")]])
def test_entries_that_are_not_tensors_can_be_selected(storage, keys):
    buffer = make(storage=storage)
    data = rows(0, 20)
    data["name"] = NonTensorStack(*(NonTensorData(f"row {i}") for i in range(20)))
    buffer.extend(data)
    batch = buffer.sample_actor(keys=keys)
    assert list(batch["name"]) == [f"row {slot}" for slot in batch["index"].tolist()]
    assert set(batch.keys()) == {
        *(key if isinstance(key, str) else key[0] for key in keys),
        "index",
    }


@pytest.mark.parametrize(
    "option", [{"sample_unit": Sequence(length=2)}, {"consume_after_n_samples": 2}]
)
def test_options_that_the_actor_ignores_are_errors_that_say_what_to_do(option):
    with pytest.raises(ValueError, match=f"leave out {next(iter(option))}="):
        make(**option)
