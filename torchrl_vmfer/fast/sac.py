"""The updates of SAC on plain networks, as batched matrix products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictSequential,
)
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import (
    ProbabilisticActor,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    TanhNormal,
)

from torchrl_vmfer._torchrl import temperature
from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFSACLoss

__all__ = ["FastSAC"]

_POLICIES = (
    ProbabilisticActor,
    ProbabilisticTensorDictSequential,
    SafeProbabilisticTensorDictSequential,
)
_HEADS = (ProbabilisticTensorDictModule, SafeProbabilisticModule)


class FastSAC(FastUpdates):
    """The actor and critic losses of :class:`~torchrl_vmfer.VMFSACLoss`."""

    methods = ("qvalue_v2_loss", "actor_loss")
    _loss: VMFSACLoss

    def __init__(self, loss: VMFSACLoss) -> None:
        super().__init__(loss)
        network, head = _network_and_head(loss.actor_network)
        self._squashed = SquashedGaussian(head)
        self._actor = PlainNetwork(
            network, loss.actor_network_params, last=self._squashed.bounded_mean()
        )
        self._policy = self._actor.detached()
        self._derived.append((self._actor, self._policy))

    @classmethod
    def check_options(cls, loss: Any) -> None:
        """Raises a :class:`NotPlainError` if an option of the loss has no fast path."""
        super().check_options(loss)
        for name in ("entropy_gradient", "skip_done_states"):
            if getattr(loss, name):
                raise NotPlainError(f"{name}=True")
        if loss.value_network_params is not None:
            raise NotPlainError("the loss has a value network")

    def _act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action sampled from the policy, and its log-density."""
        mean, deviation = self._policy(observation)
        squashed, log_prob = self._squashed(mean, deviation, torch.randn_like(mean))
        return self._squashed.stretch(squashed), log_prob

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._act(observation)[0]

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic loss, and the TD errors."""
        observation = self._observation(tensordict, "next")
        action, log_prob = self._act(observation)
        next_value = self._next_value(observation, action) - temperature(self._loss) * log_prob
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        return critic_loss, {"td_error": metadata["error"].abs().amax(0)}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor loss, the log-density of the action, and the agreement of the critics."""
        observation = self._observation(tensordict)
        (mean, deviation), pull_back = self._policy.with_pull_back(observation)
        noise = torch.randn_like(mean)
        squashed, log_prob = self._squashed(mean, deviation, noise)
        action = self._squashed.stretch(squashed)
        values, gradients = self._evaluate_critics(observation, action, self._loss.measure)
        value, used = values[: self._num_actor_critics].min(0)
        gradient = gradients.gather(0, used[None, :, None].expand(1, *action.shape)).squeeze(0)
        alpha, weights = temperature(self._loss), self._weights(tensordict, values)
        of_rows = weights.unsqueeze(-1)
        slopes = self._squashed.slopes(
            -of_rows * gradient, alpha * of_rows, squashed, deviation, noise
        )
        actor_loss = ((alpha * log_prob - value) * weights).sum()
        return with_known_gradients(actor_loss, self._actor, pull_back, *slopes), {
            "log_prob": log_prob,
            **self._agreement(gradients, values),
        }


class SquashedGaussian:
    """TorchRL's ``TanhNormal`` without the distribution objects: a = m + h tanh(u).

    Args:
        head: the last module of a policy, which builds the distribution.

    Raises:
        NotPlainError: if the distribution is not a ``TanhNormal``.
    """

    def __init__(self, head: Any) -> None:
        options: dict[str, Any] = {"low": -1.0, "high": 1.0, "upscale": 5.0, "tanh_loc": False}
        options |= {"event_dims": None, "safe_tanh": True}
        given = head.distribution_kwargs
        if head.distribution_class is not TanhNormal or not given.keys() <= options.keys():
            raise NotPlainError("the policy is not a TanhNormal")
        if head.num_samples is not None or given.get("event_dims") not in (None, 1):
            raise NotPlainError("the policy draws several actions, or matrices of them")
        options |= given
        low, high = (torch.as_tensor(options[name]) for name in ("low", "high"))
        self._is_unit = bool((low == -1).all() and (high == 1).all())
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._upscale = options["upscale"] if options["tanh_loc"] else None

    def bounded_mean(self) -> nn.Module | None:
        """The module between network and distribution if ``tanh_loc=True``, else ``None``."""
        if self._upscale is None:
            return None
        return _BoundedMean(self._upscale, None if self._is_unit else self._middle)

    def __call__(self, mean: Tensor, deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(u) at u = mean + deviation · noise, and the log-densities ``[B]`` of the actions."""
        pre_tanh = torch.addcmul(mean, deviation, noise)
        squashed = pre_tanh.tanh()
        # log(1 - tanh²(u)) = 2 (log 2 - u - softplus(-2u)) avoids cancellation.
        correction = functional.softplus(pre_tanh.mul_(-2)).mul_(2).sub_(pre_tanh)
        density = correction.sub_(deviation.log()).addcmul_(noise, noise, value=-0.5)
        constant = math.log(4) + 0.5 * math.log(2 * math.pi)
        log_prob = density.sum(-1) - mean.shape[-1] * constant
        if not self._is_unit:
            log_prob -= self._half.to(mean).expand(mean.shape[-1]).log().sum()
        return squashed, log_prob

    def stretch(self, squashed: Tensor) -> Tensor:
        """The action m + h tanh(u)."""
        if self._is_unit:
            return squashed
        return torch.addcmul(self._middle.to(squashed), self._half.to(squashed), squashed)

    def slopes(
        self,
        of_action: Tensor,
        of_density: Tensor,
        squashed: Tensor,
        deviation: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The gradients of mean and deviation: ∂a/∂u = h (1 - tanh²), ∂log π/∂u = 2 tanh."""
        if not self._is_unit:
            of_action = of_action * self._half.to(of_action)
        of_mean = torch.addcmul(of_action, of_action, squashed.square(), value=-1)
        of_mean += 2 * of_density * squashed
        return of_mean, of_mean * noise - of_density / deviation


class _BoundedMean(nn.Module):
    """Limits the mean of a Gaussian to ``upscale`` around the middle of the bounds."""

    def __init__(self, upscale: float | Tensor, middle: Tensor | None) -> None:
        super().__init__()
        self.upscale, self.middle = upscale, middle

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The bounded mean and the deviation."""
        mean, deviation = inputs
        mean = (mean / self.upscale).tanh() * self.upscale
        return mean if self.middle is None else mean + self.middle.to(mean), deviation


def _network_and_head(actor: Any) -> tuple[nn.Module, Any]:
    """The network of a policy, and the module that builds its distribution."""
    parts = list(actor.module.children()) if type(actor) in _POLICIES else []
    if len(parts) < 2 or type(parts[-1]) not in _HEADS:
        raise NotPlainError(f"{type(actor).__name__} is not a network with a distribution")
    *networks, head = parts
    if not list(networks[-1].out_keys) == list(head.in_keys) == ["loc", "scale"]:
        raise NotPlainError("the network does not return `loc` and `scale`, in this order")
    return TensorDictSequential(*networks), head
