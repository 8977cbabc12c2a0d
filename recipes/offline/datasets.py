"""Datasets for offline learning: the replay buffer of a run, or files in Minari's format.

No code in the files is executed: checkpoints hold plain tensors, and Minari's files hold arrays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.agent.networks import network_inputs
from vmfer_recipes.agent.replay import DatasetSampler, ReturnSampler
from vmfer_recipes.config.algorithms import SACConfig, TD3BCConfig
from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.saved import read_run
from vmfer_recipes.environments.make import Environment
from vmfer_recipes.offline.minari import MinariFiles
from vmfer_recipes.run.checkpoints import Checkpoints

# Actions that exceed their bounds of ±1 by less than this are rounding errors.
_TOLERANCE = 1e-4

# Arguments that do not change the transitions of an environment.
_INCIDENTAL = ("max_episode_steps", "render_mode")

# Gymnasium removed v2 and v3 of the MuJoCo tasks; v4 uses other MuJoCo bindings.
_REMOVED = re.compile(
    "(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum"
    "|Pusher|Reacher|Swimmer|Walker2d)-v[23]"
)


def fill_replay_buffer(agent: Agent, env: Environment, cfg: TD3BCConfig | SACConfig) -> None:
    """Loads the dataset of a run into its replay buffer and computes normalization statistics.

    Transitions that are collected later are stored after it and do not replace it.
    """
    transitions = load_transitions(cfg.dataset or "", env, cfg.env)
    size = len(transitions)
    needed = size + (0 if agent.collector is None else cfg.total_frames)
    if needed > cfg.replay.buffer_size:
        more = "" if needed == size else f" and the run adds {cfg.total_frames}"
        raise UserError(
            f"dataset={cfg.dataset} has {size} transitions{more}, more than "
            f"replay.buffer_size={cfg.replay.buffer_size}: use replay.buffer_size={needed}."
        )
    agent.observations.learn(transitions)
    agent.buffer.extend(transitions)
    for sampler in (agent.buffer.critic_sampler, agent.buffer.actor_sampler):
        if isinstance(sampler, DatasetSampler):
            sampler.size = size
        if isinstance(sampler, ReturnSampler):
            sampler.learn(episode_returns(transitions))


def episode_returns(transitions: TensorDict) -> Tensor:
    """The return of the episode of each transition.

    An episode also ends where the next row does not start from the observation of this one: the
    rows of a replay buffer may be overwritten, or come from several environments.
    """
    following, reward = transitions["next"], transitions["next", "reward"].squeeze(-1).double()
    is_apart = (following["observation"][:-1] != transitions["observation"][1:]).any(-1)
    ends = following["done"].squeeze(-1).long()
    ends[:-1] |= is_apart.long()
    episode = ends.cumsum(0) - ends
    return torch.zeros_like(reward).index_add(0, episode, reward)[episode]


def load_transitions(dataset: str, env: Environment, cfg: EnvConfig) -> TensorDict:
    """Loads the transitions of a dataset: a run directory, ``minari:<id>``, or a Minari folder.

    Actions are scaled to [-1, 1]. A time limit sets ``done``, but not ``terminated``.
    """
    files = MinariFiles.find(dataset)
    if files is not None:
        columns = _columns_of_minari(files, dataset, env, cfg)
    elif (Path(dataset) / "config.yaml").exists():
        columns = _columns_of_run(Path(dataset), cfg)
    else:
        raise UserError(
            f"dataset={dataset} is not a dataset: give a run directory, such as "
            "runs/td3/Hopper-v4/uniform-uniform/seed0, minari:<id>, or a folder in Minari's format."
        )
    _check(columns, dataset, env, cfg)
    action = columns["action"].clamp(-1, 1)
    return TensorDict({**columns, "action": action}, [len(action)])


def _columns_of_run(run_dir: Path, cfg: EnvConfig) -> dict[Any, Tensor]:
    """The replay buffer in the newest checkpoint of a run."""
    _, env = read_run(run_dir)
    recorded = {key: getattr(env, key) for key in ("name", "backend", "kwargs", "wrappers")}
    _check_environment(recorded, cfg, str(run_dir))
    state = Checkpoints(run_dir / "checkpoint").load()
    if state is None:
        is_finished = (run_dir / "finished").exists()
        cure = "train it again with keep_checkpoint=true" if is_finished else "train it longer"
        raise UserError(
            f"dataset={run_dir} has no checkpoint, which would hold the replay buffer: {cure}."
        )
    try:
        rows = state["parts"]["replay"]["storage"]["rows"]
        now = [piece["tensors"] for piece in rows]
        after = [piece["nested"]["next"]["tensors"] for piece in rows]
        if "desired_goal" in now[0]:
            raise UserError(
                f"dataset={run_dir} is a run with replay=her, whose buffer stores goals separately "
                "from observations: use a run with another replay=."
            )
        columns: dict[Any, Tensor] = {key: _joined(now, key) for key in ("observation", "action")}
        for key in ("observation", "reward", "done", "terminated"):
            columns["next", key] = _joined(after, key)
    except (KeyError, IndexError) as error:
        raise UserError(
            f"The newest checkpoint of {run_dir} holds no replay buffer ({first_line(error)}): use "
            "the directory of another run."
        ) from error
    return columns


def _joined(pieces: list[dict[str, Tensor]], key: str) -> Tensor:
    return torch.cat([piece[key] for piece in pieces])


def _columns_of_minari(
    files: MinariFiles, dataset: str, env: Environment, cfg: EnvConfig
) -> dict[Any, Tensor]:
    """The episodes of a dataset as transitions."""
    _check_environment(files.environment, cfg, dataset)
    episodes = [episode for episode in files.episodes() if len(episode.rewards) > 0]
    if not episodes:
        raise UserError(f"dataset={dataset} holds no transitions: choose another dataset.")
    inputs = [key if isinstance(key, str) else ".".join(key) for key in network_inputs(env)]
    seen = [_flat_observations(episode.observations, inputs, dataset) for episode in episodes]

    def joined(name: str, arrays: Iterable[np.ndarray]) -> np.ndarray:
        try:
            return np.concatenate([array.reshape(len(array), -1) for array in arrays])
        except ValueError as error:
            raise UserError(
                f"dataset={dataset} has episodes whose {name} have different lengths: choose "
                "another dataset."
            ) from error

    def column(name: str) -> np.ndarray:
        return joined(name, (getattr(episode, name) for episode in episodes))

    low, high = env.own_action_space.low, env.own_action_space.high
    actions = column("actions").astype(np.float64)
    if actions.shape[1:] == low.shape:
        actions = 2 * (actions - low) / (high.astype(np.float64) - low) - 1
    terminated = column("terminations").astype(bool)
    arrays: dict[Any, np.ndarray] = {
        "observation": joined("observations", (each[:-1] for each in seen)),
        "action": actions.astype(np.float32),
        ("next", "observation"): joined("observations", (each[1:] for each in seen)),
        ("next", "reward"): column("rewards").astype(np.float32),
        ("next", "done"): terminated | column("truncations").astype(bool),
        ("next", "terminated"): terminated,
    }
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def _flat_observations(
    observations: dict[str, np.ndarray], inputs: list[str], dataset: str
) -> np.ndarray:
    """The observations of an episode as vectors, with entries in the order of the networks."""
    inputs = [""] if "" in observations else inputs
    for name in inputs:
        if name not in observations:
            raise UserError(
                f"dataset={dataset} has the observations {', '.join(observations)}, but the "
                f"environment has {name!r}: use the environment of the dataset."
            )
    parts = [observations[name] for name in inputs]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], -1).astype(np.float32)


def _check_environment(recorded: Mapping[str, Any], cfg: EnvConfig, dataset: str) -> None:
    """Compares the environment of a dataset with that of the run."""
    if _REMOVED.fullmatch(name := recorded.get("name", "")):
        recorded = {**recorded, "name": f"{name[:-1]}4"}
    differing = [
        f"env.{key}={theirs} there, {ours} here"
        for key in recorded
        if (theirs := _comparable(recorded[key])) != (ours := _comparable(getattr(cfg, key)))
    ]
    if differing:
        raise UserError(
            f"dataset={dataset} comes from another environment ({'; '.join(differing)}): use the "
            "same values, or another dataset."
        )


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        used = {key: each for key, each in value.items() if key not in _INCIDENTAL}
        return json.loads(json.dumps(used, default=str))  # tuples become lists
    return value


def _check(columns: dict[Any, Tensor], dataset: str, env: Environment, cfg: EnvConfig) -> None:
    """Checks lengths, sizes and values of transitions."""
    action, space = columns["action"], env.own_action_space
    sizes = {
        "observation": env.observation_spec["observation"].shape,
        "action": env.action_spec.shape,
        "reward": (1,),
    }
    for key, column in columns.items():
        name = key if isinstance(key, str) else " ".join(key)
        last = name.split()[-1]
        shape, dtype = sizes.get(last, (1,)), torch.float32 if last in sizes else torch.bool
        if column.shape != (len(action), *shape) or column.dtype != dtype:
            raise UserError(
                f"dataset={dataset} has {name!r} of shape {list(column.shape)} and type "
                f"{column.dtype}, but {cfg.name} needs {[len(action), *shape]} and {dtype}: use "
                "the environment of the dataset."
            )
        if len(bad := (~column.isfinite()).nonzero()):
            raise UserError(
                f"dataset={dataset} has NaN or infinity in {name!r} of transition {bad[0, 0]}: "
                "remove that episode."
            )
    if len(outside := (action.abs() > 1 + _TOLERANCE).nonzero()):
        row = int(outside[0, 0])
        own = space.low + (action[row].double().numpy() + 1) / 2 * (space.high - space.low)
        raise UserError(
            f"dataset={dataset} has the action {np.round(own, 6).tolist()} in transition {row}, "
            f"outside the bounds {space.low.tolist()} to {space.high.tolist()} of {cfg.name}: clip "
            "the actions of the dataset, as the environment did."
        )
