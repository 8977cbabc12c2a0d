"""Forks: what arms have in common, what stays frozen, resuming, and mistakes."""

from __future__ import annotations

import importlib
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import brute_force
from helpers.saved_rows import rows_in
from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes import sac, td3
from vmfer_recipes.collection.worker import Worker
from vmfer_recipes.config.training import to_config
from vmfer_recipes.fork.command import main as fork
from vmfer_recipes.fork.plan import ForkConfig, make_plan
from vmfer_recipes.fork.start import load_source, make_agent, starting_state
from vmfer_recipes.run.checkpoints import load_checkpoint
from vmfer_recipes.run.files import lock

# Episodes of 50 steps: a fork from step 80 contains the end of one, and the reset after it. The
# buffer is full: steps 51 to 80 overwrote its first 30 slots.
SOURCE = (
    "env.name=ShortCheetah-v0",
    "sampler=fresh",
    "total_frames=120",
    "init_random_frames=60",
    "checkpoint_interval=20",
    "replay.buffer_size=50",
    "keep_checkpoints_at=[80,100]",
)
NO_NOISE = ("target_noise=0",)  # TD3's errors can be computed again
FROZEN = ("arms=[fresh,vmf_rank]", "mode=frozen", "updates=2", "draws=1")


@pytest.fixture(scope="module")
def source(train, tmp_path_factory):
    """A run of TD3 with kept checkpoints. Tests share it."""
    return train("td3", tmp_path_factory.mktemp("source") / "seed0", *SOURCE, *NO_NOISE)


@pytest.fixture(scope="module")
def sac_source(train, tmp_path_factory):
    """A run of SAC with a kept checkpoint. Tests share it."""
    return train("sac", tmp_path_factory.mktemp("source") / "seed0", *SOURCE)


@pytest.fixture
def forks(execute, table):
    """``forks(source, out, *arguments)``: runs forks. Returns the rows of their table."""

    def run(source, out, *arguments):
        execute(fork, f"run={source}", "at=80", f"out={out}", *arguments)
        return table(out / "forks.csv")

    return run


class KilledError(BaseException):
    """Ends the program, as SIGKILL does: nobody handles it."""


def distinct_returns(rows):
    return len({row["return_after"] for row in rows})


@pytest.fixture
def failure(error_of):
    """``failure(*arguments)``: the error of a command that fails, which is one line."""
    return partial(error_of, fork)


@pytest.fixture
def made_agents(monkeypatch):
    """The agents that the recipes make during a test."""
    made = []
    for recipe in (td3, sac):

        def keep(cfg, make=recipe.make_agent):
            made.append(make(cfg))
            return made[-1]

        monkeypatch.setattr(recipe, "make_agent", keep)
    return made


@pytest.fixture
def seen(monkeypatch):
    """What forks collect and draw: for each run of forks, transitions and the critics' slots."""
    collected, drawn = [], []

    def keep(owner, name, kept, part):
        method = getattr(owner, name)

        def call(self, *args, **kwargs):
            found = method(self, *args, **kwargs)
            kept.append(part(found).clone())
            return found

        monkeypatch.setattr(owner, name, call)

    joined = lambda data: torch.cat([data["observation"], data["action"]], -1)  # noqa: E731
    keep(Worker, "collect", collected, joined)
    keep(ActorCriticReplayBuffer, "draw_slots", drawn, lambda batch: batch["index"])
    return collected, drawn


def test_arms_of_a_draw_have_common_random_numbers_and_draws_do_not(source, tmp_path, forks, seen):
    forks(source, tmp_path, "arms=[fresh,vmf_rank]", "steps=30", "draws=2")
    collected, drawn = (torch.stack(each).split(30) for each in seen)
    (fresh, rank, other, _), (fresh_slots, rank_slots, other_slots, _) = collected, drawn
    # Until the actor is updated for the first time, after step 82.
    assert torch.equal(fresh[:2], rank[:2])
    assert not torch.equal(fresh[:2], other[:2])
    assert not torch.equal(fresh[2:], rank[2:])
    # The critics' batches are the same throughout, although the arms' samplers differ.
    assert torch.equal(fresh_slots, rank_slots)
    assert not torch.equal(fresh_slots, other_slots)
    # The episode that starts at step 101 has the same initial state in both arms of a draw.
    assert torch.equal(fresh[20, 0, :17], rank[20, 0, :17])
    assert not torch.equal(fresh[20, 0, :17], other[20, 0, :17])


def test_the_return_before_is_that_of_the_run(source, tmp_path, forks, table):
    """The run was evaluated at step 100, with the same initial states."""
    arguments = ("at=100", "arms=[fresh,uniform]", "mode=frozen", "updates=1", "draws=1")
    (evaluation,) = (row for row in table(source / "eval.csv") if row["step"] == "100")
    found = forks(source, tmp_path, *arguments)
    assert [row["return_before"] for row in found] == [evaluation["return_mean"]] * 2


@pytest.mark.parametrize("fixture", ["source", pytest.param("sac_source", marks=pytest.mark.slow)])
def test_frozen_forks_change_only_the_actor(
    fixture, request, tmp_path, forks, made_agents, started, contents, assert_equal
):
    run = request.getfixturevalue(fixture)
    before = contents(run)
    forks(run, tmp_path, "arms=[fresh,vmf_rank]", "mode=frozen", "updates=3", "draws=1")
    assert contents(run) == before
    saved = load_checkpoint(run / "checkpoint/kept/step_000000000080.pt")["parts"]
    for agent in made_agents[-2:]:
        now, then = agent.loss.state_dict(), saved["loss"]
        changed = {name for name in then if not torch.equal(now[name], then[name])}
        assert changed
        assert all(name.startswith("actor_network_params") for name in changed)
        replay = agent.buffer.state_dict()
        assert_equal(rows_in(replay), rows_in(saved["replay"]))
        assert_equal(replay["writer"], saved["replay"]["writer"])
        assert_equal(agent.collector.state_dict()["frames"], saved["collector"]["frames"])
    samplers = (each.buffer.actor_sampler for each in (made_agents[-1], started(run, "vmf_rank")))
    now, then = (sampler.probabilities() for sampler in samplers)
    assert torch.equal(now, then)
    assert now.max() > now.min()


@pytest.fixture
def started(tmp_path):
    """``started(run, arm)``: the agent of an arm in the state in which a fork starts."""

    def start(run, arm):
        options = ForkConfig(run=[str(run)], at=[80], arms=["fresh", arm], out=str(tmp_path / "x"))
        chosen = make_plan(options).moments[0].forks[1]
        agent = make_agent(chosen.cfg)
        state = starting_state(load_source(chosen.source), agent, chosen)
        agent.buffer.load_state_dict(state["parts"]["replay"])
        return agent

    return start


def value_gap(agent, rows):
    action = brute_force.policy_action(agent.loss, rows)
    values = brute_force.critic_values(agent.loss, rows, action)
    return (values[0] - values[1]).abs()


def ranks(values):
    return (values[:, None] < values).sum(1) + 1.0


SIGNALS = {
    "vmf_uncertainty": lambda agent, rows: agent.uncertainty(rows)["vmf", "factor"],
    "anti_vmf": lambda agent, rows: agent.uncertainty(rows)["vmf", "factor"] ** -4,
    "vmf_ema": lambda agent, rows: agent.uncertainty(rows)["vmf", "factor"],
    "gradient_norm": lambda agent, rows: agent.loss.actor_loss(rows)[1]["vmf_gradient_norm"],
    "signal sampler.signal=value_gap": lambda agent, rows: ranks(value_gap(agent, rows)) ** -0.7,
    "inverse_td sampler.floor=1e-3": lambda agent, rows: (
        agent.loss.critic_loss(rows)[1]["td_error"].amax(0).sqrt().clamp(min=1e-3) ** -0.4
    ),
}


@pytest.mark.parametrize("arm", SIGNALS)
def test_arms_start_with_the_signals_of_the_current_networks(arm, source, started):
    """Compared with one batch of all transitions. The networks are those of the checkpoint."""
    agent = started(source, arm)
    expected = SIGNALS[arm](agent, agent.buffer[:]).detach().double()
    assert expected.max() > expected.min()
    actual = agent.buffer.actor_sampler.probabilities()
    torch.testing.assert_close(actual, expected / expected.sum(), rtol=1e-4, atol=0)


def test_stochastic_policies_are_scored_with_the_same_actions_in_all_draws(sac_source, started):
    agents = [started(sac_source, "vmf_uncertainty") for _ in range(2)]
    one, other = (agent.buffer.actor_sampler.probabilities() for agent in agents)
    assert torch.equal(one, other)
    assert one.max() > one.min()


def test_arms_know_which_transitions_are_new(source, started):
    agent = started(source, "recent sampler.decay=0.01 sampler.min_size=40")
    newest = agent.buffer.actor_sampler.probabilities() > 0
    assert newest.nonzero().flatten().tolist() == [*range(30), *range(40, 50)]


@pytest.mark.parametrize(
    "crash_at", [27, *(pytest.param(step, marks=pytest.mark.slow) for step in (5, 45))]
)
def test_interrupted_forks_give_the_same_table(source, tmp_path, forks, failing_at, crash_at):
    """Forks have 30 steps and a checkpoint after 20. The third crash is in the second fork."""
    arguments = ("arms=[fresh,vmf_rank]", "steps=30", "draws=1")
    uninterrupted = forks(source, tmp_path / "whole", *arguments)
    assert distinct_returns(uninterrupted) == 2
    with failing_at(crash_at, KilledError):
        forks(source, tmp_path / "killed", *arguments)
    assert forks(source, tmp_path / "killed", *arguments) == uninterrupted


@pytest.mark.slow
def test_only_new_arms_draws_and_checkpoints_are_run(source, tmp_path, forks, made_agents, capsys):
    first = forks(source, tmp_path, *FROZEN)
    assert len(made_agents) == 3
    assert forks(source, tmp_path, *FROZEN) == first
    assert len(made_agents) == 3
    more = forks(source, tmp_path, *FROZEN, "arms=[fresh,vmf_rank,uniform]", "draws=2")
    assert len(made_agents) == 3 + 4
    assert [row for row in more if row in first] == first
    forks(source, tmp_path, *FROZEN, "at=[80,100]")
    assert len(made_agents) == 3 + 4 + 3
    assert "2 checkpoints" in capsys.readouterr().out
    report = (tmp_path / "forks.md").read_text()
    assert "One seed" in report
    assert (tmp_path / "forks.png").exists()
    assert not (tmp_path / "dose.png").exists()


def test_forks_that_another_process_runs_are_left_to_it(source, tmp_path, forks, capsys):
    with lock(tmp_path / "seed0/step80/vmf_rank/draw0"):
        assert len(forks(source, tmp_path, *FROZEN, "draws=2")) == 3
        assert "Another process runs 1 fork" in capsys.readouterr().err
    assert len(forks(source, tmp_path, *FROZEN, "draws=2")) == 4


def test_runs_that_differ_in_their_seed_are_forked_together(
    source, tmp_path, forks, failure, capsys
):
    for seed in (0, 1):
        shutil.copytree(source, tmp_path / f"seed{seed}")
    file = tmp_path / "seed1" / "config.yaml"
    file.write_text(file.read_text().replace("seed: 0", "seed: 1"))
    found = forks(tmp_path / "seed*", tmp_path / "out", *FROZEN)
    assert [row["seed"] for row in found] == ["0", "0", "1", "1"]
    assert "bootstrap over seeds (95 % percentiles)" in capsys.readouterr().out
    file.write_text(file.read_text().replace("tau: 0.005", "tau: 0.01"))
    line = failure(f"run={tmp_path}/seed*", f"out={tmp_path}/out", *FROZEN)
    assert "differ in more than the seed (tau=0.005 and 0.01)" in line


MISTAKES = {
    ("at=85",): "no checkpoint of step 85 (available: 80, 100, 120): use at=[80, 100, 120]",
    ("arms=[fresh,vmf_renk]",): "There is no sampler=vmf_renk. Did you mean: vmf_rank",
    ("arms=[fresh]",): "two arms or more",
    ("arms=[vmf_power,'vmf_power sampler.power=4.0']",): "names an arm twice",
    ("arms=[fresh,'vmf_rank env=Hopper-v4']",): "changes env, which all arms have in common",
    ("arms=[fresh,'vmf_rank fresh']",): "names a second sampler, fresh",
    ("arms=[fresh,'vmf_rank sampler.smoothing=2']",): "sampler.smoothing must be a number from 0",
    ("arms=[fresh,'vmf_rank sampler.smoohting=0']",): "Did you mean: sampler.smoothing",
    ("arms=[fresh,'vmf_rank entropy_gradient=true']",): "entropy_gradient is not used",
    ("baseline=uniform",): "baseline=uniform is not an arm: use one of fresh, vmf_uncertainty",
    ("mode=frozen", "steps=7"): "steps=7 has no effect with mode=frozen",
    ("updates=7",): "updates=7 has no effect with mode=live",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_named_and_nothing_is_written(
    source, tmp_path, failure, arguments, made_agents
):
    assert MISTAKES[arguments] in failure(f"run={source}", f"out={tmp_path}/out", *arguments)
    assert not (tmp_path / "out").exists()
    assert made_agents == []


def test_runs_are_also_named_without_their_key(source, tmp_path, failure):
    named = failure(f"run=[{source},{tmp_path}]", "at=1")
    assert str(tmp_path) in named
    assert failure(source, tmp_path, "at=1") == named


def test_runs_that_cannot_be_forked_are_named(source, tmp_path, failure):
    def copy(name, old, new):
        shutil.copytree(source, tmp_path / name)
        file = tmp_path / name / "config.yaml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        return f"run={tmp_path / name}"

    own = copy("own", "algorithm: td3", "algorithm: no_such_td3")
    assert "is a run of no_such_td3, which is not a recipe" in failure(own)
    keys = "  num_workers: 2\n  chunk: 16\n  max_lead: 9\n  sync: false\n  patience: 9.0"
    workers = copy("workers", "name: single", "name: processes\n" + keys)
    assert "fork a run with collector=single" in failure(workers)
    same = copy("same", "gamma: 0.99", "gamma: 0.98")
    assert "both have seed=0" in failure(f"run=[{source},{same[4:]}]")
    other = copy("other", "seed: 0", "seed: 0\nold_key: 3")
    line = failure(other)
    assert "does not fit this version of td3" in line
    assert "old_key" in line
    shutil.rmtree(tmp_path / "own" / "checkpoint" / "kept")
    shutil.copy(source / "config.yaml", tmp_path / "own")
    assert "has no kept checkpoints (available: 120)" in failure(own)
    assert "matches no directory" in failure(f"run={tmp_path}/none*")


def test_a_checkpoint_of_another_algorithm_is_refused(source, sac_source, tmp_path, failure):
    run = tmp_path / "run"
    shutil.copytree(source, run)
    shutil.copytree(sac_source / "checkpoint", run / "checkpoint", dirs_exist_ok=True)
    line = failure(f"run={run}", "at=80", f"out={tmp_path}/out")
    assert "does not match td3 with the configuration" in line
    damaged = run / "checkpoint/kept/step_000000000100.pt"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    shutil.copy(source / "checkpoint/kept/step_000000000080.pt", damaged.parent)
    for steps in ("at=100", "at=[80,100]"):  # also if only the later one is damaged
        line = failure(f"run={run}", steps, f"out={tmp_path}/other")
        assert "cannot be read" in line
        assert not (tmp_path / "other").exists()


def test_forks_of_other_settings_are_refused(source, tmp_path, forks, failure):
    forks(source, tmp_path, *FROZEN)
    here = (f"run={source}", "at=80", f"out={tmp_path}", *FROZEN)
    line = failure(*here, "updates=3", "num_eval_episodes=2")
    assert "(num_eval_episodes=1 there, 2 here; updates=2 there, 3 here)" in line
    record = tmp_path / "seed0/step80/checkpoint.json"
    record.write_text(record.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    assert "holds forks of another checkpoint" in failure(*here)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["redq", "tqc", "crossq"])
def test_other_algorithms_can_be_forked(algorithm, train, tmp_path, forks):
    wide = () if algorithm == "redq" else ("critic_hidden=[16,16]",)
    run = train(algorithm, tmp_path / "run", *SOURCE, *wide, "utd_ratio=1")
    for mode, length in (("live", "steps=10"), ("frozen", "updates=6")):
        arguments = ("arms=[fresh,vmf_rank]", f"mode={mode}", length, "draws=2")
        assert distinct_returns(forks(run, tmp_path / mode, *arguments)) == 4


@pytest.fixture
def smooth(monkeypatch):
    """The algorithm of the example, and the calls of its loss."""
    example = Path(__file__).parents[2] / "examples" / "own_algorithm"
    monkeypatch.syspath_prepend(example)
    module, calls = importlib.import_module("smooth_td3"), []
    actor_loss = module.SmoothTD3Loss.actor_loss

    def counting(self, batch):
        calls.append(self.action_cost)
        return actor_loss(self, batch)

    monkeypatch.setattr(module.SmoothTD3Loss, "actor_loss", counting)
    return module, calls


@pytest.mark.parametrize("mode", ["mode=frozen updates=2", "mode=live steps=5"])
def test_runs_of_a_custom_algorithm_are_forked_with_its_loss(
    mode, smooth, configuration, tmp_path, forks
):
    module, calls = smooth
    source = tmp_path / "seed0"
    cfg = configuration("custom_smooth_td3", source, *SOURCE, "action_cost=0.5")
    module.main.__wrapped__(to_config(cfg))
    calls.clear()
    rows = forks(source, tmp_path / "forks", "arms=[fresh,vmf_rank]", "draws=1", *mode.split())
    assert distinct_returns(rows) == 2
    assert set(calls) == {0.5}


def test_an_algorithm_without_its_own_agent_is_not_forked(
    smooth, configuration, tmp_path, failure, monkeypatch
):
    module, _ = smooth
    source = tmp_path / "seed0"
    module.main.__wrapped__(to_config(configuration("custom_smooth_td3", source, *SOURCE)))
    monkeypatch.setattr(module, "make_agent", td3.make_agent)
    line = failure(f"run={source}", "at=80", f"out={tmp_path / 'forks'}", *FROZEN)
    assert "define make_agent(cfg)" in line
