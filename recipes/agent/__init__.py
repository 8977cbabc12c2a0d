"""The components of an agent: networks, replay, batches and diagnostics."""

from typing import TYPE_CHECKING

from vmfer_recipes import lazy_names

if TYPE_CHECKING:
    from vmfer_recipes.agent.agent import (
        Agent,
        AgentMaker,
        ExplorerMaker,
        LossMaker,
        deterministic_agent,
        gaussian_agent,
    )
    from vmfer_recipes.agent.replay import weighted_mean

__all__ = [
    "Agent",
    "AgentMaker",
    "ExplorerMaker",
    "LossMaker",
    "deterministic_agent",
    "gaussian_agent",
    "weighted_mean",
]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "agent") | {"weighted_mean": "replay"})
