"""An agent: the components of an algorithm, and the parts of its updates that all share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam, AdamW, Optimizer
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import ActorCriticReplayBuffer, CompiledUpdates, VMFUncertainty
from torchrl_vmfer.compiled import NotServedError
from torchrl_vmfer.samplers.base import SIGNAL_ENTRIES
from vmfer_recipes.agent import networks
from vmfer_recipes.agent.diagnostics import agreement, measure
from vmfer_recipes.agent.observations import Observations, make_observations
from vmfer_recipes.agent.replay import (
    make_actor_sampling,
    make_replay_buffer,
    saturation,
    stores_td_errors,
    unchanged_random_numbers,
)
from vmfer_recipes.agent.signals import MEASURED, actor_signal, make_score
from vmfer_recipes.collection.collectors import make_collector
from vmfer_recipes.config.algorithms import DeterministicConfig, TemperatureConfig
from vmfer_recipes.config.errors import diverged
from vmfer_recipes.config.groups import SamplerConfig
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, make_environment
from vmfer_recipes.run.checkpoints import Part
from vmfer_recipes.run.session import Averages

LossMaker = Callable[..., Any]  # a class of losses, or a function with its arguments
ExplorerMaker = Callable[[Any], TensorDictModuleBase]  # a function of the actor


@dataclass(kw_only=True)
class Agent:
    """The components of an algorithm, and the parts of its updates that all algorithms share."""

    env: Environment
    policy: TensorDictModuleBase  # to evaluate; acts on raw observations
    actor: TensorDictModuleBase  # the same policy for preprocessed observations
    observations: Observations  # the preprocessing of the networks' inputs
    loss: Any
    uncertainty: VMFUncertainty  # measures how much the critics of the loss agree
    critic_optimizer: Optimizer
    actor_optimizer: Optimizer
    alpha_optimizer: Any = None  # updates the temperature, if there is one
    targets: Any = None  # a `SoftUpdate` of the target networks, if there are any
    compiled: CompiledUpdates | None  # whole updates; `None` where TorchRL's are used
    buffer: ActorCriticReplayBuffer
    collector: Any  # a `Collector`; `None` if the buffer holds a dataset
    reads_slots: bool  # whether compiled updates can read the rows of drawn slots themselves
    sampler: SamplerConfig
    sample_actor: Callable[[], TensorDictBase] | None  # `None` for the critics' batch
    actor_keys: tuple[str, ...]  # the entries of the actor's batch
    signal: str | None  # what the actor's sampler stores
    score: Callable[[Tensor], Tensor] | None = None  # a signal that no update measures, by slots
    uses_td_errors: bool  # whether the critics' sampler uses TD errors

    def components(self) -> dict[str, Any]:
        """The arguments of ``session.steps``: the policy, and what a checkpoint holds, by name."""
        components = {
            "policy": self.policy,
            "observations": self.observations,
            "loss": self.loss,
            "critic_optimizer": self.critic_optimizer,
            "actor_optimizer": self.actor_optimizer,
            "alpha_optimizer": self.alpha_optimizer,
            # Its rows are saved without a copy of them.
            "replay": Part(
                partial(self.buffer.state_dict, copy_rows=False), self.buffer.load_state_dict
            ),
            "collector": self.collector,
            # Forks draw with a separate random generator.
            "actor_draws": self.sample_actor if hasattr(self.sample_actor, "state_dict") else None,
        }
        return {name: part for name, part in components.items() if part is not None}

    def critic_batch(self, lean: bool = False) -> TensorDictBase:
        """Draws a batch for the critics.

        With ``lean``, it consists of slots only if the compiled updates read the rows themselves.
        """
        if lean and self.compiled is not None and self.reads_slots:
            return self.buffer.draw_slots(self.buffer.critic_sampler)
        batch, rewards = self._observed(self.buffer.sample()), self.observations.rewards
        return batch if rewards is None else rewards(batch)

    def actor_batch(self, critic_batch: TensorDictBase, lean: bool = False) -> TensorDictBase:
        """Draws a batch for the actor, which for ``sampler=uniform`` is the critics' batch."""
        if self.sample_actor is None:
            # Drops the critics' importance weights.
            return critic_batch.select(*self.actor_keys, "index", strict=False)
        # The method of the buffer, or a function of a candidate pool or a fork.
        sample = getattr(self.sample_actor, "func", None)
        is_lean = lean and self.compiled is not None and self.reads_slots
        if is_lean and sample == self.buffer.sample_actor:
            return self.buffer.draw_slots(self.buffer.actor_sampler)
        return self._observed(self.sample_actor())

    def _observed(self, batch: TensorDictBase) -> TensorDictBase:
        return self.observations(batch) if self.observations.has_effect else batch

    def _with_entries(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns the actor's batch, and reads its entries if only its slots were drawn."""
        if self.actor_keys[0] in batch:
            return batch
        return self.buffer.read_rows(batch["index"], self.actor_keys).update(batch)

    def update_targets(self) -> None:
        """Moves the target networks."""
        if self.compiled is not None:
            self.compiled.update_targets()
        else:
            self.targets.step()

    def store_td_errors(self, batch: TensorDictBase, td_error: Tensor) -> None:
        """Passes absolute TD errors of the critics' batch to the samplers that use them."""
        if self.uses_td_errors:
            _store(self.buffer.update_priority, batch, td_error, "td_error")
        if self.signal == "td_error":
            _store(self.buffer.update_actor_priority, batch, td_error, self.signal)

    def store_signal(self, batch: TensorDictBase, info: dict[str, Tensor]) -> None:
        """Passes what was measured on the actor's batch to its sampler, if it uses it."""
        if self.signal == "saturation":
            values = saturation(self.actor, self._with_entries(batch)).exp()
        elif self.signal in SIGNAL_ENTRIES:
            values = info[SIGNAL_ENTRIES[self.signal]]
        elif self.score is not None:
            # The random numbers of training do not depend on the sampler.
            with unchanged_random_numbers(self.observations.device):
                values = self.score(batch["index"].cpu())
        else:
            return
        _store(self.buffer.update_actor_priority, batch, values, str(self.signal))

    def log_agreement(
        self, metrics: Averages, batch: TensorDictBase, info: dict[str, Tensor]
    ) -> None:
        """Adds statistics of factor and resultant length, and diagnostics of the actor's update.

        Both are measured once per row of ``train.csv``.
        """
        if "factor_mean" not in metrics:
            batch = self._with_entries(batch)
            metrics.add(**agreement(info, self.uncertainty, batch), **measure(self, batch))


def _store(update: Callable[..., None], batch: TensorDictBase, values: Tensor, signal: str) -> None:
    """Updates a sampler with one value for each transition of a batch."""
    try:
        update(batch["index"], values)
    except ValueError as error:
        if values.isfinite().all():
            raise
        raise diverged(f"{MEASURED.get(signal, signal)} is not finite") from error


class AgentMaker:
    """Makes the components that all algorithms share. A recipe adds actor, loss and optimizers.

    With ``fast=true``, this process flushes denormal numbers to zero. Adam accumulates them for
    dead units, and computing with them is hundreds of times slower.

    The loss must measure the ``signal``, which is that of :class:`Agent`.
    """

    def __init__(self, cfg: TrainingConfig) -> None:
        torch.set_flush_denormal(cfg.fast)
        self._cfg = cfg
        self.env = make_environment(cfg.env, cfg.seed, goals=cfg.replay.has_goals)
        self.buffer = make_replay_buffer(self.env, cfg)
        self.signal = actor_signal(self.buffer, cfg)
        self._observations = make_observations(self.env, cfg)
        self.networks = networks.network_spec(cfg)
        self.critic_networks = networks.critic_network_spec(cfg)

    def loss(
        self, make_loss: LossMaker, actor: TensorDictModuleBase, critics: Any, **options: Any
    ) -> Any:
        """Makes the loss, on its device and with its value estimator."""
        cfg = self._cfg
        options = {
            "num_qvalue_nets": cfg.num_critics,
            "action_spec": self.env.action_spec,
            "measure": self.signal == "factor",
            "gradient_norm": self.signal == "gradient_norm",
            "directions": cfg.directions,
            "weighting": cfg.weighting,
            **options,
        }
        loss = make_loss(actor, critics, **options).to(cfg.device)
        loss.make_value_estimator(gamma=cfg.gamma)
        if cfg.compile:  # worthwhile on GPUs
            loss.critic_loss = torch.compile(loss.critic_loss)
            loss.actor_loss = torch.compile(loss.actor_loss)
        return loss

    def agent(
        self,
        actor: TensorDictModuleBase,
        loss: Any,
        *,
        explorer: TensorDictModuleBase | None,
        actor_keys: tuple[str, ...] = ("observation",),
        **updated: Any,
    ) -> Agent:
        """Makes the collector and the compiled updates, and combines all components.

        ``explorer`` is the data-collection policy, or ``None`` for training on a dataset.
        ``actor_keys`` are the entries of a transition that the actor loss reads, and ``updated``
        the optimizers and ``targets``, as in :class:`Agent`.
        """
        cfg, buffer, observations = self._cfg, self.buffer, self._observations
        uncertainty = VMFUncertainty(loss)
        collector = None
        if explorer is not None:
            acting = observations.before(explorer)
            collector = make_collector(self.env, acting, observations, buffer, cfg)
        reads_slots = (
            type(observations) is Observations
            and observations.rewards is None
            and type(buffer) is ActorCriticReplayBuffer
            and buffer.is_direct
        )
        storage = buffer.storage if reads_slots else None
        return Agent(
            env=self.env,
            policy=observations.before(actor),
            actor=actor,
            observations=observations,
            loss=loss,
            uncertainty=uncertainty,
            compiled=self._compiled(loss, storage=storage, **updated),
            **updated,
            buffer=buffer,
            collector=collector,
            reads_slots=reads_slots,
            sampler=cfg.sampler,
            sample_actor=make_actor_sampling(
                buffer, observations, actor, uncertainty, cfg, actor_keys
            ),
            actor_keys=actor_keys,
            signal=self.signal,
            score=make_score(self.signal, buffer, observations, loss, cfg.gamma),
            uses_td_errors=stores_td_errors(buffer),
        )

    def _compiled(self, loss: Any, **components: Any) -> CompiledUpdates | None:
        """Whole updates in one compiled call each, or ``None`` and one line that says why."""
        if not self._cfg.fast or self._cfg.compile:
            return None
        try:
            return CompiledUpdates(loss, clip_norm=self._cfg.max_grad_norm, **components)
        except NotServedError as reason:
            print(f"fast=true: updates by TorchRL, because {reason}.", file=sys.stderr)
            return None


def adam(
    parameters: Iterable[Tensor],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    cfg: TrainingConfig | None = None,
) -> Adam:
    """Makes an optimizer with the fastest of PyTorch's implementations.

    With ``cfg``, it uses ``weight_decay`` and ``max_grad_norm`` of a run.
    """
    given = list(parameters)
    if cfg is None or not cfg.weight_decay:
        optimizer = Adam(given, lr=lr, betas=betas, fused=True)
    else:
        decay = cfg.weight_decay
        optimizer = AdamW(given, lr=lr, betas=betas, weight_decay=decay, fused=True)
    if cfg is not None and (norm := cfg.max_grad_norm) is not None:
        # Compiled updates, which do not call `step`, clip the gradients themselves.
        optimizer.register_step_pre_hook(partial(_clip, given, norm))
    return optimizer


def _clip(parameters: list[Tensor], norm: float, *_: Any) -> None:
    clip_grad_norm_(parameters, norm)


def deterministic_agent(
    cfg: DeterministicConfig,
    make_loss: LossMaker,
    *,
    exploration_noise: float | None,
    make_explorer: ExplorerMaker | None = None,
    actor_keys: tuple[str, ...] = ("observation",),
    **options: Any,
) -> Agent:
    """Makes an agent with a deterministic policy, such as TD3's.

    Training on a dataset has no ``exploration_noise``. ``make_explorer`` makes a different
    data-collection policy from the actor. The actor loss reads the ``actor_keys`` of a transition.
    ``options`` are further arguments of the loss.
    """
    maker = AgentMaker(cfg)
    actor = networks.deterministic_actor(maker.env, maker.networks)
    critics = networks.make_critics(maker.env, maker.critic_networks, cfg.num_critics)
    loss = maker.loss(
        make_loss,
        actor,
        critics,
        policy_noise=cfg.target_noise,
        noise_clip=cfg.target_noise_clip,
        loss_function=cfg.critic_distance,
        **options,
    )
    explorer: TensorDictModuleBase | None = None
    if make_explorer is not None:
        explorer = make_explorer(actor)
    elif exploration_noise is not None:
        explorer = networks.exploring(actor, cfg.fast, exploration_noise)
    return maker.agent(
        actor,
        loss,
        explorer=explorer,
        targets=SoftUpdate(loss, tau=cfg.tau),
        critic_optimizer=adam(loss.qvalue_network_params.parameters(), cfg.critic_lr, cfg=cfg),
        actor_optimizer=adam(loss.actor_network_params.parameters(), cfg.actor_lr, cfg=cfg),
        actor_keys=actor_keys,
    )


def gaussian_agent(
    cfg: TemperatureConfig,
    make_loss: LossMaker,
    *,
    outputs: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
    has_targets: bool = True,
    **options: Any,
) -> Agent:
    """Makes an agent with a squashed Gaussian policy and a learned temperature, such as SAC's.

    ``outputs`` is the number of outputs of a critic. ``options`` are further arguments of the loss.
    """
    maker = AgentMaker(cfg)
    actor = networks.gaussian_actor(maker.env, maker.networks)
    critics = networks.make_critics(maker.env, maker.critic_networks, cfg.num_critics, outputs)
    options = {"alpha_init": cfg.alpha_init, "target_entropy": cfg.target_entropy, **options}
    loss = maker.loss(make_loss, actor, critics, **options)
    return maker.agent(
        actor,
        loss,
        explorer=networks.exploring(actor, cfg.fast),
        targets=SoftUpdate(loss, tau=cfg.tau) if has_targets else None,
        critic_optimizer=adam(loss.qvalue_network_params.parameters(), cfg.critic_lr, betas, cfg),
        actor_optimizer=adam(loss.actor_network_params.parameters(), cfg.actor_lr, betas, cfg),
        alpha_optimizer=adam([loss.log_alpha], cfg.alpha_lr),
    )
