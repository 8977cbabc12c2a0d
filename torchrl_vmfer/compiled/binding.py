"""Reads a loss and its optimizers for compiled updates, and notices what was replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import attrgetter, getitem, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torchrl.objectives import SoftUpdate
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer._torchrl import has_tensor_hooks, members_of, target_pairs
from torchrl_vmfer.compiled.plain import (
    PlainNetwork,
    Squashed,
    read_network,
    read_policy,
    watched_parts,
)
from torchrl_vmfer.compiled.stacked import (
    AdamState,
    NotServedError,
    Settings,
    StackedNetwork,
    built_functions,
)
from torchrl_vmfer.gradients import followed_critic
from torchrl_vmfer.losses import VMFREDQLoss, VMFSACLoss, VMFTD3BCLoss, VMFTD3Loss, VMFTQCLoss
from torchrl_vmfer.networks import LocAndScale

__all__ = ["Binding"]

_state_of = attrgetter("state")  # the state of an optimizer

_DETERMINISTIC = (VMFTD3Loss, VMFTD3BCLoss)
_SERVED = (*_DETERMINISTIC, VMFSACLoss, VMFREDQLoss, VMFTQCLoss)
# The values of options that are served, the default first.
_SERVED_OPTIONS = {
    "entropy_gradient": (False, None),
    "skip_done_states": (False, None),
    "gSDE": (False, None),
    "value_network_params": (None,),
    "loss_mask_key": (None, "auto"),
    "reduction": ("mean",),
}
_SERVED_OF_ADAM = dict.fromkeys(
    ("amsgrad", "maximize", "capturable", "differentiable"), (False, None, 0)
)


class Binding:
    """What compiled updates know of a loss and its optimizers.

    Attributes:
        parts: the arguments of :class:`~torchrl_vmfer.compiled.stacked.StackedUpdates`.
        tensors: the parameters and the states of the optimizers.
    """

    def __init__(
        self,
        loss: Any,
        actor_optimizer: Optimizer,
        critic_optimizer: Optimizer,
        alpha_optimizer: Optimizer | None,
        targets: SoftUpdate | None,
    ) -> None:
        _check_loss(loss)
        parts = watched_parts(loss, loss.actor_network, loss.qvalue_network)
        parts += members_of(loss.value_estimator)
        given = (actor_optimizer, critic_optimizer, alpha_optimizer)
        self._optimizers = [optimizer for optimizer in given if optimizer is not None]
        self._moved: set[int] | None = None  # the addresses of the targets that are moved
        if targets is not None:
            self._moved = {tensor.data_ptr() for tensor, _ in target_pairs(targets)}
        self.tensors: list[Tensor] = []
        self._weights: list[Tensor] = []  # the parameters of networks
        self._holders: list[dict[Any, Any]] = []  # the dictionaries that hold the tensors
        is_gaussian = not isinstance(loss, _DETERMINISTIC)
        read = read_policy if is_gaussian else read_network
        actor, target_actor = (
            read(loss.actor_network, params)
            for params in (loss.actor_network_params, loss.target_actor_network_params)
        )
        critics, target_critics = (
            read_network(loss.qvalue_network, params)
            for params in (loss.qvalue_network_params, loss.target_qvalue_network_params)
        )
        if critics.last is not None or type(actor.last) is not Squashed:
            raise NotServedError(
                "the critics do not end with a linear layer, or the actor with tanh"
            )
        temperature = None
        networks = (
            self._network(actor, target_actor, actor_optimizer, "actor", 1),
            self._network(
                critics, target_critics, critic_optimizer, "critics", loss.num_qvalue_nets
            ),
        )
        if is_gaussian:
            adam = (0.0, 0.0, 0.0, 0.0)
            if alpha_optimizer is not None:
                adam = _read_adam(alpha_optimizer, [loss.log_alpha], "temperature")
            place = ({"log_alpha": loss.log_alpha}, "log_alpha")  # loss and its members are watched
            temperature = self._parameter(place, None, alpha_optimizer), adam
        self.parts = (_settings(loss, actor.last, actor.sizes), *networks, temperature)
        self._states = [optimizer.state for optimizer in self._optimizers]
        # These dictionaries must hold the same objects, in the same order.
        self._dicts = tuple([*parts, *self._states, *self._holders])
        self._held = tuple(chain.from_iterable(map(dict.values, self._dicts)))
        self._holds = built_functions().holds
        self._addresses = list(map(Tensor.data_ptr, self._weights))
        if len(set(map(Tensor.data_ptr, self.tensors))) < len(self.tensors):
            raise NotServedError("parameters are shared")

    def is_current(self) -> bool:
        """Whether no parameter, optimizer state or part of the networks was replaced or moved."""
        # All loops are in C.
        return (
            self._holds(self._dicts, self._held)
            and all(map(is_, map(_state_of, self._optimizers), self._states))
            and list(map(Tensor.data_ptr, self._weights)) == self._addresses
            and all(map(Tensor.is_contiguous, self._weights))
        )

    def _network(
        self, network: PlainNetwork, target: PlainNetwork, optimizer: Any, name: str, copies: int
    ) -> StackedNetwork:
        adam = _read_adam(optimizer, network.tensors(), name)
        parameters = []
        for value, following in zip(network.places, target.places, strict=True):
            address = getitem(*following).data_ptr()
            has_target = address != getitem(*value).data_ptr()
            if has_target and self._moved is not None and address not in self._moved:
                raise NotServedError("the SoftUpdate does not update all target networks")
            parameters.append(self._parameter(value, following if has_target else None, optimizer))
        return StackedNetwork(network.sizes, parameters, copies, network.norm_eps, adam)

    def _parameter(self, place: Any, target: Any, optimizer: Any) -> AdamState:
        """Returns a parameter, its target, and the state with which Adam starts."""
        value = self._note(*place)
        found = [value, None if target is None else self._note(*target)]
        self._weights += [tensor for tensor in found if tensor is not None]
        if optimizer is not None:
            state = optimizer.state[value]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(value)
                state["exp_avg_sq"] = torch.zeros_like(value)
            found += [self._note(state, name) for name in ("exp_avg", "exp_avg_sq", "step")]
        return AdamState(*(None if tensor is None else tensor.detach() for tensor in found))  # type: ignore[arg-type]

    def _note(self, entries: dict[Any, Tensor], key: Any) -> Tensor:
        tensor = entries[key]
        if has_tensor_hooks(tensor):
            raise NotServedError("a parameter has hooks")
        self.tensors.append(tensor)
        if not any(holder is entries for holder in self._holders):
            self._holders.append(entries)
        return tensor


def _read_adam(
    optimizer: Any, tensors: list[Tensor], name: str
) -> tuple[float, float, float, float]:
    """Betas, eps and weight decay of an optimizer of exactly these parameters."""
    groups = optimizer.param_groups
    if type(optimizer) not in (Adam, AdamW) or len(groups) != 1:
        kind = f"{type(optimizer).__name__} with {len(groups)} parameter groups"
        raise NotServedError(f"the optimizer of the {name} is {kind}, not Adam with one")
    _check(groups[0].get, f"the optimizer of the {name}", _SERVED_OF_ADAM)
    if {id(tensor) for tensor in groups[0]["params"]} != {id(tensor) for tensor in tensors}:
        raise NotServedError(f"the optimizer of the {name} has other parameters")
    if not all(isinstance(number, float) for number in (groups[0]["lr"], *groups[0]["betas"])):
        raise NotServedError(f"the learning rate of the {name} is not a float")
    decay = groups[0]["weight_decay"]
    if decay and not groups[0].get("decoupled_weight_decay"):
        raise NotServedError(f"the optimizer of the {name} has weight_decay={decay!r} in gradients")
    return (*groups[0]["betas"], groups[0]["eps"], decay)


def _check(get: Callable[..., Any], name: str, served: dict[str, tuple[Any, ...]]) -> None:
    """Raises a :class:`NotServedError` if an option has a value that is not served."""
    for key, values in served.items():
        if (found := get(key, values[0])) not in values:
            raise NotServedError(f"{name} has {key}={found!r}")


def _check_loss(loss: Any) -> None:
    """Raises a :class:`NotServedError` if an option of the loss is not served."""
    if type(loss) not in _SERVED:
        raise NotServedError(f"{type(loss).__name__} is not one of the served losses")
    _check(partial(getattr, loss), "the loss", _SERVED_OPTIONS)
    if not isinstance(loss, VMFTQCLoss):
        distances = {"loss_function": ("l2", "l1", "smooth_l1")}
        _check(partial(getattr, loss), "the loss", distances)
    estimator = loss.value_estimator
    if type(estimator) is not TD0Estimator or estimator.average_rewards:
        raise NotServedError(f"the value estimator {type(estimator).__name__} is not plain TD(0)")
    inputs, action = loss.actor_network.in_keys, loss.tensor_keys.action
    if len(inputs) != 1 or list(loss.qvalue_network.in_keys) != [*inputs, action]:
        raise NotServedError("the critics do not read the actor's observation and the action")
    if loss.actor_network.out_keys[-1] != action and isinstance(loss, _DETERMINISTIC):
        raise NotServedError("the actor does not return the action last")


def _settings(loss: Any, squashed: Squashed, sizes: tuple[int, ...]) -> Settings:
    """The settings of a loss whose policy has some bounds and sizes."""
    is_gaussian = not isinstance(loss, _DETERMINISTIC)
    options: dict[str, Any] = {
        "is_gaussian": is_gaussian,
        "num_targets": loss.target_count,
        "followed": followed_critic(loss),
        "used": loss.used,
        "measures": bool(loss.measure),
        "has_norms": bool(loss.gradient_norm),
        "is_pre_tanh": loss.squashing is not None,
        "weighting": loss.weighting,
        "middle": ((squashed.low + squashed.high) / 2).numpy(),
        "half": ((squashed.high - squashed.low) / 2).numpy(),
    }
    if loss.squashing is not None:
        options["seen_middle"] = loss.squashing.middle.numpy()
        options["seen_half"] = loss.squashing.half_width.numpy()
    if isinstance(loss, VMFTQCLoss):
        options |= {"is_quantile": True, "dropped": loss.top_quantiles_to_drop_per_net}
    else:
        options["distance"] = loss.loss_function
    if is_gaussian:
        options["log_low"], options["log_high"] = LocAndScale.bounds
        options["target_entropy"] = float(loss.target_entropy)
        limits = {"alpha_low": loss.min_log_alpha, "alpha_high": loss.max_log_alpha}
        options |= {name: float(limit) for name, limit in limits.items() if limit is not None}
    else:
        options["policy_noise"] = float(loss.policy_noise)
        options["noise_clip"] = float(loss.noise_clip)
        options["low"] = loss.min_action.reshape(-1).numpy()
        options["high"] = loss.max_action.reshape(-1).numpy()
    if isinstance(loss, VMFTD3Loss):
        options["actor_noise"] = loss.actor_noise
        options["actor_noise_clip"] = loss.actor_noise_clip
    if isinstance(loss, VMFTD3BCLoss):
        options["cloning"] = float(loss.alpha)
    if isinstance(loss, VMFREDQLoss):
        options |= {"is_alpha_loss_exp": True, "critic_scale": 1 / loss.num_qvalue_nets}
    return Settings(sizes[0], sizes[-1] // (1 + is_gaussian), **options)
