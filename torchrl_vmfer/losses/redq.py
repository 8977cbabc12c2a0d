"""REDQ's losses that also measure how much the critics agree, without an extra pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp
from torchrl.modules.distributions.utils import rsample_and_log_prob
from torchrl.objectives import REDQLoss, distance_loss

from torchrl_vmfer._torchrl import Critics, bounded_temperature, reduced
from torchrl_vmfer.gradients import AllCriticsTap


class SplitREDQLoss(REDQLoss):
    """REDQ's actor, critic and temperature losses as separate methods, each with its own batch."""

    critics: Critics  # the i-th critic reads the i-th inputs

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss of the actor, which maximizes the mean of all critics."""
        observed, log_prob = self._act(
            tensordict.select(*self.actor_network.in_keys, strict=False),
            self.actor_network_params,
        )
        values = self._evaluate(observed, self.qvalue_network_params.detach())
        loss = self.alpha * log_prob - values
        return reduced(self, loss, tensordict), {
            "log_prob": log_prob.detach(),
            "state_action_value_actor": values.detach(),
        }

    def qvalue_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss of the critics. Their target is the minimum over a random subset."""
        subset = torch.randperm(self.num_qvalue_nets)[: self.sub_sample_len].sort().values
        tensordict = tensordict.clone(False)
        with torch.no_grad():
            following, log_prob = self._act(
                step_mdp(tensordict).select(*self.actor_network.in_keys, strict=False),
                self.target_actor_network_params,
            )
            values = self._evaluate(following, self.target_qvalue_network_params[subset])
            next_value = (values - self.alpha * log_prob).amin(0)
        tensordict.set(("next", self.tensor_keys.value), next_value.unsqueeze(-1))
        target = self.value_estimator.value_estimate(tensordict).squeeze(-1)
        predicted = self._evaluate(tensordict, self.qvalue_network_params)
        error = distance_loss(predicted, target.expand_as(predicted), self.loss_function)
        return reduced(self, error, tensordict), {
            "td_error": (predicted - target).detach().abs().amax(0)
        }

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """Computes the loss of the temperature, one value per log-density."""
        return -bounded_temperature(self) * (log_prob.detach() + self.target_entropy)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads a state, including one saved after a loss was computed."""
        if "target_entropy_buffer" in state_dict:
            _ = self.target_entropy  # TorchRL registers the buffer at the first access
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _act(
        self, tensordict: TensorDictBase, params: TensorDictBase
    ) -> tuple[TensorDictBase, Tensor]:
        """Adds a sampled action to the observations. Also returns its log-density."""
        if self.gSDE:  # zeros ask the policy for new noise, as in TorchRL's forward
            eps = torch.zeros(tensordict.shape, device=tensordict.device)
            tensordict = tensordict.set("_eps_gSDE", eps)
        with (
            set_exploration_type(ExplorationType.RANDOM),
            params.to_module(self.actor_network, preserve_module_state=False),
        ):
            action, log_prob = rsample_and_log_prob(self.actor_network.get_dist(tensordict))
        return tensordict.set(self.tensor_keys.action, action), log_prob

    def _evaluate(self, tensordict: TensorDictBase, params: TensorDictBase) -> Tensor:
        """The values ``[n, *batch]`` of n critics."""
        inputs = tensordict.select(*self.qvalue_network.in_keys, strict=False)
        inputs = inputs.expand(params.batch_size[0], *inputs.batch_size)
        return self.critics(inputs, params).get(self.tensor_keys.state_action_value).squeeze(-1)


class VMFREDQLoss(AllCriticsTap, SplitREDQLoss):
    """:class:`~torchrl.objectives.REDQLoss` whose actor loss also yields sampling factors.

    The actor maximizes the mean of all critics, so x_e is the direction of the mean gradient.
    ``forward`` computes TorchRL's losses up to rounding, with the same random numbers, and the
    factors. To use separate batches for actor and critics, call ``actor_loss``, ``qvalue_loss`` and
    ``alpha_loss``, which TorchRL's loss does not have. The metadata of ``actor_loss`` contains
    ``"vmf_factor"`` and ``"vmf_resultant_length"``, as for :class:`VMFSACLoss`. These methods and
    ``forward`` ignore importance weights, as TorchRL's loss does.

    ``forward`` learns the temperature on the current and the next states of the batch, as TorchRL's
    loss does, and ``alpha_loss`` on the log-densities that it is given.

    The arguments are those of TorchRL's loss, and ``measure``, ``used``, ``directions``,
    ``gradient_norm`` and ``weighting`` of :class:`VMFSACLoss`.
    """

    critic_loss_name = "qvalue_loss"

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """The values of the critics. ``forward`` evaluates all together, the actor's first."""
        if self._report is None or not self.taps:
            return super().critics(tensordict, params)
        count = self.num_qvalue_nets
        of_actor = self.actor_critics(tensordict[:count], params[:count])
        others = self.stock_critics(tensordict[count:], params[count:])
        self.agreement(self.tapped_gradients)
        return torch.cat([of_actor, others.select(self.tensor_keys.state_action_value)])
