"""Searches for good hyperparameters with Optuna; each trial is an ordinary run.

python recipes/tune.py td3 env=Hopper-v4 'critic_lr=tag(log,interval(1e-4,1e-2))' trials=20
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass, replace
from importlib import import_module, util
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override

from vmfer_recipes.config.command_line import read_command_line, read_options
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.keys import Config, describe, key
from vmfer_recipes.config.launch import Recipe, load_recipe, program
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.report.runs import objective
from vmfer_recipes.run.directory import identity
from vmfer_recipes.run.files import lock
from vmfer_recipes.run.tables import Evaluation, Table

optuna: Any = import_module("optuna") if util.find_spec("optuna") else None


@dataclass
class TuneConfig(Config):
    """Trains one run per trial, with values that Optuna chooses from the given ranges."""

    trials: int = key(20, "trials of the whole search, with those of earlier starts", low=1)
    objective: str = key("final", "what to optimize", choices=("final", "best", "area"))
    metric: str = key("return_mean", "column of eval.csv", choices=Evaluation._fields)
    direction: str = key("maximize", "whether more is better", choices=("maximize", "minimize"))
    study_seed: int = key(0, "seed of Optuna's sampler", low=0, high=10_000)


@program
def main() -> None:
    """Runs the trials that are missing and prints the best one."""
    names = ("--help", "-h", *(f"{each.name}=" for each in describe(TuneConfig)))
    mine = [each for each in sys.argv[1:] if each.startswith(names)]
    options = read_options("python recipes/tune.py <algorithm> [key=range ...]", mine, TuneConfig)
    if optuna is None:
        raise UserError("A search needs another package: pip install '.[search]'.")
    name, *given = [each for each in sys.argv[1:] if each not in mine] or [""]
    recipe = load_recipe(name)
    fixed, space = _read(given, recipe)
    cfg = _check(fixed, space, recipe)
    search = repr((identity(cfg), cfg.total_frames, space, replace(options, trials=1)))
    digest = hashlib.sha256(search.encode()).hexdigest()[:8]
    is_named = any(each.startswith("run_dir=") for each in fixed)
    folder = Path(cfg.run_dir if is_named else f"runs/search/{name}-{digest}")
    with lock(folder):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = f"sqlite:///{(folder / 'trials.db').absolute()}"
        if optuna.get_all_study_names(storage) not in ([], [digest]):
            raise UserError(f"{folder} holds another search: choose another run_dir.")
        goal = {"direction": options.direction, "load_if_exists": True}
        study = optuna.create_study(storage=storage, study_name=digest, **goal)
        for number in range(len(study.trials), options.trials):
            # Only completed trials are stored. The values of a trial depend on its number and on
            # earlier trials, so an interrupted one is drawn again and resumes in its directory.
            sampler = optuna.samplers.TPESampler(seed=options.study_seed * 100_000 + number)
            draw = optuna.create_study(sampler=sampler, direction=options.direction)
            draw.add_trials(study.trials)
            values, run_dir = draw.ask(space).params, folder / f"trial{number:03d}"
            print(f"Trial {number}: {' '.join(_written(values))}", file=sys.stderr)
            sys.argv[1:] = [*fixed, *_written(values), f"run_dir='{run_dir}'"]
            trial = {"params": values, "distributions": space, **_result(recipe, run_dir, options)}
            study.add_trial(optuna.trial.create_trial(**trial))
            column = options.objective
            rows = [
                {"trial": t.number, "state": t.state.name.lower(), column: t.value, **t.params}
                for t in study.trials
            ]
            Table(folder / "trials.csv").rewrite(rows, ["trial", "state", column, *space])
    failed = sum(each.value is None for each in study.trials)
    if failed == len(study.trials):
        raise UserError(f"All {failed} trials of {folder} failed: change the ranges.")
    best, note = study.best_trial, f", {failed} failed" if failed else ""
    score = f"{options.objective} {options.metric} {best.value:.1f}"
    print(f"Best of {len(study.trials)} trials{note}: trial {best.number} with {score}.")
    print(f"  values     {' '.join(_written({name: best.params[name] for name in space}))}")
    print(f"  run        {folder / f'trial{best.number:03d}'}")
    print(f"  all trials {folder / 'trials.csv'}")


def _read(given: list[str], recipe: Recipe) -> tuple[list[str], dict[str, Any]]:
    """The fixed arguments of a search, and its ranges."""
    overrides, _ = read_command_line(["-m", *given], recipe.config)
    fixed, space = [], {}
    for each in OverridesParser.create().parse_overrides(overrides):
        if each.is_sweep_override():
            space[each.get_key_element()] = _distribution(each, recipe.config)
        else:
            fixed.append(str(each.input_line))
    return fixed, space


def _distribution(override: Override, config: type[Config]) -> Any:
    value, kinds = override.value(), optuna.distributions
    if not isinstance(value, IntervalSweep):
        return kinds.CategoricalDistribution(list(override.sweep_string_iterator()))
    types = {each.name: each.types for each in describe(config)}
    low, high, is_log = float(value.start or 0), float(value.end or 0), "log" in value.tags
    try:
        if float in types.get(override.get_key_element().lstrip("+"), (float,)):
            return kinds.FloatDistribution(low, high, log=is_log)
        return kinds.IntDistribution(math.ceil(low), math.floor(high), log=is_log)
    except ValueError as error:
        raise UserError(f"{override.input_line} is not a range ({first_line(error)}).") from error


def _check(fixed: list[str], space: dict[str, Any], recipe: Recipe) -> TrainingConfig:
    """Checks all choices and the ends of all ranges. Returns the configuration of the first."""
    ends = {n: getattr(d, "choices", None) or (d.low, d.high) for n, d in space.items()}
    first = {name: values[0] for name, values in ends.items()}
    for changed in [*({name: value} for name in ends for value in ends[name]), {}]:
        cfg = recipe.compose([*fixed, *_written(first | changed)])
    if not (space and isinstance(cfg, TrainingConfig)):
        raise UserError("Give a training recipe and a range, such as td3 'tau=interval(0,0.1)'.")
    return cfg


def _written(values: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def _result(recipe: Recipe, run_dir: Path, options: TuneConfig) -> dict[str, Any]:
    """Runs a trial. Trials that fail or whose objective is not finite also count."""
    try:
        recipe()
        value = objective(run_dir, options.metric, options.objective, options.direction)
        if math.isfinite(value):
            return {"value": value}
    except SystemExit as end:
        if end.code != 2:  # Ctrl-C or SIGTERM
            raise
    return {"state": optuna.trial.TrialState.FAIL}


if __name__ == "__main__":
    main()
