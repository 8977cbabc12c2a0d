"""SAC with vMFER: Algorithm 2 of the paper.

python recipes/sac.py env=HalfCheetah-v4 replay=per_rank sampler=vmf_uncertainty
"""

from __future__ import annotations

from vmfer_recipes.training.launch import check_command_line, recipe
from vmfer_recipes.training.options import SACConfig

if __name__ == "__main__":
    check_command_line("sac", SACConfig)  # at once: the imports below take seconds

from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.optim import Optimizer
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSACLoss, VMFUncertainty
from torchrl_vmfer.fast import Backend
from vmfer_recipes.training.collection import AnyCollector, make_collector
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.logs import agreement
from vmfer_recipes.training.networks import (
    compiled,
    exploring,
    gaussian_actor,
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


@recipe("sac", SACConfig)
def main(cfg: SACConfig) -> None:
    """Trains one agent, unless the run is already finished."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg, session.backend))


@dataclass
class Agent:
    """The components of SAC."""

    perception: Perception
    policy: TensorDictModuleBase
    loss: VMFSACLoss
    uncertainty: VMFUncertainty
    targets: SoftUpdate
    critic_optimizer: Optimizer
    actor_optimizer: Optimizer
    alpha_optimizer: Optimizer
    buffer: ActorCriticReplayBuffer
    sample_actor: Callable[[], TensorDictBase] | None  # None: the actor uses the critics' batch
    stores_factors: bool
    stores_td_errors: bool
    collector: AnyCollector


def train(cfg: SACConfig, session: TrainingSession, agent: Agent) -> None:
    """Trains one agent.

    After each environment step, the critics are updated ``utd_ratio`` times, then the actor is
    updated once. The target networks are updated after every critic update; the last of these
    target updates follows the actor update.
    """
    for step in session.steps(
        policy=agent.policy,
        perception=agent.perception,
        loss=agent.loss,
        critic_optimizer=agent.critic_optimizer,
        actor_optimizer=agent.actor_optimizer,
        alpha_optimizer=agent.alpha_optimizer,
        replay=agent.buffer,
        collector=agent.collector,
    ):
        agent.collector.collect()
        if step <= cfg.init_random_frames:
            continue

        for update in range(1, cfg.utd_ratio + 1):
            batch = update_critics(cfg, session, agent)
            if update == cfg.utd_ratio:
                update_actor(cfg, session, agent, batch)
            agent.targets.step()


def update_critics(cfg: SACConfig, session: TrainingSession, agent: Agent) -> TensorDictBase:
    """Updates the critics once. Returns their batch."""
    batch = agent.perception(agent.buffer.sample())
    critic_loss, info = agent.loss.qvalue_v2_loss(batch)
    session.descend(agent.critic_optimizer, critic_loss)
    session.metrics.add(critic_loss=critic_loss)
    if agent.stores_td_errors:
        prioritize(agent.buffer, batch, info["td_error"])
    return batch


def update_actor(
    cfg: SACConfig, session: TrainingSession, agent: Agent, critic_batch: TensorDictBase
) -> None:
    """Updates the actor and the temperature once and stores the factors of the actor's batch."""
    if agent.sample_actor is None:
        batch = critic_batch.select("observation", "index")  # drops the critics' importance weights
    else:
        batch = agent.perception(agent.sample_actor())
    actor_loss, info = agent.loss.actor_loss(batch)
    session.descend(agent.actor_optimizer, actor_loss)
    # The temperature is learned on the actor's batch, as in the paper.
    alpha_loss = agent.loss.alpha_loss(info["log_prob"]).mean()
    session.descend(agent.alpha_optimizer, alpha_loss)
    session.metrics.add(actor_loss=actor_loss, alpha=agent.loss.log_alpha.exp())
    if agent.stores_factors:
        generation = batch.get("index_generation", None)  # set if several processes write
        agent.buffer.update_actor_priority(batch["index"], info["vmf_factor"], generation)
    if "factor_mean" not in session.metrics:  # once per row of train.csv
        session.metrics.add(**agreement(info, agent.uncertainty, batch))


def make_agent(
    cfg: SACConfig, backend: Backend, make_loss: Callable[..., VMFSACLoss] = VMFSACLoss
) -> Agent:
    """Makes the components of SAC.

    Args:
        cfg: the configuration of the run.
        backend: TorchRL's components or the fast ones.
        make_loss: the loss, or a function that makes it from the same arguments.
    """
    env = make_environment(cfg.env, cfg.seed, goals=cfg.replay.kind == "her")
    perception = make_perception(env, cfg)
    is_vmf = stores_factors(cfg.sampler)
    networks = network_spec(cfg)
    actor = gaussian_actor(env, networks)
    loss = make_loss(
        actor,
        make_critics(env, networks, cfg.num_critics),
        num_qvalue_nets=cfg.num_critics,
        action_spec=env.action_spec,
        alpha_init=cfg.alpha_init,
        target_entropy=cfg.target_entropy,
        entropy_gradient=cfg.entropy_gradient,
        measure=is_vmf,
        fast=backend.is_fast and networks.is_plain and not cfg.compile,
        loss_function="l2",
    ).to(cfg.device)
    loss.make_value_estimator(gamma=cfg.gamma)
    if cfg.compile:
        compiled(loss, "qvalue_v2_loss", "actor_loss")
    uncertainty = VMFUncertainty(loss)
    targets = backend.soft_update(loss, tau=cfg.tau)
    critic_optimizer = backend.adam(loss.qvalue_network_params, cfg.critic_lr)
    actor_optimizer = backend.adam(loss.actor_network_params, cfg.actor_lr)
    alpha_optimizer = backend.adam([loss.log_alpha], cfg.alpha_lr)
    buffer = make_replay_buffer(env, cfg, backend)
    explorer = perception.before(exploring(backend, actor))
    return Agent(
        perception=perception,
        policy=perception.before(actor),
        loss=loss,
        uncertainty=uncertainty,
        targets=targets,
        critic_optimizer=critic_optimizer,
        actor_optimizer=actor_optimizer,
        alpha_optimizer=alpha_optimizer,
        buffer=buffer,
        sample_actor=make_actor_sampling(buffer, perception, uncertainty, cfg),
        stores_factors=is_vmf,
        stores_td_errors=stores_td_errors(cfg.replay),
        collector=make_collector(env, explorer, perception, buffer, cfg, backend),
    )


if __name__ == "__main__":
    main()
