"""The updates of TD3 and SAC on plain networks, as batched matrix products.

TorchRL's losses run any network. Where actor and critics are stacks of linear layers, most of
what that generality costs can be saved: the ensemble is one batched product per layer, nothing
passes through a TensorDict on the way, and the gradients are found along with the loss, without
autograd. The classes here compute the same losses, equal up to rounding and with the same random
numbers; ``VMFTD3Loss(fast=True)`` and ``VMFSACLoss(fast=True)`` are the door to them, and fall
back to TorchRL's path for any network, option or batch that is not plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SoftUpdate
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer.directional import directions, factor_and_length
from torchrl_vmfer.fast.known_gradients import backward, with_known_gradients
from torchrl_vmfer.fast.plain_network import NotPlainError, PlainNetwork

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFSACLoss, VMFTD3Loss

__all__ = ["FastSAC", "FastSoftUpdate", "FastTD3", "backward"]

# TorchRL's distances, as functions of the error, and their derivatives.
_DISTANCES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "l2": (torch.square, lambda error: 2 * error),
    "l1": (torch.abs, torch.sign),
    "smooth_l1": (
        lambda error: functional.smooth_l1_loss(error, torch.zeros_like(error), reduction="none"),
        lambda error: error.clamp(-1, 1),
    ),
}
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
        self._estimator = estimator
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
        """Whether there are as many critics, with parameters in the memory that is referred to."""
        loss = self._loss
        return self._num_target_critics == min(
            loss.num_target_critics, loss.num_qvalue_nets
        ) and all(network.shares_memory(derived) for network, derived in self._derived)

    def suits(self, tensordict: TensorDictBase) -> bool:
        """Whether a batch, with the loss as it is now, can go by the fast path."""
        loss = self._loss
        if loss.reduction == "none" or loss.loss_function not in _DISTANCES or not len(tensordict):
            return False
        observations = [tensordict.get(key, None) for key in self._observations]
        action = tensordict.get(loss.tensor_keys.action, None)
        # Nothing before the networks, such as an encoder, asks for gradients.
        return all(seen is not None and not seen.requires_grad for seen in observations) and not (
            action is not None and action.requires_grad
        )

    @property
    def _num_actor_critics(self) -> int:
        """The number of critics that can move the actor."""
        return self._num_target_critics

    def _observation(self, tensordict: TensorDictBase, *prefix: str) -> Tensor:
        entries = [tensordict.get((*prefix, key)).detach() for key in self._observations]
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
        """The critics' loss, their values ``[N, B]``, the values ``[B]`` they aim at, the error."""
        loss, keys = self._loss, self._loss.tensor_keys
        reward = tensordict.get(("next", keys.reward)).detach().squeeze(-1)
        done = tensordict.get(("next", keys.done))
        terminated = tensordict.get(("next", keys.terminated), done).squeeze(-1)
        target = reward + self._estimator.gamma * next_value.masked_fill(terminated, 0)
        action = tensordict.get(keys.action)
        inputs = torch.cat([self._observation(tensordict), action], -1)
        values, pull_back = self._all_critics.with_pull_back(
            inputs.expand(loss.num_qvalue_nets, *inputs.shape)
        )
        values = values.squeeze(-1)
        error = values - target
        shares = self._shares(tensordict, values)
        distance, slope = (function(error) for function in _DISTANCES[loss.loss_function])
        critic_loss = with_known_gradients(
            (distance * shares).sum(), self._critics, pull_back, (slope * shares).unsqueeze(-1)
        )
        return critic_loss, {
            "error": error,
            "next_state_value": next_value,
            "pred_value": values,
            "target_value": target,
        }

    def _shares(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """What the loss of each transition counts in the loss of the batch, ``[B]`` or ``[]``."""
        weights = self._loss._maybe_get_priority_weight(tensordict)
        is_mean = self._loss.reduction == "mean"
        if weights is None:
            return like.new_tensor(1 / len(tensordict) if is_mean else 1.0)
        if weights.shape != tensordict.shape:
            raise ValueError(
                f"Got weights of shape {list(weights.shape)} for a batch of "
                f"{list(tensordict.shape)}: pass one weight for each transition."
            )
        return weights / weights.sum() if is_mean else weights

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
        inputs = torch.cat([observation, action], -1)
        values, gradients = critics.with_gradients(
            inputs.expand(count, *inputs.shape), action.shape[-1]
        )
        return values.squeeze(-1), gradients

    def _agreement(self, gradients: Tensor, used: int | Tensor) -> dict[str, Tensor]:
        """What the critics' gradients ``[N, B, A]`` tell of their agreement."""
        if not self._loss.measure:
            return {}
        factor, length = factor_and_length(_directions(gradients), used)
        return {"vmf_factor": factor, "vmf_resultant_length": length}


def _directions(gradients: Tensor) -> Tensor:
    """:func:`~torchrl_vmfer.directional.directions`, in fewer steps where nothing is unusual."""
    if gradients.device.type == "cpu" and gradients.numel():
        norm = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
        least, largest = norm.aminmax()
        if least.item() > _SAFE_NORM and largest.item() < 1 / _SAFE_NORM:
            return gradients / norm
    return directions(gradients)


class FastTD3(_FastPath):
    """The two losses of :class:`~torchrl_vmfer.VMFTD3Loss`."""

    _loss: VMFTD3Loss
    _num_actor_critics = 1  # the first

    def __init__(self, loss: VMFTD3Loss) -> None:
        super().__init__(loss)
        self._actor = PlainNetwork(loss.actor_network, loss.actor_network_params)
        self._policy = self._actor.detached()
        target_actor = PlainNetwork(loss.actor_network, loss.target_actor_network_params)
        self._target_actor = target_actor.detached()
        self._derived += [(self._actor, self._policy), (target_actor, self._target_actor)]

    def _policy_action(self, observation: Tensor) -> Tensor:
        return self._policy(observation)

    def value_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the critics, and what it was made of."""
        loss = self._loss
        noise = torch.randn_like(tensordict.get(loss.tensor_keys.action)) * loss.policy_noise
        observation = self._observation(tensordict, "next")
        action = self._target_actor(observation) + noise.clamp_(-loss.noise_clip, loss.noise_clip)
        action = action.clamp_(loss.min_action, loss.max_action)
        next_value = self._next_value(observation, action)
        critic_loss, metadata = self._critic_loss(tensordict, next_value)
        return critic_loss, {"td_error": metadata.pop("error").square(), **metadata}

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the actor, and what the critics say of it."""
        observation = self._observation(tensordict)
        action, pull_back = self._policy.with_pull_back(observation)
        at = self._loss.perturbed(action)
        values, gradients = self._ask_critics(observation, at, self._loss.measure)
        shares = self._shares(tensordict, values)
        actor_loss = with_known_gradients(
            -(values[0] * shares).sum(),
            self._actor,
            pull_back,
            -shares.unsqueeze(-1) * gradients[0],
        )
        metadata = self._agreement(gradients, used=0)
        return actor_loss, {"state_action_value_actor": values} | metadata


def _squashed(mean: Tensor, deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The actions a = tanh(u), u = mean + deviation · noise, and their log-densities ``[B]``."""
    before = torch.addcmul(mean, deviation, noise)
    action = before.tanh()
    # log(1 - a²) = 2 (log 2 - u - softplus(-2u)) does not cancel.
    correction = functional.softplus(before.mul_(-2)).mul_(2).sub_(before)
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


class FastSAC(_FastPath):
    """The losses of actor and critics of :class:`~torchrl_vmfer.VMFSACLoss`."""

    _loss: VMFSACLoss

    def __init__(self, loss: VMFSACLoss) -> None:
        super().__init__(loss)
        if loss.entropy_gradient or loss.skip_done_states or loss._version != 2:
            raise NotPlainError("entropy_gradient, skip_done_states and SAC v1 have no fast path.")
        self._actor = PlainNetwork(*_gaussian(loss.actor_network, loss.actor_network_params))
        self._policy = self._actor.detached()
        self._derived.append((self._actor, self._policy))

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
        next_value = self._next_value(observation, action) - self._loss._alpha * log_prob
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
        alpha, shares = self._loss._alpha, self._shares(tensordict, values)
        of_rows = shares.unsqueeze(-1)
        slopes = _squashed_slope(-of_rows * gradient, alpha * of_rows, action, deviation, noise)
        actor_loss = ((alpha * log_prob - value) * shares).sum()
        return with_known_gradients(actor_loss, self._actor, pull_back, *slopes), {
            "log_prob": log_prob,
            **self._agreement(gradients, used),
        }


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
