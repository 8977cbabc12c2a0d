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
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torchrl.modules import MLP, Actor, ProbabilisticActor, SafeModule, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.utils import _reduce, distance_loss
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer.directional import directions, factor_and_length

if TYPE_CHECKING:
    from torchrl_vmfer.losses import VMFSACLoss, VMFTD3Loss

__all__ = ["FastSAC", "FastSoftUpdate", "FastTD3", "NotPlainError", "PlainNetwork"]

# Activations that treat every number alike, hence also those of several networks at once.
_ACTIVATIONS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Softplus),
    *(nn.Mish, nn.Identity),
)


# Between this and its inverse, squares neither over- nor underflow in single precision.
_SAFE_NORM = 1e-15
# Containers that only pass tensors on.
_WRAPPERS = (TensorDictModule, SafeModule, Actor, ValueOperator)


_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


class NotPlainError(TypeError):
    """A network or a loss for which there is no fast path."""


class PlainNetwork:
    """A stack of linear layers and activations, or ``N`` such stacks side by side.

    Args:
        module: the module that says how layers follow each other.
        params: its parameters; with a leading dimension ``N`` for ``N`` stacks. They are
            referred to, not copied: optimizers may go on changing them in place.

    Raises:
        NotPlainError: if the module is anything else.
    """

    def __init__(self, module: nn.Module, params: TensorDictBase) -> None:
        self._steps = list(_steps(module, params, is_alone=not params.batch_size))

    def detached(self, count: int | None = None) -> PlainNetwork:
        """The first ``count`` stacks, without gradients for their parameters.

        It refers to the memory of the parameters: see :meth:`shares_memory`.
        """
        network = PlainNetwork.__new__(PlainNetwork)
        network._steps = [
            step
            if isinstance(step, nn.Module)
            else tuple(None if p is None else p.detach()[:count] for p in step)
            for step in self._steps
        ]
        return network

    def shares_memory(self, other: PlainNetwork) -> bool:
        """Whether the parameters of another network begin where those of this one do."""
        return all(
            isinstance(step, nn.Module) or step[0].data_ptr() == others[0].data_ptr()
            for step, others in zip(self._steps, other._steps, strict=True)
        )

    @cached_property
    def _parts(self) -> tuple[list[Tensor], list[Any]]:
        """Parameters of the leading layers with ReLU between them, and the steps that follow."""
        linear: list[Tensor] = []
        for position, step in enumerate(self._steps):
            if isinstance(step, tuple) and step[1] is not None and position % 2 == 0:
                linear += step
            elif not (type(step) is nn.ReLU and position % 2 == 1):
                break
        # What comes last is a layer: a ReLU behind it is one of the steps that follow.
        return linear, self._steps[max(0, len(linear) - 1) :]

    def __call__(self, inputs: Tensor) -> Any:
        """Applies one stack to ``[B, features]``, or ``N`` to ``[N, B, features]``."""
        layers, following = self._parts
        if layers and torch.is_grad_enabled():
            inputs = _ReLUStack.apply(inputs, *layers)
        elif layers:
            inputs = _hidden_units(inputs, layers)[-1]
        for step in following:
            inputs = step(inputs) if isinstance(step, nn.Module) else _linear(inputs, *step)
        return inputs

    def with_gradients(self, inputs: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The one output, and its gradient with respect to the last ``size`` inputs."""
        layers, following = self._parts
        if following:
            fixed, points = inputs.detach().split([inputs.shape[-1] - size, size], -1)
            points.requires_grad_()
            with torch.enable_grad():
                outputs = self(torch.cat([fixed, points], -1))
                (gradients,) = torch.autograd.grad(outputs.sum(), points)
            return outputs.detach(), gradients
        with torch.no_grad():
            *hidden, outputs = _hidden_units(inputs, layers)
            weights = layers[::2]
            *_, gradient = _gradients(torch.ones_like(outputs), hidden, weights)
            return outputs, gradient @ weights[0][..., -size:]


class _ReLUStack(torch.autograd.Function):
    """Linear layers with ReLU between them, whose backward pass makes no copies.

    In a pass of some milliseconds every copy of the hidden units is felt.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *params: Tensor) -> Tensor:
        """Takes the inputs, then weight and bias of each layer."""
        *hidden, outputs = _hidden_units(inputs, params)
        ctx.save_for_backward(*hidden, *params[::2])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of inputs, weights and biases, as far as they are asked for."""
        depth = len(ctx.saved_tensors) // 2
        hidden, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        found: list[Tensor | None] = [None] * (1 + 2 * depth)
        layers = reversed(range(depth))
        backwards = _gradients(gradient, hidden, weights)
        for layer, gradient in zip(layers, backwards, strict=True):
            if ctx.needs_input_grad[1 + 2 * layer]:
                found[1 + 2 * layer] = _weight_gradient(gradient, hidden[layer])
            if ctx.needs_input_grad[2 + 2 * layer]:
                found[2 + 2 * layer] = gradient.sum(-2)
        if ctx.needs_input_grad[0]:
            found[0] = gradient @ weights[0]
        return tuple(found)


def _hidden_units(inputs: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """The inputs, the units of each hidden layer, and the outputs."""
    units = [inputs]
    for position in range(0, len(params), 2):
        if position:
            units[-1].relu_()
        units.append(_linear(units[-1], params[position], params[position + 1]))
    return units


def _gradients(
    gradient: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor]
) -> Iterator[Tensor]:
    """The gradients with respect to what each layer returns, from the last to the first."""
    yield gradient
    for layer in range(len(hidden) - 1, 0, -1):
        weight = weights[layer]
        # With one output, as critics have, a product of numbers.
        gradient = gradient * weight if weight.shape[-2] == 1 else gradient @ weight
        torch.ops.aten.threshold_backward.grad_input(
            gradient, hidden[layer], 0, grad_input=gradient
        )
        yield gradient


def _weight_gradient(gradient: Tensor, inputs: Tensor) -> Tensor:
    # With few inputs, twice as fast the other way round.
    if inputs.shape[-1] < 64:
        return (inputs.mT @ gradient).mT.contiguous()
    return gradient.mT @ inputs


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.ndim == 2:
        return functional.linear(inputs, weight, bias)
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)


def _steps(module: Any, params: TensorDictBase | None, is_alone: bool) -> Iterator[Any]:
    if any(getattr(module, f"_{kind}_hooks") for kind in _HOOKS):
        raise NotPlainError(f"{type(module).__name__} has hooks.")
    if type(module) in _WRAPPERS:
        yield from _steps(module.module, _child(params, "module"), is_alone)
    elif type(module) in (nn.Sequential, MLP):
        # Not `named_children`, which passes over a module that comes a second time.
        for name, child in module._modules.items():
            yield from _steps(child, _child(params, name), is_alone)
    elif type(module) is nn.Linear and params is not None:
        yield params.get("weight"), params.get("bias", None)
    elif type(module) in _ACTIVATIONS or (is_alone and not _is_stateful(module)):
        yield module
    else:
        raise NotPlainError(f"{type(module).__name__} is not a plain layer.")


def _is_stateful(module: nn.Module) -> bool:
    return any(True for part in module.modules() for _ in (*part._parameters, *part._buffers))


def _child(params: TensorDictBase | None, name: str) -> TensorDictBase | None:
    return None if params is None else params.get(name, None)


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
        if loss._loss_mask_key not in (None, "auto"):
            raise NotPlainError(f"The loss has a mask, {loss._loss_mask_key!r}.")
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
        action = tensordict.get(loss.tensor_keys.action)
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
