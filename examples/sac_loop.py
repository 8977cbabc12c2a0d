"""SAC with vMFER in plain TorchRL: a complete training script.

python examples/sac_loop.py [--env HalfCheetah-v4] [--frames 100000]

The critics and the actor learn from separate batches. The temperature uses the actor's batch.
"""

import argparse

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate, group_optimizers

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSACLoss, VMFSampler

parser = argparse.ArgumentParser()
parser.add_argument("--env", default="HalfCheetah-v4")
parser.add_argument("--frames", type=int, default=100_000)
parser.add_argument("--random-frames", type=int, default=10_000)
args = parser.parse_args()

env = TransformedEnv(GymEnv(args.env), DoubleToFloat())
observation_size = env.observation_spec["observation"].shape[-1]
action_size = env.action_spec.shape[-1]
network = nn.Sequential(
    MLP(observation_size, 2 * action_size, num_cells=[256, 256], activation_class=nn.ReLU),
    NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1),
)
actor = ProbabilisticActor(
    TensorDictModule(network, ["observation"], ["loc", "scale"]),
    in_keys=["loc", "scale"],
    spec=env.action_spec,
    distribution_class=TanhNormal,
    distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
    return_log_prob=True,
)
critic = ValueOperator(
    MLP(observation_size + action_size, 1, num_cells=[256, 256], activation_class=nn.ReLU),
    in_keys=["observation", "action"],
)

loss = VMFSACLoss(actor, critic, action_spec=env.action_spec, loss_function="l2")
loss.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss, tau=0.005)
optimizer = group_optimizers(
    torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=3e-4),
    torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), lr=3e-4),
    torch.optim.Adam([loss.log_alpha], lr=3e-4),
)
buffer = ActorCriticReplayBuffer(
    storage=LazyTensorStorage(1_000_000), actor_sampler=VMFSampler("uncertainty"), batch_size=256
)
collector = Collector(
    env,
    actor,
    frames_per_batch=1,
    total_frames=args.frames,
    init_random_frames=args.random_frames,
)

for step, transition in enumerate(collector, start=1):
    buffer.extend(transition)
    if step <= args.random_frames:
        continue

    critic_loss, _ = loss.qvalue_v2_loss(buffer.sample())
    actor_batch = buffer.sample_actor(keys=["observation"])
    actor_loss, metadata = loss.actor_loss(actor_batch)
    # TorchRL does not reduce this loss: without the mean, it would be a vector.
    alpha_loss = loss.alpha_loss(metadata["log_prob"]).mean()
    (critic_loss + actor_loss + alpha_loss).backward()
    optimizer.step()
    optimizer.zero_grad()
    buffer.update_actor_priority(actor_batch, metadata["vmf_factor"])
    targets.step()

    if step % 1000 == 0 or step == args.frames:
        agreement = metadata["vmf_resultant_length"].mean()
        print(f"step {step}: critic loss {critic_loss.item():.3f}, agreement {agreement:.2f}")
