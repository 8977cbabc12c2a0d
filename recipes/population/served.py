"""Which runs a population can train, and which of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchrl_vmfer.compiled import functions
from vmfer_recipes.config import groups
from vmfer_recipes.config.errors import UserError

_SAMPLERS = (
    *(groups.SharedSamplerConfig, groups.FreshSamplerConfig, groups.VMFSamplerConfig),
    *(groups.InverseTDSamplerConfig, groups.GradientNormSamplerConfig),
    *(groups.RecentSamplerConfig, groups.OldSamplerConfig, groups.SaturatedSamplerConfig),
    groups.SignalSamplerConfig,
)
_REPLAYS = (
    *(groups.UniformReplayConfig, groups.PrioritizedReplayConfig),
    *(groups.RankPrioritizedReplayConfig, groups.LAPReplayConfig),
)
# What the compiled updates measure for the samplers is the same for all members.
_SIGNALS = {
    groups.VMFSamplerConfig: "factor",
    groups.GradientNormSamplerConfig: "gradient_norm",
}
# Members may differ in these keys.
_FREE = (
    *("seed", "sampler", "critic_lr", "actor_lr", "alpha_lr", "gamma", "tau"),
    *("exploration_noise", "alpha_init", "run_dir", "logger", "resume"),
)


def check_served(cfg: Any) -> None:
    """Raises ``UserError`` if a population cannot train the run of a configuration."""
    needed: dict[str, tuple[Any, Sequence[Any]]] = {
        "recipe": (cfg.algorithm, ("td3", "sac")),
        "sampler": (type(cfg.sampler), _SAMPLERS),
        "replay": (type(cfg.replay), _REPLAYS),
        "collector": (cfg.collector.name, ("single",)),
        "num_envs": (cfg.num_envs, (1,)),
        "n_step": (cfg.n_step, (1,)),
        "network": (cfg.network, ("mlp",)),
        "critic_network": (cfg.of_critics("network"), ("mlp",)),
        "critic_dropout": (cfg.critic_dropout, (0,)),
        "activation": (cfg.activation, ("relu",)),
        "env.normalize_observations": (cfg.env.normalize_observations, (False,)),
        "dataset": (getattr(cfg, "dataset", None), (None,)),
        "log_info": (tuple(cfg.log_info), ((),)),
        "entropy_gradient": (getattr(cfg, "entropy_gradient", False), (False,)),
        "device": (cfg.device, ("cpu",)),
        "threads": (cfg.threads, (1,)),
        "compile": (cfg.compile, (False,)),
        "fast": (cfg.fast, (True,)),
    }
    for key, (value, served) in needed.items():
        if value not in served:
            shown = getattr(cfg, key).name if key in ("sampler", "replay") else value
            raise UserError(
                f"A population cannot train {key}={str(shown).lower()}: use "
                f"hydra/launcher=joblib for this sweep. No run was started, such as {cfg.run_dir}."
            )
    if functions() is None:
        raise UserError(
            "A population needs the compiled updates of torchrl_vmfer, which were not built: "
            "install the package where there is a C compiler, or use hydra/launcher=joblib."
        )


def grouped(configs: Sequence[Any], size: int) -> list[list[int]]:
    """The runs to train together, by their positions, at most ``size`` at a time.

    Members have the same keys, except those that the compiled updates take for each member.
    """
    groups: dict[str, list[int]] = {}
    for position, cfg in enumerate(configs):
        keys = {key: value for key, value in asdict(cfg).items() if key not in _FREE}
        signal = getattr(cfg.sampler, "signal", _SIGNALS.get(type(cfg.sampler)))
        keys["signal"] = signal if signal in _SIGNALS.values() else None
        groups.setdefault(repr(keys), []).append(position)
    return [
        group[first : first + size]
        for group in groups.values()
        for first in range(0, len(group), size)
    ]
