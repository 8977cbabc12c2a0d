"""Hyperparameter search with Optuna: ``hydra/sweeper=optuna``.

Hydra's own plugin cannot resume: it adds ``n_trials`` to the existing ones, never completes an
interrupted trial, and draws the same values again if its sampler has a seed.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import importlib.util
import io
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.utils import JobReturn, setup_globals

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import Config, describe, key
from vmfer_recipes.config.names import folder_name
from vmfer_recipes.config.nested import flat
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.config.validation import validate
from vmfer_recipes.run.directory import MAY_CHANGE
from vmfer_recipes.run.files import replacing
from vmfer_recipes.run.interruption import StoppedError
from vmfer_recipes.run.lock import LockedError, lock
from vmfer_recipes.run.tables import read_columns
from vmfer_recipes.sweep.jobs import Job, check_parts
from vmfer_recipes.sweep.sweeps import RecipeSweeper

__all__ = ["SearchConf", "SearchSweeper", "objective"]


@dataclass
class SearchConf(Config):
    """The keys of ``hydra.sweeper`` in a search."""

    _target_: str = key("hydra_plugins.vmfer_recipes.SearchSweeper", "the sweeper")
    n_trials: int = key(20, "trials of the whole search, with those of earlier starts", low=1)
    n_jobs: int = key(1, "trials at a time; the launcher must run as many", low=1)
    objective: str = key(
        "final", "the number to optimize, from eval.csv", choices=("final", "best", "area")
    )
    metric: str = key("return_mean", "the column of eval.csv")
    direction: str = key("maximize", "whether more is better", choices=("maximize", "minimize"))
    seed: int = key(0, "seed of the sampler of Optuna", low=0)
    params: dict[str, str] | None = key(None, "ranges and values from a configuration file")


class SearchSweeper(RecipeSweeper):
    """Searches ranges of values with Optuna's TPE sampler.

    All files of a search are in one folder: ``trials.db`` is Optuna's, ``trials.csv`` lists the
    trials, and each trial has a run directory. An interrupted search resumes to the same trials as
    an uninterrupted one: the values of a trial depend only on its number and on earlier results.

    Args:
        **settings: the keys of :class:`SearchConf`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = SearchConf(**settings | {"params": None})  # parse() reads them

    def sweep(self, arguments: list[str]) -> None:
        """Runs the missing trials and prints the best one."""
        setup_globals()
        validate(self._settings, "hydra.sweeper.")
        if importlib.util.find_spec("optuna") is None:
            raise UserError("hydra/sweeper=optuna needs another package: pip install '.[search]'.")
        overrides = self.parse(arguments)
        sweeps = [each for each in overrides if each.is_sweep_override()]
        if not sweeps:
            raise UserError(
                "There is nothing to search: give a range such as "
                "'critic_lr=interval(0.0001,0.01)', or several values."
            )
        fixed = {
            each.get_key_element(): each.get_value_element_as_str()
            for each in overrides
            if not each.is_sweep_override()
        }
        ends = {each.get_key_element(): _ends(each) for each in sweeps}
        config = self._check(fixed, ends)
        space = {each.get_key_element(): _distribution(each, config) for each in sweeps}
        identity = repr((_fixed_values(config, fixed, space), space))
        identity += repr([getattr(self._settings, name) for name in _IDENTITY])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        task = "" if "env" in space else f"-{folder_name(config.env.name)}"
        folder = Path(f"runs/search/{config.algorithm}{task}-{digest}")
        if "run_dir" in fixed:
            folder = Path(config.run_dir)
        with lock(folder):
            self._search(_Trials(folder, digest, space, self._settings), fixed, config)

    def _check(self, fixed: dict[str, str], ends: dict[str, list[str]]) -> Any:
        """Checks the values at the ends of each range. Returns one of these configurations."""
        start = {key: values[0] for key, values in ends.items()}
        checked = [start, *(start | {k: v} for k, values in ends.items() for v in values[1:])]
        jobs = [self._compose(fixed | values, list(ends), 0) for values in checked]
        if not isinstance(jobs[0].config, TrainingConfig):
            raise UserError("hydra/sweeper=optuna needs a recipe that writes eval.csv.")
        check_parts(jobs)
        return jobs[0].config

    def _compose(self, values: dict[str, str], swept: list[str], number: int) -> Job:
        return self.compose([f"{key}={value}" for key, value in values.items()], swept, number)

    def _search(self, trials: _Trials, fixed: dict[str, str], config: Any) -> None:
        total = self._settings.n_trials
        directories = [str(trials.run_dir(number)) for number in range(total)]
        self.record([dataclasses.replace(config, run_dir=each) for each in directories])
        while batch := trials.next(total, self._settings.n_jobs):
            jobs = {}
            for number, values in batch.items():
                try:
                    job = self._compose(fixed | values, list(values), number)
                    job.config.run_dir = str(trials.run_dir(number))
                    jobs[number] = job
                except UserError as error:
                    trials.fail(number, error)
            if jobs:
                results = self.launch(list(jobs.values()), min(jobs), total)
                for (number, job), result in zip(jobs.items(), results, strict=True):
                    trials.tell(number, job.config.total_frames, result)
        trials.print_best()


# The keys of the sweeper that make two searches different.
_IDENTITY = ("objective", "metric", "direction", "seed")


class _Trials:
    """The trials of a search, in Optuna's storage.

    Args:
        folder: the folder of the search.
        digest: identifies the search.
        space: the distributions of the values, by key.
        settings: the keys of the sweeper.
    """

    def __init__(
        self, folder: Path, digest: str, space: dict[str, Any], settings: SearchConf
    ) -> None:
        import optuna

        direction: Any = settings.direction
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._folder, self._space, self._settings = folder, space, settings
        self._states = optuna.trial.TrialState
        try:
            self._study = optuna.create_study(
                storage=f"sqlite:///{(folder / 'trials.db').absolute()}",
                study_name="search",
                direction=direction,
                load_if_exists=True,
            )
            known = self._study.user_attrs.get("search", digest)
        except Exception as error:
            raise UserError(
                f"{folder / 'trials.db'} cannot be used ({first_line(error)}): delete it, or "
                "choose another run_dir."
            ) from error
        if known != digest:
            raise UserError(
                f"{folder} holds another search: choose another run_dir, or use the same ranges, "
                "values and settings."
            )
        self._study.set_user_attr("search", digest)

    def __len__(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def run_dir(self, number: int) -> Path:
        """The directory of a trial."""
        return self._folder / f"trial{number:03d}"

    def next(self, total: int, count: int) -> dict[int, dict[str, str]]:
        """The values of the next trials by number: interrupted ones first, then new ones.

        Args:
            total: the number of trials of the search.
            count: the largest number of new trials.
        """
        self._drop_incomplete()
        running = self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,))
        if not running:
            for _ in range(min(count, total - len(self._ended()))):
                running.append(self._ask())
        return {
            trial.number: {key: _written(trial.params[key]) for key in self._space}
            for trial in running
        }

    def _ask(self) -> Any:
        import optuna

        # A sampler of its own, so that a resumed search draws the same values.
        seed = [self._settings.seed, len(self)]
        digest = hashlib.sha256(repr(seed).encode()).digest()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is marked as experimental
            self._study.sampler = optuna.samplers.TPESampler(
                seed=int.from_bytes(digest[:4], "big"), constant_liar=self._settings.n_jobs > 1
            )
        return self._study.ask(self._space)

    def _drop_incomplete(self) -> None:
        """Ends trials that were interrupted while their values were drawn; they are not counted."""
        for trial in self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,)):
            if trial.params.keys() != self._space.keys():
                self._study.tell(trial.number, state=self._states.FAIL)

    def _ended(self) -> list[Any]:
        states = (self._states.COMPLETE, self._states.FAIL)
        trials = self._study.get_trials(deepcopy=False, states=states)
        return [trial for trial in trials if trial.params.keys() == self._space.keys()]

    def tell(self, number: int, total_frames: int, result: JobReturn) -> None:
        """Reads the result of a trial."""
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the run has reported its error
                _ = result.return_value
            settings = self._settings
            value = objective(
                self.run_dir(number), total_frames, settings.objective, settings.metric
            )
            self._study.tell(number, value)
        except StoppedError:
            raise
        except Exception as error:
            self._check_ended(number)
            self.fail(number, error)
        self._write_table()

    def _check_ended(self, number: int) -> None:
        """Raises an error if another process is still running a trial."""
        if self.run_dir(number).exists():
            try:
                lock(self.run_dir(number)).close()
            except LockedError as error:
                raise UserError(
                    f"Another process is running trial {number} of this search: run the same "
                    "command again once it has ended."
                ) from error

    def fail(self, number: int, error: Exception) -> None:
        """Counts a trial as failed. The search continues."""
        print(f"Trial {number} failed ({first_line(error)}).", file=sys.stderr)
        self._study.tell(number, state=self._states.FAIL)

    def _write_table(self) -> None:
        with replacing(self._folder / "trials.csv") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["trial", "state", self._settings.objective, *self._space])
            for trial in self._ended():
                values = [trial.params[key] for key in self._space]
                writer.writerow([trial.number, trial.state.name.lower(), trial.value, *values])

    def print_best(self) -> None:
        """Prints the best trial and how to use its values."""
        ended = self._ended()
        failed = sum(trial.state == self._states.FAIL for trial in ended)
        if failed == len(ended):
            raise UserError(
                f"All {failed} trials of {self._folder} failed: see the messages above, and change "
                "the ranges."
            )
        best, settings = self._study.best_trial, self._settings
        note = f", {failed} failed" if failed else ""
        print(
            f"Best of {len(ended)} trials{note}: trial {best.number} with {settings.objective} "
            f"{settings.metric} {best.value:.1f}."
        )
        print("  values     " + " ".join(f"{key}={best.params[key]}" for key in self._space))
        print(f"  run        {self.run_dir(best.number)}")
        print(f"  all trials {self._folder / 'trials.csv'}")


def objective(run_dir: Path, total_frames: int, kind: str, metric: str) -> float:
    """The number that a search optimizes, from the evaluations of a finished run.

    Args:
        run_dir: the directory of the run.
        total_frames: its environment steps.
        kind: ``final``, the mean of the last tenth; ``best``; or ``area``, the mean of all steps.
        metric: the column of ``eval.csv``.
    """
    from vmfer_recipes.report import runs as scores

    if not (run_dir / "finished").exists():
        raise UserError(f"{run_dir} is not finished.")
    table = read_columns(run_dir / "eval.csv")
    if metric not in table:
        raise UserError(f"eval.csv has no column {metric}: it has {', '.join(table)}.")
    steps, values = table["step"], table[metric]
    if kind == "final":
        value = scores.final(steps, values, total_frames)
    else:
        value = float(values.max()) if kind == "best" else scores.area(steps, values)
    if not math.isfinite(value):
        raise UserError(f"{metric} is {value} in {run_dir / 'eval.csv'}.")
    return value


def _fixed_values(config: Any, fixed: dict[str, str], space: dict[str, Any]) -> list[Any]:
    """The values that all trials share, by dotted key, including those of an experiment."""
    free = tuple(f"{name}." for name in (*MAY_CHANGE, *space))
    values = flat(config.as_dict())
    shared = {name: value for name, value in values.items() if not f"{name}.".startswith(free)}
    # Which keys a swept group has depends on the trial.
    within = {name: value for name, value in fixed.items() if name.split(".")[0] in space}
    return [shared, sorted(within.items())]


def _ends(override: Override) -> list[str]:
    """The smallest and the largest value of a range, or all of several values."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        # Hydra reads them as floats.
        ends = [float(end) for end in (value.start, value.end) if end is not None]
        return [repr(int(end) if end.is_integer() else end) for end in ends]
    return list(override.sweep_string_iterator())


def _distribution(override: Override, config: Any) -> Any:
    """The distribution of Optuna for a range or for several values."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    name, value = override.get_key_element().lstrip("+"), override.value()
    known = {each.name: each for each in describe(type(config))}
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        is_log = "log" in value.tags
        try:
            if name in known and float not in known[name].types:
                return IntDistribution(math.ceil(value.start), math.floor(value.end), log=is_log)
            return FloatDistribution(float(value.start), float(value.end), log=is_log)
        except ValueError as error:
            raise UserError(
                f"{override.input_line} is not a range ({first_line(error)})."
            ) from error
    if isinstance(value, RangeSweep) and not value.shuffle:
        numbers = list(value.range())
        if all(isinstance(each, int) for each in numbers) and len(numbers) > 1:
            step = numbers[1] - numbers[0]
            if step > 0:
                return IntDistribution(numbers[0], numbers[-1], step=step)
    return CategoricalDistribution(list(override.sweep_string_iterator()))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
