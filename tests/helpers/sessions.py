"""A session without a run directory."""

from vmfer_recipes.run.session import Averages, TrainingSession


class BareSession(TrainingSession):
    """Counts steps and writes nothing."""

    def __init__(self, count: int = 0) -> None:
        self.metrics, self.step, self._count = Averages(), 0, count

    def steps(self, policy, **components):
        while self.step < self._count:
            self.step += 1
            yield self.step
