"""TD3 with vMFER in plain TorchRL."""

from functools import partial

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler, VMFTD3Loss

env = TransformedEnv(GymEnv("HalfCheetah-v4"), DoubleToFloat())
mlp = partial(MLP, num_cells=[256, 256], activation_class=torch.nn.ReLU)
actor = TensorDictSequential(
    TensorDictModule(mlp(17, 6), ["observation"], ["action"]),
    TanhModule(in_keys=["action"], spec=env.action_spec),
)
critic = ValueOperator(mlp(23, 1), in_keys=["observation", "action"])
loss = VMFTD3Loss(actor, critic, action_spec=env.action_spec)  # TD3Loss that returns factors
loss.make_value_estimator(gamma=0.99)
targets = SoftUpdate(loss, tau=0.005)
critic_optimizer = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=1e-3)
actor_optimizer = torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), lr=1e-3)
buffer = ActorCriticReplayBuffer(  # TensorDictReplayBuffer with a second sampler for the actor
    storage=LazyTensorStorage(1_000_000), actor_sampler=VMFSampler("uncertainty"), batch_size=256
)
noise = AdditiveGaussianModule(env.action_spec, sigma_init=1.0, sigma_end=1.0, std=0.1)
explorer = TensorDictSequential(actor, noise)
collector = Collector(
    env, explorer, frames_per_batch=1, total_frames=100_000, init_random_frames=10_000
)

for step, transition in enumerate(collector, start=1):
    buffer.extend(transition)
    if step <= 10_000:
        continue
    critic_loss, _ = loss.value_loss(buffer.sample())  # critics: uniform batch
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    if step % 2 == 0:
        batch = buffer.sample_actor(keys=["observation"])  # actor: vMFER batch
        actor_loss, metadata = loss.actor_loss(batch)
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        targets.step()
        buffer.update_actor_priority(batch, metadata["vmf_factor"])  # no extra critic pass
    if step % 1000 == 0:
        agreement = metadata["vmf_resultant_length"].mean()
        print(f"step {step}: critic loss {critic_loss:.3f}, agreement of critics {agreement:.2f}")
