"""The best policy of a run so far, in ``policy_best.pt``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_vmfer.plain_state import plain, save_file

__all__ = ["BestPolicy"]


class BestPolicy:
    """A file with the policy of the evaluation with the highest mean return.

    Of several evaluations with the same return, the earliest counts. The state holds the policy
    itself: loading a state restores the file, whatever was written since.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: dict[str, Any] = {}

    def exceeds(self, return_mean: float) -> bool:
        """Whether an earlier policy was at least as good."""
        return bool(self._state) and self._state["return_mean"] >= return_mean

    def replace(self, step: int, return_mean: float, policy: dict[str, Any]) -> None:
        """Writes a better policy.

        Args:
            step: the step of the evaluation.
            return_mean: its mean return.
            policy: the policy as plain data, which are copied.
        """
        policy = plain(policy, "the policy")
        self._state = {"step": step, "return_mean": return_mean, "policy": policy}
        self._write()

    def _write(self) -> None:
        save_file(self._state["policy"], self._path)

    def clear(self) -> None:
        """Deletes the file."""
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        """The best policy, with the step and the return of its evaluation."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the file of that time."""
        self._state = state
        if state:
            self._write()
        else:
            self._path.unlink(missing_ok=True)
