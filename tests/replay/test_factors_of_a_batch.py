"""Factors are stored for the batch they were computed on, however a loss is called."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictRoundRobinWriter,
)

from torchrl_vmfer import ActorCriticReplayBuffer, RankPrioritizedSampler, VMFSampler
from torchrl_vmfer.samplers.adapters import probabilities_of

LENGTH = 16


def make_buffer(**kwargs):
    buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(LENGTH), batch_size=6, **kwargs)
    buffer.extend(TensorDict({"observation": torch.arange(LENGTH).float()}, [LENGTH]))
    return buffer


def factors(buffer):
    return buffer.actor_sampler.state_dict()["priorities"]


def expected(index, factor):
    values = torch.ones(LENGTH)
    values[index] = factor
    return values


def per():
    return PrioritizedSampler(LENGTH, alpha=1.0, beta=1.0)


@pytest.mark.parametrize("critic", [RandomSampler, RankPrioritizedSampler, per])
def test_a_shared_batch_updates_both_samplers(critic):
    buffer = make_buffer(critic_sampler=critic())
    batch = buffer.sample()
    factor = 1 + batch["index"] / 10
    batch["td_error"] = torch.full((6,), 9.0)
    batch["vmf_factor"] = factor
    buffer.update_tensordict_priority(batch)
    torch.testing.assert_close(factors(buffer), expected(batch["index"], factor))
    if critic is RankPrioritizedSampler:
        priorities = buffer.critic_sampler.state_dict()["priorities"]
        assert set(torch.where(priorities == 9)[0].tolist()) == set(batch["index"].tolist())


def test_a_batch_without_factors_updates_only_the_critics_sampler():
    buffer = make_buffer(critic_sampler=RankPrioritizedSampler())
    batch = buffer.sample()
    batch["td_error"] = torch.full((6,), 9.0)
    buffer.update_tensordict_priority(batch)
    assert (factors(buffer) == 1).all()


@pytest.mark.parametrize("critic", [RankPrioritizedSampler, per])
def test_a_batch_without_td_errors_updates_only_the_actors_sampler(critic):
    buffer = make_buffer(critic_sampler=critic())
    buffer.update_priority(torch.arange(LENGTH), torch.linspace(0.1, 5, LENGTH))
    before = probabilities_of(buffer.critic_sampler, LENGTH)
    batch = buffer.sample_actor()
    batch["vmf_factor"] = torch.full((6,), 2.0)
    buffer.update_tensordict_priority(batch)
    assert torch.equal(probabilities_of(buffer.critic_sampler, LENGTH), before)
    torch.testing.assert_close(factors(buffer), expected(batch["index"], 2.0))


def test_an_actor_sampler_without_priorities_is_not_updated(recwarn):
    buffer = make_buffer(actor_sampler=RandomSampler())
    batch = buffer.sample()
    batch["vmf_factor"] = torch.full((6,), 2.0)
    buffer.update_tensordict_priority(batch)
    # TorchRL's sampler would warn that it has no priorities.
    assert not recwarn.list
    assert (probabilities_of(buffer.actor_sampler, LENGTH) == 1 / LENGTH).all()


def test_sampler_is_another_name_for_critic_sampler():
    buffer = make_buffer(sampler=RankPrioritizedSampler())
    assert isinstance(buffer.critic_sampler, RankPrioritizedSampler)
    assert isinstance(buffer.actor_sampler, VMFSampler)
    with pytest.raises(TypeError, match="another name for `critic_sampler=`"):
        make_buffer(sampler=RandomSampler(), critic_sampler=RandomSampler())


class CustomSampler(RandomSampler):
    """A user's sampler of the critics that uses TD errors."""

    signal = "td_error"

    def update_priority(self, index, priority, *, storage=None):
        self.updated = priority


def test_a_users_sampler_of_the_critics_receives_td_errors():
    buffer = make_buffer(critic_sampler=CustomSampler())
    batch = buffer.sample()
    batch["td_error"] = torch.arange(6.0)
    buffer.update_tensordict_priority(batch)
    assert torch.equal(buffer.critic_sampler.updated.flatten(), torch.arange(6.0))


@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("critic", [RankPrioritizedSampler, per])
def test_the_values_of_a_trajectory_are_reduced_to_one(critic, track):
    writer = TensorDictRoundRobinWriter(track_generations=track)
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(4), batch_size=99, critic_sampler=critic(), writer=writer
    )
    buffer.extend(TensorDict({"observation": torch.randn(4, 3)}, [4, 3]))
    batch = buffer.sample_actor()
    step = torch.tensor([0.2, 0.4, 0.1])
    factor = 1 + batch["index"][:, 0] / 10
    buffer.update_actor_priority(batch, factor[:, None] + step)
    drawn = batch["index"][:, 0].unique()
    assert drawn.shape == (4,)
    torch.testing.assert_close(factors(buffer), 1.4 + torch.arange(4) / 10)
    batch = batch.set("td_error", factor[:, None] + step)
    buffer.update_tensordict_priority(batch)
    found = probabilities_of(buffer.critic_sampler, buffer.storage)
    assert (found.diff() > 0).all()
    buffer.update_priority(batch["index"], factor[:, None] + step)
    torch.testing.assert_close(probabilities_of(buffer.critic_sampler, buffer.storage), found)
