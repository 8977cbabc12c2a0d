"""CQL's losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import CQLLoss

from torchrl_vmfer.gradients import GradientTap

__all__ = ["VMFCQLLoss"]


class VMFCQLLoss(GradientTap, CQLLoss):
    """:class:`~torchrl.objectives.CQLLoss` whose actor loss also yields sampling factors.

    Conservative Q-learning, for offline data. The factors, ``num_target_critics``, ``measure``,
    ``used``, ``directions`` and ``gradient_norm`` are those of :class:`VMFSACLoss`. By default,
    loss values and gradients equal TorchRL's up to rounding. TorchRL's loss always has two critics,
    and ignores importance weights.

    The conservative term is TorchRL's ``cql_loss``, unchanged. In TorchRL 0.14, it differs from the
    paper's: its log-sum-exp runs over three actions (one random, one of the policy, and one of the
    policy in the next state, evaluated there), and is averaged over ``num_random`` such triples per
    state, instead of running over all ``3 * num_random`` actions of the state. It also builds
    matrices ``[B, B * num_random]``, so its memory grows with the square of the batch size B.

    Args:
        *args: as in TorchRL's loss.
        **kwargs: as in TorchRL's loss, or ``num_target_critics``, ``measure``, ``used``,
            ``directions`` and ``gradient_norm``.

    Examples:
        With the networks of the example of :class:`VMFSACLoss`:

        >>> loss = VMFCQLLoss(actor, critic, target_entropy=-2.0)  # doctest: +SKIP
    """

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the TD loss of the critics plus the conservative term."""
        loss, metadata = self.q_loss(tensordict)
        conservative, _ = self.cql_loss(tensordict)
        return loss + conservative, metadata
