"""vMFER in stock TorchRL code: TD3 learns to hit a target whose place it is told.

Every episode lasts one step: the observation is a point of the plane, and the reward falls with
the distance between the action and that point. It trains in a few seconds on one core.
"""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler, VMFTD3Loss

STEPS = 1500


def collect(actor: TensorDictModule, size: int, noise: float) -> TensorDict:
    """Plays some one-step episodes."""
    batch = TensorDict({"observation": torch.rand(size, 2) * 2 - 1}, [size])
    with torch.no_grad():
        action = actor(batch)["action"]
    batch["action"] = (action + noise * torch.randn_like(action)).clamp(-1, 1)
    done = torch.ones(size, 1, dtype=torch.bool)
    batch["next"] = {
        "observation": batch["observation"].clone(),
        "reward": -(batch["action"] - batch["observation"]).norm(dim=-1, keepdim=True),
        "done": done,
        "terminated": done.clone(),
    }
    return batch


def main() -> None:
    """Trains, and prints how far the actions are from the target."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = MLP(in_features=2, out_features=2, num_cells=[64, 64], activation_class=torch.nn.ReLU)
    actor = TensorDictModule(
        torch.nn.Sequential(network, torch.nn.Tanh()), ["observation"], ["action"]
    )
    critic = ValueOperator(
        MLP(in_features=4, out_features=1, num_cells=[64, 64], activation_class=torch.nn.ReLU),
        in_keys=["observation", "action"],
    )
    loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, tau=0.005)
    buffer = ActorCriticReplayBuffer(
        storage=LazyTensorStorage(10_000), actor_sampler=VMFSampler("uncertainty"), batch_size=128
    )
    actor_optimizer = torch.optim.Adam(loss.actor_network_params.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(loss.qvalue_network_params.parameters(), lr=1e-3)

    print(f"{'step':>5}  {'distance':>8}  {'agreement of the critics (R)':>28}")
    for step in range(STEPS + 1):
        buffer.extend(collect(actor, size=4, noise=0.1))

        critic_loss, _ = loss.value_loss(buffer.sample())
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        batch = buffer.sample_actor(keys=["observation"])
        actor_loss, metadata = loss.actor_loss(batch)
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        buffer.update_actor_priority(batch["index"], metadata["vmf_factor"])
        updater.step()

        if step % 300 == 0:
            distance = -collect(actor, size=1000, noise=0.0)["next", "reward"].mean()
            agreement = metadata["vmf_resultant_length"].mean()
            print(f"{step:>5}  {distance:>8.3f}  {agreement:>28.3f}")


if __name__ == "__main__":
    main()
