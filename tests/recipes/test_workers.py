"""Runs whose transitions are collected by several processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from helpers.saved_rows import rows_in
from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler
from vmfer_recipes.agent.agent import Agent
from vmfer_recipes.collection.workers import Workers
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import to_config

KINDS = ("multi_sync", "multi_async")
CAPACITY = 100
TINY = (
    "env=Hopper-v4",  # three action dimensions, so that factors vary
    "batch_size=16",
    "total_frames=150",
    "checkpoint_interval=50",
    f"replay.buffer_size={CAPACITY}",  # smaller than the run: workers overwrite rows
)


@pytest.fixture
def _quick_starts():
    """Starts workers from a process that has imported everything, once for all tests.

    They receive their arguments as with TorchRL's ``spawn``, which the slow tests use.
    """
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(
        ["vmfer_recipes.collection.workers", "vmfer_recipes.td3"]
    )
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def collectors(monkeypatch) -> list[Workers]:
    """The collectors of the runs in this test."""
    made: list[Workers] = []
    init = Workers.__init__
    monkeypatch.setattr(
        Workers, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1]
    )
    return made


@pytest.fixture
def updates(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor, int, int]]:
    """Records the updates of the actor's sampler and the number of rows written by then."""
    recorded = []
    sample, update = (
        getattr(ActorCriticReplayBuffer, name) for name in ("sample_actor", "update_actor_priority")
    )

    def recording_sample(self, *args, **kwargs):
        with self.locked():
            self.written_at_sample = self.write_count
            return sample(self, *args, **kwargs)

    def recording_update(self, index, factor, generation):
        with self.locked():
            recorded.append((index, factor.clone(), self.written_at_sample, self.write_count))
            update(self, index, factor, generation)

    monkeypatch.setattr(ActorCriticReplayBuffer, "sample_actor", recording_sample)
    monkeypatch.setattr(ActorCriticReplayBuffer, "update_actor_priority", recording_update)
    return recorded


def factors_by_hand(updates, written: int) -> torch.Tensor:
    """Computes the factors after a run: frame n is in slot n % CAPACITY."""
    factors = torch.ones(CAPACITY)
    seen = 0
    for index, factor, sampled_at, updated_at in updates:
        for frame in range(seen, updated_at):
            factors[frame % CAPACITY] = 1
        overwritten = {frame % CAPACITY for frame in range(sampled_at, updated_at)}
        for slot, value in zip(index.tolist(), factor.tolist(), strict=True):
            if slot not in overwritten:
                factors[slot] = value
        seen = updated_at
    for frame in range(seen, written):
        factors[frame % CAPACITY] = 1
    return factors


@pytest.mark.usefixtures("_quick_starts")
@pytest.mark.parametrize(
    ("algorithm", "kind", "overrides"),
    [
        ("td3", "multi_async", ("sampler=vmf_rank", "replay=per_rank")),
        pytest.param("td3", "multi_sync", ("sampler=vmf_uncertainty",), marks=pytest.mark.slow),
        pytest.param("sac", "multi_sync", ("sampler=vmf_rank",), marks=pytest.mark.slow),
        pytest.param("td3", "multi_async", ("fast=false",), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_lengths_factors_and_probabilities_are_correct_with_several_writers(
    algorithm, kind, overrides, train, table, checkpoint, collectors, updates, tmp_path
):
    run_dir = train(algorithm, tmp_path / "run", *TINY, f"collector={kind}", *overrides)
    assert (run_dir / "finished").exists()
    assert table(run_dir / "eval.csv")[-1]["step"] == "150"
    assert checkpoint(run_dir)["step"] == 150
    assert not multiprocessing.active_children()

    buffer = collectors[0]._buffer
    assert (
        150 <= buffer.write_count <= 151
    )  # one frame per step; two workers may end at the same time
    assert len(buffer) == CAPACITY
    assert buffer.writer._cursor == buffer.write_count % CAPACITY
    buffer.sample_actor()
    factors = factors_by_hand(updates, buffer.write_count)
    if kind == "multi_sync":  # otherwise all frames may be written before the first is scored
        assert (factors == 1).any()
    assert (factors > 1).any()
    torch.testing.assert_close(buffer.actor_sampler.state_dict()["priorities"], factors)
    if "sampler=vmf_rank" in overrides:
        order = factors.double().sort(descending=True).values
        mass = 1 / torch.arange(1, CAPACITY + 1, dtype=torch.float64)
        expected = torch.stack([mass[order == factor].mean() for factor in factors.double()])
    else:
        expected = factors.double()
    torch.testing.assert_close(buffer.actor_sampler.probabilities(), expected / expected.sum())
    # Both workers wrote their own episodes.
    assert len(buffer[:]["observation"].unique(dim=0)) == CAPACITY


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_starts")
@pytest.mark.parametrize("kind", KINDS)
def test_killed_worker_ends_the_run_with_one_line_and_the_run_can_be_resumed(
    kind, train, collectors, checkpoint, monkeypatch, tmp_path
):
    run_dir, collect = tmp_path / "run", Workers.collect

    def kill_at_120(self):
        if self._steps == 120:
            os.kill(self._workers.procs[1].pid, signal.SIGKILL)
        collect(self)

    overrides = (*TINY, f"collector={kind}", "total_frames=1000")
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "collect", kill_at_120)
        with pytest.raises(UserError, match=f"A worker of collector={kind} has died"):
            train("td3", run_dir, *overrides)
    assert not multiprocessing.active_children()
    saved = checkpoint(run_dir)
    assert saved["step"] >= 100
    assert len(rows_in(saved["parts"]["replay"])["action"]) == CAPACITY
    monkeypatch.setattr(Workers, "collect", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train("td3", run_dir, *overrides)
    assert collectors[1]._steps == saved["step"]
    buffer = collectors[1]._buffer
    assert buffer.write_count == saved["parts"]["replay"]["writer"]["_write_count"]
    keys = saved["parts"]["replay"]["actor_sampler"]["priorities"]
    assert torch.equal(buffer.actor_sampler.state_dict()["priorities"], keys)


def processes_of(run_dir: Path) -> list[int]:
    """Returns the processes whose command names a directory, and their children."""
    parents, ours = {}, set()
    for folder in Path("/proc").iterdir():
        try:
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if str(run_dir) in (folder / "cmdline").read_text():
                ours.add(pid)
        except (ValueError, OSError):
            continue
    while True:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            return sorted(ours)
        ours |= more


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_no_process_outlives_a_terminated_run(kind, command, tmp_path):
    run_dir = tmp_path / "run"
    overrides = (*TINY, f"collector={kind}", "total_frames=1000000")
    with subprocess.Popen(
        command("td3", run_dir, *overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 300
        while not list((run_dir / "checkpoint").glob("step_*.pt")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        family = processes_of(run_dir)
        assert len(family) >= 3
        process.terminate()
        process.wait(60)
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
@pytest.mark.parametrize("kind", KINDS)
def test_worker_reports_the_error_of_its_environment(kind, run_command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    overrides = ("env.name=Broken-v0", f"collector={kind}", "total_frames=300", *TINY[3:])
    run = run_command(
        "td3", tmp_path / "run", *overrides, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert run.returncode == 2, run.stderr
    assert re.search(
        r"At step \d+: Broken-v0 returned NaN or infinity in 'observation'", run.stderr
    )
    assert f"error: A worker of collector={kind} has died" in run.stderr
    assert list((tmp_path / "run/checkpoint").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_signal_to_learner_and_workers_saves(kind, command, tmp_path):
    run_dir = tmp_path / "run"
    overrides = (f"collector={kind}", "total_frames=1000000", "checkpoint_interval=1000000")
    with subprocess.Popen(
        command("td3", run_dir, *overrides),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        while not (run_dir / "train.csv").exists():
            assert run.poll() is None
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGTERM)  # as Slurm sends it
        _, error = run.communicate(timeout=300)
    assert run.returncode == 143, error
    assert f"Stopped {run_dir} at step" in error
    assert list((run_dir / "checkpoint").iterdir())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("collector=multi_sync", "replay=her", "env=FetchReach-v4"), "replay=her needs whole"),
        (("collector=multi_async", "replay=per"), "use replay=per_rank"),
        (("collector=ray", "sampler=vmf_direct"), "sampler=vmf_direct needs the buffer"),
        (("collector=multi_sync", "device=cuda"), "device"),
    ],
)
def test_options_that_workers_do_not_support_are_rejected(
    overrides, message, configuration, tmp_path
):
    with pytest.raises(UserError, match=message):
        to_config(configuration("td3", tmp_path, *overrides))


@pytest.mark.slow
def test_ray_run_with_the_buffer_in_an_actor_finishes(train, table, checkpoint, tmp_path):
    pytest.importorskip("ray")
    overrides = (*TINY, "collector=ray", "collector.frames_per_batch=10", "sampler=vmf_rank")
    run_dir = train("td3", tmp_path / "run", *overrides)
    assert (run_dir / "finished").exists()
    assert table(run_dir / "eval.csv")[-1]["step"] == "150"
    replay = checkpoint(run_dir)["parts"]["replay"]
    assert len(rows_in(replay)["action"]) == CAPACITY
    factors = replay["actor_sampler"]["priorities"]
    assert len(factors) == CAPACITY
    assert (factors == 1).any()  # new ones
    assert (factors > 1).any()


@pytest.mark.slow
def test_ray_buffer_that_refuses_a_factor_is_reported_as_divergence(configuration, tmp_path):
    pytest.importorskip("ray")
    from vmfer_recipes.collection.ray_workers import RemoteReplay

    cfg = to_config(configuration("td3", tmp_path, *TINY, "collector=ray"))
    parts = {"storage": partial(LazyTensorStorage, 8), "actor_sampler": VMFSampler}
    buffer = RemoteReplay(cfg, **parts)
    try:
        buffer.actor.extend(TensorDict({"observation": torch.zeros(8)}, [8]))
        batch = buffer.sample_actor()
        factors = torch.full(batch.shape, torch.nan)
        agent = SimpleNamespace(signal="factor", buffer=buffer)
        with pytest.raises(UserError, match="a sampling factor is not finite"):
            Agent.store_signal(agent, batch, {"vmf_factor": factors})
    finally:
        buffer.actor.shutdown()
