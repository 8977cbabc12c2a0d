"""Whole updates of a loss with plain networks, one compiled call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torchrl.data.replay_buffers.storages import Storage
from torchrl.objectives import AUTO_LOSS_MASK_KEYS, SoftUpdate

from torchrl_vmfer._torchrl import entries_of, stored_rows
from torchrl_vmfer.compiled.binding import Binding
from torchrl_vmfer.compiled.stacked import AdamState, Columns, NotServedError, StackedUpdates
from torchrl_vmfer.losses import VMFREDQLoss

__all__ = ["CompiledUpdates"]

# The masks that TorchRL's losses support.
_NOT_SERVED = {key if isinstance(key, str) else key[0] for key in AUTO_LOSS_MASK_KEYS}


class CompiledUpdates:
    """Whole updates of the critics and the actor of a loss, in one compiled call each.

    An update computes the numbers of TorchRL's loss, its backward pass and ``torch.optim.Adam``, up
    to rounding, on one thread. It draws the same random numbers from PyTorch's generator, and
    changes the parameters and the states of the optimizers in place, so that checkpoints, policies
    and other uses of the loss see the same tensors. Gradients are not stored.

    It serves :class:`~torchrl_vmfer.VMFTD3Loss`, ``VMFTD3BCLoss``, ``VMFSACLoss``, ``VMFREDQLoss``
    and ``VMFTQCLoss`` whose networks are linear layers with ReLU and, optionally, ``LayerNorm``, in
    single precision on the CPU, with ``TanhNormal`` and
    :class:`~torchrl_vmfer.networks.LocAndScale` for stochastic policies. Deterministic policies end
    with tanh, critics read the observation before the action, and losses are means.

    Parameters or optimizer states that were replaced or moved are noticed at the next update.

    Args:
        loss: the loss.
        critic_optimizer: the optimizer of ``loss.qvalue_network_params``.
        actor_optimizer: the optimizer of ``loss.actor_network_params``.
        alpha_optimizer: the optimizer of ``loss.log_alpha``; ``None`` for a fixed temperature.
        targets: the ``SoftUpdate`` of the loss; ``None`` if target networks are moved elsewhere.
        clip_norm: the largest norm of the gradients of the critics and of the actor, as in
            ``torch.nn.utils.clip_grad_norm_``; ``None`` for no limit.
        storage: the storage from which to read batches that consist of ``"index"`` and, optionally,
            weights only.
        module: the extension module; by default, the best one for this processor.

    Raises:
        NotServedError: if a network, an option or an optimizer is not served. The message is the
            reason in one line.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torch.optim import Adam
        >>> from torchrl.modules import MLP, ValueOperator
        >>> from torchrl.objectives import SoftUpdate
        >>> from torchrl_vmfer import VMFTD3Loss
        >>> _ = torch.set_num_threads(1)
        >>> relu = torch.nn.ReLU
        >>> network = MLP(4, 2, num_cells=[8], activation_class=relu)
        >>> actor = TensorDictModule(
        ...     torch.nn.Sequential(network, torch.nn.Tanh()), ["observation"], ["action"]
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
        storage: Storage | None = None,
        module: Any = None,
    ) -> None:
        if torch.get_num_threads() > 1:
            raise NotServedError(
                f"it uses one thread, PyTorch {torch.get_num_threads()}: torch.set_num_threads(1)"
            )
        self._loss = loss
        self._critic_optimizer, self._actor_optimizer = critic_optimizer, actor_optimizer
        self._alpha_optimizer = alpha_optimizer
        self._soft_update = targets
        self._clip = 0.0 if clip_norm is None else float(clip_norm)
        self._stored, self._module = storage, module
        self._bind()

    def _bind(self) -> None:
        """Reads the loss and its optimizers."""
        loss = self._loss
        given = (self._actor_optimizer, self._critic_optimizer, self._alpha_optimizer)
        self._binding = Binding(loss, *given, self._soft_update)
        self._stacked = StackedUpdates(*self._binding.parts, module=self._module)
        self._columns: tuple[Any, list[Tensor], list[int], Columns] | None = None
        self._gamma = loss.value_estimator.gamma
        self._weight_key = None
        if getattr(loss, "use_prioritized_weights", False) in (True, "auto"):
            self._weight_key = getattr(loss.tensor_keys, "priority_weight", None)
        keys, (observation,) = loss.tensor_keys, loss.actor_network.in_keys
        self._names = (observation, keys.action, keys.reward, keys.terminated, keys.done)

    def _refresh(self) -> None:
        """Binds again if parameters, optimizer states or parts of the networks were replaced."""
        if not self._binding.is_current():
            self._bind()

    @staticmethod
    def stack(agents: Sequence[CompiledUpdates]) -> StackedUpdates:
        """Updates several agents with networks of the same shapes and settings together.

        Their parameters and optimizer states are moved into common tensors, of which their own
        become views: losses, optimizers and policies see the updates as before.

        Args:
            agents: the updates of each agent. They can no longer be used by themselves.
        """
        common: dict[int, Tensor] = {}
        for same in zip(*(agent._binding.tensors for agent in agents), strict=True):
            stack = torch.stack([tensor.detach() for tensor in same])
            common[same[0].data_ptr()] = stack
            for tensor, part in zip(same, stack, strict=True):
                tensor.data = part

        def joined(state: AdamState) -> AdamState:
            values = [None if tensor is None else common[tensor.data_ptr()] for tensor in state]
            return AdamState(*values)  # type: ignore[arg-type]

        settings, actor, critics, temperature = agents[0]._binding.parts
        return StackedUpdates(
            replace(settings, members=len(agents)),
            actor._replace(parameters=[joined(state) for state in actor.parameters]),
            critics._replace(parameters=[joined(state) for state in critics.parameters]),
            None if temperature is None else (joined(temperature[0]), temperature[1]),
            agents[0]._module,
        )

    # --- Updates ----------------------------------------------------------------------------

    def update_critics(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes one step of the critics.

        Args:
            batch: a batch ``[B]`` or, with ``storage=``, only its slots under ``"index"``. A loss
                that uses importance weights reads them from ``"priority_weight"``. The number of
                steps of each transition is ``"steps_to_next_obs"``, 1 without it.

        Returns:
            the loss, and ``{"td_error": ...}``: the largest absolute TD error of the critics for
            each transition, ``[B]``; for TQC, the largest mean absolute difference of quantiles.
        """
        self._refresh()
        loss, subset = self._loss, None
        if isinstance(loss, VMFREDQLoss):
            chosen = torch.randperm(loss.num_qvalue_nets)[: loss.sub_sample_len].sort().values
            subset = chosen.numpy()
        losses, errors = self._stacked.update_critics(
            noise=self._noise(len(batch)),
            lr=self._critic_optimizer.param_groups[0]["lr"],
            gamma=float(self._gamma),
            discounts=self._discounts(batch),
            subset=subset,
            **self._rows(batch),
        )
        return torch.scalar_tensor(losses.item()), {"td_error": torch.from_numpy(errors[0])}

    def update_actor(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes one step of the actor and, with an ``alpha_optimizer``, of the temperature.

        Args:
            batch: as in :meth:`update_critics`.

        Returns:
            the loss, and those of ``vmf_factor``, ``vmf_resultant_length``, ``vmf_gradient_norm``
            and ``log_prob`` that the loss computes, ``[B]``; for TD3+BC, ``bc_loss`` and ``lmbd``.
        """
        self._refresh()
        settings, alpha = self._stacked.settings, self._alpha_optimizer
        has_noise = settings.is_gaussian or settings.actor_noise
        losses, measured = self._stacked.update_actor(
            noise=self._noise(len(batch)) if has_noise else None,
            lr=self._actor_optimizer.param_groups[0]["lr"],
            alpha_lr=None if alpha is None else alpha.param_groups[0]["lr"],
            **self._rows(batch, is_for_actor=True),
        )
        metadata = {name: torch.from_numpy(values[0]) for name, values in measured.items()}
        loss, cloning, scale = losses[0].tolist()
        if settings.cloning >= 0:
            metadata |= {"bc_loss": torch.tensor(cloning), "lmbd": torch.tensor(scale)}
        return torch.scalar_tensor(loss), metadata

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

    def _discounts(self, batch: TensorDictBase) -> np.ndarray | None:
        """The discounts of n-step transitions, computed as TorchRL's value estimators do."""
        steps = batch.get(self._loss.value_estimator.tensor_keys.steps_to_next_obs, None)
        return None if steps is None else (self._gamma**steps).reshape(1, -1).float().numpy()

    def _rows(self, batch: TensorDictBase, is_for_actor: bool = False) -> dict[str, Any]:
        """The arguments that describe a batch."""
        rows: Any = batch
        entries, index = entries_of(batch), None
        if self._stored is not None and self._names[0] not in entries:
            rows, index = stored_rows(self._stored), entries["index"].contiguous().numpy()[None]
            columns = self._stored_columns(rows)
        else:
            if batch.ndim != 1 or not len(batch):
                raise NotServedError(f"the batch has the shape {list(batch.shape)}")
            if not _NOT_SERVED.isdisjoint(entries):
                raise NotServedError(f"the batch has one of the entries {sorted(_NOT_SERVED)}")
            columns = Columns(*map(_array, self._entries(batch, is_for_actor)))
        weight = None if self._weight_key is None else batch.get(self._weight_key, None)
        if weight is not None:
            if weight.shape != (len(batch),):
                raise ValueError(
                    f"Got weights of shape {list(weight.shape)} for a batch of {len(batch)}: pass "
                    "one weight for each transition."
                )
            weight = weight.detach().float().contiguous().numpy()
        return {"columns": columns, "index": index, "weights": weight, "clip": self._clip}

    def _stored_columns(self, rows: TensorDictBase) -> Columns:
        """Returns the columns of the storage, cached until its tensors change."""
        kept = self._columns
        if kept is None or kept[0] is not rows or list(map(Tensor.data_ptr, kept[1])) != kept[2]:
            tensors = self._entries(rows, False)
            if not all(tensor.is_contiguous() for tensor in tensors):
                raise NotServedError("the columns of the storage are not contiguous")
            addresses, columns = list(map(Tensor.data_ptr, tensors)), Columns(*map(_array, tensors))
            kept = self._columns = (rows, tensors, addresses, columns)
        return kept[3]

    def _entries(self, rows: TensorDictBase, is_for_actor: bool) -> list[Tensor]:
        observation, action, reward, terminated, done = self._names
        if is_for_actor:
            is_cloning = self._stacked.settings.cloning >= 0
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


def _array(tensor: Tensor) -> np.ndarray:
    """The array of an entry, with a leading dimension for the single agent."""
    if not tensor.is_cpu or tensor.dtype not in (torch.float32, torch.bool):
        raise NotServedError(f"an entry is {tensor.dtype} on {tensor.device}")
    return tensor.detach().contiguous().numpy()[None]
