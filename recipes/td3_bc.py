"""TD3+BC with vMFER: offline learning from a dataset.

python recipes/td3_bc.py env=Hopper-v4 dataset=runs/td3/Hopper-v4/uniform-uniform/seed0
python recipes/td3_bc.py env.name=Hopper-v5 dataset=minari:mujoco/hopper/medium-v0
"""

from __future__ import annotations

from vmfer_recipes.config.algorithms import TD3BCConfig
from vmfer_recipes.config.launch import check_command_line, recipe

if __name__ == "__main__":
    check_command_line("td3_bc", TD3BCConfig)  # before the slow imports below

from collections.abc import Callable

from torchrl_vmfer import VMFTD3BCLoss
from vmfer_recipes.agent.agent import Agent, deterministic_agent
from vmfer_recipes.offline.datasets import fill_replay_buffer
from vmfer_recipes.run.session import Session, TrainingSession
from vmfer_recipes.td3 import update_actor, update_critics


@recipe("td3_bc", TD3BCConfig)
def main(cfg: TD3BCConfig) -> None:
    """Trains one agent, unless the run is already finished."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def train(cfg: TD3BCConfig, session: TrainingSession, agent: Agent) -> None:
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


def make_agent(cfg: TD3BCConfig, make_loss: Callable[..., VMFTD3BCLoss] = VMFTD3BCLoss) -> Agent:
    """Makes the components of TD3+BC, and fills the replay buffer with the dataset.

    Args:
        cfg: the configuration of the run.
        make_loss: the loss, or a function that makes it from the same arguments.
    """
    agent = deterministic_agent(
        cfg,
        make_loss,
        exploration_noise=None,
        actor_keys=("observation", "action"),
        alpha=cfg.alpha,
    )
    fill_replay_buffer(agent, agent.env, cfg)
    return agent


if __name__ == "__main__":
    main()
