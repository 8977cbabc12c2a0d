"""True action gradients of stored states, the signals that may predict them, and their value.

A run is deterministic, so its environment passes through the same states again when it is given
the stored actions. From each of these states, rollouts with changed actions measure the gradient
of the true value of the current policy by central differences.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu, rankdata, spearmanr, ttest_1samp
from tensordict import TensorDict, TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from tqdm import tqdm

from torchrl_vmfer.critics import SCORES, Critics
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.agent.signals import find_score
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.environments.dm_control import ControlSuite
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import environment_state, load_environment_state
from vmfer_recipes.fork.sources import Source
from vmfer_recipes.fork.start import load_source, load_source_parts, recipe_of
from vmfer_recipes.run.evaluation import evaluate
from vmfer_recipes.run.session import EVALUATION_SEED

_PARTS = ("observations", "loss", "actor_optimizer", "replay")
_REVERSED = ("td_error", "value_gap", "on_policy_distance")  # smaller values may be better


def measure(options: Any, sources: Sequence[Source]) -> str:
    """Measures checkpoints, writes the tables, and returns their summary."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    states, updates = [], []
    for source in sources:
        agent = _restored(source)
        table, batch = _measured_states(agent, source, options)
        states.append(table)
        if options.updates:
            updates.append(_updated(agent, source, table, batch, options))
    tables = {"states": pd.concat(states, ignore_index=True)}
    tables["signals"] = _predictions(tables["states"], options.signals)
    text = [_summary(tables["states"])]
    text += [_table(tables["signals"], "signal", ("auroc", "correlation"))]
    if updates:
        tables["updates"] = pd.concat(updates, ignore_index=True)
        text += [_table(tables["updates"], "arm", ("difference",))]
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    (out / "oracle.md").write_text("\n\n".join(text) + "\n")
    return "\n\n".join(text)


def _restored(source: Source) -> Agent:
    """The agent of a checkpoint. Its environment is at the start of its run."""
    cfg = source.cfg
    torch.set_num_threads(cfg.threads)
    torch.manual_seed(cfg.seed)
    agent = recipe_of(cfg).make_agent(cfg)
    components = {name: agent.components()[name] for name in _PARTS}
    load_source_parts(components, load_source(source)["parts"], source)
    if agent.buffer.write_count > len(agent.buffer) or cfg.num_envs > 1:
        raise UserError(
            f"{source.run_dir} does not hold its whole history in one sequence: use a run with "
            "num_envs=1 and replay.buffer_size of at least its steps."
        )
    return agent


def _visited(agent: Agent, slots: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Replays the stored actions. Yields the state of the environment at some slots, in order."""
    simulator, rows = agent.env.simulator, agent.buffer[: slots[-1] + 1]
    observations, actions = rows["observation"].numpy(), rows["action"].numpy()
    observation = agent.collector.state_dict()["seen"][0]["observation"].numpy()
    for slot, (expected, action) in enumerate(zip(observations, actions, strict=True)):
        if not np.array_equal(observation, expected):
            raise UserError(
                f"The environment does not repeat its episodes (row {slot} of the replay buffer "
                "differs): true gradients need an environment that depends only on its seed."
            )
        if slot in slots:
            state = environment_state(agent.env)
            if "unsaved" in state:
                raise UserError(f"The environment holds {state['unsaved']}: it cannot be saved.")
            yield copy.deepcopy(state)
        observation, _, terminated, truncated, _ = simulator.step(action)
        if terminated or truncated:
            observation = simulator.reset()[0]


class _Rollouts:
    """Returns of the current policy after changed actions."""

    def __init__(self, agent: Agent, horizon: int, gamma: float) -> None:
        self._agent, self._horizon, self._gamma = agent, horizon, gamma
        self._simulator = agent.env.simulator
        # Gymnasium's time limits are ignored, as by the critics.
        self._has_end = isinstance(self._simulator.unwrapped, ControlSuite)

    def gradient(self, state: dict[str, Any], action: np.ndarray, size: float) -> np.ndarray:
        """The gradient of the true value by central differences within the bounds."""
        gradient = np.zeros(len(action))
        for i in range(len(action)):
            low, high = action.copy(), action.copy()
            low[i], high[i] = max(action[i] - size, -1), min(action[i] + size, 1)
            difference = self._value(state, high) - self._value(state, low)
            gradient[i] = difference / (high[i] - low[i])
        return gradient

    def _value(self, state: dict[str, Any], action: np.ndarray) -> float:
        load_environment_state(self._agent.env, state)
        value, weight = 0.0, 1.0
        for _ in range(self._horizon):
            observation, reward, terminated, truncated, _ = self._simulator.step(action)
            value, weight = value + weight * float(reward), weight * self._gamma
            if terminated or (truncated and self._has_end):
                break
            action = self.act(observation)
        return value

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The action of the policy without noise."""
        if self._agent.compiled is not None:
            return self._agent.compiled.act(np.asarray(observation, np.float32))
        inputs = {"observation": torch.as_tensor(observation, dtype=torch.float32)}
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return self._agent.policy(TensorDict(inputs))["action"].numpy()


def _measured_states(
    agent: Agent, source: Source, options: Any
) -> tuple[pd.DataFrame, TensorDictBase]:
    """A row for each state: the true cosine of the critics' direction, and all signals."""
    random = np.random.default_rng([options.seed, source.seed, source.step])
    count = len(agent.buffer)
    slots = np.sort(random.choice(count, min(options.states, count), replace=False))
    index = torch.from_numpy(slots)
    batch = agent.observations(agent.buffer[index].set("index", index))
    critics = Critics(agent.loss, batch)
    actions = critics.action.numpy()
    rollouts = _Rollouts(agent, options.horizon, source.cfg.gamma)
    states = list(_visited(agent, slots.tolist()))
    sizes = (options.step_size, options.step_size / 2)
    bar = tqdm(states, f"seed {source.seed}, step {source.step:,}", disable=None)
    pairs = zip(bar, actions, strict=True)
    true = np.array([[rollouts.gradient(*pair, size) for size in sizes] for pair in pairs])
    estimate = -critics.followed.numpy()
    table = pd.DataFrame({"seed": source.seed, "at": source.step, "slot": slots})
    table["cosine"] = _cosine(estimate, true[:, 1])
    table["check"] = _cosine(true[:, 0], true[:, 1])
    for name in options.signals:
        if name == "age":
            values = -index
        elif name in SCORES:
            values = SCORES[name](critics) * (-1 if name in _REVERSED else 1)
        else:
            values = find_score(name, "signals")(agent.loss, batch)
        table[name] = np.asarray(values, np.float64)
    return table, batch


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(norms, 1e-30)


def _updated(
    agent: Agent, source: Source, table: pd.DataFrame, batch: TensorDictBase, options: Any
) -> pd.DataFrame:
    """Returns after updates of the actor only, on the measured states.

    The oracle draws them by the true cosine. Every signal has the same probabilities, assigned in
    its order: the arms differ only in which states they prefer.
    """
    cfg, optimizer = source.cfg, agent.actor_optimizer
    params = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    start = copy.deepcopy([tensor.data for tensor in params]), copy.deepcopy(optimizer.state_dict())
    env, seed = make_environment(cfg.env, cfg.seed), EVALUATION_SEED + cfg.seed
    levels = np.sort(np.exp((1 + table["cosine"]) / 2) ** options.power)
    scores = table[["cosine", *options.signals]].rename(columns={"cosine": "oracle"})
    arms = {"uniform": np.ones(len(table))}
    arms |= {arm: levels[rankdata(scores[arm], "ordinal") - 1] for arm in scores}
    rows = []
    for draw in range(options.draws):
        for arm, weights in arms.items():
            limits = torch.from_numpy(np.cumsum(weights) / weights.sum())
            for tensor, value in zip(params, start[0], strict=True):
                tensor.data.copy_(value)
            optimizer.load_state_dict(copy.deepcopy(start[1]))
            torch.manual_seed(draw)
            for _ in range(options.updates):
                numbers = torch.rand(cfg.batch_size, dtype=torch.float64)
                chosen = torch.searchsorted(limits, numbers).clamp_max(len(table) - 1)
                loss = agent.loss.actor_loss(batch[chosen])[0]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            result = evaluate(
                agent.policy, env, options.num_eval_episodes, seed, max_steps=cfg.max_eval_steps
            )
            rows.append((source.seed, source.step, draw, arm, result.return_mean))
    found = pd.DataFrame(rows, columns=["seed", "at", "draw", "arm", "return"])
    uniform = found[found["arm"] == "uniform"].set_index("draw")["return"]
    found["difference"] = found["return"] - found["draw"].map(uniform)
    return found


def _predictions(states: pd.DataFrame, signals: Sequence[str]) -> pd.DataFrame:
    """How well each signal predicts, in each checkpoint, that the critics' direction is right."""
    rows = []
    for (seed, at), group in states.groupby(["seed", "at"]):
        is_right = group["cosine"] > 0
        for name in signals:
            right, wrong = group.loc[is_right, name], group.loc[~is_right, name]
            pairs = len(right) * len(wrong)
            auroc = mannwhitneyu(right, wrong).statistic / pairs if pairs else np.nan
            rows.append((seed, at, name, auroc, spearmanr(group[name], group["cosine"]).statistic))
    return pd.DataFrame(rows, columns=["seed", "at", "signal", "auroc", "correlation"])


def _summary(states: pd.DataFrame) -> str:
    return (
        f"{len(states):,} states of {states.groupby(['seed', 'at']).ngroups} checkpoints. The "
        f"critics' direction is right (cosine > 0) in {(states['cosine'] > 0).mean():.0%}; the "
        f"mean cosine is {states['cosine'].mean():.2f}. Differences with two step sizes agree "
        f"(cosine > 0.9) in {(states['check'] > 0.9).mean():.0%} of the states."
    )


def _table(rows: pd.DataFrame, by: str, columns: Sequence[str]) -> str:
    """The means over seeds, with 95 % intervals of Student's t."""
    lines = [f"| {by} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, group in rows.groupby(by, sort=False):
        cells = [_interval(group.groupby("seed")[column].mean().dropna()) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(values: pd.Series) -> str:
    if len(values) < 2:
        return f"{values.mean():.3f}"
    low, high = ttest_1samp(values, 0).confidence_interval()
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"
