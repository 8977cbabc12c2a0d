"""The critics of a loss at the actions of its policy, and what they say about transitions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives.common import LossModule

from torchrl_vmfer import directional
from torchrl_vmfer.gradients import followed_critic, resolved_critic
from torchrl_vmfer.uncertainty import evaluate_critics

# Number and size of the changes of the action that measure the consistency of a gradient.
_DISTURBANCES, _DISTURBANCE = 8, 0.1


class Critics:
    """The values of the critics of a loss, and their action gradients, at the policy's actions.

    A custom signal ``score(loss, batch) -> [batch]`` can be computed from them. Gaussian policies
    act with the center of their distribution, so that no random numbers are drawn. Gradients are
    with respect to the action, even with ``directions="pre_tanh"``.

    Args:
        loss: a loss of this package or of TorchRL, with an ensemble of critics.
        batch: transitions ``[batch]`` with the observation and, for some methods, other entries.

    Attributes:
        action: the actions of the policy without noise, ``[batch, A]``.
        values: the values Q_i of N critics, ``[N, batch]``. For quantiles, they are the means.
        gradients: the gradients of -Q_i, ``[N, batch, A]``.
        followed: the gradient that the factors compare with the others, ``[batch, A]``.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.modules import MLP, ValueOperator
        >>> from torchrl_vmfer import VMFTD3Loss
        >>> actor = TensorDictModule(
        ...     MLP(in_features=4, out_features=2, num_cells=[8]), ["observation"], ["action"]
        ... )
        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=1),
        ...                        in_keys=["observation", "action"])
        >>> loss = VMFTD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> def score(loss, batch):
        ...     critics = Critics(loss, batch)
        ...     return critics.gradients.norm(dim=-1).amin(0)  # of the flattest critic
        >>> score(loss, TensorDict({"observation": torch.randn(5, 4)}, [5])).shape
        torch.Size([5])
    """

    def __init__(self, loss: LossModule, batch: TensorDictBase) -> None:
        self.loss, self.batch = loss, batch
        actor = loss.actor_network
        deterministic = set_exploration_type(ExplorationType.DETERMINISTIC)
        with torch.no_grad(), deterministic, loss.actor_network_params.to_module(actor):
            acted = actor(batch.select(*actor.in_keys, strict=False))
        self.action = acted.get(loss.tensor_keys.action)
        self.values, self.gradients = self.at(self.action)
        used = getattr(loss, "used", None) or followed_critic(loss)
        self._used = resolved_critic(used, loss, self.gradients, self.values)
        self.followed = directional.used_gradient(self.gradients, self._used)

    def at(self, action: Tensor, is_target: bool = False) -> tuple[Tensor, Tensor]:
        """Values and gradients at other actions ``[batch, A]``, or those of the target networks."""
        loss = self.loss
        params = loss.target_qvalue_network_params if is_target else loss.qvalue_network_params
        inputs = self.batch.select(*loss.qvalue_network.in_keys, strict=False)
        return evaluate_critics(loss, inputs.set(loss.tensor_keys.action, action), params)

    def factor(self, gradients: Tensor | None = None) -> Tensor:
        """The sampling factor of the gradients, or of other ones ``[N, batch, A]``."""
        return directional.sampling_factor(
            self.gradients if gradients is None else gradients, self._used
        )

    def target_agreement(self) -> Tensor:
        """The factor of the critics and the target networks: with two critics, four directions."""
        return self.factor(torch.cat([self.gradients, self.at(self.action, is_target=True)[1]]))

    def signal_to_noise(self) -> Tensor:
        """The squared length of the mean gradient, divided by the mean of the squared lengths."""
        mean_square = self.gradients.square().sum(-1).mean(0)
        return self.gradients.mean(0).square().sum(-1) / mean_square.clamp_min(1e-30)

    def value_gap(self) -> Tensor:
        """The absolute difference of the values of the first two critics."""
        return (self.values[0] - self.values[1]).abs()

    def consistency(self) -> Tensor:
        """The mean cosine between the gradient and those at slightly changed actions."""
        generator, total = torch.Generator().manual_seed(0), torch.zeros_like(self.values[0])
        for _ in range(_DISTURBANCES):
            noise = torch.randn(self.action.shape, generator=generator).to(total) * _DISTURBANCE
            gradients = self.at((self.action + noise).clamp(-1, 1))[1]
            changed = directional.used_gradient(gradients, self._used)
            total += torch.cosine_similarity(changed, self.followed, -1)
        return total / _DISTURBANCES

    def td_error(self) -> Tensor:
        """The largest absolute TD error of the critics."""
        error = self.loss.critic_loss(self.batch.clone())[1]["td_error"]
        return error.detach().reshape(-1, len(self.batch)).amax(0)

    def on_policy_distance(self) -> Tensor:
        """The distance between the stored action and that of the policy."""
        return (self.batch.get(self.loss.tensor_keys.action) - self.action).norm(dim=-1)


SCORES: dict[str, Callable[[Critics], Tensor]] = {
    "factor": Critics.factor,
    "pre_tanh_factor": lambda c: c.factor(c.gradients * (1 - c.action.square())),
    "target_agreement": Critics.target_agreement,
    "gradient_norm": lambda c: c.followed.norm(dim=-1),
    "signal_to_noise": Critics.signal_to_noise,
    "consistency": Critics.consistency,
    "td_error": Critics.td_error,
    "value_gap": Critics.value_gap,
    "saturation": lambda c: c.action.abs().mean(-1),
    "on_policy_distance": Critics.on_policy_distance,
}
"""The built-in signals that the critics and the policy determine, by name."""
