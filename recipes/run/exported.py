"""Policies as ONNX files, checked against the original."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import Policy
from vmfer_recipes.config.errors import UserError, first_line

_TOLERANCE = 1e-5  # relative to the range of actions
_BATCHES = (1, 2, 64)  # the batch sizes with which an exported file is checked


def export(policy: Policy, file: Path) -> float:
    """Exports a policy and checks it before it replaces a file. Returns the largest difference."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        try:
            with set_exploration_type(ExplorationType.DETERMINISTIC):
                _write(policy, unfinished)
        except OSError as error:
            raise UserError(
                f"{file} cannot be written ({first_line(error)}): choose another output=."
            ) from error
        except Exception as error:
            raise UserError(
                f"{policy.source} cannot be exported ({type(error).__name__}: "
                f"{first_line(error)}): its network uses an operation that ONNX lacks."
            ) from error
        difference = _difference(policy, unfinished)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return difference


class _Exported(nn.Module):
    """Maps the entries of observations to actions of the environment."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *observations: Tensor) -> Tensor:
        return self.policy.action(*observations)


def input_names(policy: Policy) -> list[str]:
    """The names of the inputs of an exported policy."""
    return [key if isinstance(key, str) else ".".join(key) for key in policy.in_keys]


def _examples(policy: Policy, batch: int) -> list[Tensor]:
    """Random observations of all scales, around the mean of training if the policy knows it."""
    generator = torch.Generator().manual_seed(batch)
    values = torch.randn(batch, policy.observation_size, generator=generator)
    values *= 10 ** (2 * torch.rand(batch, 1, generator=generator) - 1)
    if policy.normalization is not None:
        values = policy.normalization.mean + values * policy.normalization.deviation
    parts = values.split([int(np.prod(shape)) for shape in policy.input_shapes], -1)
    return [
        part.reshape(batch, *shape) for part, shape in zip(parts, policy.input_shapes, strict=True)
    ]


def _write(policy: Policy, file: Path) -> None:
    # It warns that torchvision, which no policy uses, is not installed.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        # All inputs have the same batch size, and it keeps one name for it.
        warnings.filterwarnings("ignore", ".*The axis name: batch will not be used")
        torch.onnx.export(
            _Exported(policy).eval(),
            tuple(_examples(policy, 2)),
            str(file),
            input_names=input_names(policy),
            output_names=["action"],
            dynamic_shapes=(tuple({0: batch} for _ in policy.in_keys),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@torch.no_grad()
@set_exploration_type(ExplorationType.DETERMINISTIC)
def _difference(policy: Policy, file: Path) -> float:
    """The largest difference of an exported action; raises an error if it is too large."""
    import onnxruntime

    exported = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    names = [each.name for each in exported.get_inputs()]
    largest = 0.0
    # A whole action may be rounded up instead of down.
    allowed = _TOLERANCE * (policy.high - policy.low).double()
    if not np.issubdtype(policy.action_low.dtype, np.floating):
        allowed = allowed.clamp(min=1)
    for batch in _BATCHES:
        observations = _examples(policy, batch)
        expected = policy.action(*observations)
        arrays = [observation.numpy() for observation in observations]
        try:
            actions = torch.tensor(exported.run(None, dict(zip(names, arrays, strict=True)))[0])
            difference = (actions.double() - expected.double()).abs()
        except Exception as error:
            raise UserError(
                f"The exported policy fails for a batch of {batch} ({first_line(error)}); no "
                "file was written. The network may depend on the batch size: change it."
            ) from error
        if actions.dtype != expected.dtype or not bool((difference <= allowed).all()):
            raise UserError(
                "The exported policy differs from the original by up to "
                f"{difference.max():.1e} for a batch of {batch}; no file was written. The "
                "network may branch on values or be random: change it."
            )
        largest = max(largest, float(difference.max()))
    return largest


def usage(policy: Policy, file: Path) -> str:
    """The code that loads an exported policy and calls it."""
    names = [(name, name.replace(".", "_")) for name in input_names(policy)]
    given = ", ".join(f'"{name}": {variable}' for name, variable in names)
    return f'onnxruntime.InferenceSession("{file}").run(None, {{{given}}})[0]'
