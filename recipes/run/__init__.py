"""A training run: its loop, its files and its evaluation."""

from typing import TYPE_CHECKING

from vmfer_recipes import lazy_names

if TYPE_CHECKING:
    from vmfer_recipes.run.session import Session, TrainingSession, updates

__all__ = ["Session", "TrainingSession", "updates"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "session"))
