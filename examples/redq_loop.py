"""REDQ with vMFER in plain TorchRL: a complete training script.

python examples/redq_loop.py [--env HalfCheetah-v4] [--frames 100000] [--critic-updates 20]

Ten critics are updated many times per frame, and the actor once, on a separate batch.
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

from torchrl_vmfer import ActorCriticReplayBuffer, VMFREDQLoss, VMFSampler

parser = argparse.ArgumentParser()
parser.add_argument("--env", default="HalfCheetah-v4")
parser.add_argument("--frames", type=int, default=100_000)
parser.add_argument("--random-frames", type=int, default=5_000)
parser.add_argument("--critic-updates", type=int, default=20, help="per frame")
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

loss = VMFREDQLoss(
    actor,
    critic,
    num_qvalue_nets=10,
    action_spec=env.action_spec,
    # By default, TorchRL bounds the temperature (0.1 to 10) and uses a smooth L1 loss.
    min_alpha=1e-9,
    max_alpha=1e9,
    loss_function="l2",
)
loss.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss, tau=0.005)
critic_optimizer = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=3e-4)
actor_optimizer = group_optimizers(
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

    for _ in range(args.critic_updates):
        critic_loss, _ = loss.critic_loss(buffer.sample())
        critic_loss.backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        targets.step()

    actor_batch = buffer.sample_actor(keys=["observation"])
    actor_loss, metadata = loss.actor_loss(actor_batch)
    alpha_loss = loss.alpha_loss(metadata["log_prob"]).mean()
    (actor_loss + alpha_loss).backward()
    actor_optimizer.step()
    actor_optimizer.zero_grad()
    buffer.update_actor_priority(actor_batch, metadata["vmf_factor"])

    if step % 1000 == 0 or step == args.frames:
        agreement = metadata["vmf_resultant_length"].mean()
        print(f"step {step}: critic loss {critic_loss.item():.3f}, agreement {agreement:.2f}")
