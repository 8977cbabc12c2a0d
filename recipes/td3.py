"""TD3 with vMFER: Algorithm 1 of the paper.

python recipes/td3.py env=HalfCheetah-v4 sampler=vmf_rank
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import run
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.launch import recipe

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor


@recipe("td3", TD3Config)
def main(cfg: TD3Config) -> None:
    """Trains one agent, unless the run is already finished."""
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def train(cfg: TD3Config, session: run.TrainingSession, agent: agents.Agent) -> None:
    """Trains one agent.

    There are ``utd_ratio`` critic updates per environment step. The actor is updated once every
    ``policy_delay`` environment steps or, if ``utd_ratio`` is less than 1, critic updates. The
    target networks are updated once every ``policy_delay`` critic updates, that is, together with
    the actor if ``utd_ratio`` is at most 1.
    """
    for step in session.steps(**agent.components()):
        agent.collector.collect()
        if step <= cfg.init_random_frames:
            continue

        updates = run.updates(step, cfg.utd_ratio)
        for update in updates:
            batch = update_critics(session, agent)
            if update == updates[-1] and min(step, update) % cfg.policy_delay == 0:
                update_actor(session, agent, batch)
            if update % cfg.policy_delay == 0:
                agent.update_targets()


def update_critics(session: run.TrainingSession, agent: agents.Agent) -> TensorDictBase:
    """Updates the critics once. Returns their batch."""
    batch = agent.critic_batch(lean=True)
    if agent.compiled is not None:
        critic_loss, info = agent.compiled.update_critics(batch)
    else:
        critic_loss, info = agent.loss.critic_loss(batch)
        session.descend(agent.critic_optimizer, critic_loss)
        info["td_error"] = info["td_error"].detach().amax(0).sqrt()
    session.metrics.add(critic_loss=critic_loss)
    agent.store_td_errors(batch, info["td_error"])
    return batch


def update_actor(
    session: run.TrainingSession, agent: agents.Agent, critic_batch: TensorDictBase
) -> dict[str, Tensor]:
    """Updates the actor once and stores the factors of its batch. Returns the loss's metadata."""
    batch = agent.actor_batch(critic_batch, lean=True)
    if agent.compiled is not None:
        actor_loss, info = agent.compiled.update_actor(batch)
    else:
        actor_loss, info = agent.loss.actor_loss(batch)
        session.descend(agent.actor_optimizer, actor_loss)
    session.metrics.add(actor_loss=actor_loss)
    agent.log_agreement(session.metrics, batch, info)  # before the priorities change
    agent.store_signal(batch, info)
    return info


def make_agent(
    cfg: TD3Config,
    make_loss: agents.LossMaker | None = None,
    make_explorer: agents.ExplorerMaker | None = None,
) -> agents.Agent:
    """Makes the components of TD3, with a different loss or exploration if given."""
    options: dict[str, Any] = {"measure": True} if cfg.actor_noise else {}  # the tap adds the noise
    return agents.deterministic_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFTD3Loss,
        exploration_noise=cfg.exploration_noise,
        make_explorer=make_explorer,
        objective=cfg.actor_objective,
        actor_noise=cfg.actor_noise,
        actor_noise_clip=cfg.actor_noise_clip,
        **options,
    )


if __name__ == "__main__":
    main()
