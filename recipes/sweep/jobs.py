"""The runs of a sweep, composed and validated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import TrainingConfig

__all__ = ["Job", "check_parts", "position_override", "sweep_position"]

# Passed to every run by its launcher, in this process or on another machine.
_TOTAL = "VMFER_RUNS_OF_SWEEP"


@dataclass
class Job:
    """A run of a sweep.

    Attributes:
        overrides: its overrides, one value for each key.
        swept: the keys whose values differ between runs, with the values of this one: names of
            choices, or parsed values.
        lists: the keys for which its configuration has lists of values.
        template: its directory as written, with unresolved references.
        config: its configuration, validated.
    """

    overrides: list[str]
    swept: dict[str, Any]
    lists: list[str]
    template: str = ""
    config: Any = None

    @property
    def values(self) -> dict[str, str]:
        """The values of its overrides, as strings."""
        return {key: value for key, _, value in (each.partition("=") for each in self.overrides)}

    @property
    def arguments(self) -> list[str]:
        """The overrides that start it, with its directory."""
        run_dir = str(self.config.run_dir).replace("\\", "\\\\").replace("'", "\\'")
        return [*self.overrides, f"run_dir='{run_dir}'"]

    @property
    def name(self) -> str:
        """What distinguishes the run: ``batch_size=64 seed=1``."""
        values = self.values
        return " ".join(f"{key}={values[key]}" for key in self.swept or values)

    @contextmanager
    def not_started(self) -> Iterator[None]:
        """A context whose errors name the run."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{error} No run was started; this one is {self.name}.") from error


def check_parts(jobs: list[Job]) -> None:
    """Raises ``UserError`` for an environment or a class of the user that cannot be used.

    Each one is tried once, because a misspelled name must not end a run hours later.
    """
    from vmfer_recipes.config.plugins import import_class, is_custom
    from vmfer_recipes.environments.make import make_environment

    seen: set[Any] = set()
    for job in jobs:
        cfg = job.config
        if not isinstance(cfg, TrainingConfig):
            continue
        part = repr((cfg.env, cfg.replay.has_goals))
        with job.not_started():
            if part not in seen:
                make_environment(cfg.env, cfg.seed, goals=cfg.replay.has_goals).close()
                seen.add(part)
            for group in ("sampler", "replay", "logger"):
                chosen = getattr(cfg, group)
                if is_custom(chosen) and (group, chosen._target_) not in seen:
                    import_class(chosen._target_, object, group)
                    seen.add((group, chosen._target_))


def position_override(total: int) -> str:
    """The override that tells a run the number of runs of its sweep."""
    return f"++hydra.job.env_set.{_TOTAL}='{total}'"


def sweep_position() -> tuple[int, int] | None:
    """The number of the current run in its sweep, from 1, and the number of runs.

    ``None`` outside a sweep.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    job = HydraConfig.get().job
    total = job.env_set.get(_TOTAL)
    return None if total is None else (int(job.num) + 1, int(total))
