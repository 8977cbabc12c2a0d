"""The normalized score of offline learning: 0 for a random policy, 100 for an expert."""

from __future__ import annotations

from typing import NamedTuple

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.offline.minari import MinariFiles
from vmfer_recipes.run.tables import Evaluation


class ReferenceReturns(NamedTuple):
    """The returns that correspond to scores of 0 and 100, and where they come from."""

    random: float
    expert: float
    source: str

    def score(self, value: float) -> float:
        """The normalized score of a return."""
        return 100 * (value - self.random) / (self.expert - self.random)

    def describe(self, result: Evaluation) -> str:
        """The normalized score of an evaluation, in one line."""
        score = self.score(result.return_mean)
        deviation = 100 * result.return_std / (self.expert - self.random)
        return (
            f"Normalized score {score:.1f} ± {deviation:.1f} (random return {self.random:.1f} = 0, "
            f"expert return {self.expert:.1f} = 100; reference: {self.source})."
        )


# https://github.com/Farama-Foundation/D4RL/blob/master/d4rl/infos.py
_D4RL = {
    "Ant": (-325.6, 3879.7),
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
}


def reference_returns(dataset: str | None, env: EnvConfig) -> ReferenceReturns | None:
    """The reference returns of a run that learns from a dataset, if they are known.

    Those of a Minari dataset take precedence over D4RL's, which apply only to the tasks as
    registered, without other arguments or wrappers.
    """
    if dataset is None:
        return None
    try:
        files = MinariFiles.find(dataset)
    except UserError:  # the dataset was removed after training
        return None
    if files is not None and files.reference_returns is not None:
        return ReferenceReturns(*files.reference_returns, "the dataset")
    task, _, version = env.name.partition("-v")
    if task not in _D4RL or not version.isdecimal() or env.kwargs or env.wrappers:
        return None
    return ReferenceReturns(*_D4RL[task], "D4RL")
