"""The toy experiments: critics and actors, the three selection methods, and the program."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from matplotlib import image

from vmfer_recipes import shooting
from vmfer_recipes.config.training import to_config
from vmfer_recipes.toy import record as recording
from vmfer_recipes.toy.agents import Critics, FixedCritics, Networks, action_grid, reward
from vmfer_recipes.toy.drawing import draw
from vmfer_recipes.toy.record import (
    WAYS,
    angle,
    compare,
    mean_interval,
    oracle,
    uncertainty,
    verdict,
)

SMALL = ("seeds=3", "updates=20", "hidden=[16,16]", "batch_size=32", "log_interval=5")
# Gradients of two critics for five seeds, at all angles.
GRADIENTS = torch.randn(2, 5, 64, 2, generator=torch.Generator().manual_seed(0))


def configuration(*overrides):
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        return to_config(compose("shooting", [*SMALL, *overrides]))


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


@pytest.fixture
def learned(monkeypatch):
    """The actions of all updates of the critics, in order: ``[seed, batch, 2]`` each."""
    batches, update = [], Critics.update

    def watched(self, actions):
        batches.append(actions.clone())
        update(self, actions)

    monkeypatch.setattr(Critics, "update", watched)
    return batches


@pytest.mark.parametrize("seeds", [2, 5])
def test_batched_networks_equal_those_of_torch_for_any_number_of_seeds(seeds):
    start = Networks(2, [4, 8, 1], 0.001, generators(3)).parameters
    networks = Networks(2, [4, 8, 1], 0.001, generators(seeds))
    inputs = torch.randn(2, seeds, 7, 4)
    outputs = networks(inputs)
    for index in np.ndindex(2, 2):
        weights = [p.unflatten(0, (2, 3))[index] for p in start]
        hidden = torch.nn.functional.linear(inputs[index], weights[0].T, weights[1][0]).relu()
        expected = torch.nn.functional.linear(hidden, weights[2].T, weights[3][0])
        torch.testing.assert_close(outputs[index], expected)


@pytest.mark.parametrize(
    "critics", [Critics([8], 0.001, generators(3)), FixedCritics(torch.randn(2, 3, 1, 2))]
)
def test_gradients_are_those_of_the_loss_of_each_critic(critics):
    actions = torch.rand(3, 5, 2, requires_grad=True)
    for critic, computed in enumerate(critics.gradients(actions)):
        loss = -critics.values(actions)[critic].sum()
        torch.testing.assert_close(computed, torch.autograd.grad(loss, actions)[0])


def test_angles_are_those_of_the_scalar_product():
    first, second = GRADIENTS.double()
    cosine = (first * second).sum(-1) / (first.norm(dim=-1) * second.norm(dim=-1))
    expected = torch.rad2deg(cosine.acos()).float()
    torch.testing.assert_close(angle(GRADIENTS), expected, atol=0.1, rtol=0)


def test_uncertainty_uses_the_smallest_angles_of_each_seed_up_to_a_limit():
    used = uncertainty(GRADIENTS, 0.25)
    assert (used.sum(-1) == 16).all()
    for angles, chosen in zip(angle(GRADIENTS), used, strict=True):
        assert angles[chosen].max() <= angles[~chosen].min()
    assert uncertainty(GRADIENTS, 1.0, 40.0).equal(angle(GRADIENTS) <= 40.0)


def test_oracle_uses_gradients_that_bring_the_action_closer():
    action = torch.rand(5, 2, dtype=torch.float64) * 2 - 1
    moved = action[:, None] - 1e-6 * GRADIENTS[0].double()  # so short that the path is straight
    used = oracle(GRADIENTS.double(), action)
    assert used.equal(reward(moved) > reward(action)[:, None])
    assert 0 < used.float().mean() < 1


@pytest.mark.parametrize("critics", ["shared", "own"])
def test_a_method_does_not_depend_on_the_other_methods(monkeypatch, critics):
    together = torch.stack(compare(configuration(f"critics={critics}")).actions)
    assert all(together[0, 0].equal(start) for start in together[0, 1:])
    assert not together[-1, 0].equal(together[-1, 1])
    monkeypatch.setattr(recording, "uncertainty", lambda gradients, *_: gradients[0, ..., 0] > 0)
    monkeypatch.setattr(recording, "oracle", lambda gradients, _: gradients[0, ..., 0] > 9)
    alone = torch.stack(compare(configuration(f"critics={critics}")).actions)
    assert alone[:, 0].equal(together[:, 0])
    assert not alone[-1, 1].equal(together[-1, 1])


def test_own_critics_learn_from_the_shots_of_their_actor(learned):
    record = compare(configuration("critics=own", "exploration_noise=0", "policy_delay=1"))
    for index, actions in enumerate(learned):
        step, way = divmod(index, len(WAYS))
        fired = torch.stack(record.actions[: step + 1])[:, way]  # [shot, seed, 2]
        for seed in range(3):
            assert torch.isin(actions[seed], fired[:, seed].contiguous()).all()


def test_exploration_noise_is_the_spread_of_the_shots_and_the_same_for_all_methods(learned):
    settings = ("critics=own", "actor_lr=0", "exploration_noise=0.05", "shots=400", "updates=2")
    record = compare(configuration(*settings, "batch_size=1024"))  # the actors do not move
    shots = learned[-1] - record.actions[0][0][:, None]
    assert shots.mean().item() == pytest.approx(0, abs=0.01)
    assert shots.std().item() == pytest.approx(0.05, rel=0.1)
    assert learned[-1].equal(learned[-2])


@pytest.mark.parametrize(("shots", "total"), [("4", 4), ("null", 20), ("60", 60)])
def test_the_shots_are_spread_evenly_over_the_updates(learned, shots, total):
    compare(configuration(f"shots={shots}", "policy_delay=1", "batch_size=2048"))
    for step, actions in enumerate(learned, start=1):
        assert len(actions[0].unique(dim=0)) == math.ceil(step / 20 * total)


@pytest.mark.parametrize("peak", [-1, 0.5])
def test_fixed_critics_lead_to_the_peak_of_the_first_one_and_do_not_learn(learned, peak):
    settings = ("critics=fixed", "example_noise=0", "actor_lr=0.02", "updates=100")
    record = compare(configuration(*settings, f"first_peak={peak}"))
    np.testing.assert_allclose(record.actions[-1][0], peak, atol=0.07)
    assert learned == []
    actions = action_grid().flatten(0, 1)
    for values, expected in zip(
        record.snapshots[-1][1][0].values(actions), (peak, 1.0), strict=True
    ):
        best = actions[values[0].argmax()]
        torch.testing.assert_close(best, torch.full((2,), float(expected)))


def test_uniform_learns_to_hit():
    settings = ("updates=250", "hidden=[32,32]", "critic_lr=0.003", "actor_lr=0.003")
    record = compare(configuration(*settings))
    assert (record.rewards[0, 0] < -0.3).all()
    assert (record.rewards[-1, 0] > -0.15).all()
    np.testing.assert_allclose(record.actions[-1][0].mean(0), (-0.5, -0.5), atol=0.15)


def test_the_interval_has_about_the_stated_coverage_and_decides_the_verdict():
    """20 values, 1000 times: 95 % nominal, about 93 % for this bootstrap; 4 sigma is 0.032."""
    values = np.random.default_rng(1).normal(size=(1000, 20))
    _, low, high = mean_interval(values, resamples=1000)
    assert 0.895 < ((low < 0) & (high > 0)).mean() < 0.97
    verdicts = {1: "is better", -1: "is worse", 0: "no significant difference"}
    for mean, expected in verdicts.items():
        assert expected in verdict("oracle", "reward", np.array([mean, mean - 0.5, mean + 0.5]))


@pytest.mark.parametrize(("critics", "rows"), [("fixed", 1), ("own", 3)])
def test_trajectories_are_drawn_over_the_critics_that_the_actor_follows(tmp_path, critics, rows):
    cfg = configuration(f"critics={critics}", "updates=1")
    draw(compare(cfg), cfg.example_noise, tmp_path)
    assert image.imread(tmp_path / "trajectories.png").shape[0] == 330 * rows + 100


def test_a_command_writes_tables_and_pictures_and_is_reproducible(
    execute, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    execute(shooting.main, *SMALL, "run_dir=one")
    output = capsys.readouterr().out
    assert "Uncertainty - Uniform, final reward:" in output
    (tmp_path / "two").mkdir()
    tables = compare(configuration()).write(tmp_path / "two", log_interval=5)
    assert {table.name for table in tables} == {f.name for f in (tmp_path / "one").glob("*.csv")}
    for table in tables:
        assert (tmp_path / "one" / table.name).read_bytes() == table.read_bytes()
        assert f"one/{table.name}" in output
    for name in ("simple_example", "angles", "rewards", "trajectories"):
        assert (tmp_path / "one" / f"{name}.png").stat().st_size > 10_000
    curves = np.loadtxt(tmp_path / "one" / "curves.csv", delimiter=",", skiprows=1)
    assert curves[:, 0].tolist() == [0, 5, 10, 15, 20]


def test_a_run_directory_that_cannot_be_written_is_reported_in_one_line(error_of, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written to" in error_of(shooting.main, f"run_dir={tmp_path / 'file'}")
