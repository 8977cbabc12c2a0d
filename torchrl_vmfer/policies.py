"""Trained policies that act in a user's environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer.networks import NetworkSpec, actor_network, drawn_action
from torchrl_vmfer.plain_state import plain

POLICY_FORMAT = {"format": "torchrl_vmfer.policy", "version": 1}
"""The entries that identify the format of a saved policy."""


class Normalization(NamedTuple):
    """The normalization of network inputs, in the order of the inputs."""

    mean: Tensor
    deviation: Tensor
    clip: float  # normalized inputs are clipped to ± this value


class Policy(TensorDictModuleBase):
    """A trained policy that maps raw observations of an environment to actions for it.

    The policy normalizes observations as in training, scales actions to the bounds of the
    environment and converts them to its data type. Like any TorchRL policy, a stochastic one
    explores if ``exploration_type()`` is ``RANDOM``. :func:`load_policy` loads one from a file.

    Args:
        kind: ``"deterministic"`` (TD3) or ``"gaussian"`` (SAC).
        network: the specification of the actor network.
        inputs: the shape of each entry of an observation, by key, in the order in which the
            network receives them.
        low: the lower bounds of actions.
        high: the upper bounds of actions.
        dtype: the name of the data type of actions, such as ``"float32"``.
        normalization: the normalization of the flattened inputs; ``None`` for none.
        weights: the state of the network; ``None`` for random weights.
        environment: the name of the environment that the policy was trained in.
        step: the number of steps that the policy was trained for.

    Attributes:
        input_shapes: the shape of each entry of an observation, in the order of ``in_keys``.
        source: the file that the policy was loaded from.

    Example:
        >>> network, inputs = NetworkSpec(hidden=[8]), {"observation": (3,)}
        >>> policy = Policy("deterministic", network, inputs, low=[-2], high=[2])
        >>> policy.act(np.zeros(3)).shape, policy.act(np.zeros((5, 3))).shape
        ((1,), (5, 1))
        >>> policy.in_keys, policy.out_keys
        (['observation'], ['action'])
    """

    def __init__(
        self,
        kind: str,
        network: NetworkSpec,
        inputs: Mapping[str | tuple[str, ...], Sequence[int]],
        low: Sequence[float] | np.ndarray | Tensor,
        high: Sequence[float] | np.ndarray | Tensor,
        dtype: str = "float32",
        *,
        normalization: Normalization | None = None,
        weights: Mapping[str, Tensor] | None = None,
        environment: str = "",
        step: int | None = None,
    ) -> None:
        super().__init__()
        self.in_keys = list(inputs)
        self.out_keys = ["action"]
        self.kind, self.network, self.environment, self.step = kind, network, environment, step
        self.source: Path | None = None
        self.input_shapes = [tuple(shape) for shape in inputs.values()]
        self._action_dtype = dtype
        self._torch_dtype = _torch_dtype(dtype)
        # float32 cannot represent the bounds of most data types exactly.
        precision = torch.float32 if self._torch_dtype == torch.float32 else torch.float64
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.as_tensor(low, dtype=precision).clone())
        self.register_buffer("high", torch.as_tensor(high, dtype=precision).clone())
        self.mean: Tensor | None
        self.deviation: Tensor | None
        mean, deviation, clip = normalization or (None, None, math.inf)
        self.register_buffer("mean", None if mean is None else mean.float().clone())
        self.register_buffer("deviation", None if deviation is None else deviation.float().clone())
        self._clip = float(clip)
        # Loaded weights replace the initial ones of an MLP, which are neither allocated nor drawn.
        is_replaced = weights is not None and network.is_mlp
        self.actor = actor_network(
            kind, network, self.observation_size, len(self.low), "meta" if is_replaced else None
        )
        if weights is not None:
            self.actor.load_state_dict(_copied(weights), assign=is_replaced)
        self.requires_grad_(False)
        self.eval()

    @property
    def observation_size(self) -> int:
        """The number of network inputs: the total size of all entries of an observation."""
        return sum(math.prod(shape) for shape in self.input_shapes)

    @property
    def action_size(self) -> int:
        """The length of an action."""
        return len(self.low)

    @property
    def action_low(self) -> np.ndarray:
        """The lower bounds of actions, in the data type of actions."""
        return self.low.cpu().numpy().astype(self._action_dtype)

    @property
    def action_high(self) -> np.ndarray:
        """The upper bounds of actions, in the data type of actions."""
        return self.high.cpu().numpy().astype(self._action_dtype)

    @property
    def normalization(self) -> Normalization | None:
        """The normalization of the flattened inputs; ``None`` if there is none."""
        if self.mean is None or self.deviation is None:
            return None
        return Normalization(self.mean, self.deviation, self._clip)

    def unit_action(self, inputs: Tensor) -> Tensor:
        """Maps flattened, concatenated observations ``[..., inputs]`` to actions in [-1, 1]."""
        if self.mean is not None and self.deviation is not None:
            inputs = ((inputs - self.mean) / self.deviation).clamp(-self._clip, self._clip)
        output = self.actor(inputs)
        return output if self.kind == "deterministic" else drawn_action(*output)

    def action(self, *observations: Tensor) -> Tensor:
        """Maps the entries of observations, in the order of ``in_keys``, to actions."""
        parts = zip(observations, self.input_shapes, strict=True)
        flat = [_flattened(entry.float(), shape) for entry, shape in parts]
        unit = self.unit_action(flat[0] if len(flat) == 1 else torch.cat(flat, -1))
        fraction = (unit.to(self.low.dtype) + 1) / 2
        scaled = torch.clamp(self.low + fraction * (self.high - self.low), self.low, self.high)
        if not self._torch_dtype.is_floating_point:
            scaled = scaled.round()
        return scaled.to(self._torch_dtype)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the action to the tensordict."""
        entries = [tensordict.get(key) for key in self.in_keys]
        self._check_shapes(entries)
        return tensordict.set("action", self.action(*entries))

    def act(self, observation: Any, deterministic: bool = True) -> np.ndarray:
        """Returns actions for the observations of a Gymnasium environment.

        Args:
            observation: an array, or a dictionary of arrays; single or batched.
            deterministic: whether to return the center of the distribution of a stochastic policy
                instead of a sample.

        Example:
            >>> network, inputs = NetworkSpec(hidden=[8]), {"observation": (3,)}
            >>> policy = Policy("gaussian", network, inputs, low=[0], high=[9], dtype="int8")
            >>> policy.act(np.zeros(3)).dtype
            dtype('int8')
        """
        parts = [torch.as_tensor(np.asarray(part)) for part in self._entries(observation)]
        self._check_shapes(parts)
        kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
        with torch.no_grad(), set_exploration_type(kind):
            action = self.action(*(part.to(self.low.device) for part in parts))
        return action.cpu().numpy().astype(self._action_dtype, copy=False)

    def _check_shapes(self, entries: Sequence[Tensor]) -> None:
        """Raises an error if an entry of an observation has a wrong shape."""
        for key, shape, entry in zip(self.in_keys, self.input_shapes, entries, strict=True):
            if len(shape) > entry.ndim or entry.shape[entry.ndim - len(shape) :] != shape:
                raise ValueError(
                    f"The entry {key!r} of the observation has the shape {list(entry.shape)}, but "
                    f"the policy needs {list(shape)}, or a batch of such entries."
                )

    def _entries(self, observation: Any) -> Iterator[Any]:
        if not isinstance(observation, Mapping):
            if self.in_keys != ["observation"]:
                raise TypeError(
                    f"The policy needs an observation with the entries {self.in_keys}, got a "
                    f"{type(observation).__name__}: pass a dictionary."
                )
            yield observation
            return
        for key in self.in_keys:
            entry: Any = observation
            for name in [key] if isinstance(key, str) else key:
                if not (isinstance(entry, Mapping) and name in entry):
                    raise KeyError(
                        f"The observation has the entries {list(observation)}, but the policy "
                        f"needs {key!r}."
                    )
                entry = entry[name]
            yield entry

    def data(self) -> dict[str, Any]:
        """Returns the policy as plain data that :func:`load_policy` can read."""
        given = self.normalization
        return {
            **POLICY_FORMAT,
            "kind": self.kind,
            "environment": self.environment,
            "step": self.step,
            "network": plain(asdict(self.network), "the network of the policy"),
            "inputs": [
                {"key": [key] if isinstance(key, str) else list(key), "shape": list(shape)}
                for key, shape in zip(self.in_keys, self.input_shapes, strict=True)
            ],
            "action": _copied({"low": self.low, "high": self.high, "dtype": self._action_dtype}),
            "normalization": None if given is None else _copied(given._asdict()),
            "weights": _copied(self.actor.state_dict()),
        }

    def __repr__(self) -> str:
        spec = self.network
        layers = f"{list(spec.hidden)} {spec.activation}" if spec.is_mlp else spec.network
        layers += ", layer_norm" if spec.is_mlp and spec.layer_norm else ""
        inputs = ", ".join(
            f"{key}{list(shape)}"
            for key, shape in zip(self.in_keys, self.input_shapes, strict=True)
        )
        seen = "no normalization" if self.mean is None else f"normalized, clip {self._clip:g}"
        of = f" of {self.environment}" if self.environment else ""
        at = "" if self.step is None else f" at step {self.step:,}"
        return (
            f"Policy({self.kind}{of}{at}: {inputs} ({seen}) -> {layers} -> "
            f"action[{self.action_size}] {self._action_dtype} in "
            f"{self.action_low.tolist()} to {self.action_high.tolist()})"
        )


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _flattened(entry: Tensor, shape: tuple[int, ...]) -> Tensor:
    return entry.flatten(-len(shape)) if shape else entry.unsqueeze(-1)


def _torch_dtype(name: str) -> torch.dtype:
    try:
        return torch.from_numpy(np.zeros(0, name)).dtype
    except TypeError as error:
        raise ValueError(f"actions of data type {name!r} are not supported") from error
