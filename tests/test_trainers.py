"""TorchRL's trainers with vMFER's optimization steppers, on a real task."""

import warnings
from functools import partial

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.trainers.algorithms.sac import SACTrainer
from torchrl.trainers.algorithms.td3 import TD3OptimizationStepper, TD3Trainer

from torchrl_vmfer import (
    ActorCriticReplayBuffer,
    GradientNormSampler,
    VMFSACLoss,
    VMFSampler,
    VMFTD3Loss,
)
from torchrl_vmfer.trainers import VMFSACOptimizationStepper, VMFTD3OptimizationStepper

FRAMES = 96
BATCH = 16


class OneBatch(ActorCriticReplayBuffer):
    """A buffer whose actor batch is the critics' last batch."""

    def sample(self, *args, **kwargs):
        self.last = super().sample(*args, **kwargs)
        return self.last

    def sample_actor(self, *args, **kwargs):
        return self.last


def make_buffer(cls=ActorCriticReplayBuffer, **kwargs):
    generator = torch.Generator().manual_seed(1)
    return cls(storage=LazyTensorStorage(1000), batch_size=BATCH, generator=generator, **kwargs)


def actor_of(algorithm, env):
    network = MLP(3, 1 if algorithm == "td3" else 2, num_cells=[16])
    if algorithm == "td3":
        return TensorDictSequential(
            TensorDictModule(network, ["observation"], ["action"]),
            TanhModule(in_keys=["action"], spec=env.action_spec),
        )
    network = nn.Sequential(network, NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    )


def make_trainer(algorithm, buffer, stepper, loss_options=(), **kwargs):
    torch.manual_seed(0)
    reward_sum = RewardSum(in_keys=["reward"], out_keys=["reward_sum"])  # SACTrainer logs it
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(DoubleToFloat(), reward_sum))
    env.set_seed(0)
    actor = actor_of(algorithm, env)
    critic = ValueOperator(MLP(4, 1, num_cells=[16]), in_keys=["observation", "action"])
    loss = (VMFTD3Loss if algorithm == "td3" else VMFSACLoss)(
        actor, critic, action_spec=env.action_spec, **dict(loss_options)
    )
    loss.make_value_estimator(gamma=0.99)

    def adam(*parameters):
        return torch.optim.Adam([p for each in parameters for p in each], lr=1e-3)

    actor_params = list(loss.actor_network_params.flatten_keys().values())
    critic_params = list(loss.qvalue_network_params.flatten_keys().values())
    options = {
        "collector": Collector(env, actor, frames_per_batch=16, total_frames=FRAMES),
        "total_frames": FRAMES,
        "frame_skip": 1,
        "optim_steps_per_batch": 8,
        "loss_module": loss,
        "replay_buffer": buffer,
        "target_net_updater": SoftUpdate(loss, tau=0.005),
        "progress_bar": False,
        "clip_norm": 1.0,
        **kwargs,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trainers are "experimental"
        if algorithm == "td3":
            step = stepper(adam(actor_params), adam(critic_params), policy_update_delay=2)
            return TD3Trainer(optimization_stepper=step, **options)
        optimizer = adam(actor_params, critic_params, [loss.log_alpha])
        trainer = SACTrainer(optimizer=optimizer, **options)
    if stepper is not None:
        stepper().register(trainer)
    return trainer


STEPPERS = {
    "td3": (TD3OptimizationStepper, VMFTD3OptimizationStepper),
    "sac": (None, VMFSACOptimizationStepper),
}


def factors(buffer):
    return buffer.actor_sampler.state_dict()["priorities"]


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
@pytest.mark.parametrize("mode", ["uncertainty", "rank"])
def test_training_stores_the_factors_of_exactly_the_transitions_the_actor_saw(algorithm, mode):
    seen = set()

    class Recording(VMFSampler):
        def update_priority(self, index, priority, *, storage=None):
            seen.update(index.tolist())
            assert (priority >= 1).all()
            super().update_priority(index, priority, storage=storage)

    buffer = make_buffer(actor_sampler=Recording(mode))
    trainer = make_trainer(algorithm, buffer, STEPPERS[algorithm][1])
    before = trainer.loss_module.actor_network_params.data.clone()
    trainer.train()
    stored = factors(buffer)
    assert len(stored) == FRAMES
    scored = torch.zeros(FRAMES, dtype=torch.bool)
    scored[list(seen)] = True
    assert scored.sum() > FRAMES // 2
    assert (stored[scored] > 1).any()  # with one action dimension, critics agree (e) or not (1)
    assert (stored[~scored] == 1).all()
    after = trainer.loss_module.actor_network_params.data
    assert not (after == before).all()


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_training_on_the_critics_batch_equals_torchrl(algorithm):
    """Bit for bit for TD3; SAC's actor loss is TorchRL's up to rounding."""
    trained = []
    for stepper in STEPPERS[algorithm]:
        cls = OneBatch if stepper is STEPPERS[algorithm][1] else ActorCriticReplayBuffer
        trainer = make_trainer(algorithm, make_buffer(cls), stepper)
        trainer.train()
        trained.append(trainer.loss_module.state_dict())
    stock, ours = trained
    for name, value in stock.items():
        if isinstance(value, torch.Tensor):
            tolerance = 0 if algorithm == "td3" else 1e-5
            torch.testing.assert_close(ours[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_both_samplers_receive_their_own_signals(algorithm, monkeypatch):
    measured = []

    def recorded(batch, actor_loss):
        loss, metadata = actor_loss(batch)
        measured.extend(metadata["vmf_gradient_norm"].tolist())
        return loss, metadata

    critic_sampler = PrioritizedSampler(1000, alpha=0.7, beta=0.5)
    buffer = make_buffer(critic_sampler=critic_sampler, actor_sampler=GradientNormSampler())
    trainer = make_trainer(algorithm, buffer, STEPPERS[algorithm][1], {"gradient_norm": True})
    loss = trainer.loss_module
    monkeypatch.setattr(loss, "actor_loss", partial(recorded, actor_loss=loss.actor_loss))
    trainer.train()
    assert buffer.sample(64)["priority_weight"].unique().numel() > 8
    stored = set(factors(buffer).tolist())
    assert len(stored & set(measured)) > FRAMES // 2


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_a_buffer_without_actor_batches_is_rejected(algorithm):
    trainer = make_trainer(algorithm, make_buffer(TensorDictReplayBuffer), STEPPERS[algorithm][1])
    with pytest.raises(TypeError, match=r"replay_buffer=ActorCriticReplayBuffer"):
        trainer.train()


def test_a_value_network_is_rejected():
    value = ValueOperator(MLP(3, 1, num_cells=[8]), in_keys=["observation"])
    with pytest.raises(ValueError, match="without a value network"):
        make_trainer("sac", make_buffer(), STEPPERS["sac"][1], {"value_network": value})
