"""The uncertainty of gradient directions as a TensorDict module."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import IQLLoss, TD3BCLoss, TD3Loss
from torchrl.objectives.common import LossModule

from torchrl_vmfer import arguments, directional
from torchrl_vmfer._torchrl import paired_critics
from torchrl_vmfer.gradients import (
    UsedCritic,
    directed,
    followed_critic,
    linearized_values,
    resolved_critic,
)
from torchrl_vmfer.networks import evaluating


class VMFUncertainty(TensorDictModuleBase):
    """Measures how much the critics of a loss module agree on how the action should change.

    For each transition it computes the action of the current policy and, for each critic, the
    gradient of the loss l_i = -Q_i at that action. It then fits a von Mises-Fisher distribution to
    the directions of the gradients (Eq. 7 and Algorithm 3). This takes one forward and one
    backward pass through the critics. If you also update the actor on the same batch, use
    :class:`~torchrl_vmfer.VMFTD3Loss` or another loss of this package, which computes the factors
    without an extra pass.

    It writes, for a batch ``[*batch]``:

    - ``("vmf", "factor")``: the sampling factor p = exp(R μᵀx_e), ``[*batch]``;
    - ``("vmf", "resultant_length")``: R, ``[*batch]``;
    - ``("vmf", "mean_direction")``: μ, ``[*batch, action]``;
    - ``("vmf", "concentration")``: Banerjee's estimate of κ, ``[*batch]``.

    Args:
        loss_module: a TorchRL loss with an ``actor_network`` and an ensemble of critics named
            ``qvalue_network`` (TD3, TD3+BC, SAC, CrossQ, CQL, REDQ, TQC, ...), whose actor
            follows the gradient ∂Q/∂a. The module keeps a reference to the loss, always
            uses its current parameters, and has no parameters itself. If the loss has the
            argument ``directions``, it applies here as well.

    Keyword Args:
        used: the critic e whose gradient moves the actor: ``"first"``, ``"min"`` for the one
            with the lowest value, or ``"mean"`` for the mean of all. For a loss of
            this package, the default is its ``used``. For TorchRL's losses, it is ``"first"``
            for TD3 and TD3+BC, ``"mean"`` for REDQ and TQC, and ``"min"`` for all others.

    Examples:
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.modules import MLP, ValueOperator
        >>> from torchrl.objectives import TD3Loss
        >>> actor = TensorDictModule(
        ...     MLP(in_features=4, out_features=2, num_cells=[8]), ["observation"], ["action"]
        ... )
        >>> critic = ValueOperator(MLP(num_cells=[8], in_features=6, out_features=1),
        ...                        in_keys=["observation", "action"])
        >>> uncertainty = VMFUncertainty(TD3Loss(actor, critic, bounds=(-1.0, 1.0)))
        >>> batch = uncertainty(TensorDict({"observation": torch.randn(5, 4)}, [5]))
        >>> batch["vmf", "factor"].shape, batch["vmf", "mean_direction"].shape
        (torch.Size([5]), torch.Size([5, 2]))
    """

    out_keys = [
        ("vmf", "factor"),
        ("vmf", "resultant_length"),
        ("vmf", "mean_direction"),
        ("vmf", "concentration"),
    ]

    def __init__(self, loss_module: LossModule, *, used: UsedCritic | None = None) -> None:
        if isinstance(loss_module, IQLLoss):
            raise TypeError(
                f"The actor of {type(loss_module).__name__} imitates the actions in the batch and "
                "follows no gradient ∂Q/∂a, so vMFER is not defined for it. Pass a loss whose "
                "actor maximizes the critics, such as TD3Loss or SACLoss."
            )
        for name in ("actor_network", "qvalue_network"):
            if not hasattr(loss_module, name):
                raise TypeError(
                    f"VMFUncertainty requires a loss module with `{name}`, but "
                    f"{type(loss_module).__name__} has none. Pass a loss with an ensemble of "
                    "critics, such as TD3Loss or SACLoss."
                )
        if loss_module.tensor_keys.action not in loss_module.qvalue_network.in_keys:
            raise TypeError(
                f"The critics of {type(loss_module).__name__} do not read the action, so there is "
                "no gradient with respect to it. Pass a loss for continuous actions."
            )
        super().__init__()
        default = getattr(loss_module, "used", None) or followed_critic(loss_module)
        self.used: UsedCritic = used or default
        arguments.USED.check("used", self.used)
        # Bypasses nn.Module: otherwise the parameters of the loss would also be listed here.
        self.__dict__["_loss_module"] = loss_module
        self.in_keys = _observed_keys(loss_module)

    @dispatch(auto_batch_size=False)
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the statistics to the tensordict."""
        loss = self._loss_module
        values, gradients = action_gradients(loss, tensordict)
        used = resolved_critic(self.used, loss, gradients, values)
        return tensordict.update(self.from_gradients(gradients, used))

    @staticmethod
    def from_gradients(gradients: Tensor, used: directional.Used = 0) -> TensorDict:
        """Computes the same statistics from given gradients.

        Args:
            gradients: one gradient per critic, ``[N, *batch, action]``.
            used: the critic e whose gradient moves the actor: one index for all transitions or
                one for each, ``[*batch]``; ``"first"``; ``"mean"`` for the mean of all; or the
                gradient g_e itself, ``[*batch, action]``.

        Returns:
            a tensordict of batch size ``[*batch]`` with the entries under ``"vmf"``.

        Examples:
            >>> gradients = torch.tensor([[[1.0, 0.0]], [[0.0, 5.0]]])
            >>> VMFUncertainty.from_gradients(gradients)["vmf", "resultant_length"]
            tensor([0.7071])
        """
        factor, length = directional.factor_and_length(gradients, used)
        statistics = {
            "factor": factor,
            "resultant_length": length,
            "mean_direction": directional.mean_direction(gradients),
            "concentration": directional.concentration(length, gradients.shape[-1]),
        }
        return TensorDict({"vmf": statistics}, batch_size=length.shape)


def action_gradients(loss: LossModule, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Evaluates all critics of a loss at the action of its policy, in one pass.

    With ``directions="pre_tanh"``, the gradients are with respect to the pre-tanh action.
    """
    actor, action_key = loss.actor_network, loss.tensor_keys.action
    # Not strict: a composite policy lists the parameters of its distribution as inputs.
    inputs = tensordict.select(*_observed_keys(loss), strict=False)
    with loss.actor_network_params.to_module(actor):
        if isinstance(loss, (TD3Loss, TD3BCLoss)) or not hasattr(actor, "get_dist"):
            with set_exploration_type(loss.deterministic_sampling_mode):
                inputs = actor(inputs)
        else:
            with set_exploration_type(ExplorationType.RANDOM):
                inputs.set(action_key, actor.get_dist(inputs).rsample())
    inputs = inputs.select(*loss.qvalue_network.in_keys)
    values, gradients = evaluate_critics(loss, inputs, loss.qvalue_network_params)
    return values, directed(loss, gradients, inputs.get(action_key))


def evaluate_critics(
    loss: LossModule, inputs: TensorDictBase, params: TensorDictBase
) -> tuple[Tensor, Tensor]:
    """Evaluates critics with some parameters at their inputs ``[*batch]``, in one pass.

    Returns the values ``[N, *batch]`` and the gradients ``[N, *batch, action]`` of l_i = -Q_i.
    """
    params, ensemble = params.detach(), paired_critics(loss)
    # Measuring must not update the running statistics of normalization layers.
    with evaluating(loss.qvalue_network):
        values, gradients = linearized_values(
            lambda inputs: ensemble(inputs, params),
            inputs.expand(params.batch_size[0], *inputs.batch_size),
            action_key=loss.tensor_keys.action,
            value_key=loss.tensor_keys.state_action_value,
        )
    return values.mean(-1), gradients


def _observed_keys(loss: LossModule) -> list[NestedKey]:
    """The inputs of the actor and the critics of a loss, except the action."""
    keys = dict.fromkeys([*loss.actor_network.in_keys, *loss.qvalue_network.in_keys])
    return [key for key in keys if key != loss.tensor_keys.action]
