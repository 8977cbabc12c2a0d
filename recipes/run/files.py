"""Files of a run: atomic writes, names of checkpoints, and the lock."""

from __future__ import annotations

import fcntl
import os
import platform
from io import FileIO
from pathlib import Path
from weakref import WeakSet

from torchrl_vmfer.files import replacing
from vmfer_recipes.config.errors import UserError

__all__ = ["LockedError", "checkpoint_files", "holder_is_gone", "lock", "replacing", "step_of"]


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, without copies that were given another name."""
    return [*folder.glob(f"step_{'[0-9]' * 12}.pt")]


def step_of(file: Path) -> int:
    """The step of a checkpoint, read from its name."""
    return int(file.stem.removeprefix("step_"))


class LockedError(UserError):
    """Raised if another process is working on the run."""


_locks: WeakSet[FileIO] = WeakSet()


def _release() -> None:
    for file in list(_locks):
        file.close()


# Otherwise a forked child would hold the lock until it ends.
os.register_at_fork(after_in_child=_release)


def lock(run_dir: Path) -> FileIO:
    """Locks a run directory, which is created if needed, until the returned file is closed.

    The kernel releases the lock when the process ends, for any reason. The file is not deleted:
    otherwise two processes could lock two files with the same name.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    file = FileIO(run_dir / "lock", "a+")
    try:
        # On NFS, Linux also enforces this lock between machines.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{os.getpid()} on {platform.node()}".encode())
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().decode()
        file.close()
        raise LockedError(
            f"{run_dir} is being written by process {holder}: wait until it ends, stop it, or "
            "choose another run_dir."
        ) from error
    except OSError:
        file.close()
        raise
    _locks.add(file)
    return file


def holder_is_gone(run_dir: Path) -> bool:
    """Whether the last process that locked a run directory is known to have ended.

    A directory without a lock file is a copy: every run creates one.
    """
    try:
        process, _, machine = (run_dir / "lock").read_text().partition(" on ")
        if machine == platform.node():
            os.kill(int(process), 0)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError):  # a lock being written, or another user's process
        pass
    return False
