"""A tap on the critics of a TorchRL loss, which reads the gradients that move the actor."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_vmfer._torchrl import TappedLoss
from torchrl_vmfer.directional import directions, factor_and_length
from torchrl_vmfer.gradients import linearized_values

__all__ = ["GradientTap"]


class GradientTap(TappedLoss):
    """Stands between a TorchRL loss and its critics, and keeps the gradients that pass.

    TorchRL's losses reach their critics through one batched callable, whose place
    :meth:`critics` takes. It tells its three uses apart: by the actor, for the TD target, and for
    the prediction that is compared with it. A loss says which critic :meth:`used_critic` moves
    the actor, and may override :meth:`actor_critics`, :meth:`asked_at` and :meth:`loss_gradients`.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target.
        measure: whether ``actor_loss`` measures how much the critics agree.
        **kwargs: as in TorchRL's loss.

    Attributes:
        tapped_values: the critics' values ``[N, *batch]`` in the present ``actor_loss``.
        tapped_gradients: the gradients ``[N, *batch, action]`` of l_i = -Q_i there.
    """

    tapped_values: Tensor
    tapped_gradients: Tensor

    def __init__(
        self, *args: Any, num_target_critics: int = 2, measure: bool = True, **kwargs: Any
    ) -> None:
        if not isinstance(num_target_critics, int) or num_target_critics < 1:
            raise ValueError(
                f"num_target_critics must be a whole number ≥ 1, got {num_target_critics}."
            )
        self.num_target_critics = num_target_critics
        self.measure = measure
        self._in_actor_loss = False
        super().__init__(*args, **kwargs)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """TorchRL's actor loss, whose metadata gain ``vmf_factor`` and ``vmf_resultant_length``."""
        if not self.measure:
            return super().actor_loss(tensordict)
        self._in_actor_loss = True
        try:
            loss, metadata = super().actor_loss(tensordict)
        finally:
            self._in_actor_loss = False
        gradients = self.loss_gradients(tensordict)
        factor, length = factor_and_length(directions(gradients), self.used_critic())
        del self.tapped_values, self.tapped_gradients
        return loss, metadata | {"vmf_factor": factor, "vmf_resultant_length": length}

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics, for whatever use the loss makes of them."""
        if self._in_actor_loss:
            return self.actor_critics(tensordict, params)
        is_target = params is not self.qvalue_network_params
        if is_target and self.num_target_critics < self.num_qvalue_nets:
            params = params[: self.num_target_critics]
            if not self.has_shared_inputs:
                tensordict = tensordict[: self.num_target_critics]
        return self.stock_critics(tensordict, params)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values ``[N, *batch, 1]`` that the actor climbs; their gradients are kept."""
        inputs = tensordict
        if self.has_shared_inputs:
            inputs = tensordict.expand(self.num_qvalue_nets, *tensordict.batch_size)
        value_key = self.tensor_keys.state_action_value
        values, self.tapped_gradients = linearized_values(
            lambda inputs: self.paired_critics(inputs, params),
            inputs,
            action_key=self.tensor_keys.action,
            value_key=value_key,
            mean=self.reduction == "mean",
            at=self.asked_at(inputs.get(self.tensor_keys.action).detach()),
        )
        self.tapped_values = values.detach().squeeze(-1)
        return TensorDict({value_key: values}, inputs.batch_size)

    def asked_at(self, action: Tensor) -> Tensor | None:
        """The action ``[N, *batch, action]`` to ask the critics at, if not the policy's own."""
        return None

    def loss_gradients(self, tensordict: TensorDictBase) -> Tensor:
        """The gradients of the losses l_i with respect to the action, ``[N, *batch, action]``."""
        return self.tapped_gradients

    def used_critic(self) -> int | Tensor:
        """The critic e whose gradient moves the actor, one for all or ``[*batch]``."""
        raise NotImplementedError
