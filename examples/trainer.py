"""TD3 or SAC with vMFER and TorchRL's trainers: a complete training script.

python examples/trainer.py [--sac] [--env HalfCheetah-v4] [--frames 100000]

vMFER only changes the loss, the buffer and the stepper.
"""

import argparse

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv
from torchrl.modules import (
    MLP,
    AdditiveGaussianModule,
    ProbabilisticActor,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import SoftUpdate
from torchrl.trainers.algorithms.sac import SACTrainer
from torchrl.trainers.algorithms.td3 import TD3Trainer

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSACLoss, VMFSampler, VMFTD3Loss
from torchrl_vmfer.trainers import VMFSACOptimizationStepper, VMFTD3OptimizationStepper

parser = argparse.ArgumentParser()
parser.add_argument("--sac", action="store_true", help="use SACTrainer instead of TD3Trainer")
parser.add_argument("--env", default="HalfCheetah-v4")
parser.add_argument("--frames", type=int, default=100_000)
args = parser.parse_args()

reward_sum = RewardSum(in_keys=["reward"], out_keys=["reward_sum"])  # the trainers log it
env = TransformedEnv(GymEnv(args.env), Compose(DoubleToFloat(), reward_sum))
observation_size = env.observation_spec["observation"].shape[-1]
action_size = env.action_spec.shape[-1]
options = {"num_cells": [256, 256], "activation_class": nn.ReLU}
critic = ValueOperator(
    MLP(observation_size + action_size, 1, **options), in_keys=["observation", "action"]
)

if args.sac:
    network = nn.Sequential(
        MLP(observation_size, 2 * action_size, **options), NormalParamExtractor()
    )
    actor = policy = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
        return_log_prob=True,
    )
    loss = VMFSACLoss(actor, critic, action_spec=env.action_spec, loss_function="l2")
else:
    actor = TensorDictSequential(
        TensorDictModule(
            MLP(observation_size, action_size, **options), ["observation"], ["action"]
        ),
        TanhModule(in_keys=["action"], spec=env.action_spec),
    )
    noise = AdditiveGaussianModule(env.action_spec, sigma_init=1.0, sigma_end=1.0, std=0.1)
    policy = TensorDictSequential(actor, noise)
    loss = VMFTD3Loss(actor, critic, action_spec=env.action_spec, loss_function="l2")
loss.make_value_estimator(gamma=0.99)

buffer = ActorCriticReplayBuffer(
    storage=LazyTensorStorage(1_000_000), actor_sampler=VMFSampler("uncertainty"), batch_size=256
)
frames_per_batch = min(1000, args.frames)
options = {
    "collector": Collector(
        env, policy, frames_per_batch=frames_per_batch, total_frames=args.frames
    ),
    "total_frames": args.frames,
    "frame_skip": 1,
    "optim_steps_per_batch": frames_per_batch,
    "loss_module": loss,
    "replay_buffer": buffer,
    "target_net_updater": SoftUpdate(loss, tau=0.005),
    "progress_bar": False,
}
actor_parameters = list(loss.actor_network_params.flatten_keys().values())
critic_parameters = list(loss.qvalue_network_params.flatten_keys().values())

if args.sac:
    parameters = [*critic_parameters, *actor_parameters, loss.log_alpha]
    trainer = SACTrainer(optimizer=torch.optim.Adam(parameters, lr=3e-4), **options)
    VMFSACOptimizationStepper().register(trainer)
else:
    stepper = VMFTD3OptimizationStepper(
        torch.optim.Adam(actor_parameters, lr=1e-3),
        torch.optim.Adam(critic_parameters, lr=1e-3),
        policy_update_delay=2,
    )
    trainer = TD3Trainer(optimization_stepper=stepper, exploration_module=noise, **options)
trainer.train()

probabilities = len(buffer) * buffer.actor_sampler.probabilities()
print(
    f"{len(buffer)} transitions: the actor samples them {probabilities.min():.2f} to "
    f"{probabilities.max():.2f} times as often as uniform sampling would"
)
