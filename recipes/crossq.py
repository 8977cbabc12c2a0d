"""CrossQ with vMFER: wide critics with batch renormalization and without target networks.

python recipes/crossq.py env=Hopper-v4 sampler=vmf_uncertainty
python recipes/crossq.py env=Hopper-v4 +experiment=crossq_cpu   # narrower critics
"""

from __future__ import annotations

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import run
from vmfer_recipes.config.algorithms import CrossQConfig
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.sac import update_actor, update_critics


@recipe("crossq", CrossQConfig)
def main(cfg: CrossQConfig) -> None:
    """Trains one agent, unless the run is already finished."""
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def train(cfg: CrossQConfig, session: run.TrainingSession, agent: agents.Agent) -> None:
    """Trains one agent.

    There are ``utd_ratio`` critic updates per environment step, on batches that hold both the
    current and the next states. The actor is updated once every ``policy_delay`` environment steps
    or, if ``utd_ratio`` is less than 1, critic updates. There are no target networks.
    """
    for step in session.steps(**agent.components()):
        agent.collector.collect()
        if step <= cfg.init_random_frames:
            continue

        for update in (updates := run.updates(step, cfg.utd_ratio)):
            batch = update_critics(session, agent)
            if update == updates[-1] and min(step, update) % cfg.policy_delay == 0:
                update_actor(session, agent, batch)


def make_agent(cfg: CrossQConfig, make_loss: agents.LossMaker | None = None) -> agents.Agent:
    """Makes the components of CrossQ, with another loss if ``make_loss`` is given."""
    return agents.gaussian_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFCrossQLoss,
        betas=(cfg.adam_beta1, 0.999),
        has_targets=False,
        loss_function=cfg.critic_distance,
    )


if __name__ == "__main__":
    main()
