"""``torch.compile`` of an update that draws its own batches."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler

BUFFERS = {
    "two samplers": partial(
        ActorCriticReplayBuffer,
        critic_sampler=RankPrioritizedSampler,
        actor_sampler=partial(VMFSampler, "rank"),
    ),
    "plain": partial(ReplayBuffer, sampler=VMFSampler),
}


def make_update(kind):
    torch.manual_seed(0)
    buffer = BUFFERS[kind](
        storage=LazyTensorStorage(50), batch_size=4, generator=torch.Generator().manual_seed(0)
    )
    buffer.extend(TensorDict({"observation": torch.randn(20, 3)}, [20]))
    network = nn.Linear(3, 1)
    index = torch.arange(4)

    def update():
        if kind == "plain":
            value = network(buffer.sample()["observation"]).squeeze(-1)
            buffer.update_priority(index, 1 + value.detach().sigmoid())
            return value.mean()
        critic_batch = buffer.sample()
        error = network(critic_batch["observation"]).squeeze(-1)
        buffer.update_priority(critic_batch["index"], error.detach().abs())
        actor_batch = buffer.sample_actor(keys=["observation"])
        value = network(actor_batch["observation"]).squeeze(-1)
        buffer.update_actor_priority(actor_batch["index"], 1 + value.detach().sigmoid())
        return error.square().mean() - value.mean()

    sampler = buffer.sampler if kind == "plain" else buffer.actor_sampler
    return update, sampler


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_compiled_update_draws_and_stores_like_an_uncompiled_one(kind):
    torch.compiler.reset()
    (plain, plain_sampler), (update, sampler) = make_update(kind), make_update(kind)
    compiled = torch.compile(update, backend="eager")
    for _ in range(4):
        torch.testing.assert_close(compiled(), plain())
    stored = sampler.state_dict()["priorities"]
    torch.testing.assert_close(stored, plain_sampler.state_dict()["priorities"])
    assert (stored > 1).any()
