"""The oracle: true action gradients of stored states, and what signals are worth."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import torch

from vmfer_recipes.oracle import main as oracle


class Slope(gym.Env):
    """Episodes of one step with the reward -|a - s/2|², whose gradient is known."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.state, {}

    def step(self, action):
        return self.state, -float(((action - self.state / 2) ** 2).sum()), True, False, {}


class Unrepeatable(Slope):
    """Draws from a generator that its seed does not determine."""

    def reset(self, *, seed=None, options=None):
        self.np_random = np.random.default_rng()
        return super().reset()


gym.register("Slope-v0", Slope)
gym.register("Unrepeatable-v0", Unrepeatable)

SOURCE = ("total_frames=150", "keep_checkpoints_at=[120]", "sampler=fresh")


def known_cosine(loss, batch):
    """The cosine between the gradient of the first critic and the true one."""
    with loss.actor_network_params.to_module(loss.actor_network):
        action = loss.actor_network(batch.select("observation"))["action"].detach()
    inputs = batch.select("observation").set("action", action.requires_grad_())
    with loss.qvalue_network_params[0].to_module(loss.qvalue_network):
        loss.qvalue_network(inputs)["state_action_value"].sum().backward()
    true = -2 * (action - batch["observation"] / 2)
    return torch.cosine_similarity(action.grad, true.detach(), -1)


@pytest.fixture
def signals(monkeypatch):
    """A module of the user with signals."""
    module = ModuleType("my_signals")
    module.known_cosine = known_cosine
    module.scalar = lambda loss, batch: torch.zeros(())
    monkeypatch.setitem(sys.modules, "my_signals", module)


def test_true_gradients_equal_known_ones(train, execute, signals, table, tmp_path):
    run, out = tmp_path / "seed0", tmp_path / "oracle"
    train("td3", run, "env.name=Slope-v0", *SOURCE)
    names = "[factor,my_signals.known_cosine]"
    options = ("states=40", "step_size=0.001", "updates=5", "draws=2", "num_eval_episodes=2")
    execute(oracle, f"run={run}", f"signals={names}", f"out={out}", *options)

    states = table(out / "states.csv")
    measured = [float(row["cosine"]) for row in states]
    known = [float(row["my_signals.known_cosine"]) for row in states]
    assert len(states) == 40
    np.testing.assert_allclose(measured, known, atol=0.01)
    by_signal = {row["signal"]: float(row["correlation"]) for row in table(out / "signals.csv")}
    assert by_signal["my_signals.known_cosine"] > 0.99
    arms = {row["arm"] for row in table(out / "updates.csv")}
    assert arms == {"uniform", "oracle", "factor", "my_signals.known_cosine"}


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_all_signals_of_a_mujoco_task(algorithm, train, execute, table, tmp_path):
    run, out = tmp_path / "seed0", tmp_path / "oracle"
    train(algorithm, run, "env=Reacher-v5", *SOURCE)
    execute(oracle, f"run={run}", f"out={out}", "states=10", "horizon=5", "updates=0")
    states = table(out / "states.csv")
    assert all(np.isfinite(float(value)) for row in states for value in row.values())
    assert all(float(row["check"]) > 0.9 for row in states)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Slope-v0", ["signals=[anger]"], "signals=anger is not known"),
        ("Slope-v0", ["signals=[my_signals.nothing]"], "has no function nothing"),
        ("Slope-v0", ["signals=[my_signals.scalar]"], "returned the shape"),
        ("Unrepeatable-v0", [], "does not repeat its episodes"),
    ],
)
def test_mistakes(env, options, message, train, execute, signals, tmp_path, capsys):
    run = tmp_path / "seed0"
    train("td3", run, f"env.name={env}", *SOURCE)
    with pytest.raises(SystemExit):
        execute(oracle, f"run={run}", f"out={tmp_path / 'out'}", "states=10", *options)
    assert message in capsys.readouterr().err
