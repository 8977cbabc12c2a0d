"""Mistakes of the user, told in one line."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable

__all__ = ["UserError", "diverged", "first_line", "nearest"]


class UserError(Exception):
    """Something the user can mend. It ends the program with a line and exit code 2."""


def diverged(sign: str) -> UserError:
    """Says that networks hold no numbers any more, and by what sign that was seen."""
    return UserError(
        f"Training diverged, {sign}: use smaller learning rates, and another run_dir. What was "
        "saved before is kept."
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names that look like ``name``, as a sentence for an error message."""
    known = sorted(known)
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)
    return ", ".join(lower[match] for match in close) if close else ", ".join(known[:20])


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, pickle.UnpicklingError):  # PyTorch would advise to execute it
        return "it holds more than plain tensors and numbers, and is not executed"
    return (str(error).splitlines() or [type(error).__name__])[0]
