"""TD3's losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.objectives import TD3BCLoss, TD3Loss

from torchrl_vmfer import arguments
from torchrl_vmfer.gradients import GradientTap


class VMFTD3Loss(GradientTap, TD3Loss):
    """:class:`~torchrl.objectives.TD3Loss` whose actor loss also yields sampling factors.

    A drop-in replacement for TorchRL's loss. The metadata of ``actor_loss`` also contains
    ``"vmf_factor"``, the sampling factor p_j of each transition with e = the first critic
    (Algorithm 3), and ``"vmf_resultant_length"``, both of shape ``[*batch]``. ``forward`` returns
    both, lists them in ``out_keys``, and writes ``"vmf_factor"`` into the batch, next to the TD
    error, so that ``buffer.update_tensordict_priority(batch)`` finds it there.

    With two critics, loss values and gradients equal TorchRL's bit for bit. With more critics,
    TorchRL's TD target is the minimum over all of them, while this loss uses the minimum over the
    first two: extra critics measure the uncertainty and should not make the target more
    pessimistic. With ``num_target_critics=None`` the loss equals TorchRL's bit for bit, for any
    number of critics.

    The factors need no extra pass through the critics: they come from the forward and backward
    pass that computes the actor gradient. Computing them adds 20 to 30 % to the time of an actor
    update.

    An action may be a TensorDict. Its direction is then computed from all its floating-point
    entries, concatenated in alphabetical order.

    Args:
        *args: as in TorchRL's loss.
        num_target_critics: how many critics, counted from the first, form the TD target, or
            ``None`` for all. The other critics learn from the same target and are used only to
            estimate the uncertainty.
        measure: if ``False``, behaves like TorchRL's loss, for an otherwise identical baseline.
        used: overrides the critic e of the factors: ``"first"``, ``"min"`` for the one with the
            lowest value, or ``"mean"`` for the mean of all. It does not change the loss.
        directions: ``"action"``, or ``"pre_tanh"``: x_i is then the direction of the gradient with
            respect to the pre-tanh action u of a = m + h tanh(u), that is, of h (1 - tanh²(u)) g_i.
            Saturated components then do not contribute. The bounds are those of the loss. It does
            not change the loss.
        gradient_norm: if ``True``, the metadata also contain ``"vmf_gradient_norm"``, the norm
            ``[*batch]`` of the gradient g_e that moves the actor, with respect to the action, or
            to the pre-tanh action with ``directions="pre_tanh"``. It does not require ``measure``.
        weighting: if not 0, each transition of a batch is weighted in the actor loss by
            p^weighting / mean(p^weighting), with the factors of this batch. The metadata then also
            contain the weights, ``"vmf_weight"``. The gradient is the expected one of resampling
            the batch with P ∝ p^weighting. Importance weights in the batch multiply these weights.
        objective: what the actor maximizes: ``"first"`` for the first critic, as in TD3, or
            ``"mean"`` for the mean of the critics that form the TD target, with ``used="mean"`` as
            the default: x_e is the direction of the gradient of that mean.
        actor_noise: standard deviation of the noise that Algorithm 1 adds to the actions of the
            actor's batch. The default of 0 is plain TD3. The critics are evaluated at the noisy
            action, clipped to the bounds, and the actor receives the gradient at that action.
        actor_noise_clip: the maximum absolute value of the noise.
        **kwargs: as in TorchRL's loss.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.modules import MLP, ValueOperator
        >>> actor = TensorDictModule(
        ...     MLP(in_features=4, out_features=2, num_cells=[8]), ["observation"], ["action"]
        ... )
        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=1),
        ...                        in_keys=["observation", "action"])
        >>> loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> batch = TensorDict({"observation": torch.randn(5, 4)}, [5])
        >>> actor_loss, metadata = loss.actor_loss(batch)
        >>> metadata["vmf_factor"].shape
        torch.Size([5])
        >>> loss.out_keys[-2:]
        ['vmf_factor', 'vmf_resultant_length']
    """

    critic_loss_name = "value_loss"

    def __init__(
        self,
        *args: Any,
        objective: Literal["first", "mean"] = "first",
        actor_noise: float = 0.0,
        actor_noise_clip: float = 0.5,
        **kwargs: Any,
    ) -> None:
        arguments.OBJECTIVE.check("objective", objective)
        if not (0 <= actor_noise < math.inf and actor_noise_clip >= 0):
            raise ValueError(
                "actor_noise and actor_noise_clip must be numbers of at least 0, "
                f"got {actor_noise} and {actor_noise_clip}."
            )
        if actor_noise and not kwargs.get("measure", True):
            raise ValueError(f"actor_noise={actor_noise} requires measure=True.")
        self.objective = objective
        self.actor_noise = float(actor_noise)
        self.actor_noise_clip = float(actor_noise_clip)
        super().__init__(*args, **kwargs)

    @property
    def taps(self) -> bool:
        """Whether ``actor_loss`` needs the gradient of each critic."""
        return super().taps or self.objective == "mean"

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics. What the actor maximizes comes first, as TorchRL expects."""
        found = super().actor_critics(tensordict, params)
        if self.objective == "mean":
            values = found.get(self.tensor_keys.state_action_value)
            mean = values[: self.target_count].mean(0, keepdim=True)
            found.set(self.tensor_keys.state_action_value, torch.cat([mean, values[1:]]))
        return found

    def tapped_metadata(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Returns the metadata that the tap adds to those of TorchRL's actor loss."""
        metadata = super().tapped_metadata(tensordict)
        return {"state_action_value_actor": self.tapped_values, **metadata}

    def perturbed(self, action: Tensor) -> Tensor | None:
        """Adds clipped noise to an action ``[*batch, A]`` and clips the result to the bounds."""
        if not self.actor_noise:
            return None
        noise = torch.randn_like(action) * self.actor_noise
        noise = noise.clamp(-self.actor_noise_clip, self.actor_noise_clip)
        return (action + noise).clamp(self.min_action, self.max_action)

    @property
    def keyword_out_keys(self) -> list[NestedKey]:
        """The keys that a call with keyword arguments returns."""
        return self.out_keys


class VMFTD3BCLoss(GradientTap, TD3BCLoss):
    """:class:`~torchrl.objectives.TD3BCLoss` whose actor loss also yields sampling factors.

    TD3 with behavior cloning, for offline data. The factors, ``num_target_critics``, ``measure``,
    ``used``, ``directions``, ``gradient_norm`` and ``weighting`` are those of :class:`VMFTD3Loss`.
    The behavior-cloning term is common to all critics and is not part of the directions or norms.
    ``actor_loss`` reads the action in the batch. With ``weighting``, the term and λ are weighted
    as well: both are computed as on a resampled batch.

    With two critics, or with ``num_target_critics=None``, loss values and gradients equal TorchRL's
    up to rounding. ``alpha=0`` is pure behavior cloning.
    """

    critic_loss_name = "qvalue_loss"

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes TorchRL's actor loss, with the factors and lengths as additional metadata."""
        self.stored_action(tensordict)
        return super().actor_loss(tensordict)

    def actor_critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics. With weights, keeps what the terms of the loss depend on."""
        found = super().actor_critics(tensordict, params)
        if self.weighting:
            value = found.get(self.tensor_keys.state_action_value)[0].squeeze(-1)
            self._terms = tensordict.get(self.tensor_keys.action)[0], value
        return found

    def weighted(
        self, loss: Tensor, weights: Tensor | None, tensordict: TensorDictBase
    ) -> tuple[Tensor, Tensor | None]:
        """Weights both terms of the actor's loss, and λ, which TorchRL's loss does not."""
        loss, weights = super().weighted(loss, weights, tensordict)
        if self._weighted_metadata is not None and weights is not None:
            action, value = self._terms
            del self._terms
            scale = self.alpha / (weights * value.abs()).mean().detach()
            cloning = (action - self.stored_action(tensordict)).square().mean(-1)
            loss = cloning - scale * value
            mean = (weights * cloning).mean().detach()
            self._weighted_metadata |= {"bc_loss": mean, "lmbd": scale}
        return loss, weights

    def stored_action(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the action of a batch, to which the policy's action is compared."""
        key = self.tensor_keys.action
        action = tensordict.get(key, None)
        if action is None:
            keys = list(dict.fromkeys([*self.actor_network.in_keys, key]))
            raise KeyError(
                "VMFTD3BCLoss compares the policy's action with the stored one, but the batch has "
                f"no {key!r}: use sample_actor(keys={keys})."
            )
        return action
