"""The keys shared by all training runs, with their types, ranges, defaults and meanings."""

from __future__ import annotations

import functools
import importlib.util
import operator
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torchrl_vmfer import arguments
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import (
    CollectorConfig,
    DirectSamplerConfig,
    EnvConfig,
    LAPReplayConfig,
    LoggerConfig,
    ReplayConfig,
    ReturnSamplerConfig,
    SamplerConfig,
    SignalSamplerConfig,
    VMFSamplerConfig,
)
from vmfer_recipes.config.keys import MISSING, Config, argument, group, key
from vmfer_recipes.config.names import written
from vmfer_recipes.config.validation import to_config
from vmfer_recipes.run.loggers import check_logger

__all__ = ["Config", "TrainingConfig", "to_config"]

_RATES = ("lr", "learning_rate", "optimizer")  # every optimizer is Adam
_COMPARING = (VMFSamplerConfig, DirectSamplerConfig)
_COMPARED = ("factor", "pre_tanh_factor", "value_gap")  # signals of several critics


@dataclass
class TrainingConfig(Config):
    """The keys shared by all training recipes. Recipes add further ones in a subclass."""

    algorithm: str = key(MISSING, "name of the recipe, part of the run directory")
    seed: int = key(0, "seed of environment, networks, exploration and sampling", low=0)
    total_frames: int = key(
        1_000_000,
        "environment steps of the whole run (offline: updates of the critics); a larger value "
        "continues a finished run",
        low=1,
        aka=("steps", "total_timesteps", "num_steps"),
    )
    init_random_frames: int = key(
        25_000,
        "steps of random actions before learning starts; they are stored",
        low=0,
        aka=("learning_starts", "start_timesteps"),
    )
    num_envs: int = key(
        1,
        "environments that each worker steps together; a step is still one frame",
        low=1,
        high=10_000,
        aka=("n_envs", "num_environments"),
    )
    utd_ratio: int | float | str = key(
        1,
        "critic updates per environment step, a number or a fraction such as 1/16; target "
        "networks are updated along with the critics",
        low=1e-6,
        aka=("train_freq", "gradient_steps"),
    )
    num_critics: int = key(
        2,
        "size of the ensemble; critics beyond the second measure the uncertainty",
        low=1,
        aka=("n_critics",),
    )
    batch_size: int = key(256, "transitions per update, for both critics and actor", low=1)
    directions: str = argument(arguments.DIRECTIONS)
    weighting: float = argument(arguments.WEIGHTING)
    gamma: float = key(0.99, "discount factor", low=0, high=1)
    reward_scale: float = key(
        1.0,
        "factor of the rewards that the critics learn from; logged returns are not scaled",
        low=1e-9,
    )
    normalize_rewards: bool = key(
        False,
        "divide the critics' rewards by the standard deviation of the discounted returns so far",
    )
    n_step: int = argument(arguments.N_STEP, is_argument=False, aka=("n_steps", "multi_step"))
    tau: float = key(
        0.005, "weight of the new parameters when target networks are updated", low=0, high=1
    )
    critic_lr: float = key(
        1e-3, "learning rate of the critics (Adam)", low=0, aka=(*_RATES, "q_lr")
    )
    actor_lr: float = key(
        1e-3, "learning rate of the actor (Adam)", low=0, aka=(*_RATES, "policy_lr")
    )
    lr_schedule: str = key(
        "constant",
        "schedule of the learning rates: constant, or linear, down to 0 over total_frames",
        choices=("constant", "linear"),
    )
    weight_decay: float = key(
        0.0, "decoupled weight decay of actor and critics (AdamW)", low=0, high=1e6
    )
    max_grad_norm: float | None = key(
        None,
        "largest gradient norm of the critics, and of the actor; null: no limit",
        low=1e-9,
        aka=("grad_clip", "clip_grad_norm", "clip_norm"),
    )
    network: str = key(
        "mlp", "network of actor and critics: mlp, or a custom nn.Module, as my_package.MyNetwork"
    )
    network_kwargs: dict[str, Any] = key(
        {}, "keyword arguments of a custom network: network_kwargs.width=64"
    )
    hidden: list[int] = key(
        [256, 256], "hidden units of network=mlp, per layer", low=1, aka=("net_arch",)
    )
    activation: str = key(
        "relu",
        "activation of network=mlp",
        choices=("relu", "tanh", "elu", "gelu", "silu", "leaky_relu"),
    )
    layer_norm: bool = key(False, "layer normalization before each activation of network=mlp")
    critic_network: str | None = key(
        None, "network of the critics: mlp, or a custom nn.Module; null: as network="
    )
    critic_network_kwargs: dict[str, Any] = key(
        {}, "keyword arguments of a custom critic_network: critic_network_kwargs.width=64"
    )
    critic_hidden: list[int] | None = key(
        None, "hidden units of MLP critics, per layer; null: as hidden=", low=1
    )
    critic_layer_norm: bool | None = key(
        None, "layer normalization in MLP critics; null: as layer_norm="
    )
    critic_dropout: float = key(
        0.0,
        "probability of dropout after each hidden linear layer of MLP critics (DroQ)",
        low=0,
        high=0.99,
        aka=("dropout",),
    )
    eval_interval: int = key(
        5000,
        "steps between evaluations; there is one at step 0 and one at the end",
        low=1,
        aka=("eval_freq",),
    )
    num_eval_episodes: int = key(
        10, "episodes of an evaluation, without exploration", low=1, aka=("n_eval_episodes",)
    )
    max_eval_steps: int = key(
        10_000, "steps of the longest episode of an evaluation; a longer one is an error", low=1
    )
    solved_at: float | None = key(
        None,
        "return, or success rate of a task that reports success, at which the task counts as "
        "solved, for curve and summary; null: Gymnasium's reward threshold, if there is one",
    )
    stop_when_solved: bool = key(
        False, "end the run after the first evaluation that reaches solved_at"
    )
    max_minutes: float | None = key(
        None,
        "minutes after which the run saves a checkpoint and stops, at the next row of "
        "train.csv; the same command resumes it",
        low=1e-9,
    )
    log_interval: int = key(1000, "steps between rows of train.csv", low=1)
    log_info: list[str] = key(
        [],
        "columns of train.csv: entries of the environment's info, or components of the "
        "observation (observation.0), as means over the steps since the last row",
    )
    checkpoint_interval: int = key(
        50_000,
        "steps between checkpoints, from which an interrupted run resumes",
        low=1,
        aka=("save_freq",),
    )
    keep_checkpoint: bool = key(
        True, "keep the last checkpoint, so that a larger total_frames continues a finished run"
    )
    keep_checkpoints_at: list[int] = key(
        [], "steps whose checkpoints are kept permanently, in checkpoint/kept", low=1
    )
    # OpenMP aborts the process if it cannot start this many threads.
    threads: int = key(
        1, "CPU threads of PyTorch; results are reproducible for the same number", low=1, high=1024
    )
    fast: bool = key(True, "faster code for plain networks; false uses TorchRL's components")
    compile: bool = key(False, "apply torch.compile to TorchRL's losses; can be faster on GPUs")
    device: str = key("cpu", "device of the networks: cpu, cuda, cuda:1, ...", aka=("gpu",))
    resume: bool = key(
        True, "resume an unfinished run in run_dir; false stops with an error instead"
    )
    run_dir: str = key(
        "runs/${algorithm}/${folder:${env.name}}/${replay.name}-${sampler.name}/seed${seed}",
        "directory of all output",
    )
    env: EnvConfig = group("the task")
    sampler: SamplerConfig = group("how the actor's batch is drawn, also my_package.MySampler")
    replay: ReplayConfig = group("how the critics' batch is drawn, also my_package.MySampler")
    collector: CollectorConfig = group("which processes step the environment")
    logger: LoggerConfig = group("where metrics go besides the CSV files")

    def check(self) -> None:
        """Raises ``UserError`` for combinations of values that do not work together."""
        total, buffer = self.total_frames, self.replay.buffer_size
        check_order("init_random_frames", self.init_random_frames, "<", "total_frames", total)
        for step in self.keep_checkpoints_at:
            check_order("keep_checkpoints_at", step, "≤", "total_frames", total)
        check_order("num_envs", self.num_envs, "≤", "replay.buffer_size", buffer)
        self._check_sampler()
        self._check_network()
        _check_device(self.device)
        check_logger(self.logger)
        as_fraction(self.utd_ratio)
        if self.collector.name == "ray" and importlib.util.find_spec("ray") is None:
            raise UserError("collector=ray needs the package ray: pip install '.[ray]'.")

    @property
    def critic_distance(self) -> str:
        """The loss of the critics, by TorchRL's name: the squared error, or LAP's Huber loss."""
        return "smooth_l1" if isinstance(self.replay, LAPReplayConfig) else "l2"

    def of_critics(self, name: str) -> Any:
        """The value of ``network``, ``hidden`` or ``layer_norm`` for the critics."""
        value = getattr(self, f"critic_{name}")
        return getattr(self, name) if value is None else value

    @property
    def dataset_share(self) -> float:
        """The share of each batch that comes from a dataset."""
        return 0.0

    def _check_sampler(self) -> None:
        sampler, cure = self.sampler, "sampler=uniform"
        compares = isinstance(sampler, _COMPARING) or (
            isinstance(sampler, SignalSamplerConfig) and sampler.signal in _COMPARED
        )
        method = f"sampler={sampler.name}" if compares else None
        if self.weighting:
            method, cure = f"weighting={written(self.weighting)}", "weighting=0"
        if method and self.num_critics < 2:
            raise UserError(
                f"{method} needs several critics to compare, got "
                f"num_critics={self.num_critics}: use at least 2, or {cure}."
            )
        if isinstance(sampler, ReturnSamplerConfig) and not hasattr(self, "normalize"):
            raise UserError(
                f"sampler={sampler.name} draws by the returns of a dataset, and "
                f"{self.algorithm} does not learn from a dataset alone: use td3_bc."
            )
        if isinstance(sampler, VMFSamplerConfig) and sampler.mode == "rank":
            check_unused(self, "sampler.mode=rank", {"sampler.power": 1})

    def _check_network(self) -> None:
        if self.network == "mlp":
            check_unused(self, "network=mlp, which has hidden= instead", {"network_kwargs": {}})
        else:
            method = f"network={self.network}, which has network_kwargs= instead"
            check_unused(self, method, {"activation": "relu", "layer_norm": False})
        if self.critic_network in (None, "mlp"):
            method = f"critic_network={written(self.critic_network)}"
            check_unused(self, method, {"critic_network_kwargs": {}})
        if self.of_critics("network") != "mlp":
            unused = {"critic_layer_norm": None, "critic_dropout": 0}
            check_unused(self, f"critics with network={self.of_critics('network')}", unused)


def check_order(first: str, low: int, relation: str, second: str, high: int) -> None:
    """Raises ``UserError`` unless the values of two keys are in order, by ``<`` or ``≤``."""
    if low > high or (low == high and relation == "<"):
        raise UserError(
            f"{first}={low} must be {relation} {second}={high}: lower the first or raise the "
            "second."
        )


def check_unused(cfg: TrainingConfig, method: str, defaults: dict[str, Any]) -> None:
    """Raises ``UserError`` if a key that a method ignores has another value than its default."""
    for name, default in defaults.items():
        value = operator.attrgetter(name)(cfg)
        if value != default:
            given = f"{name.removesuffix('.name')}={written(value)}"
            raise UserError(f"{given} has no effect on {method}: leave it out.")


@functools.cache
def as_fraction(ratio: int | float | str) -> tuple[int, int]:
    """Numerator and denominator of ``utd_ratio``."""
    try:
        fraction = Fraction(str(ratio))
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(0)
    if fraction <= 0:
        raise UserError(
            f"utd_ratio must be a positive number or fraction, such as 2 or 1/16, got {ratio!r}."
        )
    return fraction.numerator, fraction.denominator


def _check_device(name: str) -> None:
    if name == "cpu":
        return
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise UserError(
            f"device must be cpu, cuda or cuda:<number>, got {name!r}: use device=cpu, which is "
            "fast enough for these networks."
        )
    import torch  # imported here to keep --help and error messages fast

    try:
        torch.zeros(1, device=name).item()
    except Exception as error:
        raise UserError(
            f"device={name} cannot be used ({first_line(error)}): use device=cpu."
        ) from error
