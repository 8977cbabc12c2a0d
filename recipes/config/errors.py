"""User errors, reported in one line."""

from __future__ import annotations

import difflib
import errno
import pickle
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix. It ends the program with one line and exit code 2."""


def diverged(sign: str) -> UserError:
    """The error for networks whose outputs are no longer finite; ``sign`` is the symptom."""
    return UserError(
        f"Training diverged, {sign}: use smaller learning rates, and another run_dir. Earlier "
        "checkpoints are kept."
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural if needed: ``2,000 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence with up to three known names that look like ``name``, the most similar first.

    A dotted name is also found by its last part: ``buffer_size`` finds ``replay.buffer_size``. If
    no name is similar, it is the sentence ``otherwise``, or one with a few of the names.

    Example:
        >>> did_you_mean("sede", ["seed", "tau"])
        'Did you mean: seed?'
        >>> did_you_mean("color", ["a", "b", "c", "d"])
        'Known names: a, b, c, ...; --help lists all.'
    """
    by_word: dict[str, list[str]] = {}
    for candidate in sorted(known):
        for word in {candidate.lower(), candidate.lower().rpartition(".")[2]}:
            by_word.setdefault(word, []).append(candidate)
    words = difflib.get_close_matches(name.lower(), by_word, n=3, cutoff=0.6)
    if near := list(dict.fromkeys(found for word in words for found in by_word[word]))[:3]:
        return f"Did you mean: {', '.join(near)}?"
    names = sorted(known)
    shown = [*names[:3], *(["..."] if len(names) > 3 else [])]
    return otherwise or f"Known names: {', '.join(shown)}; --help lists all."


def unwritable(run_dir: object, error: Exception) -> UserError:
    """The error for a run directory that cannot be written, with the cure that fits its cause."""
    number = error.errno if isinstance(error, OSError) else errno.ENOSPC  # as PyTorch reports it
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cure = (
            "free disk space and run the same command to resume from the last checkpoint, or "
            "choose another run_dir"
        )
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        cure = "get write permission, or choose another run_dir"
    else:
        cure = "choose another run_dir"
    return UserError(
        f"The run directory {run_dir} cannot be written ({first_line(error)}): {cure}."
    )


def first_line(error: Exception) -> str:
    """The message of an error, in one line."""
    if isinstance(error, pickle.UnpicklingError):  # PyTorch's message advises executing the file
        return "it holds more than plain tensors and numbers, and is not executed"
    return (str(error).splitlines() or [type(error).__name__])[0]
