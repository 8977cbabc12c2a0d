"""``torch.compile`` of an update that draws batches."""

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage

from helpers.sampler_buffers import seeded
from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler


def make_update():
    torch.manual_seed(0)
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(50),
        critic_sampler=RankPrioritizedSampler(),
        actor_sampler=VMFSampler("rank"),
        batch_size=4,
        generator=seeded(0),
    )
    buffer.extend(TensorDict({"observation": torch.randn(20, 3)}, [20]))
    network = nn.Linear(3, 1)

    def update():
        critic_batch = buffer.sample()
        error = network(critic_batch["observation"]).squeeze(-1)
        buffer.update_priority(critic_batch["index"], error.detach().abs())
        actor_batch = buffer.sample_actor(keys=["observation"])
        value = network(actor_batch["observation"]).squeeze(-1)
        buffer.update_actor_priority(actor_batch["index"], 1 + value.detach().sigmoid())
        return error.square().mean() - value.mean()

    return update, buffer


def test_a_compiled_update_draws_and_stores_like_an_uncompiled_one():
    torch.compiler.reset()
    (plain, expected), (update, buffer) = make_update(), make_update()
    compiled = torch.compile(update, backend="eager")
    for _ in range(4):
        torch.testing.assert_close(compiled(), plain())
    for name in ("critic_sampler", "actor_sampler"):
        stored = getattr(buffer, name).state_dict()["priorities"]
        torch.testing.assert_close(stored, getattr(expected, name).state_dict()["priorities"])
        assert (stored != 1).any()
