"""TQC's losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

from torchrl.objectives import TQCLoss

from torchrl_vmfer.gradients import AllCriticsTap

__all__ = ["VMFTQCLoss"]


class VMFTQCLoss(AllCriticsTap, TQCLoss):
    """:class:`~torchrl.objectives.TQCLoss` whose actor loss also yields sampling factors.

    Truncated quantile critics. The actor maximizes the mean over all critics and quantiles, so g_i
    is the gradient of the mean of critic i's quantiles, and x_e the direction of the mean gradient.
    The spread of the quantiles models the randomness of returns, not disagreement between critics,
    so it does not affect the factors.

    The metadata of ``actor_loss`` also contains ``"vmf_factor"`` and ``"vmf_resultant_length"``,
    as for :class:`VMFSACLoss`. Loss values and gradients equal TorchRL's up to rounding. All
    critics form the TD target.

    Args:
        *args: as in TorchRL's loss.
        **kwargs: as in TorchRL's loss, or ``measure``, ``used``, ``directions`` and
            ``gradient_norm`` as in :class:`VMFSACLoss`.

    Examples:
        With the actor of the example of :class:`VMFSACLoss`, and a critic with 25 quantiles:

        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=25),
        ...                        in_keys=["observation", "action"])  # doctest: +SKIP
        >>> loss = VMFTQCLoss(actor, critic, num_qvalue_nets=5)  # doctest: +SKIP
    """

    critic_loss_name = "qvalue_v2_loss"
