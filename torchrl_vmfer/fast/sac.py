"""The updates of SAC on plain networks, as batched matrix products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import ProbabilisticActor, TanhNormal

from torchrl_vmfer._torchrl import temperature
from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.known_gradients import with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFSACLoss

__all__ = ["FastSAC"]


class FastSAC(FastUpdates):
    """The losses of actor and critics of :class:`~torchrl_vmfer.VMFSACLoss`."""

    methods = ("qvalue_v2_loss", "actor_loss")
    _loss: VMFSACLoss

    def __init__(self, loss: VMFSACLoss) -> None:
        super().__init__(loss)
        self._actor = PlainNetwork(*_gaussian(loss.actor_network, loss.actor_network_params))
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
        """An action drawn from the policy, and its log-density."""
        mean, deviation = self._policy(observation)
        return _squashed(mean, deviation, torch.randn_like(mean))

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._act(observation)[0]

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the critics, and their TD errors."""
        observation = self._observation(tensordict, "next")
        action, log_prob = self._act(observation)
        next_value = self._next_value(observation, action) - temperature(self._loss) * log_prob
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        return critic_loss, {"td_error": metadata["error"].abs().amax(0)}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the actor, and what the critics say of it."""
        observation = self._observation(tensordict)
        (mean, deviation), pull_back = self._policy.with_pull_back(observation)
        noise = torch.randn_like(mean)
        action, log_prob = _squashed(mean, deviation, noise)
        values, gradients = self._ask_critics(observation, action, self._loss.measure)
        value, used = values[: self._num_actor_critics].min(0)
        gradient = gradients.gather(0, used[None, :, None].expand(1, *action.shape)).squeeze(0)
        alpha, weights = temperature(self._loss), self._weights(tensordict, values)
        of_rows = weights.unsqueeze(-1)
        slopes = _squashed_slope(-of_rows * gradient, alpha * of_rows, action, deviation, noise)
        actor_loss = ((alpha * log_prob - value) * weights).sum()
        return with_known_gradients(actor_loss, self._actor, pull_back, *slopes), {
            "log_prob": log_prob,
            **self._agreement(gradients, values),
        }


def _squashed(mean: Tensor, deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The actions a = tanh(u), u = mean + deviation · noise, and their log-densities ``[B]``."""
    pre_tanh = torch.addcmul(mean, deviation, noise)
    action = pre_tanh.tanh()
    # log(1 - a²) = 2 (log 2 - u - softplus(-2u)) does not cancel.
    correction = functional.softplus(pre_tanh.mul_(-2)).mul_(2).sub_(pre_tanh)
    density = correction.sub_(deviation.log()).addcmul_(noise, noise, value=-0.5)
    constant = math.log(4) + 0.5 * math.log(2 * math.pi)
    return action, density.sum(-1) - mean.shape[-1] * constant


def _squashed_slope(
    of_action: Tensor, of_density: Tensor, action: Tensor, deviation: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of mean and deviation, with ∂a/∂u = 1 - a² and ∂log π/∂u = 2a."""
    of_mean = torch.addcmul(of_action, of_action, action.square(), value=-1)
    of_mean += 2 * of_density * action
    return of_mean, of_mean * noise - of_density / deviation


def _gaussian(actor: Any, params: TensorDictBase) -> tuple[nn.Module, TensorDictBase]:
    """The network behind a squashed Gaussian, and its parameters."""
    if type(actor) is not ProbabilisticActor or len(actor.module) != 2:
        raise NotPlainError(f"{type(actor).__name__} is not a network with a distribution")
    network, head = actor.module
    bounds = {"low": -1.0, "high": 1.0} | head.distribution_kwargs
    if (
        head.distribution_class is not TanhNormal
        or head.num_samples is not None
        or bounds.keys() != {"low", "high"}
        or not (torch.as_tensor(bounds["low"]) == -1).all()
        or not (torch.as_tensor(bounds["high"]) == 1).all()
    ):
        raise NotPlainError("the policy is not a TanhNormal on [-1, 1]")
    if not list(network.out_keys) == list(head.in_keys) == ["loc", "scale"]:
        raise NotPlainError("the network does not return `loc` and `scale`, in this order")
    return network, params.get(("module", "0"))
