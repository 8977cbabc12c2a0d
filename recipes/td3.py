"""TD3 with vMFER: Algorithm 1 of the paper.

python recipes/td3.py env=HalfCheetah-v4 sampler=vmf_rank
"""

from __future__ import annotations

from vmfer_recipes.training.launch import check_command_line, recipe
from vmfer_recipes.training.options import TD3Config

if __name__ == "__main__":
    check_command_line("td3", TD3Config)  # at once: the imports below take seconds

from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.optim import Optimizer
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, VMFTD3Loss, VMFUncertainty
from torchrl_vmfer.fast import Backend
from vmfer_recipes.training.collection import AnyCollector, make_collector
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.logs import agreement
from vmfer_recipes.training.networks import (
    compiled,
    deterministic_actor,
    exploring,
    make_critics,
    network_spec,
)
from vmfer_recipes.training.perception import Perception, make_perception
from vmfer_recipes.training.replay import (
    make_actor_sampling,
    make_replay_buffer,
    prioritize,
    stores_factors,
    stores_td_errors,
)
from vmfer_recipes.training.session import Session, TrainingSession


@recipe("td3", TD3Config)
def main(cfg: TD3Config) -> None:
    """Trains one agent, unless the run is already finished."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg, session.backend))


@dataclass
class Agent:
    """The components of TD3."""

    perception: Perception
    policy: TensorDictModuleBase
    loss: VMFTD3Loss
    uncertainty: VMFUncertainty
    targets: SoftUpdate
    critic_optimizer: Optimizer
    actor_optimizer: Optimizer
    buffer: ActorCriticReplayBuffer
    sample_actor: Callable[[], TensorDictBase] | None  # None: the actor uses the critics' batch
    stores_factors: bool
    stores_td_errors: bool
    collector: AnyCollector


def train(cfg: TD3Config, session: TrainingSession, agent: Agent) -> None:
    """Trains one agent.

    After each environment step, the critics are updated ``utd_ratio`` times. The actor is updated
    once every ``policy_delay`` environment steps. The target networks are updated once every
    ``policy_delay`` critic updates, that is, together with the actor if ``utd_ratio=1``.
    """
    for step in session.steps(
        policy=agent.policy,
        perception=agent.perception,
        loss=agent.loss,
        critic_optimizer=agent.critic_optimizer,
        actor_optimizer=agent.actor_optimizer,
        replay=agent.buffer,
        collector=agent.collector,
    ):
        agent.collector.collect()
        if step <= cfg.init_random_frames:
            continue

        last_update = step * cfg.utd_ratio
        for update in range(last_update - cfg.utd_ratio + 1, last_update + 1):
            batch = update_critics(cfg, session, agent)
            if update == last_update and step % cfg.policy_delay == 0:
                update_actor(cfg, session, agent, batch)
            if update % cfg.policy_delay == 0:
                agent.targets.step()


def update_critics(cfg: TD3Config, session: TrainingSession, agent: Agent) -> TensorDictBase:
    """Updates the critics once. Returns their batch."""
    batch = agent.perception(agent.buffer.sample())
    critic_loss, info = agent.loss.value_loss(batch)
    session.descend(agent.critic_optimizer, critic_loss)
    session.metrics.add(critic_loss=critic_loss)
    if agent.stores_td_errors:
        td_error = info["td_error"].detach().amax(0).sqrt()
        prioritize(agent.buffer, batch, td_error)
    return batch


def update_actor(
    cfg: TD3Config, session: TrainingSession, agent: Agent, critic_batch: TensorDictBase
) -> None:
    """Updates the actor once and stores the factors of its batch."""
    if agent.sample_actor is None:
        batch = critic_batch.select("observation", "index")  # drops the critics' importance weights
    else:
        batch = agent.perception(agent.sample_actor())
    actor_loss, info = agent.loss.actor_loss(batch)
    session.descend(agent.actor_optimizer, actor_loss)
    session.metrics.add(actor_loss=actor_loss)
    if agent.stores_factors:
        generation = batch.get("index_generation", None)  # set if several processes write
        agent.buffer.update_actor_priority(batch["index"], info["vmf_factor"], generation)
    if "factor_mean" not in session.metrics:  # once per row of train.csv
        session.metrics.add(**agreement(info, agent.uncertainty, batch))


def make_agent(
    cfg: TD3Config, backend: Backend, make_loss: Callable[..., VMFTD3Loss] = VMFTD3Loss
) -> Agent:
    """Makes the components of TD3.

    Args:
        cfg: the configuration of the run.
        backend: TorchRL's components or the fast ones.
        make_loss: the loss, or a function that makes it from the same arguments.
    """
    env = make_environment(cfg.env, cfg.seed, goals=cfg.replay.kind == "her")
    perception = make_perception(env, cfg)
    is_vmf = stores_factors(cfg.sampler)
    networks = network_spec(cfg)
    actor = deterministic_actor(env, networks)
    loss = make_loss(
        actor,
        make_critics(env, networks, cfg.num_critics),
        num_qvalue_nets=cfg.num_critics,
        action_spec=env.action_spec,
        policy_noise=cfg.target_noise,
        noise_clip=cfg.target_noise_clip,
        actor_noise=cfg.actor_noise,
        actor_noise_clip=cfg.actor_noise_clip,
        measure=is_vmf or cfg.actor_noise > 0,
        fast=backend.is_fast and networks.is_plain and not cfg.compile,
        loss_function="l2",
    ).to(cfg.device)
    loss.make_value_estimator(gamma=cfg.gamma)
    if cfg.compile:
        compiled(loss, "value_loss", "actor_loss")
    uncertainty = VMFUncertainty(loss)
    targets = backend.soft_update(loss, tau=cfg.tau)
    critic_optimizer = backend.adam(loss.qvalue_network_params, cfg.critic_lr)
    actor_optimizer = backend.adam(loss.actor_network_params, cfg.actor_lr)
    buffer = make_replay_buffer(env, cfg, backend)
    explorer = perception.before(exploring(backend, actor, cfg.exploration_noise))
    return Agent(
        perception=perception,
        policy=perception.before(actor),
        loss=loss,
        uncertainty=uncertainty,
        targets=targets,
        critic_optimizer=critic_optimizer,
        actor_optimizer=actor_optimizer,
        buffer=buffer,
        sample_actor=make_actor_sampling(buffer, perception, uncertainty, cfg),
        stores_factors=is_vmf,
        stores_td_errors=stores_td_errors(cfg.replay),
        collector=make_collector(env, explorer, perception, buffer, cfg, backend),
    )


if __name__ == "__main__":
    main()
