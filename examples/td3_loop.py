"""TD3 with vMFER in plain TorchRL: a complete training script.

python examples/td3_loop.py [--env HalfCheetah-v4] [--frames 100000]

vMFER only adds the four lines that mention `actor_batch` or `actor_sampler`.
"""

import argparse

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler, VMFTD3Loss

parser = argparse.ArgumentParser()
parser.add_argument("--env", default="HalfCheetah-v4")
parser.add_argument("--frames", type=int, default=100_000)
parser.add_argument("--random-frames", type=int, default=10_000)
args = parser.parse_args()

env = TransformedEnv(GymEnv(args.env), DoubleToFloat())
observation_size, action_size = (
    env.observation_spec["observation"].shape[-1],
    env.action_spec.shape[-1],
)
network = MLP(observation_size, action_size, num_cells=[256, 256], activation_class=torch.nn.ReLU)
actor = TensorDictSequential(
    TensorDictModule(network, ["observation"], ["action"]),
    TanhModule(in_keys=["action"], spec=env.action_spec),
)
critic = ValueOperator(
    MLP(observation_size + action_size, 1, num_cells=[256, 256], activation_class=torch.nn.ReLU),
    in_keys=["observation", "action"],
)
noise = AdditiveGaussianModule(env.action_spec, sigma_init=1.0, sigma_end=1.0, std=0.1)

loss = VMFTD3Loss(actor, critic, action_spec=env.action_spec, loss_function="l2")
loss.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss, tau=0.005)
critic_optimizer = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=1e-3)
actor_optimizer = torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), lr=1e-3)
buffer = ActorCriticReplayBuffer(
    storage=LazyTensorStorage(1_000_000), actor_sampler=VMFSampler("uncertainty"), batch_size=256
)
collector = Collector(
    env,
    TensorDictSequential(actor, noise),
    frames_per_batch=1,
    total_frames=args.frames,
    init_random_frames=args.random_frames,
)

for step, transition in enumerate(collector, start=1):
    buffer.extend(transition)
    if step <= args.random_frames:
        continue

    critic_optimizer.zero_grad()
    critic_loss, _ = loss.value_loss(buffer.sample())
    critic_loss.backward()
    critic_optimizer.step()

    if step % 2 == 0:
        actor_optimizer.zero_grad()
        actor_batch = buffer.sample_actor(keys=["observation"])
        actor_loss, metadata = loss.actor_loss(actor_batch)
        actor_loss.backward()
        actor_optimizer.step()
        buffer.update_actor_priority(actor_batch, metadata["vmf_factor"])
        targets.step()

    if step % 1000 == 0 or step == args.frames:
        agreement = metadata["vmf_resultant_length"].mean()
        print(f"step {step}: critic loss {critic_loss.item():.3f}, agreement {agreement:.2f}")
