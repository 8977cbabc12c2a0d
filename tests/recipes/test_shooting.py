"""The toy experiments: the environment, the three selection methods, and the program."""

from __future__ import annotations

import csv
import math
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hydra import compose, initialize_config_module
from matplotlib import image

from vmfer_recipes import shooting
from vmfer_recipes.config.training import to_config
from vmfer_recipes.toy.agents import Critics, Shots, anywhere
from vmfer_recipes.toy.environment import ACTION_BOUND, OPTIMAL_ACTION, reward
from vmfer_recipes.toy.networks import Networks
from vmfer_recipes.toy.pictures import draw_trajectories
from vmfer_recipes.toy.record import Difference, mean_interval
from vmfer_recipes.toy.resampling import (
    WAYS,
    Candidates,
    angle,
    make_ways,
    oracle,
    uncertainty,
    uniform,
)
from vmfer_recipes.toy.simple_example import FixedCritics, simple_example, square_grid

ROOT = Path(__file__).parents[2]
SMALL = ("seeds=3", "updates=20", "hidden=[16,16]", "batch_size=32", "log_interval=5")


def configuration(*overrides):
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return to_config(compose("shooting", [*SMALL, *overrides]))


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


@pytest.fixture
def candidates():
    """Gradients of two critics for five seeds, at all angles."""
    torch.manual_seed(0)
    return Candidates(torch.rand(5, 2) * 2 - 1, torch.randn(2, 5, 64, 2))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts the program in this process, in an empty directory."""

    def run(*overrides):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["shooting.py", *SMALL, *overrides])
        shooting.main()

    return run


@pytest.fixture
def learned(monkeypatch):
    """The actions of all updates of the critics, in order: ``[seed, batch, 2]`` each."""
    batches = []
    update = Critics.update

    def watched(self, batch):
        batches.append(batch[0].clone())
        update(self, batch)

    monkeypatch.setattr(Critics, "update", watched)
    return batches


# --- the environment ---


def test_the_environment_passes_gymnasiums_check():
    check_env(gym.make("Shooting-v0").unwrapped)


@pytest.mark.parametrize("action", [(-0.5, -0.5), (0.5, -0.5), (1.0, 1.0), (-0.2, 0.3)])
def test_an_episode_is_one_shot_rewarded_by_its_distance(action):
    env = gym.make("Shooting-v0")
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation, np.float32([-0.5, -0.5]))
    _, value, terminated, truncated, _ = env.step(np.float32(action))
    assert value == pytest.approx(-math.dist(action, (-0.5, -0.5)), abs=1e-6)
    assert (terminated, truncated) == (True, False)


def test_critics_learn_from_the_rewards_of_the_environment():
    shots = Shots(partial(anywhere, generators(2)), 1, 4, generators(2))
    shots.fire(Fraction(1))
    actions, rewards = shots.sample(10)
    env = gym.make("Shooting-v0")
    for action, value in zip(actions.flatten(0, 2), rewards.flatten(), strict=True):
        env.reset()
        assert env.step(action.numpy())[1] == pytest.approx(value.item(), abs=1e-6)


# --- networks in batches ---


def test_the_start_of_a_seed_does_not_depend_on_the_number_of_seeds():
    few, many = (Networks(2, [4, 8, 1], generators(count)) for count in (2, 5))
    inputs = torch.randn(7, 4)
    torch.testing.assert_close(few(inputs), many(inputs)[:, :2])


def test_batched_networks_equal_those_of_torch():
    networks = Networks(2, [4, 8, 1], generators(3))
    inputs = torch.randn(2, 3, 7, 4)
    outputs = networks(inputs)
    for group in range(2):
        for seed in range(3):
            own = [p.unflatten(0, (2, 3))[group, seed] for p in networks.parameters]
            hidden = torch.nn.functional.linear(inputs[group, seed], own[0].T, own[1][0]).relu()
            expected = torch.nn.functional.linear(hidden, own[2].T, own[3][0])
            torch.testing.assert_close(outputs[group, seed], expected)


def test_gradients_are_those_of_the_loss_of_each_critic():
    critics = Critics([8], 0.001, generators(3))
    actions = torch.rand(3, 5, 2, requires_grad=True)
    for critic, gradients in enumerate(critics.gradients(actions)):
        loss = -critics.values(actions)[critic].sum()
        torch.testing.assert_close(gradients, torch.autograd.grad(loss, actions)[0])


# --- the three selection methods ---


def test_angles_are_those_of_the_scalar_product(candidates):
    first, second = candidates.gradients.double()
    cosine = (first * second).sum(-1) / (first.norm(dim=-1) * second.norm(dim=-1))
    expected = torch.rad2deg(cosine.acos()).float()
    torch.testing.assert_close(angle(candidates.gradients), expected, atol=0.1, rtol=0)


def test_uniform_uses_every_transition(candidates):
    assert uniform(candidates).all()


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_uncertainty_uses_the_smallest_angles_of_each_seed(candidates, share):
    used = uncertainty(candidates, low_uncertainty=share)
    assert (used.sum(-1) == share * 64).all()
    angles = angle(candidates.gradients)
    for seed in range(5):
        assert angles[seed][used[seed]].max() <= angles[seed][~used[seed]].min()


def test_uncertainty_may_also_exclude_angles_above_a_limit(candidates):
    used = uncertainty(candidates, low_uncertainty=1.0, largest_angle=40.0)
    assert used.equal(angle(candidates.gradients) <= 40.0)


def test_oracle_uses_gradients_that_bring_the_action_closer(candidates):
    used = oracle(candidates)
    assert used.any()
    assert not used.all()
    # A step so short that the path is straight.
    action = candidates.action.double()[:, None]
    moved = action - 1e-6 * candidates.gradients[0].double()
    assert used.equal(reward(moved) > reward(action))


def test_the_three_methods_use_the_same_critics(monkeypatch):
    """The selection does not affect the critics, which are bitwise equal for all methods."""
    seen = {}

    def run(name, ways):
        histories = seen.setdefault(name, [])
        update = Critics.update

        def watched(self, batch):
            update(self, batch)
            histories.append([p.detach().clone() for p in self.networks.parameters])

        with monkeypatch.context() as patch:
            patch.setattr(Critics, "update", watched)
            patch.setattr(shooting, "make_ways", lambda *_: ways)
            return shooting.compare(configuration())

    ways = make_ways(0.5, 180)
    together = run("together", ways)
    for index, name in enumerate(WAYS):
        alone = run(name, dict.fromkeys(WAYS, ways[name]))
        np.testing.assert_array_equal(alone.actions[:, index], together.actions[:, index])
        for step, expected in zip(seen[name], seen["together"], strict=True):
            assert all(map(torch.equal, step, expected))
    assert not np.array_equal(together.actions[-1, 0], together.actions[-1, 1])


def test_the_three_methods_start_from_the_same_policy():
    actions = shooting.compare(configuration("updates=1")).actions[0]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])


# --- the critics ---


def test_own_critics_learn_from_the_shots_of_their_actor(learned):
    record = shooting.compare(configuration("critics=own", "exploration_noise=0", "policy_delay=1"))
    for index, actions in enumerate(learned):
        step, way = divmod(index, len(WAYS))
        fired = torch.from_numpy(record.actions[: step + 1, way])  # [shot, seed, 2]
        for seed in range(3):
            assert torch.isin(actions[seed, :, 0], fired[:, seed, 0]).all()
            assert torch.isin(actions[seed, :, 1], fired[:, seed, 1]).all()
    assert not learned[-1].equal(learned[-2])  # the actors differ by now


def test_an_actor_with_own_critics_does_not_depend_on_the_other_methods(monkeypatch):
    ways = make_ways(0.5, 180)
    together = shooting.compare(configuration("critics=own")).actions
    for index, name in enumerate(WAYS):
        monkeypatch.setattr(
            shooting, "make_ways", lambda *_, way=ways[name]: dict.fromkeys(WAYS, way)
        )
        alone = shooting.compare(configuration("critics=own")).actions
        np.testing.assert_array_equal(alone[:, index], together[:, index])


def test_exploration_noise_is_the_spread_of_the_shots_and_the_same_for_all_methods(learned):
    """The actors do not move, so everything else about the three methods is equal."""
    settings = ("critics=own", "actor_lr=0", "exploration_noise=0.05", "shots=400", "updates=2")
    record = shooting.compare(configuration(*settings, "batch_size=1024"))
    shots = learned[-1] - torch.from_numpy(record.actions[0, 0])[:, None]
    assert shots.mean().item() == pytest.approx(0, abs=0.01)
    assert shots.std().item() == pytest.approx(0.05, rel=0.1)
    assert learned[-1].equal(learned[-2])
    assert learned[-1].equal(learned[-3])


@pytest.mark.parametrize("critics", ["shared", "own"])
@pytest.mark.parametrize(("shots", "total"), [("4", 4), ("null", 20), ("60", 60)])
def test_the_shots_are_spread_evenly_over_the_updates_of_the_critics(
    learned, critics, shots, total
):
    settings = (f"critics={critics}", f"shots={shots}", "policy_delay=1", "batch_size=2048")
    shooting.compare(configuration(*settings))
    every = len(learned) // 20
    for step, actions in enumerate(learned[::every], start=1):
        assert len(actions[0].unique(dim=0)) == math.ceil(step / 20 * total)


@pytest.mark.parametrize("peak", [-1, 0.5])
def test_fixed_critics_lead_to_the_peak_of_the_first_one_and_do_not_learn(learned, peak):
    settings = ("critics=fixed", "example_noise=0", "actor_lr=0.02", "updates=100")
    record = shooting.compare(configuration(*settings, f"first_peak={peak}"))
    np.testing.assert_allclose(record.actions[-1, 0], peak, atol=0.07)
    assert learned == []
    first, last = record.snapshots[0], record.snapshots[-1]
    assert first.values.equal(last.values)
    actions = square_grid(ACTION_BOUND, first.angles.shape[0]).flatten(0, 1)
    for values, expected in zip(first.values, (peak, 1), strict=True):
        best = actions[values.argmax()]
        torch.testing.assert_close(best, torch.full((2,), float(expected)))


def test_fixed_critics_differ_between_seeds_by_their_noise():
    peaks = []
    for seed in (0, 1):
        record = shooting.compare(configuration("critics=fixed", f"first_seed={seed}"))
        peaks.append(record.snapshots[0].values)
    assert not peaks[0].equal(peaks[1])


def test_gradients_of_fixed_critics_are_those_of_their_values():
    critics = FixedCritics(torch.randn(2, 3, 1, 2))
    actions = torch.rand(3, 5, 2, requires_grad=True)
    for critic, gradients in enumerate(critics.gradients(actions)):
        loss = -critics.values(actions)[critic].sum()
        torch.testing.assert_close(gradients, torch.autograd.grad(loss, actions)[0])


@pytest.mark.parametrize(
    ("critics", "rows"),
    [("shared", [WAYS]), ("fixed", [WAYS]), ("own", [(way,) for way in WAYS])],
)
def test_trajectories_are_drawn_over_the_critics_that_the_actor_follows(tmp_path, critics, rows):
    record = shooting.compare(configuration(f"critics={critics}", "updates=1"))
    assert [snapshot.ways for snapshot in record.snapshots] == rows
    drawn = image.imread(draw_trajectories(record, tmp_path / "trajectories.png"))
    assert drawn.shape[0] == 330 * len(rows) + 100


def test_uniform_learns_to_hit():
    record = shooting.compare(
        configuration("updates=250", "hidden=[32,32]", "critic_lr=0.003", "actor_lr=0.003")
    )
    assert (record.rewards[0, 0] < -0.3).all()
    assert (record.rewards[-1, 0] > -0.15).all()
    np.testing.assert_allclose(record.actions[-1, 0].mean(0), OPTIMAL_ACTION, atol=0.15)


# --- results ---


def test_the_interval_of_the_mean_has_about_the_stated_coverage():
    """20 values, 1000 times: 95 % nominal, about 93 % for this bootstrap; 4 sigma is 0.032."""
    values = np.random.default_rng(1).normal(size=(1000, 20))
    interval = mean_interval(values, resamples=1000)
    covered = ((interval.low < 0) & (interval.high > 0)).mean()
    assert 0.895 < covered < 0.97


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "is better"), (-0.3, -0.1, "is worse"), (-0.1, 0.1, "no significant difference")],
)
def test_a_verdict_is_given_only_if_the_interval_excludes_zero(low, high, verdict):
    difference = Difference("uncertainty", "final reward", (low + high) / 2, low, high)
    assert verdict in str(difference)


def test_the_simple_example_has_opposite_gradients_between_the_peaks():
    example = simple_example(noise=0.0, seed=0, side=61)
    assert torch.equal(example.values, example.smooth_values)
    middle = (30, 30)
    assert example.actions[middle].abs().max() < 1e-6
    assert example.angles[middle] == pytest.approx(180, abs=0.1)
    assert example.angles[0, 0] == pytest.approx(0, abs=0.1)
    for values, peak in zip(example.values, (-1, 1), strict=True):
        best = example.actions.flatten(0, 1)[values.argmax()]
        torch.testing.assert_close(best, torch.full((2,), float(peak)))


def test_a_command_writes_tables_and_figures_and_is_reproducible(start, capsys, tmp_path):
    start("run_dir=one")
    output = capsys.readouterr().out
    assert "Uncertainty - Uniform, final reward:" in output
    (tmp_path / "two").mkdir()
    shooting.compare(configuration()).write(tmp_path / "two")
    tables = sorted(file.name for file in (tmp_path / "one").glob("*.csv"))
    assert tables == ["angles.csv", "curves.csv", "differences.csv", "rewards.csv"]
    for name in tables:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        assert str(Path("one", name)) in output
    for name in ("simple_example", "angles", "rewards", "trajectories"):
        assert (tmp_path / "one" / f"{name}.png").stat().st_size > 10_000
    with (tmp_path / "one" / "rewards.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["update"]) for row in rows[::3]] == [0, 5, 10, 15, 20]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seeds=1", "seeds"),
        ("updates=0", "updates"),
        ("updates=many", "updates"),
        ("low_uncertainty=1.5", "low_uncertainty"),
        ("largest_angle=200", "largest_angle"),
        ("actor_noise=-1", "actor_noise"),
        ("critics=shard", "critics must be shared, own or fixed, got 'shard'"),
        ("shots=0", "shots must be a whole number from 1"),
        ("shots=few", "shots"),
        ("exploration_noise=-0.1", "exploration_noise"),
        ("first_peak=2", "first_peak"),
        ("critic_lr=.nan", "critic_lr"),
        ("hidden=64", "hidden"),
        ("threads=true", "threads"),
        ("run_dir=''", "run_dir"),
        ("+colour=red", "colour"),
        ("sedes=3", "sedes. Did you mean: seeds"),
        ("seeds=${nowhere}", "seeds"),
        ("seeds", "seeds"),
    ],
)
def test_a_bad_value_is_reported_in_one_line_with_its_key(start, capsys, tmp_path, override, key):
    with pytest.raises(SystemExit) as ended:
        start(override)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert key in line
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_rejected(start, capsys, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        start(f"run_dir={tmp_path / 'file'}")
    assert ended.value.code == 2
    assert "run_dir=" in capsys.readouterr().err
