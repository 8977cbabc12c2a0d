"""Live forks: full training continues from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vmfer_recipes.fork.plan import Fork, ForkDirectory
from vmfer_recipes.fork.start import make_agent, recipe_of, starting_state
from vmfer_recipes.run.checkpoints import Checkpoints
from vmfer_recipes.run.session import Session

__all__ = ["continue_training"]


def continue_training(fork: Fork, checkpoint: dict[str, Any]) -> None:
    """Trains for ``steps`` environment steps, or resumes a fork that was stopped.

    Args:
        fork: the fork.
        checkpoint: the checkpoint of its source.
    """
    checkpoints = _ForkCheckpoints(fork.path / "checkpoint")
    session = _ForkSession(fork.cfg, directory=ForkDirectory(fork.cfg), checkpoints=checkpoints)
    if session.finished:
        return
    agent = make_agent(fork.cfg)
    checkpoints.first = lambda: starting_state(checkpoint, agent, fork)
    recipe_of(fork.cfg).train(fork.cfg, session, agent)


class _ForkCheckpoints(Checkpoints):
    """The checkpoints of a fork. Until it has one of its own, it starts from its source.

    Attributes:
        first: makes the state in which the fork starts.
    """

    first: Callable[[], dict[str, Any]]

    def load(self) -> dict[str, Any] | None:
        """The newest state of the fork, or the one in which it starts."""
        state = super().load()
        return self.first() if state is None else state


class _ForkSession(Session):
    """A session that ends with an evaluation and the policy, without a figure or a summary."""

    def _finish(self) -> None:
        self._progress.close()
        with self._directory.writing():
            self._write_policy()
            (self._directory.path / "finished").touch()
            self._checkpoints.reduce(to=0)
