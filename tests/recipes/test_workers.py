"""Runs whose transitions are collected by workers in other processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch

import helpers.environments  # noqa: F401  # registers environments
from helpers.inline_pool import InlinePool
from helpers.saved_rows import rows_in
from vmfer_recipes.collection import collectors, worker
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import to_config

SYNC = ("collector=processes", "collector.sync=true")
TINY = (
    "env.name=ShortCheetah-v0",  # episodes of 50 steps
    "total_frames=211",
    "init_random_frames=50",
    "collector.num_workers=3",
    "collector.chunk=4",
    "eval_interval=100",
)


@pytest.fixture
def pools(monkeypatch):
    """Workers run in this process. The fixture is the list of their pools."""
    monkeypatch.setattr(InlinePool, "made", [], raising=False)
    monkeypatch.setattr(collectors, "Processes", InlinePool)
    return InlinePool.made


@pytest.mark.parametrize(
    "overrides",
    [
        ("td3", "sampler=vmf_rank", "replay=per", "num_envs=2"),
        ("sac", "sampler=vmf_direct", "fast=false"),
        ("td3", "sampler=vmf_uncertainty", "env.normalize_observations=true"),
        ("td3", "replay=her", "env.name=FetchReach-v4", "num_envs=2", "env.blocking=true"),
    ],
    ids="-".join,
)
def test_every_part_of_a_run_works_with_workers(
    overrides, pools, train, table, checkpoint, tmp_path
):
    algorithm, *others = overrides
    run_dir = train(
        algorithm, tmp_path, *TINY, "collector=processes", "total_frames=411", *others,
        "checkpoint_interval=411", "log_interval=100",
    )  # fmt: skip
    state, (pool,) = checkpoint(run_dir), pools
    assert state["step"] == 411
    assert pool.is_closed
    frames = state["parts"]["collector"]["frames"]
    rows = rows_in(state["parts"]["replay"])
    assert len(rows["action"]) == frames
    assert 411 <= frames < 411 + 4 * 2 * 3
    training = table(run_dir / "train.csv")
    assert {"gradient_cosine", "gradient_snr"} <= training[-1].keys()
    assert {float(row["episode_length"]) for row in training if row["episode_length"]} == {50.0}
    if "env.normalize_observations=true" in others:
        seen = rows["observation"].double()
        saved = state["parts"]["observations"]
        torch.testing.assert_close(saved["observation.mean"], seen.mean(0))
        # A worker normalizes with the statistics that came with its weights.
        (count,) = (weight for weight in pool.weights[-1] if weight.shape == ())
        assert 0 < count < frames
    if "replay=her" in others:
        for number in range(6):
            mine = rows["environment"][:, 0] == number
            now, following = rows["observation"][mine], rows["next"]["observation"][mine]
            inside = ~rows["next"]["done"][mine][:-1, 0]
            assert torch.equal(now[1:][inside], following[:-1][inside])


def test_workers_act_with_the_weights_and_within_the_lead_of_their_request(
    pools, train, checkpoint, tmp_path
):
    train(
        "td3", tmp_path, *TINY, *SYNC, "collector.max_lead=30", "exploration_noise=0",
        "init_random_frames=90", "actor_lr=0.01", "num_envs=2", "checkpoint_interval=211",
    )  # fmt: skip
    (pool,) = pools
    requests = [request for _, request in pool.requests]
    weights = [np.concatenate([each.ravel() for each in sent]) for sent in pool.weights]
    order = sorted(range(len(requests)), key=lambda number: requests[number].first)
    requests, weights = ([each[number] for number in order] for each in (requests, weights))
    assert [each.first for each in requests] == list(range(1, 212, 8))
    assert {each.rounds for each in requests} == {4, 2}  # two at the end
    assert (weights[0] == weights[10]).all()  # nothing is learned from the first 90 frames
    assert len(np.unique(weights[-10:], axis=0)) == 10
    rows = rows_in(checkpoint(tmp_path)["parts"]["replay"])
    frames = checkpoint(tmp_path)["parts"]["collector"]["frames"]
    assert len(rows["action"]) == frames == 212  # whole rounds
    # Random actions are uniform; without noise, all others are outputs of one of the policies.
    assert torch.linalg.matrix_rank(rows["action"][:90].double()) == 6


def test_results_of_synchronous_workers_do_not_depend_on_their_speed(
    pools, train, assert_same_run, monkeypatch, tmp_path
):
    overrides = ("sampler=vmf_rank", "replay=per", "num_envs=2", *TINY, *SYNC)
    first = train("td3", tmp_path / "first", *overrides)
    monkeypatch.setattr(InlinePool, "seed", 7)
    assert_same_run(first, train("td3", tmp_path / "other", *overrides))
    # Worker 1 is lost in its first chunk, worker 0 twice in a later one.
    monkeypatch.setattr(InlinePool, "losses", ((1, 0), (0, 3), (2, 5)))
    assert_same_run(first, train("td3", tmp_path / "lost", *overrides))
    assert len(pools[2].requests) == len(pools[0].requests) + 3
    # Workers are lost while their chunks wait for those of others.
    monkeypatch.setattr(InlinePool, "losses", ())
    monkeypatch.setattr(InlinePool, "idle_losses", ((1, 0), (2, 0), (2, 3), (1, 5)))
    assert_same_run(first, train("td3", tmp_path / "idle", *overrides))
    assert len(pools[3].requests) == len(pools[0].requests)


@pytest.mark.parametrize("algorithm", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_synchronous_run_resumes_exactly(algorithm, pools, assert_resumes_exactly):
    assert_resumes_exactly(algorithm, *TINY, *SYNC, "collector.max_lead=40", at=150, saved=130)


def test_asynchronous_run_replaces_lost_workers_and_resumes(
    pools, train, crash, checkpoint, table, monkeypatch, capfd, tmp_path
):
    monkeypatch.setattr(InlinePool, "losses", ((1, 0), (0, 3)))
    options = (*TINY, "collector=processes", "collector.max_lead=40")
    crash("td3", tmp_path, *options, at=150)
    assert "Worker 1 was lost (killed) and is restarted." in capfd.readouterr().err
    assert checkpoint(tmp_path)["step"] == 130
    saved = checkpoint(tmp_path)["parts"]["collector"]
    train("td3", tmp_path, *options)
    assert table(tmp_path / "eval.csv")[-1]["step"] == "211"
    numbers = {worker: request.number for worker, request in reversed(pools[1].requests[:3])}
    assert numbers == dict(enumerate(saved["numbers"]))  # no chunk is seeded twice
    assert pools[1].states[:3] == [None] * 3


def test_silent_workers_end_the_run_after_the_patience(pools, train, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(InlinePool, "receive", lambda self, timeout: time.sleep(timeout) or ())
    monkeypatch.setattr(collectors, "_START", 0)
    reasons = itertools.chain(["are asleep"] * 2, itertools.repeat("are lazy"))
    monkeypatch.setattr(InlinePool, "obstacle", property(lambda self: next(reasons)))
    message = "No frames have arrived for collector.patience=2 seconds .3 of 3 workers are lazy"
    with pytest.raises(UserError, match=message):
        train("td3", tmp_path, *TINY, *SYNC, "collector.patience=2")
    said = re.findall("3 of 3 workers are (.*)[.]", capfd.readouterr().err)
    assert said == ["asleep", "lazy"]  # once each


def test_other_versions_of_a_worker_are_reported(pools, train, monkeypatch, capfd, tmp_path):
    theirs = {**worker.versions(), "mujoco": "0.1"}
    monkeypatch.setattr(worker, "versions", lambda: theirs)
    train("td3", tmp_path, *TINY, *SYNC, "total_frames=60")
    assert "Worker 0 has mujoco 0.1, the learner" in capfd.readouterr().err


@pytest.mark.parametrize(("env", "size"), [("OneVector-v0", 1), ("OneMatrix-v0", 4)])
@pytest.mark.parametrize(
    "overrides",
    [("fast=true",), ("fast=false",), ("collector=processes", "collector.num_workers=1")],
    ids=" ".join,
)
def test_arrays_that_the_environment_overwrites(
    env, size, overrides, pools, train, checkpoint, tmp_path
):
    train("td3", tmp_path, f"env.name={env}", *overrides, "total_frames=66")
    rows = rows_in(checkpoint(tmp_path)["parts"]["replay"])
    assert rows["observation"].shape[-1] == size
    count = torch.arange(60) % 20
    assert rows["observation"][:60, 0].tolist() == count.tolist()
    assert rows["next"]["observation"][:60, 0].tolist() == (count + 1).tolist()
    assert (rows["action"][:60] != 0).all()


# --- Real processes.


@pytest.mark.slow
def test_processes_give_the_results_of_workers_in_this_process(
    train, assert_same_run, monkeypatch, request, tmp_path, capfd
):
    # Other processes do not know the environments of these tests.
    options = (*TINY, *SYNC, "num_envs=2", "sampler=vmf_rank", "env.name=Hopper-v4")
    start, collect = collectors.Processes.start, collectors.WorkersCollector.collect
    started = []

    def start_and_keep(self, worker):
        start(self, worker)
        started.extend(child for child in active_children() if child not in started)

    def kill_and_collect(self):
        if self._steps == 120:
            started[1].kill()
        collect(self)

    with monkeypatch.context() as patch:
        patch.setattr(collectors.Processes, "start", start_and_keep)
        patch.setattr(collectors.WorkersCollector, "collect", kill_and_collect)
        real = train("td3", tmp_path / "real", *options)
    assert "Worker 1 was lost (exit code -9) and is restarted." in capfd.readouterr().err
    request.getfixturevalue("pools")
    assert_same_run(real, train("td3", tmp_path / "inline", *options))


@pytest.mark.slow
def test_hindsight_replay_with_four_workers_learns_to_reach_every_goal(train, table, tmp_path):
    run_dir = train(
        "td3", tmp_path, *SYNC, "env=FetchReach-v4", "replay=her", "collector.num_workers=4",
        "total_frames=6000", "init_random_frames=1000", "hidden=[128,128]", "batch_size=128",
        "eval_interval=6000", "num_eval_episodes=20", "log_interval=6000", "utd_ratio=1/2",
    )  # fmt: skip
    assert float(table(run_dir / "eval.csv")[-1]["success_rate"]) == 1


def processes_of(session: int) -> list[int]:
    """Returns the processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_run_that_is_ended(sign, command, tmp_path):
    run_dir = tmp_path / "run"
    overrides = ("collector=processes", "total_frames=1000000")
    with subprocess.Popen(
        command("td3", run_dir, *overrides),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        end = time.monotonic() + 300
        while not list((run_dir / "checkpoint").glob("step_*.pt")):
            assert run.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        family = processes_of(run.pid)
        assert len(family) >= 3
        if sign == signal.SIGTERM:
            os.killpg(run.pid, sign)  # as Slurm sends it
        else:
            run.send_signal(sign)
        _, error = run.communicate(timeout=60)
    if sign == signal.SIGTERM:
        assert run.returncode == 143, error
        assert f"Stopped {run_dir} at step" in error
        assert "was lost" not in error
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in family):
        assert time.monotonic() < end
        time.sleep(0.1)


# Python reads it when a process starts, so workers also register the environment.
BROKEN = """
import gymnasium, numpy

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    steps = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(3, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        seen = numpy.full(3, numpy.nan if self.steps > 100 else 0, numpy.float32)
        return seen, 0.0, False, self.steps % 20 == 0, {}

gymnasium.register("Broken-v0", Broken)
"""


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["processes", "ray"])
def test_error_of_an_environment_ends_the_run_in_one_line(collector, run_command, tmp_path):
    if collector == "ray":
        pytest.importorskip("ray")
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    overrides = ("env.name=Broken-v0", f"collector={collector}", "total_frames=300")
    run = run_command(
        "td3", tmp_path / "run", *overrides, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert run.returncode == 2, run.stderr
    assert re.search(
        r"^error: At step \d+: Broken-v0 returned NaN or infinity in 'observation'",
        run.stderr,
        re.MULTILINE,
    )
    assert list((tmp_path / "run/checkpoint").iterdir())


def test_ray_is_required_for_its_collector(configuration, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="collector=ray needs the package ray"):
        to_config(configuration("td3", tmp_path, "collector=ray"))
