"""Evaluation: whole episodes without exploration; videos; and the results of a finished run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer.networks import evaluating
from vmfer_recipes.config.errors import UserError, counted, first_line
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.environments.make import Environment, make_environment, tensors
from vmfer_recipes.environments.state import environment_state, load_environment_state
from vmfer_recipes.offline.scores import reference_returns
from vmfer_recipes.run.interruption import SignalError
from vmfer_recipes.run.tables import Evaluation


class Episode(NamedTuple):
    """The result of one episode."""

    total: float
    length: int
    success: float | None


@torch.no_grad()
def play_episode(
    policy: TensorDictModuleBase | None,
    simulator: gym.Env,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
    max_steps: int = 10_000,
) -> Episode:
    """Plays one episode without exploration; the policy ``None`` acts at random.

    The Gymnasium environment is stepped directly: an episode has a thousand steps, and none is
    stored. ``on_step`` is called after the reset and after every step.
    """
    observation, info = simulator.reset(seed=seed)
    on_step()
    total, length, is_over = 0.0, 0, False
    while not is_over:
        if length == max_steps:
            raise UserError(
                f"an episode did not end within max_eval_steps={max_steps}: give the task a time "
                "limit, such as env.kwargs.max_episode_steps=1000, or raise max_eval_steps."
            )
        action = simulator.action_space.sample() if policy is None else _act(policy, observation)
        observation, reward, terminated, truncated, info = simulator.step(action)
        total, length, is_over = total + float(reward), length + 1, terminated or truncated
        on_step()
    success = info.get("is_success", info.get("success"))
    return Episode(total, length, None if success is None else float(success))


def _act(policy: TensorDictModuleBase, observation: Any) -> np.ndarray:
    inputs = tensors(observation)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        if type(policy) is TensorDictModule:  # a function of tensors needs no TensorDict
            action = policy.module(*(inputs[key] for key in policy.in_keys))
        else:
            action = policy(TensorDict(inputs))["action"]
    return action.numpy(force=True)


def evaluate(
    policy: TensorDictModuleBase | None,
    env: Environment,
    episodes: int,
    seed: int,
    on_episode: Callable[[int, int], None] = lambda number, episodes: None,
    on_step: Callable[[], None] = lambda: None,
    max_steps: int = 10_000,
) -> Evaluation:
    """Plays whole episodes without exploration, and with the policy in evaluation mode.

    The seed is that of the first episode, incremented for each further one. Every evaluation uses
    the same seeds, so that differences between evaluations come from the policy. ``on_episode`` is
    called before each episode with its number, from 1, and ``episodes``, and with 0 at the end.
    If a signal stops the evaluation, it changes nothing, because the resumed run repeats it.
    """
    before, generators = environment_state(env), GlobalRNGState().state_dict()
    env.simulator.action_space.seed(seed)
    played = []
    try:
        with nullcontext() if policy is None else evaluating(policy):
            for number in range(episodes):
                on_episode(number + 1, episodes)
                episode = play_episode(policy, env.simulator, seed + number, on_step, max_steps)
                played.append(episode)
    except SignalError:
        load_environment_state(env, before)
        GlobalRNGState().load_state_dict(generators)
        raise
    on_episode(0, episodes)
    successes = [episode.success for episode in played if episode.success is not None]
    return Evaluation(
        float(np.mean([episode.total for episode in played])),
        float(np.std([episode.total for episode in played])),
        float(np.mean([episode.length for episode in played])),
        float(np.mean(successes)) if successes else None,
    )


def record_video(
    policy: TensorDictModuleBase,
    cfg: EnvConfig,
    seed: int,
    path: Path,
    goals: bool = False,
    max_steps: int = 10_000,
) -> Path:
    """Records one episode as an mp4 file."""
    # MuJoCo selects its renderer at the first import: use EGL without a display.
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    unfinished = path.with_stem(f"{path.stem}.unfinished")  # the ending tells the format
    try:
        import imageio.v3 as imageio

        simulator = make_environment(cfg, seed, goals, render_mode="rgb_array").simulator
        with imageio.imopen(unfinished, "w", plugin="pyav") as video:
            video.init_video_stream("h264", fps=simulator.metadata.get("render_fps", 30))

            # Encoded one by one: a long episode does not fit into memory.
            def add_frame() -> None:
                video.write_frame(np.asarray(simulator.render()))

            play_episode(policy, simulator, seed, add_frame, max_steps)
        unfinished.replace(path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"No video could be recorded ({type(error).__name__}: {first_line(error)}). It "
            "needs a GL backend and an encoder: `apt-get install libegl1 libosmesa6`, then "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa, and `pip install imageio av`."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


class Solved(NamedTuple):
    """The return or success rate at which a task counts as solved."""

    level: float
    is_success_rate: bool

    def includes(self, result: Evaluation) -> bool:
        """Whether the result of an evaluation reaches the level."""
        score = result.success_rate if self.is_success_rate else result.return_mean
        return score is not None and score >= self.level


def solved_at(cfg: Any, reports_success: bool) -> Solved | None:
    """The level of ``solved_at``, or else the reward threshold that Gymnasium registers.

    The threshold is that of the task as registered: it does not hold with other arguments or
    wrappers. If the task reports success, the level is a success rate.
    """
    if cfg.solved_at is not None:
        return Solved(cfg.solved_at, reports_success)
    spec = gym.registry.get(cfg.env.name)
    is_changed = cfg.env.kwargs or cfg.env.wrappers
    if is_changed or reports_success or spec is None or spec.reward_threshold is None:
        return None
    return Solved(float(spec.reward_threshold), False)


def print_results(
    cfg: TrainingConfig,
    run_dir: Path,
    trained: Evaluation,
    at_random: Evaluation | None,
    picture: Path | None,
    checkpoint: Path | None,
) -> None:
    """Prints the last evaluation of a run, that of the random policy, and its files."""
    if at_random is not None:
        episodes = counted(cfg.num_eval_episodes, "episode")
        line = f"Return {trained} over {episodes}; the random policy gets {at_random}."
        if solved := solved_at(cfg, trained.success_rate is not None):
            what = "success rate" if solved.is_success_rate else "return"
            is_solved = "Solved" if solved.includes(trained) else "Not solved"
            line = f"{is_solved} (at {what} {solved.level:g}): {line}"
        print(line)
    if reference := reference_returns(getattr(cfg, "dataset", None), cfg.env):
        print(reference.describe(trained))
    for label, file in {
        "learning curve": picture,
        "evaluations": run_dir / "eval.csv",
        "training metrics": run_dir / "train.csv",
        "policy": run_dir / "policy.pt",
        "best policy": run_dir / "policy_best.pt",
        "checkpoint": checkpoint,
    }.items():
        if file is not None:
            # The folder also holds the transitions of the checkpoint.
            size = sum(each.stat().st_size for each in file.parent.rglob("*.pt")) / 1e6
            use = f" ({size:,.1f} MB, to train longer)" if file == checkpoint else ""
            print(f"  {label:<17} {file}{use}")
