"""TQC with vMFER: critics that predict quantiles of the return, truncated in the TD target.

python recipes/tqc.py env=Hopper-v4 sampler=vmf_uncertainty
python recipes/tqc.py env=Hopper-v4 +experiment=tqc_cpu   # smaller critics
"""

from __future__ import annotations

import torchrl_vmfer
from vmfer_recipes import agent as agents
from vmfer_recipes import run
from vmfer_recipes.config.algorithms import TQCConfig
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.sac import train, update_actor, update_critics

__all__ = ["main", "make_agent", "train", "update_actor", "update_critics"]


@recipe("tqc", TQCConfig)
def main(cfg: TQCConfig) -> None:
    """Trains one agent, unless the run is already finished.

    The training loop is SAC's. The loss differs: each critic predicts quantiles of the return, the
    TD target pools the quantiles of all critics and drops the largest ones, and the actor maximizes
    the mean over critics and quantiles.
    """
    session = run.Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


def make_agent(cfg: TQCConfig, make_loss: agents.LossMaker | None = None) -> agents.Agent:
    """Makes the components of TQC, with another loss if ``make_loss`` is given."""
    return agents.gaussian_agent(
        cfg,
        make_loss or torchrl_vmfer.VMFTQCLoss,
        outputs=cfg.num_quantiles,
        top_quantiles_to_drop_per_net=cfg.quantiles_to_drop,
    )


if __name__ == "__main__":
    main()
