"""The arms of a fork: methods that continue from the same checkpoint."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from vmfer_recipes.config.command_line import explain, read_command_line
from vmfer_recipes.config.errors import UserError, counted, near_names
from vmfer_recipes.config.keys import describe
from vmfer_recipes.config.names import CONFIGS, choices_of, folder_name
from vmfer_recipes.config.plugins import own_choice
from vmfer_recipes.config.replay_groups import (
    CustomSamplerConfig,
    FreshSamplerConfig,
    SamplerConfig,
    VMFSamplerConfig,
)
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import validate

__all__ = ["Arm", "make_arms"]

# Keys for how the actor is updated. Others define what a checkpoint holds, or the problem itself.
_CHANGEABLE = (
    *("actor_objective", "directions", "entropy_gradient"),
    *("actor_noise", "actor_noise_clip"),
)


@dataclass(frozen=True)
class Arm:
    """A method that continues from a checkpoint.

    Attributes:
        name: the arm as written, such as ``vmf_power sampler.power=8``.
        sampler: its ``sampler=``; ``None`` keeps that of the run.
        values: further values, by key.
    """

    name: str
    sampler: SamplerConfig | None
    values: dict[str, Any]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.name)

    def apply(self, cfg: TrainingConfig) -> TrainingConfig:
        """The configuration of a run with this arm's values."""
        sampler: Any = self.sampler
        if sampler is None:
            sampler = OmegaConf.structured(cfg.sampler)
            for key, value in self.values.items():
                if key.startswith("sampler."):
                    OmegaConf.update(sampler, key.removeprefix("sampler."), value, force_add=True)
            sampler = OmegaConf.to_object(sampler)
        others = {key: value for key, value in self.values.items() if "." not in key}
        try:
            applied = dataclasses.replace(cfg, sampler=sampler, keep_checkpoints_at=[], **others)
            validate(applied)
            applied.check()
        except UserError as error:
            raise UserError(f"The arm {self.name!r}: {error}") from error
        return applied

    def dose(self, cfg: TrainingConfig) -> float | None:
        """The power of the factor in the probabilities of the actor's batch, if it has one.

        A uniform batch has the power 0, and the paper's method the power 1. An arm that also
        differs in another key has none.

        Args:
            cfg: the configuration of a run.
        """
        sampler = self.apply(cfg).sampler
        if not all(key.startswith("sampler.") for key in self.values):
            return None
        if isinstance(sampler, FreshSamplerConfig):
            return 0.0
        plain = {key.name: key.default for key in describe(type(sampler))}
        compared = [name for name in plain if name not in ("name", "power")]
        if not isinstance(sampler, VMFSamplerConfig):
            return None
        if any(getattr(sampler, name) != plain[name] for name in compared):
            return None
        return float(sampler.power)


def make_arms(names: list[str], cfg: TrainingConfig) -> list[Arm]:
    """Reads ``arms=``.

    Args:
        names: each a choice of ``sampler=``, overrides such as ``actor_objective=mean``, or both.
        cfg: the configuration of a run.
    """
    arms = [_read(" ".join(name.split()), cfg) for name in names]
    applied = [arm.apply(cfg) for arm in arms]
    same_folder = len({arm.folder for arm in arms}) < len(arms)
    if same_folder or any(one in applied[:i] for i, one in enumerate(applied)):
        raise UserError(f"arms=[{', '.join(names)}] names an arm twice: give each once.")
    if len(arms) < 2:
        raise UserError(
            f"A comparison needs two arms or more, got {counted(len(arms), 'arm')}: use "
            "arms=[fresh,vmf_rank]."
        )
    return arms


def _read(name: str, cfg: TrainingConfig) -> Arm:
    words = name.split()
    choice = words.pop(0) if words and "=" not in words[0] else None
    if choice is None and not words:
        raise UserError("An arm is empty: use a choice of sampler=, such as arms=[fresh,vmf_rank].")
    if choice is not None and own_choice("sampler", choice) is None:
        _check_choice(choice)
    for word in words:
        _check_override(word, name)
    sampler = cfg.sampler
    is_custom = isinstance(sampler, CustomSamplerConfig)
    if choice is None and not is_custom and sampler.name not in choices_of("sampler"):
        raise UserError(
            f"The arm {name!r} has no sampler, and the run's sampler.name={sampler.name} is not a "
            "choice of sampler=: put a sampler before the overrides."
        )
    start = choice or (sampler._target_ if is_custom else sampler.name)
    composed = _composed([f"sampler={start}", *words], name, cfg)
    keys = [word.partition("=")[0].lstrip("+") for word in words]
    values = {key: OmegaConf.select(composed, key) for key in keys}
    chosen: Any = None if choice is None else OmegaConf.to_object(composed.sampler)
    return Arm(name, chosen, values)


def _check_choice(choice: str) -> None:
    choices = choices_of("sampler")
    if choice not in choices:
        near = near_names(choice, choices)
        hint = f" Did you mean: {', '.join(near)}?" if near else ""
        raise UserError(
            f"There is no arm {choice}.{hint} Choices: {', '.join(choices)}, my_package.MySampler."
        )


def _check_override(word: str, name: str) -> None:
    key = word.partition("=")[0].lstrip("+")
    if "=" not in word:
        raise UserError(
            f"The arm {name!r} names a second sampler, {word}: write key=value after the first."
        )
    if key not in _CHANGEABLE and not key.startswith("sampler."):
        raise UserError(
            f"The arm {name!r} changes {key}, which all arms have in common: an arm may change "
            f"the sampler, sampler.*, {', '.join(_CHANGEABLE)}."
        )


def _composed(overrides: list[str], name: str, cfg: TrainingConfig) -> Any:
    config = type(cfg)
    try:
        line = read_command_line(overrides, config)
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose(cfg.algorithm, line.overrides)
    except HydraException as error:
        raise UserError(f"The arm {name!r}: {explain(error, config)}") from error
    except UserError as error:
        raise UserError(f"The arm {name!r}: {error}") from error
