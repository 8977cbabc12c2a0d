"""Datasets, and scores of offline learning."""

from typing import TYPE_CHECKING

from vmfer_recipes import lazy_names

if TYPE_CHECKING:
    from vmfer_recipes.offline.datasets import fill_replay_buffer

__all__ = ["fill_replay_buffer"]

__getattr__ = lazy_names(__name__, {"fill_replay_buffer": "datasets"})
