"""Optimization steppers that add vMFER to TorchRL's trainers.

Import this module explicitly: ``import torchrl_vmfer`` does not import ``torchrl.trainers``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.trainers import DefaultOptimizationStepper, Trainer
from torchrl.trainers.algorithms.td3 import TD3OptimizationStepper

from torchrl_vmfer.samplers.base import SIGNAL_ENTRIES


class VMFTD3OptimizationStepper(TD3OptimizationStepper):
    """The TD3 optimization step of a trainer, with a separate batch for the actor.

    The critics learn from the trainer's batch, the actor from
    ``trainer.replay_buffer.sample_actor()``. The actor's sampler then receives the factors of that
    batch. Policy delay, gradient clipping and critic priorities are as in TorchRL.

    Use it with a :class:`~torchrl_vmfer.VMFTD3Loss` and an
    :class:`~torchrl_vmfer.ActorCriticReplayBuffer`.

    Args:
        optimizer_actor: the optimizer of ``loss.actor_network_params``.
        optimizer_critic: the optimizer of ``loss.qvalue_network_params``.
        **kwargs: as in TorchRL's ``TD3OptimizationStepper`` (``policy_update_delay``, ...).
    """

    def step(self, trainer: Trainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """Updates the critics once, and the actor every ``policy_update_delay`` steps."""

        def compute_loss(batch: TensorDictBase, method: str | None = None) -> Any:
            if method == "actor_loss":
                return _actor_loss(trainer)
            return trainer.compute_loss(batch, method=method)

        return super().step(_OtherLoss(trainer, compute_loss), sub_batch)


class VMFSACOptimizationStepper(DefaultOptimizationStepper):
    """The SAC optimization step of a trainer, with a separate batch for the actor.

    The critics learn from the trainer's batch, the actor and the temperature from
    ``trainer.replay_buffer.sample_actor()``. The actor's sampler then receives the factors of that
    batch. As in TorchRL, one step of ``trainer.optimizer`` applies the gradients of all losses,
    with the trainer's gradient clipping.

    Use it with a :class:`~torchrl_vmfer.VMFSACLoss` and an
    :class:`~torchrl_vmfer.ActorCriticReplayBuffer`. ``SACTrainer`` has no argument for it: call
    ``VMFSACOptimizationStepper().register(trainer)`` before ``trainer.train()``.

    Args:
        loss_components: the losses to minimize, among ``"loss_qvalue"``, ``"loss_actor"`` and
            ``"loss_alpha"``. All by default.
    """

    updates_replay_priority = True

    def register(self, trainer: Trainer, name: str = "optimization_stepper") -> None:
        """Sets this stepper as the optimization step of a trainer."""
        if getattr(trainer, "learner_backend", "local") != "local":
            raise ValueError(
                f"A trainer with learner_backend={trainer.learner_backend!r} requires its stepper "
                "at construction, but SACTrainer has no argument for it: use "
                'learner_backend="local".'
            )
        if getattr(trainer.loss_module, "value_network", None) is not None:
            raise ValueError(
                "VMFSACOptimizationStepper trains SAC without a value network: construct the loss "
                "without value_network=."
            )
        super().register(trainer, name)
        trainer.optimization_stepper = self

    def step(self, trainer: Trainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """Updates critics, actor and temperature once."""
        losses = _OtherLoss(trainer, partial(_three_losses, trainer))
        return super().step(losses, sub_batch).detach()


class _OtherLoss:
    """A view of a trainer with a different ``compute_loss``."""

    def __init__(self, trainer: Trainer, compute_loss: Callable[..., Any]) -> None:
        self._trainer = trainer
        self.compute_loss = compute_loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _actor_loss(trainer: Trainer) -> tuple[Tensor, Any]:
    """Computes the actor loss on a separate batch and stores the signals of that batch."""
    buffer = trainer.replay_buffer
    if not hasattr(buffer, "sample_actor"):
        raise TypeError(
            "The trainer requires replay_buffer=ActorCriticReplayBuffer(...), got "
            f"{type(buffer).__name__}, which cannot sample batches for the actor."
        )
    batch = buffer.sample_actor()
    loss, metadata = trainer.compute_loss(batch, method="actor_loss")
    measured = batch.select("index", "index_generation", strict=False)
    for entry in SIGNAL_ENTRIES.values():
        values = metadata.get(entry, None)
        if values is not None:
            measured.set(entry, values)
    buffer.update_tensordict_priority(measured)
    return loss, metadata


def _three_losses(trainer: Trainer, sub_batch: TensorDictBase) -> TensorDictBase:
    """Computes the losses of critics, actor and temperature, on two batches."""
    critic_loss, critic_metadata = trainer.compute_loss(sub_batch, method="qvalue_v2_loss")
    actor_loss, metadata = _actor_loss(trainer)
    alpha_loss = trainer.compute_loss(metadata["log_prob"], method="alpha_loss").mean()

    priority_key = trainer.loss_module.tensor_keys.priority
    sub_batch.set(priority_key, critic_metadata["td_error"].detach())
    # The factors of this step belong to the actor's batch.
    trainer.replay_buffer.update_tensordict_priority(sub_batch.exclude("vmf_factor"))
    return TensorDict(
        {
            "loss_qvalue": critic_loss,
            "loss_actor": actor_loss,
            "loss_alpha": alpha_loss,
            "alpha": trainer.loss_module.log_alpha.detach().exp(),
            "entropy": -metadata["log_prob"].detach().mean(),
        }
    )
