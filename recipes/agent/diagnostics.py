"""Diagnostics of the actor's batch and gradient, which do not affect training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer import ActorCriticReplayBuffer, VMFUncertainty, effective_sample_size
from torchrl_vmfer.samplers.adapters import probabilities_of
from vmfer_recipes.agent.actor_batches import unchanged_random_numbers
from vmfer_recipes.agent.observations import Observations

__all__ = ["Diagnostics", "agreement", "cosine", "signal_to_noise"]

_SATURATED = 0.99  # absolute value of actions scaled to [-1, 1]
# The current networks choose among candidates: there are no stored probabilities.
_WITHOUT_DISTRIBUTION = ("direct", "on_policy")


def signal_to_noise(first: Tensor, second: Tensor) -> Tensor:
    """Estimates ‖G‖² / tr Cov(ḡ) from the gradients of the two halves of a batch.

    ḡ is their mean, the gradient of the batch, and G its expectation. The halves are independent,
    so that g₁ᵀg₂ is an unbiased estimate of ‖G‖², and ‖g₁ - g₂‖²/4 one of the variance of ḡ. The
    ratio is negative if the angle between the two gradients exceeds 90°.

    Args:
        first: the gradient of one half, as a vector.
        second: the gradient of the other half.

    Examples:
        >>> signal_to_noise(torch.tensor([3.0, 1.0]), torch.tensor([3.0, -1.0]))
        tensor(8.)
    """
    return 4 * first.dot(second) / (first - second).square().sum()


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of the angle between two vectors.

    Examples:
        >>> cosine(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 3.0]))
        tensor(0.7071)
    """
    return first.dot(second) / (first.norm() * second.norm())


class Diagnostics:
    """Measures the actor's batch and gradient once per row of ``train.csv``.

    Measuring does not change random numbers, gradients, networks or samplers.

    Args:
        loss: the loss.
        parameters: the parameters of the actor.
        buffer: the replay buffer. What requires its contents is left out if it is in a Ray actor.
        observations: the preprocessing of batches.
        keys: the stored entries of the actor's batch.
        kind: the ``kind`` of ``sampler=``.
    """

    def __init__(
        self,
        loss: Any,
        parameters: Sequence[Tensor],
        buffer: Any,
        observations: Observations,
        keys: Sequence[str],
        kind: str,
    ) -> None:
        self._loss = loss
        self._parameters = list(parameters)
        self._buffer = buffer if isinstance(buffer, ActorCriticReplayBuffer) else None
        self._observations = observations
        self._keys = list(keys)
        self._kind = kind

    def measure(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The diagnostics by the names of their columns. Those that are not defined are left out.

        Args:
            batch: the actor's batch.
        """
        with self._without_effects():
            found: dict[str, Any] = {**self._saturation(batch), **self._compared(batch)}
            if self._buffer is not None:
                with self._buffer.locked():
                    found |= self._distribution(self._buffer, batch)
        values = {
            name: torch.as_tensor(value, dtype=torch.float64, device="cpu")
            for name, value in found.items()
        }
        return {name: value for name, value in values.items() if value.isfinite()}

    @contextmanager
    def _without_effects(self) -> Iterator[None]:
        loss, generator = self._loss, None if self._buffer is None else self._buffer.generator
        state = torch.empty(0) if generator is None else generator.get_state()
        # Custom networks may have running statistics, which each pass updates.
        statistics = [
            tensor
            for params in (loss.actor_network_params, loss.qvalue_network_params)
            for tensor in params.values(True, True)
            if not isinstance(tensor, nn.Parameter)
        ]
        saved = [tensor.clone() for tensor in statistics]
        try:
            with unchanged_random_numbers(self._parameters[0].device):
                yield
        finally:
            for tensor, value in zip(statistics, saved, strict=True):
                tensor.data.copy_(value)
            if generator is not None:
                generator.set_state(state)

    def _saturation(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """How close the components of the policy's mean actions are to their bounds."""
        loss = self._loss
        with (
            torch.no_grad(),
            set_exploration_type(ExplorationType.DETERMINISTIC),
            loss.actor_network_params.to_module(loss.actor_network),
        ):
            action = loss.actor_network(batch.select("observation"))["action"]
        size = action.abs().double()
        return {
            "saturation": size.mean(),
            "saturated_fraction": (size > _SATURATED).double().mean(),
        }

    def _compared(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Compares the gradients of halves of the batch, and of the batch and a uniform one."""
        found = {}
        even = batch[: len(batch) // 2 * 2]
        if len(even):
            # Alternate rows: some samplers order the rows of a batch by where they come from.
            halves = (self._gradient(even[start::2]) for start in (0, 1))
            found["gradient_snr"] = signal_to_noise(*halves)
        if self._buffer is not None:
            uniform = self._buffer.sample_uniformly(len(batch), keys=self._keys)
            other = self._gradient(self._observations(uniform))
            found["gradient_cosine"] = cosine(self._gradient(batch), other)
        return found

    def _gradient(self, batch: TensorDictBase) -> Tensor:
        # A copy, because the loss adds entries. Not the method compiled by torch.compile, which
        # would be compiled again for batches of another size.
        loss, _ = type(self._loss).actor_loss(self._loss, batch.copy())
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        known = [gradient.flatten() for gradient in gradients if gradient is not None]
        return torch.cat(known).double()

    def _distribution(
        self, buffer: ActorCriticReplayBuffer, batch: TensorDictBase
    ) -> dict[str, float]:
        """The age of the batch, its distribution, and the age of the priorities."""
        stored = len(buffer)
        ages = (buffer.write_count - 1 - batch["index"].double()) % stored
        found: dict[str, float] = {
            "stored_transitions": stored,
            "relative_age": float(ages.mean()) / max(stored - 1, 1),
        }
        if self._kind in _WITHOUT_DISTRIBUTION:
            return found
        if self._kind == "weighted":
            weight = batch["priority_weight"].double()
            fraction = effective_sample_size(weight / weight.sum()) / len(weight)
            return found | {"effective_sample_size": fraction * stored}
        is_shared = self._kind == "shared"
        sampler = buffer.critic_sampler if is_shared else buffer.actor_sampler
        try:
            probabilities = probabilities_of(sampler, buffer.storage)
            found["effective_sample_size"] = effective_sample_size(probabilities)
        except NotImplementedError:
            pass  # a sampler with a pool, or a custom one
        if getattr(sampler, "records_updates", False):
            found["factor_age"] = sampler.priority_age()
            found["unscored_fraction"] = sampler.unscored_fraction()
        return found


def agreement(
    info: dict[str, Tensor], uncertainty: VMFUncertainty, batch: TensorDictBase
) -> dict[str, Tensor]:
    """The mean and quantiles of the factor and the resultant length over an actor batch.

    Args:
        info: the metadata of the actor loss, which contain both if the loss measures them.
        uncertainty: computes them otherwise.
        batch: the batch.
    """
    if "vmf_factor" not in info:
        with unchanged_random_numbers(batch["observation"].device):
            measured = uncertainty(batch.select("observation"))["vmf"]
        info = {f"vmf_{name}": value for name, value in measured.items()}
    statistics = {}
    for name in ("factor", "resultant_length"):
        values = info[f"vmf_{name}"].sort().values
        statistics[f"{name}_mean"] = values.mean()
        for percent in (10, 50, 90):
            statistics[f"{name}_q{percent}"] = values[(len(values) - 1) * percent // 100]
    return statistics
