"""Whole updates of a loss with plain networks, one compiled call each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import getitem, is_
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torchrl.objectives import AUTO_LOSS_MASK_KEYS, SoftUpdate
from torchrl.objectives.value import TD0Estimator

from torchrl_vmfer._torchrl import entries_of, has_tensor_hooks, target_pairs
from torchrl_vmfer.compiled.plain import (
    ModuleWatch,
    PlainNetwork,
    Squashed,
    read_gaussian,
    read_network,
)
from torchrl_vmfer.compiled.stacked import (
    AdamState,
    Columns,
    NotServedError,
    Settings,
    StackedNetwork,
    StackedUpdates,
)
from torchrl_vmfer.gradients import followed_critic
from torchrl_vmfer.losses import VMFREDQLoss, VMFSACLoss, VMFTD3BCLoss, VMFTD3Loss, VMFTQCLoss
from torchrl_vmfer.networks import LocAndScale

__all__ = ["CompiledUpdates"]

_DETERMINISTIC = (VMFTD3Loss, VMFTD3BCLoss)
_SERVED = (*_DETERMINISTIC, VMFSACLoss, VMFREDQLoss, VMFTQCLoss)
# Entries that TorchRL's losses support: masks, and the number of steps of a transition.
_NOT_SERVED = {
    key if isinstance(key, str) else key[0] for key in (*AUTO_LOSS_MASK_KEYS, "steps_to_next_obs")
}


class CompiledUpdates:
    """Whole updates of the critics and the actor of a loss, in one compiled call each.

    An update computes the numbers of TorchRL's loss, its backward pass and ``torch.optim.Adam``, up
    to rounding, on one thread. It draws the same random numbers from PyTorch's generator, and
    changes the parameters and the states of the optimizers in place, so that checkpoints, policies
    and other uses of the loss see the same tensors. Gradients are not stored.

    It serves :class:`~torchrl_vmfer.VMFTD3Loss`, ``VMFTD3BCLoss``, ``VMFSACLoss``, ``VMFREDQLoss``
    and ``VMFTQCLoss`` whose networks are linear layers with ReLU and, optionally, ``LayerNorm``, in
    single precision on the CPU, with ``TanhNormal`` and
    :class:`~torchrl_vmfer.networks.LocAndScale` for stochastic policies.

    Parameters or optimizer states that were replaced or moved are noticed at the next update.

    Args:
        loss: the loss.
        critic_optimizer: the optimizer of ``loss.qvalue_network_params``.
        actor_optimizer: the optimizer of ``loss.actor_network_params``.
        alpha_optimizer: the optimizer of ``loss.log_alpha``; ``None`` for a fixed temperature.
        targets: the ``SoftUpdate`` of the loss; ``None`` if target networks are moved elsewhere.
        clip_norm: the largest norm of the gradients of the critics and of the actor, as in
            ``torch.nn.utils.clip_grad_norm_``; ``None`` for no limit.
        module: the extension module; by default, the best one for this processor.

    Raises:
        NotServedError: if a network, an option or an optimizer is not served. The message is the
            reason in one line.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.modules import MLP, ValueOperator
        >>> from torchrl_vmfer import VMFTD3Loss
        >>> _ = torch.set_num_threads(1)
        >>> relu = torch.nn.ReLU
        >>> actor = TensorDictModule(
        ...     nn.Sequential(MLP(4, 2, num_cells=[8], activation_class=relu), nn.Tanh()),
        ...     ["observation"], ["action"],
        ... )
        >>> critic = ValueOperator(MLP(6, 1, num_cells=[8], activation_class=relu),
        ...                        in_keys=["observation", "action"])
        >>> loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> updates = CompiledUpdates(
        ...     loss,
        ...     critic_optimizer=Adam(loss.qvalue_network_params.parameters()),
        ...     actor_optimizer=Adam(loss.actor_network_params.parameters()),
        ...     targets=SoftUpdate(loss, tau=0.005),
        ... )
        >>> next = {"observation": torch.randn(5, 4), "reward": torch.randn(5, 1),
        ...         "terminated": torch.zeros(5, 1, dtype=torch.bool)}
        >>> batch = TensorDict({"observation": torch.randn(5, 4), "action": torch.randn(5, 2),
        ...                     "next": next}, [5])
        >>> critic_loss, info = updates.update_critics(batch)
        >>> actor_loss, info = updates.update_actor(batch)
        >>> info["vmf_factor"].shape
        torch.Size([5])
        >>> updates.update_targets()
    """

    def __init__(
        self,
        loss: Any,
        *,
        critic_optimizer: Optimizer,
        actor_optimizer: Optimizer,
        alpha_optimizer: Optimizer | None = None,
        targets: SoftUpdate | None = None,
        clip_norm: float | None = None,
        module: Any = None,
    ) -> None:
        if torch.get_num_threads() > 1:
            raise NotServedError(
                f"it uses one thread, PyTorch {torch.get_num_threads()}: torch.set_num_threads(1)"
            )
        self._loss = loss
        self._critic_optimizer = critic_optimizer
        self._actor_optimizer = actor_optimizer
        self._alpha_optimizer = alpha_optimizer
        self._soft_update = targets
        self._clip = 0.0 if clip_norm is None else float(clip_norm)
        self._module = module
        self._is_gaussian = not isinstance(loss, _DETERMINISTIC)
        self._bind()

    # --- What is updated --------------------------------------------------------------------

    def _bind(self) -> None:
        """Reads the loss and its optimizers."""
        loss = self._loss
        _check_loss(loss)
        self._watch = ModuleWatch(loss, loss.actor_network, loss.qvalue_network)
        if self._watch.has_hooks():
            raise NotServedError("a network has hooks")
        # The tensors in use, their addresses, and the dictionaries and keys where they are found.
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []
        self._places: list[Any] = []
        self._keys: list[Any] = []
        self._columns: tuple[Any, list[tuple[Tensor, int]], Columns] | None = None
        read = read_gaussian if self._is_gaussian else _read_deterministic
        actor, squashed = read(loss.actor_network, loss.actor_network_params)
        target_actor, _ = read(loss.actor_network, loss.target_actor_network_params)
        critics = read_network(loss.qvalue_network, loss.qvalue_network_params)
        target_critics = read_network(loss.qvalue_network, loss.target_qvalue_network_params)
        if critics.last is not None:
            raise NotServedError("a module follows the last linear layer of the critics")
        settings = _settings(loss, actor, critics, squashed)
        networks = (
            self._network(actor, target_actor, self._actor_optimizer, "actor"),
            self._network(critics, target_critics, self._critic_optimizer, "critics"),
        )
        options = self._temperature() if self._is_gaussian else {}
        self._parts = (settings, networks, options)
        keys, (observation,) = loss.tensor_keys, loss.actor_network.in_keys
        self._names = (observation, keys.action, keys.reward, keys.terminated, keys.done)
        self._states = self._current_states()
        self._stacked = StackedUpdates(settings, *networks, **options, module=self._module)
        if len(set(self._addresses)) < len(self._addresses):
            raise NotServedError("parameters are shared")

    def _network(
        self, network: PlainNetwork, target: PlainNetwork, optimizer: Optimizer, name: str
    ) -> StackedNetwork:
        group = _group(optimizer, network.tensors(), name)
        moved: set[int] = set()
        if self._soft_update is not None:
            moved = {tensor.data_ptr() for tensor, _ in target_pairs(self._soft_update)}
        states = []
        for place, target_place in zip(network.places, target.places, strict=True):
            value, following = place[0][place[1]], target_place[0][target_place[1]]
            found = [self._note(*place), None, *self._state(optimizer, value)]
            if following.data_ptr() != value.data_ptr():
                found[1] = self._note(*target_place)
                if self._soft_update is not None and following.data_ptr() not in moved:
                    raise NotServedError("the SoftUpdate does not update all target networks")
            states.append(AdamState(*[None if t is None else t.detach()[None] for t in found]))  # type: ignore[arg-type]
        betas, eps = group["betas"], group["eps"]
        return StackedNetwork(network.sizes, states, network.norm_eps, tuple(betas), eps)

    def _temperature(self) -> dict[str, Any]:
        value = self._loss.log_alpha.detach().reshape(1)
        if self._alpha_optimizer is None:
            return {"log_alpha": AdamState(value)}
        group = _group(self._alpha_optimizer, [self._loss.log_alpha], "temperature")
        state = self._state(self._alpha_optimizer, self._loss.log_alpha)
        return {
            "log_alpha": AdamState(value, None, *(tensor.reshape(1) for tensor in state)),
            "alpha_betas": tuple(group["betas"]),
            "alpha_eps": group["eps"],
        }

    def _state(self, optimizer: Any, value: Tensor) -> list[Tensor]:
        """The state of a parameter, as ``torch.optim.Adam`` makes it before its first step."""
        state = optimizer.state[value]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(value), torch.zeros_like(value)
        return [self._note(state, name) for name in ("exp_avg", "exp_avg_sq", "step")]

    def _note(self, entries: dict[Any, Tensor], key: Any) -> Tensor:
        tensor = entries[key]
        self._tensors.append(tensor)
        self._addresses.append(tensor.data_ptr())
        self._places.append(entries)
        self._keys.append(key)
        if has_tensor_hooks(tensor):
            raise NotServedError("a parameter has hooks")
        return tensor

    def _current_states(self) -> list[int]:
        optimizers = (self._critic_optimizer, self._actor_optimizer, self._alpha_optimizer)
        return [
            identity
            for optimizer in optimizers
            if optimizer is not None
            for identity in map(id, optimizer.state.values())
        ]

    def _refresh(self) -> None:
        """Binds again if parameters, states, networks or optimizers' options were replaced."""
        # All loops are in C.
        is_same = (
            all(map(is_, map(getitem, self._places, self._keys), self._tensors))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and all(map(Tensor.is_contiguous, self._tensors))
            and self._current_states() == self._states
            and self._watch.is_unchanged()
            and not self._watch.has_hooks()
        )
        if not is_same:
            self._bind()

    @staticmethod
    def stack(agents: Sequence[CompiledUpdates]) -> StackedUpdates:
        """Updates several agents with networks of the same shapes and the same settings at once.

        Their parameters and optimizer states are moved into common tensors, of which their own
        become views: losses, optimizers and policies see the updates as before.

        Args:
            agents: the updates of each agent. They can no longer be used by themselves.
        """
        first = agents[0]
        common: dict[int, Tensor] = {}
        tensors = [[*agent._tensors, *agent._temperatures()] for agent in agents]
        for same in zip(*tensors, strict=True):
            stack = torch.stack([tensor.detach() for tensor in same])
            common[same[0].data_ptr()] = stack
            for tensor, part in zip(same, stack, strict=True):
                tensor.data = part

        def joined(state: AdamState) -> AdamState:
            values = [None if t is None else common[t.data_ptr()] for t in state]
            return AdamState(*values)  # type: ignore[arg-type]

        settings, networks, options = first._parts
        if "log_alpha" in options:
            joint = joined(options["log_alpha"])
            flat = [None if t is None else t.reshape(len(agents)) for t in joint]
            options = {**options, "log_alpha": AdamState(*flat)}  # type: ignore[arg-type]
        actor, critics = (
            replace(net, parameters=[joined(p) for p in net.parameters]) for net in networks
        )
        return StackedUpdates(settings, actor, critics, module=first._module, **options)

    def _temperatures(self) -> list[Tensor]:
        return [self._loss.log_alpha] if self._is_gaussian else []

    # --- Updates ----------------------------------------------------------------------------

    def update_critics(
        self, rows: TensorDictBase, index: Tensor | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes one step of the critics.

        Args:
            rows: a batch ``[B]``; or, with ``index``, the rows of a storage.
            index: the slots ``[B]`` that form the batch.
            weight: the weight of each transition ``[B]``; by default, the ``"priority_weight"`` of
                a batch, if the loss uses it.

        Returns:
            the loss, and ``{"td_error": ...}``: the largest absolute TD error of the critics for
            each transition, ``[B]``; for TQC, the largest mean absolute difference of quantiles.
        """
        self._refresh()
        loss, count = self._loss, len(rows if index is None else index)
        subset = None
        if isinstance(loss, VMFREDQLoss):
            chosen = torch.randperm(loss.num_qvalue_nets)[: loss.sub_sample_len].sort().values
            subset = chosen.numpy()
        report = self._stacked.update_critics(
            self._read(rows, index),
            self._noise(count),
            lr=self._critic_optimizer.param_groups[0]["lr"],
            gamma=float(loss.value_estimator.gamma),
            index=_slots(index),
            weights=self._weights(rows, index, weight),
            subset=subset,
            clip=self._clip,
        )
        return torch.tensor(report.loss[0].item()), {
            "td_error": torch.from_numpy(report.td_error[0])
        }

    def update_actor(
        self, rows: TensorDictBase, index: Tensor | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes one step of the actor and, with an ``alpha_optimizer``, of the temperature.

        Args:
            rows: a batch ``[B]``; or, with ``index``, the rows of a storage.
            index: the slots ``[B]`` that form the batch.
            weight: as in :meth:`update_critics`.

        Returns:
            the loss, and those of ``vmf_factor``, ``vmf_resultant_length``, ``vmf_gradient_norm``
            and ``log_prob`` that the loss computes, ``[B]``; for TD3+BC, ``bc_loss`` and ``lmbd``.
        """
        self._refresh()
        settings, count = self._stacked.settings, len(rows if index is None else index)
        noise = alpha_lr = None
        if self._is_gaussian or settings.actor_noise:
            noise = self._noise(count)
        if self._is_gaussian and self._alpha_optimizer is not None:
            alpha_lr = self._alpha_optimizer.param_groups[0]["lr"]
        report = self._stacked.update_actor(
            self._read(rows, index, is_for_actor=True),
            noise,
            lr=self._actor_optimizer.param_groups[0]["lr"],
            alpha_lr=alpha_lr,
            index=_slots(index),
            weights=self._weights(rows, index, weight),
            clip=self._clip,
        )
        names = ("vmf_factor", "vmf_resultant_length", "vmf_gradient_norm", "log_prob")
        metadata = {
            name: torch.from_numpy(values[0])
            for name, values in zip(names, report[1:], strict=True)
            if values is not None
        }
        loss, cloning, scale = report.loss[0].tolist()
        if settings.cloning is not None:
            metadata |= {"bc_loss": torch.tensor(cloning), "lmbd": torch.tensor(scale)}
        return torch.tensor(loss), metadata

    def update_targets(self) -> None:
        """Moves the target networks, as ``targets.step()`` does."""
        if self._soft_update is None:
            raise ValueError("update_targets() requires a SoftUpdate: pass targets=.")
        self._refresh()
        self._stacked.update_targets(1 - self._soft_update.eps)

    def act(
        self, observation: np.ndarray, noise: np.ndarray | None = None, deviation: float = 0.0
    ) -> np.ndarray:
        """Returns the action ``[A]`` for one observation ``[O]``.

        Args:
            observation: the observation in single precision.
            noise: standard normal numbers ``[A]``. Without them, the action of a Gaussian policy is
                the center of its distribution.
            deviation: the standard deviation of the noise of a deterministic policy, whose actions
                are clipped to their bounds.
        """
        self._refresh()
        return self._stacked.act(observation, noise, deviation)[0]

    def _noise(self, count: int) -> np.ndarray:
        shape = (1, count, self._stacked.settings.action)
        return torch.randn(shape, dtype=torch.float32, device="cpu").numpy()

    def _weights(
        self, rows: TensorDictBase, index: Tensor | None, weight: Tensor | None
    ) -> np.ndarray | None:
        key = getattr(self._loss.tensor_keys, "priority_weight", None)
        is_weighted = key is not None and self._loss.use_prioritized_weights in (True, "auto")
        if weight is None and index is None and is_weighted:
            weight = rows.get(key, None)
        if weight is None:
            return None
        count = len(rows if index is None else index)
        if weight.shape != (count,):
            raise ValueError(
                f"Got weights of shape {list(weight.shape)} for a batch of {count}: pass one "
                "weight for each transition."
            )
        return weight.detach().float().contiguous().numpy()

    def _read(
        self, rows: TensorDictBase, index: Tensor | None, is_for_actor: bool = False
    ) -> Columns:
        """The entries of rows; those of a storage are kept."""
        if index is None:
            if rows.ndim != 1 or not len(rows):
                raise NotServedError(f"the batch has the shape {list(rows.shape)}")
            if not _NOT_SERVED.isdisjoint(rows.keys()):
                raise NotServedError(f"the batch has one of the entries {sorted(_NOT_SERVED)}")
            return Columns(*(_array(tensor) for tensor in self._entries(rows, is_for_actor)))
        kept = self._columns
        if kept is None or kept[0] is not rows or any(t.data_ptr() != p for t, p in kept[1]):
            tensors = self._entries(rows, False)
            if not all(tensor.is_contiguous() for tensor in tensors):
                raise NotServedError("the columns of the storage are not contiguous")
            arrays = Columns(*(_array(tensor) for tensor in tensors))
            kept = self._columns = (rows, [(t, t.data_ptr()) for t in tensors], arrays)
        return kept[2]

    def _entries(self, rows: TensorDictBase, is_for_actor: bool) -> list[Tensor]:
        observation, action, reward, terminated, done = self._names
        if is_for_actor:
            is_cloning = self._stacked.settings.cloning is not None
            cloned = [self._loss.stored_action(rows)] if is_cloning else []
            return [_entry(rows, observation), *cloned]
        following = _entry(rows, "next")
        has_end = terminated in following.keys(isinstance(terminated, tuple))
        return [
            *(_entry(rows, observation), _entry(rows, action), _entry(following, reward)),
            *(_entry(following, terminated if has_end else done), _entry(following, observation)),
        ]


def _entry(rows: TensorDictBase, key: Any) -> Any:
    """An entry, without the checks of ``TensorDict.get`` where it has a plain name."""
    return entries_of(rows)[key] if type(key) is str else rows.get(key)


def _slots(index: Tensor | None) -> np.ndarray | None:
    return None if index is None else index.contiguous().numpy()[None]


def _array(tensor: Tensor) -> np.ndarray:
    """The array of an entry, with a leading dimension for the single agent."""
    if not tensor.is_cpu or tensor.dtype not in (torch.float32, torch.bool):
        raise NotServedError(f"an entry is {tensor.dtype} on {tensor.device}")
    return tensor.detach().contiguous().numpy()[None]


def _group(optimizer: Any, tensors: list[Tensor], name: str) -> dict[str, Any]:
    """The single group of an optimizer of exactly these parameters."""
    if type(optimizer) is not Adam:
        raise NotServedError(f"the optimizer of the {name} is a {type(optimizer).__name__}")
    if len(optimizer.param_groups) != 1:
        raise NotServedError(f"the optimizer of the {name} has several groups")
    (group,) = optimizer.param_groups
    if {id(tensor) for tensor in group["params"]} != {id(tensor) for tensor in tensors}:
        raise NotServedError(f"the optimizer of the {name} has other parameters")
    for option in ("weight_decay", "amsgrad", "maximize", "capturable", "differentiable"):
        if group.get(option):
            raise NotServedError(f"the optimizer of the {name} has {option}={group[option]}")
    if not all(isinstance(number, float) for number in (group["lr"], *group["betas"])):
        raise NotServedError(f"the learning rate of the {name} is not a float")
    return group


def _read_deterministic(module: nn.Module, params: Any) -> tuple[PlainNetwork, Squashed | None]:
    network = read_network(module, params)
    if network.last is not None and not isinstance(network.last, Squashed):
        raise NotServedError(f"the actor ends with a {type(network.last).__name__}")
    return network, network.last


def _check_loss(loss: Any) -> None:
    """Raises a :class:`NotServedError` if an option of the loss is not served."""
    if type(loss) not in _SERVED:
        raise NotServedError(f"{type(loss).__name__} is not one of the served losses")
    estimator = loss.value_estimator
    if type(estimator) is not TD0Estimator or estimator.average_rewards:
        raise NotServedError(f"the value estimator {type(estimator).__name__} is not plain TD(0)")
    for name in ("entropy_gradient", "skip_done_states", "gSDE"):
        if getattr(loss, name, False):
            raise NotServedError(f"{name}=True")
    if getattr(loss, "value_network_params", None) is not None:
        raise NotServedError("the loss has a value network")
    if loss.loss_mask_key not in (None, "auto"):
        raise NotServedError(f"the loss has a mask, {loss.loss_mask_key!r}")
    if loss.reduction not in ("mean", "sum"):
        raise NotServedError(f"reduction={loss.reduction!r}")
    if not isinstance(loss, VMFTQCLoss) and loss.loss_function not in ("l2", "l1", "smooth_l1"):
        raise NotServedError(f"loss_function={loss.loss_function!r}")
    keys, action = list(loss.qvalue_network.in_keys), loss.tensor_keys.action
    observed = [key for key in keys if key != action]
    if len(keys) != 2 or action not in keys or len(observed) != 1:
        raise NotServedError("the critics do not read one observation and the action")
    if list(loss.actor_network.in_keys) != observed:
        raise NotServedError("actor and critics read different entries")
    if loss.actor_network.out_keys[-1] != action and isinstance(loss, _DETERMINISTIC):
        raise NotServedError("the actor does not return the action last")


def _settings(
    loss: Any, actor: PlainNetwork, critics: PlainNetwork, squashed: Squashed | None
) -> Settings:
    """The settings of a loss."""
    is_gaussian = not isinstance(loss, _DETERMINISTIC)
    action = actor.sizes[-1] // (2 if is_gaussian else 1)
    options: dict[str, Any] = {
        "policy": "gaussian" if is_gaussian else "deterministic",
        "num_targets": loss.target_count,
        "followed": followed_critic(loss),
        "used": loss.used,
        "measures": bool(loss.measure),
        "has_norms": bool(loss.gradient_norm),
        "is_pre_tanh": loss.squashing is not None,
        "is_mean": loss.reduction == "mean",
        "is_action_first": loss.qvalue_network.in_keys[0] == loss.tensor_keys.action,
        "is_squashed": squashed is not None,
    }
    if squashed is not None:
        options["middle"] = ((squashed.low + squashed.high) / 2).numpy()
        options["half"] = ((squashed.high - squashed.low) / 2).numpy()
    if loss.squashing is not None:
        options["seen_middle"] = loss.squashing.middle.numpy()
        options["seen_half"] = loss.squashing.half_width.numpy()
    if isinstance(loss, VMFTQCLoss):
        options |= {"is_quantile": True, "dropped": loss.top_quantiles_to_drop_per_net}
    else:
        options["distance"] = loss.loss_function
    if not is_gaussian:
        options |= {
            "policy_noise": float(loss.policy_noise),
            "noise_clip": float(loss.noise_clip),
            "low": loss.min_action.reshape(-1).numpy(),
            "high": loss.max_action.reshape(-1).numpy(),
        }
    if isinstance(loss, VMFTD3Loss):
        options["actor_noise"] = loss.actor_noise
        options["actor_noise_clip"] = loss.actor_noise_clip
    if isinstance(loss, VMFTD3BCLoss):
        options["cloning"] = float(loss.alpha)
    if isinstance(loss, VMFREDQLoss):
        options["is_alpha_loss_exp"] = True
        if loss.reduction == "mean":
            options["critic_scale"] = 1 / loss.num_qvalue_nets
        else:
            options["actor_scale"] = loss.num_qvalue_nets
    if is_gaussian:
        options |= {
            "log_bounds": LocAndScale.bounds,
            "target_entropy": float(loss.target_entropy),
        }
        low, high = loss.min_log_alpha, loss.max_log_alpha
        if low is not None or high is not None:
            options["alpha_bounds"] = (
                -math.inf if low is None else float(low),
                math.inf if high is None else float(high),
            )
    return Settings(observation=actor.sizes[0], action=action, **options)
