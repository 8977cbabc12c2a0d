"""TD3+BC with vMFER: offline learning from a dataset.

python recipes/td3_bc.py env=Hopper-v4 dataset=runs/td3/Hopper-v4/uniform-uniform/seed0
python recipes/td3_bc.py env.name=Hopper-v5 dataset=minari:mujoco/hopper/medium-v0
"""

from __future__ import annotations

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import offline, run
from vmfer_recipes.config.algorithms import TD3BCConfig
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.td3 import update_actor, update_critics


@recipe("td3_bc", TD3BCConfig)
def main(cfg: TD3BCConfig) -> None:
    """Trains one agent, unless the run is already finished."""
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def train(cfg: TD3BCConfig, session: run.TrainingSession, agent: agents.Agent) -> None:
    """Trains one agent.

    A step is one update of the critics. The actor and the target networks are updated once every
    ``policy_delay`` steps. Both updates are TD3's, with another loss.
    """
    for step in session.steps(**agent.components()):
        batch = update_critics(session, agent)
        if step % cfg.policy_delay == 0:
            info = update_actor(session, agent, batch)
            session.metrics.add(bc_loss=info["bc_loss"])
            agent.update_targets()


def make_agent(cfg: TD3BCConfig, make_loss: agents.LossMaker | None = None) -> agents.Agent:
    """Makes the components of TD3+BC, and fills the replay buffer with the dataset."""
    agent = agents.deterministic_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFTD3BCLoss,
        exploration_noise=None,
        actor_keys=("observation", "action"),
        alpha=cfg.alpha,
    )
    offline.fill_replay_buffer(agent, agent.env, cfg)
    return agent


if __name__ == "__main__":
    main()
