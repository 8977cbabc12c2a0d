"""REDQ with vMFER: a large ensemble of critics, updated many times per environment step.

python recipes/redq.py env=Hopper-v4 sampler=vmf_uncertainty
python recipes/redq.py env=Hopper-v4 +experiment=redq_cpu   # five critics, one update per step
"""

from __future__ import annotations

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import run
from vmfer_recipes.config.algorithms import REDQConfig
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.sac import train, update_actor, update_critics

__all__ = ["main", "make_agent", "train", "update_actor", "update_critics"]


@recipe("redq", REDQConfig)
def main(cfg: REDQConfig) -> None:
    """Trains one agent, unless the run is already finished.

    The training loop is SAC's: ``utd_ratio`` critic updates, each followed by a target update, and
    one actor update per environment step. The loss differs: the TD target is the minimum over a
    random subset of the critics, and the actor maximizes the mean of all.
    """
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def make_agent(cfg: REDQConfig, make_loss: agents.LossMaker | None = None) -> agents.Agent:
    """Makes the components of REDQ, with another loss if ``make_loss`` is given."""
    return agents.gaussian_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFREDQLoss,
        sub_sample_len=cfg.subset_size,
        target_entropy=cfg.entropy,
        min_alpha=1e-9,  # TorchRL's bounds of 0.1 and 10 are not part of REDQ
        max_alpha=1e9,
        loss_function=cfg.critic_distance,
    )


if __name__ == "__main__":
    main()
