"""The arms of a fork: methods that continue from the same checkpoint."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.command_line import read_command_line
from vmfer_recipes.config.errors import UserError, counted
from vmfer_recipes.config.groups import FreshSamplerConfig, VMFSamplerConfig
from vmfer_recipes.config.names import folder_name
from vmfer_recipes.config.plugins import is_custom
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import composed, validate

# Keys for how the actor is updated. Others define what a checkpoint holds, or the problem itself.
_CHANGEABLE = (
    *("actor_objective", "directions", "entropy_gradient", "weighting"),
    *("actor_noise", "actor_noise_clip"),
)


@dataclass(frozen=True)
class Arm:
    """A method that continues from a checkpoint."""

    name: str  # as written, such as ``vmf_power sampler.power=8``
    changes: dict[str, Any]  # new values of a run's configuration, by key

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.name)

    def apply(self, cfg: TrainingConfig) -> TrainingConfig:
        """The configuration of a run with this arm's values."""
        try:
            applied = dataclasses.replace(cfg, keep_checkpoints_at=[], **self.changes)
            validate(applied)
            applied.check()
        except UserError as error:
            raise UserError(f"The arm {self.name!r}: {error}") from error
        return applied

    @property
    def dose(self) -> float | None:
        """The power of the factor in the probabilities of the actor's batch: 1 in the paper.

        It is ``None`` for an arm that also changes another key.
        """
        sampler = self.changes["sampler"]
        if len(self.changes) > 1:
            return None
        if isinstance(sampler, FreshSamplerConfig):
            return 0.0
        is_vmf = isinstance(sampler, VMFSamplerConfig)
        is_plain = is_vmf and sampler == VMFSamplerConfig(name=sampler.name, power=sampler.power)
        return float(sampler.power) if is_plain else None


def make_arms(names: list[str], cfg: TrainingConfig) -> list[Arm]:
    """Reads ``arms=``: choices of ``sampler=``, overrides such as ``tau=0.1``, or both."""
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
    keys = [_changed_key(word, name) for word in words]
    sampler = cfg.sampler
    start = choice or (sampler._target_ if is_custom(sampler) else sampler.name)
    try:
        overrides, _ = read_command_line([f"sampler={start}", *words], type(cfg))
        # A custom recipe has registered its configuration under this name.
        name_of = cfg.algorithm if cfg.algorithm in algorithms() else f"custom_{cfg.algorithm}"
        applied = composed(name_of, overrides, type(cfg))
    except UserError as error:
        raise UserError(f"The arm {name!r}: {error}") from error
    changes = {key: OmegaConf.select(applied, key) for key in keys}
    chosen = applied.sampler
    if choice is None:  # it keeps the other values of the run's sampler
        chosen = OmegaConf.structured(sampler)
        for key in keys:
            if key.startswith("sampler."):
                OmegaConf.update(chosen, key.removeprefix("sampler."), changes[key], force_add=True)
    others = {key: value for key, value in changes.items() if "." not in key}
    return Arm(name, {"sampler": OmegaConf.to_object(chosen), **others})


def _changed_key(word: str, name: str) -> str:
    """The key of an override, if an arm may change it."""
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
    return key
