"""Processes that are killed, interrupted, or that try to train the same run."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmfer_recipes import td3
from vmfer_recipes.run import evaluation, interruption
from vmfer_recipes.run.checkpoints import load_checkpoint
from vmfer_recipes.run.files import LockedError, lock

RUN = ("td3", "sampler=vmf_rank")

# The code of a separate process: the command line, without the seconds that imports take.
PROGRAM = """
import os, runpy, sys
stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(stream, 1), os.dup2(stream, 2)
sys.argv = arguments
runpy.run_path(arguments[0], run_name="__main__")
"""


@pytest.fixture(autouse=True)
def _handlers():
    """Restores signal handlers: a stopped run blocks signals until its process ends."""
    before = {number: signal.getsignal(number) for number in interruption.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start(command, tmp_path):
    """``start(run_dir, *overrides)``: starts TD3 in another process, which locks the run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vmfer_recipes.td3"])
    processes = []

    def launch(run_dir: Path, *overrides: str):
        names = {"arguments": command("td3", run_dir, *overrides)[1:], "log": tmp_path / "log"}
        process = context.Process(target=exec, args=(PROGRAM, names))
        process.start()
        processes.append(process)
        wait_until(lambda: holder(run_dir) == str(process.pid), process)
        return process

    yield launch
    for process in processes:
        process.kill()
        process.join()


def holder(run_dir: Path) -> str:
    file = run_dir / "lock"
    return file.read_text().split(" ")[0] if file.exists() else ""


def wait_until(ready, process, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not ready() and process.is_alive():
        assert time.monotonic() < end
        time.sleep(0.001)


def rows_of(state: dict) -> list:
    """The actions in the pieces of a replay buffer."""
    return [piece["tensors"]["action"] for piece in state["parts"]["replay"]["storage"]["rows"]]


def is_saving(run_dir: Path) -> bool:
    return any((run_dir / "checkpoint").rglob("*.unfinished"))


def newest(run_dir: Path) -> int:
    return max((int(file.stem[5:]) for file in (run_dir / "checkpoint").glob("*.pt")), default=0)


# Checkpoints and evaluations take a good part of the time.
KILLED = (
    *("total_frames=203", "checkpoint_interval=20", "log_interval=10", "eval_interval=50"),
    *("batch_size=16", "num_eval_episodes=3", "replay.buffer_size=90"),
)


def assert_intact(run_dir: Path, table) -> None:
    """Asserts that all checkpoints are readable, and that at most one interval was lost."""
    for file in (run_dir / "checkpoint").glob("*.pt"):
        state = load_checkpoint(file)
        assert sum(map(len, rows_of(state))) == min(state["step"], 90)
    for name in ("eval.csv", "train.csv"):
        if (run_dir / name).exists():
            # The last row may be half written.
            steps = [int(row["step"]) for row in table(run_dir / name)[:-1]]
            assert steps == sorted(steps)
            assert max(steps, default=0) <= newest(run_dir) + 20


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_repeatedly_killed_run_ends_like_an_uninterrupted_one(
    kills, start, train, table, assert_same_run, tmp_path
):
    clock = time.perf_counter()
    straight = train("td3", tmp_path / "straight", *KILLED)
    duration = time.perf_counter() - clock
    chance = random.Random(kills)
    run_dir, moments = tmp_path / "run0", []
    while len(moments) < kills:
        before = newest(run_dir)
        process = start(run_dir, *KILLED)
        if len(moments) % 3 == 1:
            wait_until(lambda run_dir=run_dir: is_saving(run_dir), process)
        else:
            time.sleep(chance.uniform(0, duration / 2))
        moments.append("saving" if is_saving(run_dir) else "other")
        process.kill()
        process.join()
        said = (tmp_path / "log").read_text()
        if "Resuming" in said:  # it may have been killed before
            assert f"at step {before}." in said
        assert_intact(run_dir, table)
        if (run_dir / "finished").exists():
            moments.pop()
            assert_same_run(straight, run_dir)
            run_dir = tmp_path / f"run{len(moments)}"
    train("td3", run_dir, *KILLED)
    assert_same_run(straight, run_dir)
    assert not list(run_dir.rglob("*.unfinished"))
    assert "saving" in moments  # the other moments are random


def test_crashed_run_releases_lock_and_signals_in_the_same_process(train, failing_at, tmp_path):
    # As in a sweep, which keeps the exceptions of its runs until its end.
    before = signal.getsignal(signal.SIGINT)
    with failing_at(5) as error:
        train("td3", tmp_path)
    assert error.value.__traceback__ is not None
    lock(tmp_path).close()
    assert signal.getsignal(signal.SIGINT) is before


def test_forked_child_does_not_keep_the_lock(tmp_path):
    program = """
import os, pathlib, signal, sys, time
from vmfer_recipes.run.files import lock
held = lock(pathlib.Path(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
    ) as process:
        child = int(process.stdout.readline())
        with pytest.raises(LockedError, match=f"process {process.pid} on"):
            lock(tmp_path)
        process.kill()
        process.wait()
        lock(tmp_path).close()
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "code", "step"),
    [
        *[(signal.SIGINT, 130, 97), (signal.SIGTERM, 143, 97), (signal.SIGINT, 130, 161)],
        (signal.SIGUSR2, 140, 97),
    ],
)
def test_signal_saves_the_exact_step_from_which_the_run_resumes(
    number, code, step, straight_run, finish, at_step, assert_same_run, tmp_path, capfd
):
    with at_step(step, lambda: signal.raise_signal(number)), pytest.raises(SystemExit) as stop:
        finish(RUN[0], tmp_path, *RUN[1:])
    assert stop.value.code == code
    assert not (tmp_path / "finished").exists()
    output = capfd.readouterr().err
    assert f"Stopped {tmp_path} at step {step}. Run the same command to resume" in output
    finish(RUN[0], tmp_path, *RUN[1:])
    assert f"at step {step}." in capfd.readouterr().err
    assert_same_run(straight_run(*RUN), tmp_path)


def test_launcher_that_handles_the_time_limit_of_a_job_is_called_after_the_run_has_saved(
    train, at_step, checkpoint, tmp_path
):
    def requeue(number, frame):
        calls.append((number, checkpoint(tmp_path)["step"]))
        sys.exit(255)  # as submitit does

    calls = []
    signal.signal(signal.SIGUSR2, requeue)
    with (
        at_step(97, lambda: signal.raise_signal(signal.SIGUSR2)),
        pytest.raises(SystemExit) as stop,
    ):
        train("td3", tmp_path)
    assert (stop.value.code, calls) == (255, [(signal.SIGUSR2, 97)])


@pytest.mark.parametrize(
    ("episode", "step"), [(1, 0), (2, 70), (4, 161), (5, 161)], ids=["0", "70", "last", "random"]
)
def test_signal_stops_an_evaluation_that_the_resumed_run_repeats(
    episode, step, straight_run, finish, assert_same_run, monkeypatch, tmp_path, capfd
):
    # A wrapper with statistics of all episodes: a repeated evaluation must not count twice.
    options = (*RUN[1:], "env.wrappers=[gymnasium.wrappers.NormalizeReward]")
    straight = straight_run(RUN[0], *options)
    play, episodes, steps = evaluation.play_episode, itertools.count(1), []

    def play_and_stop(policy, simulator, seed, on_step, max_steps):
        number = next(episodes)

        def stop():
            if number == episode:
                steps.append(number)
                if len(steps) == 10:
                    signal.raise_signal(signal.SIGTERM)
            on_step()

        return play(policy, simulator, seed, stop, max_steps)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "play_episode", play_and_stop)
        with pytest.raises(SystemExit) as end:
            finish(RUN[0], tmp_path, *options)
    assert end.value.code == 143
    assert len(steps) == 10
    assert f"Stopped {tmp_path} at step {step}." in capfd.readouterr().err
    finish(RUN[0], tmp_path, *options)
    assert ("Resuming" in capfd.readouterr().err) == (step > 0)
    assert_same_run(straight, tmp_path)


def test_several_signals_act_like_one(start, table, tmp_path):
    run_dir = tmp_path / "run"
    process = start(run_dir, "total_frames=100000", "checkpoint_interval=90000")
    wait_until((run_dir / "policy_best.pt").exists, process)
    while process.is_alive():  # also while it saves
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        time.sleep(0.001)
    assert process.exitcode == 130
    assert newest(run_dir) > 0
    assert f"Stopped {run_dir} at step {newest(run_dir)}." in (tmp_path / "log").read_text()
    assert_intact(run_dir, table)


def test_signal_stops_a_step_that_does_not_end(train, at_step, monkeypatch, tmp_path, capfd):
    def hang():
        while True:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)

    monkeypatch.setattr(interruption, "_PATIENCE", 0.05)
    before = signal.getsignal(signal.SIGINT)
    with at_step(97, hang), pytest.raises(KeyboardInterrupt):
        train("td3", tmp_path)
    assert "The run stops now, without saving this step." in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def sweep(command, tmp_path, monkeypatch):
    """``sweep(*overrides)``: trains seeds 0 and 1, one after the other, in this process."""

    def launch(*overrides: str) -> None:
        monkeypatch.chdir(tmp_path)
        options = ("total_frames=90", "seed=0,1", *overrides)
        program, first, *others = command("td3", tmp_path / "${seed}", *options)[1:]
        monkeypatch.setattr(sys, "argv", [program, first, "-m", *others])
        td3.main()

    return launch


def test_sweep_skips_a_run_that_another_process_trains(sweep, tmp_path, capfd):
    with lock(tmp_path / "0"):
        sweep()
    assert f"{tmp_path / '0'} is being written by process {os.getpid()} " in capfd.readouterr().err
    assert [file.name for file in (tmp_path / "0").iterdir()] == ["lock"]
    assert (tmp_path / "1" / "finished").exists()
    sweep()  # requires that both locks are released
    assert (tmp_path / "0" / "finished").exists()


def test_ctrl_c_ends_a_whole_sweep(sweep, at_step, tmp_path):
    with (
        at_step(10, lambda: signal.raise_signal(signal.SIGINT)),
        pytest.raises(SystemExit) as stop,
    ):
        sweep()
    assert stop.value.code == 130
    assert newest(tmp_path / "0") == 10
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize("seconds", [0.3, 2])
def test_ctrl_c_while_the_program_starts_prints_no_traceback(command, tmp_path, seconds):
    with subprocess.Popen(
        command("td3", tmp_path / "run", "total_frames=1000000"),
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts processes in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in error


def test_a_run_stops_when_its_minutes_are_over_and_resumes_exactly(
    straight_run, finish, assert_same_run, tmp_path, capfd
):
    finish(RUN[0], tmp_path, *RUN[1:], "max_minutes=1e-9")
    assert f"Stopped {tmp_path} at step 50." in capfd.readouterr().err
    assert newest(tmp_path) == 50
    finish(RUN[0], tmp_path, *RUN[1:], "max_minutes=1000")
    assert_same_run(straight_run(*RUN), tmp_path)
