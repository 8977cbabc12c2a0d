"""A mixin that extracts the critics' action gradients from the actor loss of a TorchRL loss."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from torchrl_vmfer._torchrl import TappedLoss
from torchrl_vmfer.directional import factor_and_length, used_gradient
from torchrl_vmfer.gradients import (
    UsedCritic,
    checked_critic,
    directed,
    followed_critic,
    linearized_values,
    resolved_critic,
)
from torchrl_vmfer.squashing import Directions, Squashing, checked_directions, make_squashing

__all__ = ["AllCriticsTap", "GradientTap"]


class GradientTap(TappedLoss):
    """Intercepts the calls of a TorchRL loss to its critics and keeps the action gradients.

    TorchRL's losses call their critics through one batched callable, which :meth:`critics`
    replaces. It distinguishes three uses: the actor loss, the TD target, and the predicted value.
    A loss may override :meth:`perturbed` and :meth:`loss_gradients`. The arguments are described in
    :class:`~torchrl_vmfer.VMFTD3Loss` and :class:`~torchrl_vmfer.VMFSACLoss`.

    Attributes:
        critic_loss_name: the name of TorchRL's method for the critic loss.
        selected_out_keys: the keys chosen by ``select_out_keys``, or ``None`` if it was not called.
        tapped_action: the policy's action in the current ``actor_loss`` call.
        tapped_values: the critics' values ``[N, *batch]`` in that call.
        tapped_gradients: the gradients ``[N, *batch, action]`` of l_i = -Q_i in that call.
    """

    critic_loss_name: ClassVar[str]
    actor_noise = 0.0
    tapped_action: Tensor | TensorDictBase
    tapped_values: Tensor
    tapped_gradients: Tensor
    squashing: Squashing | None
    _in_actor_loss = False
    _report: dict[str, Tensor] | None = None
    selected_out_keys: list[NestedKey] | None = None

    def __init__(
        self,
        *args: Any,
        num_target_critics: int | None = 2,
        measure: bool = True,
        used: UsedCritic | None = None,
        directions: Directions = "action",
        gradient_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        if num_target_critics is not None and (
            not isinstance(num_target_critics, int) or num_target_critics < 1
        ):
            raise ValueError(
                "num_target_critics must be an integer of at least 1, or None for all critics, "
                f"got {num_target_critics}."
            )
        self.num_target_critics = num_target_critics
        self.measure = measure
        self.used = checked_critic(used or followed_critic(self))
        self.directions = checked_directions(directions)
        self.gradient_norm = gradient_norm
        super().__init__(*args, **kwargs)
        if measure and self.num_qvalue_nets == 1:
            warnings.warn(
                f"{type(self).__name__} has one critic: all its factors equal e, and vMFER samples "
                "uniformly: pass num_qvalue_nets=2 or more, or measure=False.",
                stacklevel=3,
            )
        self.squashing = None
        if directions == "pre_tanh":
            self.squashing = make_squashing(self, kwargs.get("action_spec"))

    @property
    def target_count(self) -> int:
        """The number of critics that form the TD target."""
        return min(self.num_target_critics or self.num_qvalue_nets, self.num_qvalue_nets)

    @property
    def taps(self) -> bool:
        """Whether ``actor_loss`` needs the gradient of each critic."""
        return self.measure or self.gradient_norm

    @property
    def stock_out_keys(self) -> list[NestedKey]:
        """The keys that ``forward`` of the TorchRL loss returns."""
        return list(super().out_keys)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that ``forward`` returns: all of them, or the selected ones."""
        return self.selected_out_keys or self._all_out_keys()

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self.selected_out_keys = None if keys == self._all_out_keys() else keys

    def _all_out_keys(self) -> list[NestedKey]:
        own = ["vmf_factor", "vmf_resultant_length"] if self.measure else []
        own += ["vmf_gradient_norm"] if self.gradient_norm else []
        return [*self.stock_out_keys, *own]

    @property
    def keyword_out_keys(self) -> list[NestedKey]:
        """The keys that a call with keyword arguments returns: TorchRL's, or the selected ones."""
        return self.selected_out_keys or self.stock_out_keys

    @dispatch(dest="keyword_out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes TorchRL's losses and the metadata of :meth:`agreement`.

        A call with keyword arguments returns the tuple of :attr:`keyword_out_keys`.

        ``vmf_factor`` and ``vmf_gradient_norm`` are also written into the batch, as TorchRL writes
        the TD error, so that ``buffer.update_tensordict_priority(batch)`` finds the factor there.
        """
        report: dict[str, Tensor] = {}
        self._report = report
        try:
            losses = super().forward(tensordict)
        finally:
            self._report = None
        losses.update(report)
        for name in ("vmf_factor", "vmf_gradient_norm"):
            if name in report:
                tensordict.set(name, report[name])
        return losses

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the critic loss. This method has the same name in all losses."""
        return getattr(self, self.critic_loss_name)(tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes TorchRL's actor loss, with the factors and lengths as additional metadata."""
        if not self.taps:
            return super().actor_loss(tensordict)
        self._in_actor_loss = True
        try:
            loss, metadata = super().actor_loss(tensordict)
        finally:
            self._in_actor_loss = False
        metadata = metadata | self.tapped_metadata(tensordict)
        del self.tapped_action, self.tapped_values, self.tapped_gradients
        return loss, metadata

    def tapped_metadata(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Returns the metadata that the tap adds to those of TorchRL's actor loss."""
        return self.agreement(self.loss_gradients(tensordict))

    def agreement(self, gradients: Tensor) -> dict[str, Tensor]:
        """Returns metadata on how much the critics agree, and on what moves the actor."""
        metadata, values = {}, self.tapped_values
        gradients = directed(self, gradients, self.tapped_action)
        if self.measure:
            used = resolved_critic(self.used, self, gradients, values)
            factor, length = factor_and_length(gradients, used)
            metadata = {"vmf_factor": factor, "vmf_resultant_length": length}
        if self.gradient_norm:
            used = resolved_critic(followed_critic(self), self, gradients, values)
            gradient = used_gradient(gradients, used)
            metadata["vmf_gradient_norm"] = torch.linalg.vector_norm(gradient, dim=-1)
        if self._report is not None:
            self._report.update(metadata)
        return metadata

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics, for the actor loss, the TD target or the prediction."""
        if self._in_actor_loss:
            return self.actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.target_count < self.num_qvalue_nets:
            params = params[: self.target_count]
            if not self.has_shared_inputs:
                tensordict = tensordict[: self.target_count]
        return self.stock_critics(tensordict, params)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values that the actor maximizes, linear in the action. Keeps their gradients."""
        inputs = tensordict
        if self.has_shared_inputs:
            inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        actions = inputs.get(self.tensor_keys.action).detach()
        self.tapped_action = actions[0]
        at = None
        if self.actor_noise:  # the same for all critics
            at = self.perturbed(self.tapped_action).expand_as(actions)
        value_key = self.tensor_keys.state_action_value
        values, self.tapped_gradients = linearized_values(
            lambda inputs: self.paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=at,
        )
        self.tapped_values = values.detach().mean(-1)
        if followed_critic(self) == "min":
            values = values[: self.target_count]
        return TensorDict({value_key: values}, [len(values), *inputs.batch_size[1:]])

    def perturbed(self, action: Tensor) -> Tensor:
        """The action ``[*batch, action]`` where critics are evaluated if ``actor_noise`` is set."""
        raise NotImplementedError

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of the losses l_i with respect to the action, ``[N, *batch, action]``."""
        return self.tapped_gradients


class AllCriticsTap(GradientTap):
    """A :class:`GradientTap` for losses whose TD target is defined over all critics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "num_target_critics" in kwargs:
            raise TypeError(
                f"All critics of {type(self).__name__} form the TD target: leave out "
                "num_target_critics."
            )
        super().__init__(*args, num_target_critics=None, **kwargs)
