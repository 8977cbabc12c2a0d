"""The configurations of the algorithms: the keys of each, and their defaults for shared keys."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from torchrl_vmfer import arguments
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import (
    DirectSamplerConfig,
    LAPReplayConfig,
    UniformReplayConfig,
)
from vmfer_recipes.config.keys import argument, key, schema, schemas_of
from vmfer_recipes.config.names import MINARI_PREFIX
from vmfer_recipes.config.training import TrainingConfig, check_order, check_unused


@dataclass
class DeterministicConfig(TrainingConfig):
    """The keys shared by algorithms with a deterministic policy."""

    target_noise: float = key(
        0.2,
        "standard deviation of the noise on target actions",
        low=0,
        aka=("policy_noise", "target_policy_noise"),
    )
    target_noise_clip: float = key(
        0.5, "largest absolute value of that noise", low=0, aka=("noise_clip",)
    )


@schema("td3")
class TD3Config(DeterministicConfig):
    """TD3 with vMFER (Algorithm 1 of the paper; TD3 column of its hyperparameters)."""

    algorithm: str = "td3"
    policy_delay: int = key(
        2,
        "environment steps per actor update, and critic updates per target update",
        low=1,
        aka=("policy_frequency", "policy_freq"),
    )
    actor_objective: str = argument(arguments.OBJECTIVE)
    exploration_noise: float = key(
        0.1, "standard deviation of the noise on collected actions", low=0
    )
    actor_noise: float = key(
        0.0, "standard deviation of the noise on the actor batch's actions (Algorithm 1)", low=0
    )
    actor_noise_clip: float = key(0.5, "largest absolute value of that noise", low=0)


@dataclass
class TemperatureConfig(TrainingConfig):
    """The keys shared by algorithms that learn the temperature of a stochastic policy."""

    critic_lr: float = 3e-4
    actor_lr: float = 3e-4
    alpha_lr: float = key(3e-4, "learning rate of the temperature (Adam)", low=0, aka=("autotune",))
    alpha_init: float = key(1.0, "initial temperature", low=1e-9, aka=("ent_coef", "alpha"))
    target_entropy: int | float | str = key(
        "auto", "target entropy for the temperature; auto is -dim(A)", choices=("auto",)
    )


@schema("sac")
class SACConfig(TemperatureConfig):
    """SAC with vMFER (Algorithm 2 of the paper; SAC column of its hyperparameters)."""

    algorithm: str = "sac"
    init_random_frames: int = 10_000
    dataset: str | None = key(
        None, "dataset, as for td3_bc, from which part of every uniform batch is drawn (RLPD)"
    )
    share: float = key(0.5, "share of a batch that is drawn from dataset=", low=1e-9, high=1)
    entropy_gradient: bool = key(False, "include α ∂log π/∂a in the directions of the gradients")

    def __post_init__(self) -> None:
        self.dataset = _one_spelling(self.dataset)

    @property
    def dataset_share(self) -> float:
        """The share of each batch that comes from a dataset."""
        return 0.0 if self.dataset is None else self.share

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        super().check()
        if self.dataset is None:
            check_unused(self, "a run without dataset=", {"share": 0.5})
        elif not isinstance(self.replay, UniformReplayConfig):
            raise UserError(
                f"dataset= with share= draws uniform batches, got replay={self.replay.name}: use "
                "replay=uniform."
            )
        else:
            check_unused(self, "a run with dataset= and share=", {"n_step": 1})
        if isinstance(self.sampler, DirectSamplerConfig):
            check_unused(self, f"sampler={self.sampler.name}", {"entropy_gradient": False})


@schema("redq")
class REDQConfig(TemperatureConfig):
    """REDQ with vMFER (Chen et al., 2021, with the settings of their code)."""

    algorithm: str = "redq"
    init_random_frames: int = 5000
    utd_ratio: int | float | str = 20
    num_critics: int = key(10, "size of the ensemble; the actor maximizes the mean of all", low=2)
    subset_size: int = key(2, "critics drawn at random for the minimum in the TD target", low=1)
    target_entropy: int | float | str = key(
        "mbpo",
        "target entropy for the temperature; auto is -dim(A), mbpo is MBPO's choice for the task",
        choices=("auto", "mbpo"),
    )

    @property
    def entropy(self) -> float | str:
        """The target entropy: a number, or "auto"."""
        if self.target_entropy != "mbpo":
            return self.target_entropy
        known = {"Hopper": -1, "HalfCheetah": -3, "Walker2d": -3, "Ant": -4, "Humanoid": -2}
        return known.get(_task(self), "auto")

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        super().check()
        check_order("subset_size", self.subset_size, "<", "num_critics", self.num_critics)
        _check_importance_weights(self)


@schema("tqc")
class TQCConfig(TemperatureConfig):
    """TQC with vMFER (Kuznetsov et al., 2020, with the hyperparameters of their appendix)."""

    algorithm: str = "tqc"
    init_random_frames: int = 10_000
    num_critics: int = key(
        5, "size of the ensemble; all critics enter the TD target and the actor loss", low=1
    )
    critic_hidden: list[int] | None = field(default_factory=lambda: [512, 512, 512])
    num_quantiles: int = key(25, "quantiles of the return that each critic predicts", low=1)
    dropped_quantiles: int | str = key(
        "auto",
        "number of largest quantiles per critic to drop from the TD target; auto is the authors' "
        "choice for the task, or 2",
        low=0,
        choices=("auto",),
    )

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        super().check()
        dropped, number = self.quantiles_to_drop, self.num_quantiles
        check_order("dropped_quantiles", dropped, "<", "num_quantiles", number)
        if isinstance(self.replay, LAPReplayConfig):
            raise UserError(
                f"replay={self.replay.name} requires the Huber loss of one value per critic, but "
                f"the critics of {self.algorithm} predict quantiles: use replay=per."
            )

    @property
    def quantiles_to_drop(self) -> int:
        """The number of dropped quantiles per critic: the given one, or the authors' choice."""
        if self.dropped_quantiles != "auto":
            return int(self.dropped_quantiles)
        return {"Hopper": 5, "HalfCheetah": 0}.get(_task(self), 2)


@schema("crossq")
class CrossQConfig(TemperatureConfig):
    """CrossQ with vMFER (Bhatt et al., 2024, with the hyperparameters of their appendix)."""

    algorithm: str = "crossq"
    init_random_frames: int = 5000
    critic_lr: float = 1e-3
    actor_lr: float = 1e-3
    alpha_lr: float = 1e-3
    critic_hidden: list[int] | None = field(default_factory=lambda: [2048, 2048])
    policy_delay: int = key(3, "environment steps per actor update", low=1)
    adam_beta1: float = key(0.5, "Adam's beta1 for actor and critics", low=0, high=0.999999)
    batch_renorm: bool = key(True, "batch renormalization in the critics (network=mlp)")
    batch_renorm_warmup: int = key(
        100_000, "initial critic updates with plain batch normalization", low=0
    )

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        super().check()
        check_unused(self, "crossq, which has no target networks", {"tau": TrainingConfig.tau})
        if self.of_critics("layer_norm") and self.batch_renorm:
            raise UserError(
                "layer_norm=true and batch_renorm=true cannot be combined: leave out the first."
            )
        if self.of_critics("network") != "mlp" and self.batch_renorm:
            raise UserError(
                "CrossQ's critics need batch renormalization, which the recipe adds to network=mlp "
                f"only, got network={self.of_critics('network')}: use critic_network=mlp, or "
                "batch_renorm=false with a network that normalizes batches itself."
            )
        _check_importance_weights(self)


@schema("td3_bc")
class TD3BCConfig(DeterministicConfig):
    """TD3+BC (Fujimoto and Gu, 2021) with vMFER: offline learning from a dataset.

    With a vMFER sampler, the behavior-cloning term and the weight lambda of the critics are
    computed on the resampled batch.
    """

    algorithm: str = "td3_bc"
    dataset: str | None = key(
        None,
        "run directory whose replay buffer to learn from, or minari:<id>, or a folder in Minari's "
        "format",
    )
    init_random_frames: int = 0
    critic_lr: float = 3e-4
    actor_lr: float = 3e-4
    alpha: float = key(
        2.5,
        "weight of the critics relative to behavior cloning; 0 with sampler=uniform is pure "
        "behavior cloning",
        low=0,
    )
    policy_delay: int = key(2, "critic updates per update of actor and target networks", low=1)
    normalize: bool = key(
        True, "normalize observations by the mean and standard deviation of the dataset"
    )

    def __post_init__(self) -> None:
        self.dataset = _one_spelling(self.dataset)

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        if self.dataset is None:
            raise UserError(
                f"{self.algorithm} learns from a dataset: set dataset= to a run directory, such as "
                "dataset=runs/td3/Hopper-v4/uniform-uniform/seed0, or to minari:<id>."
            )
        if self.replay.has_goals:
            raise UserError(
                f"replay=her requires whole episodes, which a dataset does not store: use "
                f"another replay= for {self.algorithm}."
            )
        steps = {"init_random_frames": 0, "num_envs": 1, "utd_ratio": 1, "collector.name": "single"}
        check_unused(self, f"{self.algorithm}, which takes no environment steps", steps)
        online = {"env.normalize_observations": False}
        check_unused(self, f"{self.algorithm}, which has normalize= instead", online)
        online = {"normalize_rewards": False}
        check_unused(self, f"{self.algorithm}, which has reward_scale= instead", online)
        super().check()


def _one_spelling(dataset: str | None) -> str | None:
    # Two spellings of a path are the same configuration, and the same task in reports.
    if dataset and not dataset.startswith(MINARI_PREFIX):
        return str(Path(os.path.expanduser(dataset)))
    return dataset


def _task(cfg: TrainingConfig) -> str:
    """The name of the environment without its version."""
    return cfg.env.name.partition("-")[0]


def _check_importance_weights(cfg: TrainingConfig) -> None:
    beta = getattr(cfg.replay, "beta", 0)
    if beta > 0:
        raise UserError(
            f"TorchRL's loss for {cfg.algorithm} ignores the importance weights of "
            f"replay={cfg.replay.name}, got replay.beta={beta}: use replay.beta=0, or "
            "replay=uniform."
        )


def algorithms() -> dict[str, type[TrainingConfig]]:
    """The configurations of the algorithms of this package, by name."""
    schemas = schemas_of().items()
    return {name: config for name, config in schemas if issubclass(config, TrainingConfig)}
