"""``sampler=uniform`` equals TorchRL's TD3 and SAC, and other samplers change nothing else."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymWrapper
from torchrl.modules import (
    MLP,
    AdditiveGaussianModule,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss

from helpers.saved_rows import rows_in
from vmfer_recipes.collection.worker import Worker

SEED, WARM_UP, TRAINING, EPISODE = 3, 40, 100, 50
# The last one evaluates the policy to draw a batch.
SAMPLERS = ["uniform", "fresh", "vmf_uncertainty", "vmf_rank", "on_policy"]


def environment() -> GymWrapper:
    env = gym.make("ShortCheetah-v0")
    env = gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = GymWrapper(gym.wrappers.DtypeObservation(env, np.float32))
    env.set_seed(SEED)
    return env


def network(inputs: int, outputs: int) -> MLP:
    return MLP(inputs, outputs, num_cells=[16, 16], activation_class=nn.ReLU)


def critics() -> list[ValueOperator]:
    return [ValueOperator(network(23, 1), in_keys=["observation", "action"]) for _ in range(2)]


class LocAndScale(nn.Module):
    def forward(self, output):
        loc, log_scale = output.chunk(2, -1)
        return loc, log_scale.clamp(-20, 2).exp()


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def learners(loss, lr):
    """The optimizers of critics, actor and temperature, and the update of the targets."""
    loss.make_value_estimator(gamma=0.99)
    params = loss.qvalue_network_params, loss.actor_network_params
    groups = [[*each.flatten_keys().values()] for each in params]
    groups.append([loss.log_alpha] if isinstance(loss, SACLoss) else [torch.zeros(1)])
    adams = (torch.optim.Adam(group, lr=lr, fused=True) for group in groups)
    return *adams, SoftUpdate(loss, tau=0.005)


def batches(env, policy):
    """Collects, and yields a batch after each step of learning, with the number of the step."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(5000),
        batch_size=32,
        generator=torch.Generator().manual_seed(SEED),
    )
    collector = Collector(
        env,
        policy,
        frames_per_batch=1,
        total_frames=WARM_UP + TRAINING,
        init_random_frames=WARM_UP,
    )
    for frame, transition in enumerate(collector, 1):
        buffer.extend(transition)
        if frame > WARM_UP:
            yield frame, buffer.sample()


def stock_td3():
    torch.manual_seed(SEED)
    env = environment()
    actor = TensorDictModule(nn.Sequential(network(17, 6), nn.Tanh()), ["observation"], ["action"])
    loss = TD3Loss(
        actor,
        critics(),
        action_spec=env.action_spec,
        policy_noise=0.2,
        noise_clip=0.5,
        loss_function="l2",
    )
    critic_optimizer, actor_optimizer, _, targets = learners(loss, 1e-3)
    noise = AdditiveGaussianModule(env.action_spec, sigma_init=0.1, sigma_end=0.1)
    for frame, batch in batches(env, TensorDictSequential(actor, noise)):
        step(critic_optimizer, loss.value_loss(batch)[0])
        if frame % 2 == 0:
            step(actor_optimizer, loss.actor_loss(batch)[0])
            targets.step()
    return loss.state_dict()


def stock_sac():
    torch.manual_seed(SEED)
    env = environment()
    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(network(17, 12), LocAndScale()), ["observation"], ["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -1.0, "high": 1.0},
        return_log_prob=True,
    )
    loss = SACLoss(actor, critics(), action_spec=env.action_spec, loss_function="l2")
    critic_optimizer, actor_optimizer, alpha_optimizer, targets = learners(loss, 3e-4)
    for _, batch in batches(env, actor):
        step(critic_optimizer, loss.qvalue_v2_loss(batch)[0])
        actor_loss, info = loss.actor_loss(batch)
        step(actor_optimizer, actor_loss)
        step(alpha_optimizer, loss.alpha_loss(info["log_prob"]).mean())
        targets.step()
    return loss.state_dict()


@pytest.mark.parametrize(("algorithm", "stock"), [("td3", stock_td3), ("sac", stock_sac)])
def test_uniform_is_bitwise_equal_to_the_stock_algorithm(
    algorithm, stock, train, checkpoint, tmp_path
):
    train(
        algorithm,
        tmp_path,
        "env.name=ShortCheetah-v0",
        "sampler=uniform",
        "fast=false",
        f"seed={SEED}",
        f"init_random_frames={WARM_UP}",
        f"total_frames={WARM_UP + TRAINING}",
        f"checkpoint_interval={WARM_UP + TRAINING}",
    )
    saved = checkpoint(tmp_path)
    ours, theirs = saved["parts"]["loss"], stock()
    assert saved["step"] == WARM_UP + TRAINING
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(value)), key


@pytest.fixture(scope="module", params=["td3", "sac"])
def recorded(request, train, tmp_path_factory):
    """Returns, by sampler, the transitions and the state of the random generator after each."""
    runs = {}
    collect = Worker.collect
    for sampler in SAMPLERS:
        transitions, states = [], []

        def record(self, *args, transitions=transitions, states=states):
            transitions.append(collect(self, *args).clone())
            states.append(torch.get_rng_state())
            return transitions[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Worker, "collect", record)
            train(
                request.param,
                tmp_path_factory.mktemp(sampler),
                "env.name=ShortCheetah-v0",
                f"sampler={sampler}",
                f"init_random_frames={WARM_UP}",
                "total_frames=80",
            )
        runs[sampler] = torch.cat(transitions), states
    # TD3 updates its actor every second step.
    return runs, WARM_UP + {"td3": 2, "sac": 1}[request.param]


@pytest.mark.parametrize(
    ("algorithm", "task"),
    [
        ("td3", ("env.name=ShortCheetah-v0",)),
        ("td3", ("env=FetchReach-v4", "replay=her")),
        pytest.param("sac", ("env.name=ShortCheetah-v0",), marks=pytest.mark.slow),
    ],
)
def test_fast_runs_store_the_same_transitions(
    algorithm, task, train, checkpoint, tmp_path, use_kernels
):
    """Covers warm-up, exploration, three ends of episodes, and the random generator afterwards."""
    use_kernels(False)  # compiled policies round differently from PyTorch's
    saved = {}
    for fast in ("true", "false"):
        train(
            algorithm,
            tmp_path / fast,
            *task,
            f"fast={fast}",
            # No update: the policies stay the same.
            f"init_random_frames={WARM_UP}",
            "critic_lr=0",
            "actor_lr=0",
            "total_frames=170",
            "checkpoint_interval=170",
        )
        saved[fast] = checkpoint(tmp_path / fast)["parts"]
    rows, expected = (rows_in(saved[fast]["replay"]) for fast in ("true", "false"))
    expected.pop("index", None)  # TorchRL's writer also stores the slots
    for ours, theirs in ((rows.pop("next"), expected.pop("next")), (rows, expected)):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert torch.equal(ours[key], theirs[key]), key
    assert str(saved["true"]["random"]) == str(saved["false"]["random"])


@pytest.mark.parametrize("sampler", SAMPLERS[1:])
def test_exploration_and_environment_do_not_depend_on_the_sampler(sampler, recorded):
    runs, first_update = recorded
    (reference, expected), (transitions, states) = runs["uniform"], runs[sampler]
    assert len(states) == len(expected) == 80
    assert all(map(torch.equal, states, expected))
    assert (transitions[:first_update] == reference[:first_update]).all()
    # The second episode starts from the same state, although the actors differ.
    assert torch.equal(transitions["observation"][EPISODE], reference["observation"][EPISODE])
    # Check that they differ: with identical actions the test would prove nothing.
    assert not torch.equal(transitions["action"], reference["action"])


def test_episodes_are_stored_and_start_with_random_actions(straight_run, checkpoint):
    saved = checkpoint(straight_run("td3", "sampler=vmf_rank"))
    rows = rows_in(saved["parts"]["replay"])
    observation, following = rows["observation"], rows["next"]["observation"]
    assert len(observation) == saved["step"] == 161
    done = rows["next"]["done"][:, 0]
    assert done.nonzero().flatten().tolist() == [49, 99, 149]
    assert not rows["next"]["terminated"].any()  # time limits
    assert torch.equal(following[:-1][~done[:-1]], observation[1:][~done[:-1]])
    # 30 random steps: uniform actions of six dimensions, hence P(largest < 0.8) = 0.8^180.
    warm_up = rows["action"][:30]
    assert warm_up.abs().max() > 0.8
    assert 0.2 < warm_up.var() < 0.47
    # The untrained actor explores little: noise of 0.1 around small outputs.
    assert rows["action"][30:32].abs().max() < 0.8
