"""The updates of TD3 and SAC on plain networks, as batched matrix products.

TorchRL's losses run any network. Where actor and critics are stacks of linear layers, most of
what that generality costs can be saved: the ensemble is one batched product per layer, and
nothing passes through a TensorDict on the way. The classes here compute the same losses, equal up
to rounding and with the same random numbers; ``VMFTD3Loss(fast=True)`` and
``VMFSACLoss(fast=True)`` are the door to them, and fall back to TorchRL's path for any network
that is not plain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SoftUpdate
from torchrl.objectives.utils import _reduce, distance_loss
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer.directional import directions, factor_and_length
from torchrl_vmfer.plain_network import NotPlainError, PlainNetwork

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFSACLoss, VMFTD3Loss

__all__ = ["FastSAC", "FastSoftUpdate", "FastTD3"]

# Between this and its inverse, squares neither over- nor underflow in single precision.
_SAFE_NORM = 1e-15


class _FastPath:
    """What the fast TD3 and SAC share.

    Args:
        loss: the loss whose networks, options and keys are used.

    Raises:
        NotPlainError: if a network or an option has no fast path.
    """

    def __init__(self, loss: VMFTD3Loss | VMFSACLoss) -> None:
        estimator = loss.value_estimator
        if type(estimator) is not TD0Estimator or estimator.average_rewards:
            raise NotPlainError(f"{type(estimator).__name__} is not TD(0), or averages rewards.")
        self._gamma = estimator.gamma.item()
        if loss.loss_mask_key not in (None, "auto"):
            raise NotPlainError(f"The loss has a mask, {loss.loss_mask_key!r}.")
        if tuple(loss.qvalue_network.in_keys)[-1] != loss.tensor_keys.action:
            raise NotPlainError("The critics do not read the action last.")
        self._loss = loss
        self._observations = loss.qvalue_network.in_keys[:-1]
        if list(loss.actor_network.in_keys) != list(self._observations):
            raise NotPlainError("Actor and critics read different entries.")
        self._critics = PlainNetwork(loss.qvalue_network, loss.qvalue_network_params)
        # Extra critics serve the measurement only.
        self._num_target_critics = min(loss.num_target_critics, loss.num_qvalue_nets)
        self._all_critics = self._critics.detached()
        self._actor_critics = self._critics.detached(self._num_actor_critics)
        targets = PlainNetwork(loss.qvalue_network, loss.target_qvalue_network_params)
        self._target_critics = targets.detached(self._num_target_critics)
        # Networks and what was derived of them.
        self._derived = [(self._critics, self._all_critics), (targets, self._target_critics)]

    def is_current(self) -> bool:
        """Whether the parameters still lie in the memory that is referred to."""
        return all(network.shares_memory(derived) for network, derived in self._derived)

    @property
    def _num_actor_critics(self) -> int:
        """The number of critics that can move the actor."""
        return self._num_target_critics

    def _observation(self, tensordict: TensorDictBase, *prefix: str) -> Tensor:
        entries = [tensordict.get((*prefix, key)) for key in self._observations]
        return entries[0] if len(entries) == 1 else torch.cat(entries, -1)

    def _next_value(self, observation: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([observation, action], -1)
        return (
            self._target_critics(inputs.expand(self._num_target_critics, *inputs.shape))
            .squeeze(-1)
            .amin(0)
        )

    def _critic_loss(
        self, tensordict: TensorDictBase, next_value: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critics' loss, their values ``[N, B]`` and the values ``[B]`` they aim at."""
        loss, keys = self._loss, self._loss.tensor_keys
        reward = tensordict.get(("next", keys.reward)).squeeze(-1)
        done = tensordict.get(("next", keys.done))
        terminated = tensordict.get(("next", keys.terminated), done).squeeze(-1)
        target = reward + self._gamma * next_value.masked_fill(terminated, 0)
        action = tensordict.get(keys.action)
        inputs = torch.cat([self._observation(tensordict), action], -1)
        values = self._critics(inputs.expand(loss.num_qvalue_nets, *inputs.shape)).squeeze(-1)
        distance = distance_loss(values, target.expand_as(values), loss.loss_function)
        return self._reduced(distance.sum(0), tensordict), {
            "next_state_value": next_value,
            "pred_value": values.detach(),
            "target_value": target,
        }

    def _reduced(self, loss: Tensor, tensordict: TensorDictBase) -> Tensor:
        weights = self._loss._maybe_get_priority_weight(tensordict)
        return _reduce(loss, self._loss.reduction, weights=weights)

    def _policy_action(self, observation: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def values_and_gradients(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """All critics' values ``[N, B]`` at the policy's action, and the gradients of -Q_i."""
        observation = self._observation(tensordict)
        action = self._policy_action(observation)
        values, gradients = self._ask_critics(observation, action, measure=True)
        return values, -gradients

    def _ask_critics(
        self, observation: Tensor, action: Tensor, measure: bool
    ) -> tuple[Tensor, Tensor]:
        """The critics' values ``[N, B]`` at an action ``[B, A]``, and their gradients there."""
        count = self._loss.num_qvalue_nets if measure else self._num_actor_critics
        critics = self._all_critics if measure else self._actor_critics
        inputs = torch.cat([observation, action.detach()], -1)
        values, gradients = critics.with_gradients(
            inputs.expand(count, *inputs.shape), action.shape[-1]
        )
        return values.squeeze(-1), gradients

    def _actor_loss(
        self, tensordict: TensorDictBase, loss: Tensor, gradients: Tensor, used: int | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self._reduced(loss, tensordict)
        if not self._loss.measure:
            return loss, {}
        factor, length = factor_and_length(_directions(gradients), used)
        return loss, {"vmf_factor": factor, "vmf_resultant_length": length}


def _directions(gradients: Tensor) -> Tensor:
    """:func:`~torchrl_vmfer.directional.directions`, in fewer steps where nothing is unusual."""
    if gradients.device.type == "cpu" and gradients.numel():
        norm = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
        least, largest = norm.aminmax()
        if least.item() > _SAFE_NORM and largest.item() < 1 / _SAFE_NORM:
            return gradients / norm
    return directions(gradients)


def _climb(action: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """A critic's value, through which its gradient reaches the action: Q + (a - a₀)ᵀg."""
    return value + ((action - action.detach()) * gradient).sum(-1)


class FastTD3(_FastPath):
    """The two losses of :class:`~torchrl_vmfer.VMFTD3Loss`."""

    _loss: VMFTD3Loss
    _num_actor_critics = 1  # the first

    def __init__(self, loss: VMFTD3Loss) -> None:
        super().__init__(loss)
        self._actor = PlainNetwork(loss.actor_network, loss.actor_network_params)
        target_actor = PlainNetwork(loss.actor_network, loss.target_actor_network_params)
        self._target_actor = target_actor.detached()
        self._derived.append((target_actor, self._target_actor))

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._actor(observation)

    def value_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the critics, and what it was made of."""
        loss = self._loss
        with torch.no_grad():
            noise = torch.randn_like(tensordict.get(loss.tensor_keys.action)) * loss.policy_noise
            observation = self._observation(tensordict, "next")
            action = self._target_actor(observation) + noise.clamp_(
                -loss.noise_clip, loss.noise_clip
            )
            action = action.clamp_(loss.min_action, loss.max_action)
            next_value = self._next_value(observation, action)
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        error = metadata["pred_value"] - metadata["target_value"]
        return critic_loss, {"td_error": error.square(), **metadata}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the actor, and what the critics say of it."""
        observation = self._observation(tensordict)
        action = self._actor(observation)
        at = self._loss.perturbed(action.detach())
        values, gradients = self._ask_critics(observation, at, self._loss.measure)
        actor_loss, metadata = self._actor_loss(
            tensordict, -_climb(action, values[0], gradients[0]), gradients, used=0
        )
        return actor_loss, {"state_action_value_actor": values} | metadata


class _Squashed(torch.autograd.Function):
    """The action a = tanh(u), u = mean + deviation · noise, and its log-density."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Takes tensors ``[B, A]``, and returns the actions and their log-densities ``[B]``."""
        before = torch.addcmul(mean, deviation, noise)
        action = before.tanh()
        # log(1 - a²) = 2 (log 2 - u - softplus(-2u)) does not cancel.
        correction = functional.softplus(before.mul_(-2)).mul_(2).sub_(before)
        density = correction.sub_(deviation.log()).addcmul_(noise, noise, value=-0.5)
        ctx.save_for_backward(action, deviation, noise)
        constant = math.log(4) + 0.5 * math.log(2 * math.pi)
        return action, density.sum(-1) - mean.shape[-1] * constant

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_density: Tensor) -> tuple[Tensor, Tensor, None]:
        """With ∂a/∂u = 1 - a² and ∂log π/∂u = 2a."""
        action, deviation, noise = ctx.saved_tensors
        of_density = of_density.unsqueeze(-1)
        slope = torch.addcmul(of_action, of_action, action.square(), value=-1)
        slope.addcmul_(of_density, action, value=2)
        return slope, slope * noise - of_density / deviation, None


class FastSAC(_FastPath):
    """The losses of actor and critics of :class:`~torchrl_vmfer.VMFSACLoss`."""

    _loss: VMFSACLoss

    def __init__(self, loss: VMFSACLoss) -> None:
        super().__init__(loss)
        if loss.entropy_gradient or loss.skip_done_states or loss._version != 2:
            raise NotPlainError("entropy_gradient, skip_done_states and SAC v1 have no fast path.")
        self._actor = PlainNetwork(*_gaussian(loss.actor_network, loss.actor_network_params))

    def _act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action drawn from the policy, and its log-density."""
        mean, deviation = self._actor(observation)
        return _Squashed.apply(mean, deviation, torch.randn_like(mean))

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._act(observation)[0]

    def qvalue_v2_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the critics, and their TD errors."""
        with torch.no_grad():
            observation = self._observation(tensordict, "next")
            action, log_prob = self._act(observation)
            next_value = self._next_value(observation, action) - self._loss._alpha * log_prob
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        error = metadata["pred_value"] - metadata["target_value"]
        return critic_loss, {"td_error": error.abs().amax(0)}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the actor, and what the critics say of it."""
        observation = self._observation(tensordict)
        action, log_prob = self._act(observation)
        values, gradients = self._ask_critics(observation, action, self._loss.measure)
        value, used = values[: self._num_actor_critics].min(0)
        gradient = gradients.gather(0, used[None, :, None].expand(1, *action.shape)).squeeze(0)
        actor_loss, metadata = self._actor_loss(
            tensordict,
            self._loss._alpha * log_prob - _climb(action, value, gradient),
            gradients,
            used,
        )
        return actor_loss, {"log_prob": log_prob.detach()} | metadata


def _gaussian(actor: Any, params: TensorDictBase) -> tuple[nn.Module, TensorDictBase]:
    """The network behind a squashed Gaussian, and its parameters."""
    if type(actor) is not ProbabilisticActor or len(actor.module) != 2:
        raise NotPlainError(f"{type(actor).__name__} is not a network with a distribution.")
    network, head = actor.module
    bounds = {"low": -1.0, "high": 1.0} | head.distribution_kwargs
    if (
        head.distribution_class is not TanhNormal
        or head.num_samples is not None
        or bounds.keys() != {"low", "high"}
        or not (torch.as_tensor(bounds["low"]) == -1).all()
        or not (torch.as_tensor(bounds["high"]) == 1).all()
    ):
        raise NotPlainError("The policy is not a TanhNormal on [-1, 1].")
    if not list(network.out_keys) == list(head.in_keys) == ["loc", "scale"]:
        raise NotPlainError("The network does not return `loc` and `scale`, in this order.")
    return network, params.get(("module", "0"))


class FastSoftUpdate(SoftUpdate):
    """:class:`~torchrl.objectives.SoftUpdate` in one call for all parameters."""

    def init_(self) -> None:
        """Copies the parameters to their targets."""
        super().init_()
        sources, targets = self._sources.flatten_keys(), self._targets.flatten_keys()
        self._pairs = [(targets.get(f"target_{name}"), source) for name, source in sources.items()]

    def step(self) -> None:
        """Moves the targets towards the parameters."""
        targets, sources = zip(
            *((target.data, source.data) for target, source in self._pairs), strict=True
        )
        torch._foreach_lerp_(targets, sources, 1 - self.eps)
