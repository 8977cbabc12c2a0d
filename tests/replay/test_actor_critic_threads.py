"""One buffer with two samplers, used by several threads concurrently."""

import itertools
import threading
import time

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage

from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler

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
