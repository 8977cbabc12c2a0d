"""Runs that train together are the runs that they would be alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.saved_rows import rows_in

pytest.importorskip("torchrl_vmfer.compiled._portable", reason="requires a C compiler")

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.config.training import to_config
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.environments.state import environment_state, load_environment_state
from vmfer_recipes.fork.command import main as fork
from vmfer_recipes.population.members import Member, MemberCollector
from vmfer_recipes.population.served import check_served, grouped
from vmfer_recipes.population.simulators import BATCHED_TASKS, Simulators, make_simulators
from vmfer_recipes.population.training import train_together

ROOT = Path(__file__).parents[2]
TASK = ("env=GoalReaching3-v0", "total_frames=161", "checkpoint_interval=40", "eval_interval=70")
# Arms whose actor updates measure the same, so that they are trained together.
COMPANY = {
    "td3": ("sampler=vmf_rank seed=1 gamma=0.9", "sampler=vmf_uncertainty seed=2 tau=0.1"),
    "sac": ("sampler=vmf_rank seed=1 alpha_lr=0.01", "sampler=vmf_power seed=0 critic_lr=0.01"),
}


@pytest.fixture
def configs(configuration, tmp_path):
    """``configs(algorithm, folder, *runs)``: runs as strings of overrides."""

    def make(algorithm, folder, *runs):
        return [
            to_config(
                configuration(algorithm, tmp_path / folder / str(number), *TASK, *run.split())
            )
            for number, run in enumerate(runs)
        ]

    return make


def run_dirs(configs):
    return [Path(cfg.run_dir) for cfg in configs]


@pytest.mark.parametrize(
    ("algorithm", "run"),
    [
        ("td3", "sampler=vmf_uncertainty"),
        ("td3", "sampler=vmf_rank sampler.share=0.5 replay=per directions=pre_tanh"),
        ("sac", "sampler=vmf_rank"),
    ],
)
def test_a_member_does_not_notice_its_company(algorithm, run, configs, assert_same_run):
    common = " ".join(part for part in run.split() if not part.startswith("sampler"))
    others = [f"{common} {other}" for other in COMPANY[algorithm]]
    alone = configs(algorithm, "alone", run)
    together = configs(algorithm, "together", others[0], run, others[1])
    assert grouped(together, 32) == [[0, 1, 2]]
    assert [*train_together(alone), *train_together(together)] == [None] * 4
    assert_same_run(run_dirs(alone)[0], run_dirs(together)[1])


@pytest.mark.parametrize(
    ("algorithm", "run"),
    [
        *(("td3", f"sampler={name}") for name in ("uniform", "fresh", "vmf_rank", "vmf_power")),
        ("td3", "sampler=inverse_td replay=per utd_ratio=2"),
        ("td3", "sampler=gradient_norm replay=lap num_critics=3 layer_norm=true"),
        ("td3", "sampler=anti_vmf sampler.share=0.5 replay=per_rank directions=pre_tanh"),
        *(("sac", f"sampler={name}") for name in ("uniform", "vmf_uncertainty", "inverse_td")),
        *((algorithm, "sampler=saturated") for algorithm in ("td3", "sac")),
        ("td3", "sampler=signal sampler.signal=target_agreement"),
        ("sac", "sampler=fresh weighting=4"),
        ("sac", "sampler=vmf_rank replay=per"),
        (
            "td3",
            "sampler=fresh max_grad_norm=0.1 weight_decay=0.1 reward_scale=3 critic_hidden=[9]",
        ),
        ("sac", "sampler=fresh lr_schedule=linear normalize_rewards=true critic_layer_norm=true"),
    ],
)
def test_a_member_is_updated_as_a_single_run(algorithm, run, configs, train, checkpoint):
    short = f"{run} init_random_frames=60 total_frames=72 eval_interval=1000"
    (member,) = configs(algorithm, "member", short)
    single = train(algorithm, Path(member.run_dir).parent / "single", *TASK, *short.split())
    assert train_together([member]) == [None]
    ends = [checkpoint(folder)["parts"] for folder in (Path(member.run_dir), single)]
    for name in ("observation", "action"):
        rows = [rows_in(end["replay"])[name] for end in ends]
        torch.testing.assert_close(*rows, rtol=0, atol=1e-5)
    weights = [end["loss"] for end in ends]
    assert weights[0].keys() == weights[1].keys()
    for key in weights[0]:
        if isinstance(weights[0][key], torch.Tensor):
            torch.testing.assert_close(weights[0][key], weights[1][key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "run"),
    [
        ("td3", "sampler=vmf_rank"),
        ("td3", "sampler=vmf_power replay=per num_critics=3"),
        ("sac", "sampler=fresh"),
        ("sac", "sampler=vmf_uncertainty directions=pre_tanh"),
    ],
)
def test_members_learn_as_single_runs(algorithm, run, configs, train, table):
    """The same episodes to the last bit: no number of seeds can show a difference."""
    long = f"{run} total_frames=900 init_random_frames=200 log_interval=100 eval_interval=900"
    members = configs(algorithm, "members", *(f"{long} seed={seed}" for seed in range(3)))
    assert train_together(members) == [None] * 3
    for seed, member in enumerate(run_dirs(members)):
        folder = member.parents[1] / "single" / str(seed)
        single = train(algorithm, folder, *TASK, *long.split(), f"seed={seed}")
        rows = [table(path / "train.csv") for path in (member, single)]
        assert len(rows[0]) == 7
        for one, other in zip(*rows, strict=True):
            for name in ("episode_return", "num_episodes", "critic_loss", "actor_loss"):
                assert one[name] == other[name]
        policies = [torch.load(path / "policy.pt")["weights"] for path in (member, single)]
        for name, value in policies[0].items():
            assert torch.equal(value, policies[1][name])


def test_a_diverging_member_is_stopped_alone(configs, assert_same_run, monkeypatch, capsys):
    runs = ("sampler=vmf_rank seed=0", "sampler=vmf_rank seed=1")
    undisturbed = configs("td3", "undisturbed", runs[0])
    train_together(undisturbed)
    disturbed = configs("td3", "disturbed", runs[0], f"{runs[1]} critic_lr=1e9")
    errors = train_together(disturbed)
    assert errors[0] is None
    assert isinstance(errors[1], UserError)
    first, second = run_dirs(disturbed)
    assert_same_run(run_dirs(undisturbed)[0], first)
    assert not (second / "finished").exists()
    assert capsys.readouterr().err.count("error:") == 1


@pytest.mark.parametrize(
    "name", [*BATCHED_TASKS, "GoalReaching6-v0", "PlanarQuadrotor-v0", "Ant-v5", "Pendulum-v1"]
)
def test_steps_of_members_are_those_of_gymnasium(name):
    """Compares single steps, because in chaotic tasks any difference grows."""
    is_mujoco = name in BATCHED_TASKS
    cfg = EnvConfig(name=name, kwargs={"max_episode_steps": 60} if is_mujoco else {})
    references, envs = ([make_environment(cfg, seed) for seed in range(3)] for _ in range(2))
    for env in (*references, *envs):
        env.simulator.reset(seed=7)
    if is_mujoco:
        assert type(make_simulators(envs, True)) is not type(make_simulators(envs, False))
    simulators = make_simulators(envs, is_batched=True)
    assert type(simulators) is not Simulators
    rng = np.random.default_rng(0)
    for step in range(150):
        actions = rng.uniform(-1, 1, (3, *envs[0].simulator.action_space.shape)).astype("f4")
        chosen = [2, 0] if step % 5 == 0 else [0, 1, 2]
        results = simulators.step(chosen, actions)
        for i in chosen:
            seen, reward, *flags = references[i].simulator.step(actions[i])[:4]
            observation, reward_, *flags_ = results(i)
            assert observation.dtype == np.float32
            np.testing.assert_allclose(observation, seen, rtol=2e-7, atol=1e-10)
            assert reward_ == pytest.approx(reward, rel=1e-10, abs=1e-10 if is_mujoco else 0)
            assert flags == flags_
            if is_mujoco:
                data = [env.simulator.unwrapped.data for env in (references[i], envs[i])]
                for name in ("qpos", "qvel"):
                    np.testing.assert_allclose(*(getattr(d, name) for d in data), atol=1e-10)
            if any(flags):
                assert np.array_equal(*(e.simulator.reset()[0] for e in (references[i], envs[i])))
            elif is_mujoco:
                load_environment_state(envs[i], environment_state(references[i]))


@pytest.mark.parametrize("name", ["Walker2d-v4", "Reacher-v5"])
def test_batched_members_are_independent_and_resume_exactly(name, configs, assert_same_run):
    runs = [f"env={name} sampler=vmf_rank seed={seed} total_frames=120" for seed in (0, 1)]
    alone, together = configs("td3", "alone", runs[1]), configs("td3", "together", *runs)
    resumed = configs("td3", "resumed", *(f"{run} total_frames=100" for run in runs))
    assert train_together(alone, True) + train_together(together, True) == [None] * 3
    train_together(resumed, True)
    resumed = configs("td3", "resumed", *runs)
    assert train_together(resumed, True) == [None, None]
    assert_same_run(run_dirs(alone)[0], run_dirs(together)[1])
    assert_same_run(run_dirs(resumed)[0], run_dirs(together)[0])


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_members_with_checkpoints_of_different_steps_resume_exactly(
    algorithm, configs, assert_same_run, monkeypatch
):
    straight = configs(algorithm, "straight", *COMPANY[algorithm])
    train_together(straight)
    collect, calls = MemberCollector.collect, iter(range(100_000))

    class KilledError(BaseException):
        """Ends the program, as SIGKILL does: nobody handles it."""

    def killed(self, action, step):
        if next(calls) == 2 * 125 + 1:
            raise KilledError
        collect(self, action, step)

    interrupted = configs(algorithm, "interrupted", *COMPANY[algorithm])
    monkeypatch.setattr(MemberCollector, "collect", killed)
    with pytest.raises(KilledError):
        train_together(interrupted)
    monkeypatch.undo()
    # As if the second member had not been able to save the checkpoint of step 120.
    (run_dirs(interrupted)[1] / "checkpoint" / "step_000000000120.pt").unlink()
    assert train_together(interrupted) == [None, None]
    for left, right in zip(run_dirs(straight), run_dirs(interrupted), strict=True):
        assert_same_run(left, right)
    before = [(path / "policy.pt").stat().st_mtime_ns for path in run_dirs(interrupted)]
    assert train_together(interrupted) == [None, None]  # finished: nothing happens
    assert [(path / "policy.pt").stat().st_mtime_ns for path in run_dirs(interrupted)] == before


def test_a_signal_between_the_turns_of_members_keeps_their_random_numbers(
    configs, assert_same_run, monkeypatch
):
    straight, stopped = (configs("td3", name, *COMPANY["td3"]) for name in ("straight", "stopped"))
    train_together(straight)
    advance = Member.advance

    def interrupted(member, is_stopping):
        if member.step == 95:
            os.kill(os.getpid(), signal.SIGINT)
        advance(member, is_stopping)

    monkeypatch.setattr(Member, "advance", interrupted)
    with pytest.raises(SystemExit):
        train_together(stopped)
    monkeypatch.undo()
    assert train_together(stopped) == [None, None]
    for left, right in zip(run_dirs(straight), run_dirs(stopped), strict=True):
        assert_same_run(left, right)


def test_members_stop_by_time_or_solution_and_resume_exactly(configs, assert_same_run):
    runs = COMPANY["td3"]
    straight = configs("td3", "straight", *runs)
    train_together(straight)
    for stop in ("max_minutes=1e-9", "stop_when_solved=true solved_at=-1e6", ""):
        stopped = configs("td3", "stopped", *(f"{run} {stop}" for run in runs))
        assert train_together(stopped) == [None, None]
        has_ended = [(path / "finished").exists() for path in run_dirs(stopped)]
        assert has_ended == [not stop.startswith("max")] * 2
        for path in run_dirs(stopped):
            (path / "finished").unlink(missing_ok=True)
    train_together(stopped)
    for left, right in zip(run_dirs(straight), run_dirs(stopped), strict=True):
        assert_same_run(left, right)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_sweep_resumes_exactly(number, tmp_path, assert_same_run):
    def command(folder):
        overrides = [
            *("env=GoalReaching3-v0", "hidden=[16,16]", "batch_size=32", "init_random_frames=60"),
            *("eval_interval=400", "num_eval_episodes=1", "total_frames=1600", "log_interval=50"),
            *("seed=0,1", "sampler=fresh,vmf_rank", "checkpoint_interval=50"),
            *("hydra/launcher=population", "replay.buffer_size=2000"),
            f"run_dir={tmp_path / folder}/${{sampler.name}}-${{seed}}",
            f"hydra.sweep.dir={tmp_path}/sweep",
        ]
        return [sys.executable, str(ROOT / "recipes" / "td3.py"), "-m", *overrides]

    process = subprocess.Popen(command("stopped"), stderr=subprocess.DEVNULL)
    while not list((tmp_path / "stopped").glob("*/checkpoint/step_*.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert process.wait(timeout=60) == (-9 if number == signal.SIGKILL else 130)
    assert not list((tmp_path / "stopped").glob("*/finished"))
    for folder in ("stopped", "straight"):
        subprocess.run(command(folder), check=True, timeout=300)
    for left in (tmp_path / "straight").iterdir():
        assert_same_run(left, tmp_path / "stopped" / left.name)


@pytest.mark.parametrize(
    ("algorithm", "override", "named"),
    [
        ("td3", "sampler=vmf_direct", "sampler=vmf_direct"),
        ("td3", "activation=tanh", "activation=tanh"),
        ("td3", "n_step=3", "n_step=3"),
        ("sac", "critic_dropout=0.1", "critic_dropout=0.1"),
        ("td3", "critic_network=torch.nn.Linear", "critic_network=torch.nn.linear"),
        ("td3", "env.normalize_observations=true", "env.normalize_observations=true"),
        ("td3", "log_info=[speed]", "log_info="),
        ("redq", "sampler=fresh", "recipe=redq"),
    ],
)
def test_what_is_not_served_is_named_with_the_launcher_that_can(
    algorithm, override, named, configs
):
    (cfg,) = configs(algorithm, "run", override)
    with pytest.raises(UserError, match=f"{named}.*hydra/launcher=joblib"):
        check_served(cfg)


def test_runs_of_other_shapes_are_trained_apart(configs):
    runs = ("seed=0", "hidden=[8] seed=0", "seed=1", "batch_size=8", "seed=2 sampler=fresh")
    found = configs("td3", "runs", *(f"sampler=uniform {run}" for run in runs))
    assert grouped(found, 32) == [[0, 2, 4], [1], [3]]
    assert grouped(found, 2) == [[0, 2], [4], [1], [3]]


def test_live_forks_continue_a_member_as_they_continue_a_single_run(
    configs, train, execute, table, tmp_path
):
    short = "sampler=fresh init_random_frames=40 total_frames=60"
    (member,) = configs("td3", "member", short)
    single = train("td3", tmp_path / "single", *TASK, *short.split())
    train_together([member])
    forks = []
    for number, run in enumerate((member.run_dir, single)):
        out = tmp_path / f"forks{number}"
        options = ("at=60", "steps=20", "draws=1", "num_eval_episodes=1")
        execute(fork, f"run={run}", f"out={out}", "arms=[fresh,uniform]", *options)
        forks.append([float(row["return_after"]) for row in table(out / "forks.csv")])
    assert len(forks[0]) == 2
    assert forks[0] == pytest.approx(forks[1], rel=1e-4)
