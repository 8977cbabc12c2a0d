"""Optimization steppers that add vMFER to TorchRL's trainers.

Import this module explicitly: ``import torchrl_vmfer`` does not import ``torchrl.trainers``.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.trainers import DefaultOptimizationStepper, Trainer
from torchrl.trainers.algorithms.td3 import TD3OptimizationStepper

from torchrl_vmfer.samplers.adapters import SIGNAL_ENTRIES

__all__ = ["VMFSACOptimizationStepper", "VMFTD3OptimizationStepper"]


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

    Examples:
        >>> from torchrl.trainers.algorithms import TD3Trainer
        >>> trainer = TD3Trainer(  # doctest: +SKIP
        ...     optimization_stepper=VMFTD3OptimizationStepper(actor_optimizer, critic_optimizer),
        ...     loss_module=loss,  # a VMFTD3Loss
        ...     replay_buffer=buffer,  # an ActorCriticReplayBuffer
        ...     **others,
        ... )
    """

    def step(self, trainer: Trainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """Updates the critics once, and the actor every ``policy_update_delay`` steps."""
        return super().step(_ActorBatches(trainer), sub_batch)


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

    Examples:
        >>> VMFSACOptimizationStepper().register(trainer)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
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
        return super().step(_ThreeLosses(trainer), sub_batch).detach()


class _Proxy:
    """A proxy that replaces some methods of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def actor_loss(self) -> tuple[Tensor, Any]:
        """Computes the actor loss on a separate batch and stores what it measured on that batch."""
        buffer = self._trainer.replay_buffer
        if not hasattr(buffer, "sample_actor"):
            raise TypeError(
                "The trainer requires replay_buffer=ActorCriticReplayBuffer(...), got "
                f"{type(buffer).__name__}, which cannot sample batches for the actor."
            )
        batch = buffer.sample_actor()
        loss, metadata = self._trainer.compute_loss(batch, method="actor_loss")
        measured = batch.select("index", "index_generation", strict=False)
        for entry in SIGNAL_ENTRIES.values():
            values = metadata.get(entry, None)
            if values is not None:
                measured.set(entry, values)
        buffer.update_tensordict_priority(measured)
        return loss, metadata


class _ActorBatches(_Proxy):
    """A trainer that computes the actor loss on a separate batch."""

    def compute_loss(self, sub_batch: TensorDictBase, method: str | None = None) -> Any:
        """Computes the critic loss on this batch, or the actor loss on a separate one."""
        if method == "actor_loss":
            return self.actor_loss()
        return self._trainer.compute_loss(sub_batch, method=method)


class _ThreeLosses(_Proxy):
    """A trainer that combines losses computed on two batches."""

    def compute_loss(self, sub_batch: TensorDictBase) -> TensorDictBase:
        """Computes the losses of critics, actor and temperature."""
        trainer = self._trainer
        critic_loss, critic_metadata = trainer.compute_loss(sub_batch, method="qvalue_v2_loss")
        actor_loss, metadata = self.actor_loss()
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
