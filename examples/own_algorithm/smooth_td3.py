"""A custom algorithm: TD3 whose actor also pays for large actions.

Run from this directory, with the additional key ``action_cost``:

    python smooth_td3.py env=InvertedPendulum-v4 action_cost=0.1
    python smooth_td3.py --help
    vmfer-train smooth_td3 env=InvertedPendulum-v4 sampler=vmf_rank
    python smooth_td3.py -m env=InvertedPendulum-v4 action_cost=0,0.1 'run_dir=runs/cost${action_cost}/seed${seed}'

The name of this file is the name of the algorithm: results are in ``runs/smooth_td3/...``. Resuming, longer training,
``evaluate.py``, ``status.py``, ``report.py`` and, started from this directory, ``fork.py`` work as for TD3. Everything
that is not defined here is imported from TD3; to change more, copy the functions that you change from
``recipes/td3.py``.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer import VMFTD3Loss
from vmfer_recipes import td3
from vmfer_recipes.agent import Agent
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.keys import key
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.run.session import Session
from vmfer_recipes.td3 import train, update_actor, update_critics

__all__ = ["main", "make_agent", "train", "update_actor", "update_critics"]


@dataclass
class SmoothTD3Config(TD3Config):
    """TD3 whose actor also pays for large actions."""

    action_cost: float = key(0.01, "cost of the mean squared action", low=0)


class SmoothTD3Loss(VMFTD3Loss):
    """TD3's losses, with a cost of the actions."""

    def __init__(self, *args: Any, action_cost: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_cost = action_cost

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TD3's actor loss, plus the cost."""
        loss, info = super().actor_loss(tensordict)
        with self.actor_network_params.to_module(self.actor_network):
            action = self.actor_network(tensordict.select("observation"))["action"]
        return loss + self.action_cost * action.square().mean(), info


def make_agent(cfg: SmoothTD3Config) -> Agent:
    """Makes the components of TD3, with this loss."""
    return td3.make_agent(cfg, partial(SmoothTD3Loss, action_cost=cfg.action_cost))


@recipe("td3", SmoothTD3Config)
def main(cfg: SmoothTD3Config) -> None:
    """Trains one agent, unless the run is already finished."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session, make_agent(cfg))


if __name__ == "__main__":
    main()
