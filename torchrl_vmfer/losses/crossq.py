"""CrossQ's losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.objectives import CrossQLoss

from torchrl_vmfer.gradients import GradientTap

__all__ = ["VMFCrossQLoss"]


class VMFCrossQLoss(GradientTap, CrossQLoss):
    """:class:`~torchrl.objectives.CrossQLoss` whose actor loss also yields sampling factors.

    The factors, ``num_target_critics``, ``measure``, ``used``, ``directions`` and
    ``gradient_norm`` are those of :class:`VMFSACLoss`. With two critics, or with
    ``num_target_critics=None``, loss values and gradients equal TorchRL's up to rounding. As in
    TorchRL's loss, normalization layers of the critics are in evaluation mode in ``actor_loss`` and
    in training mode in ``qvalue_loss``, which evaluates the critics once for both the current and
    the next state. TorchRL's loss ignores importance weights.

    Args:
        *args: as in TorchRL's loss.
        **kwargs: as in TorchRL's loss, or ``num_target_critics``, ``measure``, ``used``,
            ``directions`` and ``gradient_norm``.

    Examples:
        With the networks of the example of :class:`VMFSACLoss`:

        >>> loss = VMFCrossQLoss(actor, critic, target_entropy=-2.0)  # doctest: +SKIP
    """

    critic_loss_name = "qvalue_loss"

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics. ``qvalue_loss`` evaluates current and next values together."""
        found = super().critics(tensordict, params)
        if params is not self.qvalue_network_params or self.target_count == self.num_qvalue_nets:
            return found
        current, following = found.get(self.tensor_keys.state_action_value).chunk(2, dim=1)
        # Critics outside the TD target repeat the first, which does not change the minimum.
        others = following[:1].expand(
            self.num_qvalue_nets - self.target_count, *following.shape[1:]
        )
        following = torch.cat([following[: self.target_count], others])
        return found.set(
            self.tensor_keys.state_action_value, torch.cat([current, following], dim=1)
        )
