"""Saving and loading of trained policies as plain data, without executing code."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from torchrl_vmfer.networks import ACTIVATIONS, KINDS, NetworkSpec
from torchrl_vmfer.plain_state import load_checked, save_file
from torchrl_vmfer.policies import POLICY_FORMAT, Normalization, Policy

_FILES = {"last": "policy.pt", "best": "policy_best.pt"}
_CHECKPOINTS = f"step_{'[0-9]' * 12}.pt"  # not copies with other names


class PolicyError(RuntimeError):
    """Raised if a file or directory contains no readable policy."""


def save_policy(policy: Policy, path: str | Path) -> None:
    """Saves a policy to a file of plain data. A failed save leaves an existing file intact."""
    save_file(policy.data(), Path(path))


def load_policy(path: str | Path, which: str = "last") -> Policy:
    """Loads the policy of a training run, without executing code from its files.

    If the policy uses a custom network, the module that defines the network is imported by name. It
    must be installed or on Python's path.

    Args:
        path: a run directory, or a file such as ``policy.pt``. In the directory of an unfinished
            run, the policy of the newest readable checkpoint is used.
        which: which policy of a run directory to load: ``"last"``, or ``"best"`` for the one with
            the best evaluation.

    Raises:
        PolicyError: if there is no readable policy.
    """
    path = Path(path)
    if which not in _FILES:
        raise ValueError(f"which must be 'last' or 'best', got {which!r}.")
    if not path.is_dir():
        return _load(path)
    if (path / _FILES[which]).exists():
        return _load(path / _FILES[which])
    failures = []
    if which == "last":
        for checkpoint in sorted((path / "checkpoint").glob(_CHECKPOINTS), reverse=True):
            try:
                return _load(checkpoint)
            except PolicyError as error:
                failures.append(str(error))
    raise PolicyError(
        failures[0]
        if failures
        else f"{path} has no {_FILES[which]}{' and no checkpoint' * (which == 'last')}: pass the "
        "directory of a training run, such as runs/td3/Hopper-v4/uniform-vmf_rank/seed0."
    )


def _load(file: Path) -> Policy:
    if not file.exists():
        raise PolicyError(f"{file} does not exist: pass a run directory or its policy.pt.")
    try:
        # Memory-mapped: a checkpoint also holds the replay buffer.
        data = load_checked(file, mmap=True)
        if isinstance(data, dict) and "parts" in data:
            data = data.get("policy")
        policy = _from_data(data)
    except ImportError as error:
        raise PolicyError(f"{file}: {error}") from error
    except Exception as error:
        reason = f"no entry {error}" if isinstance(error, KeyError) else str(error)
        reason = textwrap.shorten(reason or type(error).__name__, 300)
        raise PolicyError(
            f"{file} cannot be read ({reason}): pass a run directory, or a policy.pt written by a "
            "training run."
        ) from error
    policy.source = file
    return policy


def _from_data(data: Any) -> Policy:
    """Makes a policy from untrusted plain data. Raises an error if they are invalid."""
    if not isinstance(data, dict) or data.get("format") != POLICY_FORMAT["format"]:
        raise ValueError("it holds no policy in the format of torchrl_vmfer")
    if data.get("version") != POLICY_FORMAT["version"]:
        raise ValueError(
            f"its format has version {data.get('version')!r}, and this torchrl_vmfer reads version "
            f"{POLICY_FORMAT['version']}"
        )
    action, given, step = data["action"], data["normalization"], data["step"]
    normalization = None if given is None else Normalization(**given)
    inputs = {
        entry["key"][0] if len(entry["key"]) == 1 else tuple(entry["key"]): tuple(entry["shape"])
        for entry in data["inputs"]
    }
    size = sum(math.prod(shape) for shape in inputs.values())
    low, high = action["low"], action["high"]
    is_valid = {
        "kind": data["kind"] in KINDS,
        "network": data["network"].get("activation") in ACTIVATIONS,
        "step": step is None or isinstance(step, int),
        "inputs": size > 0 and min(min(shape, default=1) for shape in inputs.values()) > 0,
        "action": low.ndim == 1 and low.shape == high.shape and bool((low <= high).all()),
        "normalization": normalization is None
        or normalization.mean.shape == normalization.deviation.shape == (size,),
    }
    for entry, holds in is_valid.items():
        if not holds:
            raise ValueError(f"its entry {entry!r} has a wrong value")
    return Policy(
        data["kind"],
        NetworkSpec(**data["network"]),
        inputs,
        low,
        high,
        action["dtype"],
        normalization=normalization,
        weights=data["weights"],
        environment=data["environment"],
        step=step,
    )
