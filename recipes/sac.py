"""SAC with vMFER: Algorithm 2 of the paper.

python recipes/sac.py env=HalfCheetah-v4 replay=per_rank sampler=vmf_uncertainty
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import offline, run
from vmfer_recipes.config.algorithms import SACConfig, TemperatureConfig
from vmfer_recipes.config.launch import recipe

if TYPE_CHECKING:
    from tensordict import TensorDictBase


@recipe("sac", SACConfig)
def main(cfg: SACConfig) -> None:
    """Trains one agent, unless the run is already finished."""
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def train(cfg: TemperatureConfig, session: run.TrainingSession, agent: agents.Agent) -> None:
    """Trains one agent.

    After each environment step, the critics are updated ``utd_ratio`` times, then the actor is
    updated once. The target networks are updated after every critic update; the last of these
    target updates follows the actor update.
    """
    for step in session.steps(**agent.components()):
        agent.collector.collect()
        if step <= cfg.init_random_frames:
            continue

        updates = run.updates(step, cfg.utd_ratio)
        for update in updates:
            batch = update_critics(session, agent)
            if update == updates[-1]:
                update_actor(session, agent, batch)
            agent.update_targets()


def update_critics(session: run.TrainingSession, agent: agents.Agent) -> TensorDictBase:
    """Updates the critics once. Returns their batch."""
    batch = agent.critic_batch(lean=True)
    if agent.compiled is not None:
        critic_loss, info = agent.compiled.update_critics(batch)
    else:
        critic_loss, info = agent.loss.critic_loss(batch)
        session.descend(agent.critic_optimizer, critic_loss)
    session.metrics.add(critic_loss=critic_loss)
    agent.store_td_errors(batch, info["td_error"])
    return batch


def update_actor(
    session: run.TrainingSession, agent: agents.Agent, critic_batch: TensorDictBase
) -> None:
    """Updates the actor and the temperature once and stores the factors of the actor's batch."""
    batch = agent.actor_batch(critic_batch, lean=True)
    # The temperature is learned on the actor's batch, as in the paper.
    if agent.compiled is not None:
        actor_loss, info = agent.compiled.update_actor(batch)
    else:
        actor_loss, info = agent.loss.actor_loss(batch)
        session.descend(agent.actor_optimizer, actor_loss)
        alpha_loss = agents.weighted_mean(agent.loss.alpha_loss(info["log_prob"]), batch, info)
        session.descend(agent.alpha_optimizer, alpha_loss)
    session.metrics.add(actor_loss=actor_loss, alpha=agent.loss.log_alpha.exp())
    agent.log_agreement(session.metrics, batch, info)  # before the priorities change
    agent.store_signal(batch, info)


def make_agent(cfg: SACConfig, make_loss: agents.LossMaker | None = None) -> agents.Agent:
    """Makes the components of SAC, with another loss if ``make_loss`` is given."""
    agent = agents.gaussian_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFSACLoss,
        entropy_gradient=cfg.entropy_gradient,
        loss_function=cfg.critic_distance,
    )
    if cfg.dataset is not None:
        offline.fill_replay_buffer(agent, agent.env, cfg)
    return agent


if __name__ == "__main__":
    main()
