"""TorchRL's own pattern: two plain replay buffers on one storage and one writer."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

from torchrl_vmfer import RankPrioritizedSampler, VMFSampler, VMFTD3Loss

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

CAPACITY = 24
BATCH = 16

each_mode = pytest.mark.parametrize("mode", ["uncertainty", "rank"])


def rows(start, count):
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "observation": number[:, None].float()}, [count])


def make_pair(mode="uncertainty", critic_sampler=RandomSampler, storage=None, seed=0):
    shared = {
        "storage": LazyTensorStorage(CAPACITY) if storage is None else storage,
        "writer": TensorDictRoundRobinWriter(),
        # The second buffer sets the storage's generator, from which uniform samplers draw.
        "generator": torch.Generator().manual_seed(seed),
        "batch_size": BATCH,
    }
    critic = TensorDictReplayBuffer(sampler=critic_sampler(), **shared)
    actor = TensorDictReplayBuffer(sampler=VMFSampler(mode), **shared)
    return critic, actor


def factors(count, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) * (math.e - 1) + 1


def stored_factors(buffer):
    return buffer.sampler.state_dict()["priorities"]


@each_mode
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
@pytest.mark.parametrize("critic_sampler", [RandomSampler, RankPrioritizedSampler])
def test_writes_through_the_first_are_drawn_through_the_second(mode, storage, critic_sampler):
    critic, actor = make_pair(mode, critic_sampler, storage(CAPACITY))
    last = {}
    for start in range(0, 60, 5):
        critic.extend(rows(start, 5))
        last.update({number % CAPACITY: number for number in range(start, start + 5)})
        assert len(actor) == len(critic) == len(last)
        assert actor.write_count == critic.write_count == start + 5
        batch = actor.sample(400)
        assert batch["number"].tolist() == [last[slot] for slot in batch["index"].tolist()]
        # All priorities are equal: one of at most 24 slots is missed with probability
        # 24 * (23/24)^400 < 1e-6 at each of the 12 rounds.
        assert set(batch["index"].tolist()) == set(last)


@each_mode
@pytest.mark.parametrize("write", ["extend", "add"])
def test_the_factors_of_overwritten_slots_are_reset(mode, write):
    critic, actor = make_pair(mode)
    critic.extend(rows(0, CAPACITY))
    factor = factors(CAPACITY)
    actor.update_priority(torch.arange(CAPACITY), factor)
    assert torch.equal(stored_factors(actor), factor)
    if write == "extend":
        critic.extend(rows(100, 4))
    else:
        for number in range(4):
            critic.add(rows(100 + number, 1)[0])
    assert stored_factors(actor)[:4].tolist() == [1.0] * 4
    assert torch.equal(stored_factors(actor)[4:], factor[4:])


def test_the_two_samplers_learn_independently():
    critic, actor = make_pair(critic_sampler=RankPrioritizedSampler)
    critic.extend(rows(0, CAPACITY))
    index = torch.arange(CAPACITY)
    actor.update_priority(index, factors(CAPACITY, 1))
    critic.update_priority(index, factors(CAPACITY, 2))
    assert torch.equal(stored_factors(actor), factors(CAPACITY, 1))
    assert torch.equal(stored_factors(critic), factors(CAPACITY, 2))


def test_writes_through_either_buffer_reach_both_samplers():
    critic, actor = make_pair(critic_sampler=RankPrioritizedSampler)
    critic.extend(rows(0, 10))
    actor.extend(rows(10, 10))
    assert len(critic) == len(actor) == 20
    for buffer in (critic, actor):
        # A slot is missed with probability 20 * 0.95^1000 < 1e-20.
        assert sorted(set(buffer.sample(1000)["number"].tolist())) == list(range(20))


def test_one_generator_makes_both_buffers_reproducible():
    sequences = []
    for _ in range(2):
        critic, actor = make_pair(seed=7)
        critic.extend(rows(0, CAPACITY))
        sequences.append([b.sample()["index"] for _ in range(4) for b in (critic, actor)])
        torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(*sequences, strict=True))


@each_mode
@pytest.mark.parametrize("archive", ["directory", "archive"])
@pytest.mark.parametrize(
    "critic_sampler",
    [RandomSampler, RankPrioritizedSampler, lambda: PrioritizedSampler(CAPACITY, 0.7, 0.5)],
    ids=["uniform", "rank_per", "per"],
)
def test_a_checkpoint_restores_both(mode, archive, critic_sampler, tmp_path):
    critic, actor = make_pair(mode, critic_sampler)
    critic.extend(rows(0, 30))
    index = torch.arange(CAPACITY)
    actor.update_priority(index, factors(CAPACITY))
    if critic_sampler is not RandomSampler:
        critic.update_priority(index, factors(CAPACITY, 1))
    Checkpoint(replay_buffer=critic, vmf_sampler=actor.sampler, format=archive).save(
        tmp_path / "checkpoint"
    )

    critic_twin, actor_twin = make_pair(mode, critic_sampler, seed=99)
    result = Checkpoint(replay_buffer=critic_twin, vmf_sampler=actor_twin.sampler).load(
        tmp_path / "checkpoint"
    )
    assert result.loaded == {"replay_buffer", "vmf_sampler"}
    assert len(actor_twin) == len(critic_twin) == CAPACITY
    assert torch.equal(stored_factors(actor_twin), factors(CAPACITY))
    # The first buffer restores its own generator; the second must draw from the same one.
    actor_twin.set_rng(critic_twin._rng)
    for start in (100, 110):
        for a, b in ((critic, critic_twin), (actor, actor_twin)):
            expected, found = a.sample(), b.sample()
            assert torch.equal(found["index"], expected["index"])
            assert torch.equal(found["number"], expected["number"])
        for one in (critic, critic_twin):
            one.extend(rows(start, 5))


@each_mode
@pytest.mark.parametrize("refill", [1, 5, CAPACITY, 2 * CAPACITY])
@pytest.mark.parametrize("drawn_while_growing", [False, True])
def test_the_second_buffer_is_correct_after_the_first_is_emptied_and_refilled(
    mode, refill, drawn_while_growing
):
    critic, actor = make_pair(mode)
    critic.extend(rows(0, CAPACITY))
    actor.update_priority(torch.arange(CAPACITY), factors(CAPACITY))
    actor.sample()
    critic.empty()
    assert len(actor) == 0
    with pytest.raises(RuntimeError, match="empty storage"):
        actor.sample()
    for number in range(refill):
        critic.extend(rows(100 + number, 1))
        if drawn_while_growing:
            assert actor.sample()["number"].min() >= 100
    length = min(refill, CAPACITY)
    probabilities = actor.sampler.probabilities(actor.storage)
    torch.testing.assert_close(
        probabilities, torch.full((length,), 1 / length, dtype=torch.float64)
    )
    assert actor.sample(200)["index"].max() < length


@each_mode
def test_emptying_and_refilling_without_a_draw_leaves_no_old_factor(mode):
    critic, actor = make_pair(mode)
    critic.extend(rows(0, CAPACITY))
    actor.update_priority(torch.arange(CAPACITY), factors(CAPACITY))
    critic.empty()
    for start in range(0, 20, 5):
        critic.extend(rows(100 + start, 5))
    assert set(actor.sample(500)["number"].tolist()) == set(range(100, 120))
    critic.extend(rows(120, 4))
    actor.sample()
    assert stored_factors(actor).tolist() == [1.0] * CAPACITY


# --- training ------------------------------------------------------------------------------


def transitions(count, generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    done = torch.zeros(count, 1, dtype=torch.bool)
    return TensorDict(
        {
            "observation": normal(count, 4),
            "action": normal(count, 2).tanh(),
            "next": {
                "observation": normal(count, 4),
                "reward": normal(count, 1),
                "done": done,
                "terminated": done.clone(),
            },
        },
        [count],
    )


def make_losses():
    torch.manual_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[16], activation_class=torch.nn.ReLU)
    actor = TensorDictModule(
        torch.nn.Sequential(network, torch.nn.Tanh()), ["observation"], ["action"]
    )
    critic = ValueOperator(
        MLP(in_features=6, out_features=1, num_cells=[16], activation_class=torch.nn.ReLU),
        in_keys=["observation", "action"],
    )
    critic_loss = TD3Loss(actor, critic, bounds=(-1.0, 1.0))
    actor_loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
    for loss in (critic_loss, actor_loss):
        loss.make_value_estimator(gamma=0.99)
    return critic_loss, actor_loss


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@each_mode
def test_thirty_td3_updates_with_a_stock_critic_loss(mode):
    critic_loss, actor_loss = make_losses()
    updater = SoftUpdate(critic_loss, tau=0.005)
    critic_optimizer = torch.optim.Adam(critic_loss.qvalue_network_params.parameters(), lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor_loss.actor_network_params.parameters(), lr=1e-3)
    critic_rb, actor_rb = make_pair(
        mode, lambda: PrioritizedSampler(200, 0.7, 0.5), LazyTensorStorage(200)
    )
    generator = torch.Generator().manual_seed(3)
    critic_rb.extend(transitions(100, generator))
    before = {name: p.detach().clone() for name, p in critic_loss.named_parameters()}

    for _ in range(30):
        critic_rb.extend(transitions(5, generator))
        batch = critic_rb.sample()
        loss, metadata = critic_loss.value_loss(batch)
        step(critic_optimizer, loss)
        batch["td_error"] = metadata["td_error"].detach().amax(0)
        critic_rb.update_tensordict_priority(batch)

        # Each loss module has its own parameters: the actor's loss uses those of the critics.
        actor_loss.load_state_dict(critic_loss.state_dict())
        batch = actor_rb.sample()
        assert "priority_weight" not in set(batch.keys())
        loss, metadata = actor_loss.actor_loss(batch)
        step(actor_optimizer, loss)
        actor_rb.update_priority(batch["index"], metadata["vmf_factor"])
        critic_loss.load_state_dict(actor_loss.state_dict())
        updater.step()
        assert loss.isfinite()

    after = dict(critic_loss.named_parameters())
    assert all(after[name].isfinite().all() for name in before)
    for part in ("actor_network_params", "qvalue_network_params"):
        changed = [not torch.equal(after[n], before[n]) for n in before if n.startswith(part)]
        assert changed
        assert all(changed)
    stored = stored_factors(actor_rb)
    assert len(stored) == len(actor_rb) == 200
    drawn = stored != 1
    assert drawn.sum() > 50
    assert (stored[drawn] > 1).all()
    assert (stored <= math.e * (1 + 1e-6)).all()
    assert stored[drawn].unique().numel() > 10
