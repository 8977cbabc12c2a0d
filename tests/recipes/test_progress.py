"""The progress output of a run."""

from __future__ import annotations

import io
import itertools
import os
import pty
import select
import shutil
import threading
import time

import pytest

from vmfer_recipes.run.evaluation import Evaluation
from vmfer_recipes.run.progress import Progress


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock):
    """``progress(start, total, random_steps)``: a bar that is not drawn, with ``clock``."""
    return lambda *steps: Progress(*steps, stream=io.StringIO(), clock=clock)


def text_of(seen):
    """All that a terminal received. One write may arrive in several parts."""
    return "".join(text for _, text in seen)


@pytest.fixture
def terminal():
    """The writing end of a terminal, and everything written to it, with times."""
    reader, writer = pty.openpty()
    seen, is_over = [], threading.Event()

    def read():
        while not is_over.is_set():
            if select.select([reader], [], [], 0.05)[0]:
                seen.append((time.monotonic(), os.read(reader, 65536).decode()))

    thread = threading.Thread(target=read)
    thread.start()
    with os.fdopen(writer, "w") as stream:
        yield stream, seen
        is_over.set()
        thread.join()
    os.close(reader)


def test_random_steps_show_no_time_left_and_do_not_count(progress, clock):
    bar = progress(0, 1000, 200)
    for step in range(1, 201):
        clock.now += 1 / 64
        if step < 200:
            bar.advance(step)
            assert bar.facts() == ["random actions"]
    bar.advance(200)
    for step in range(201, 301):
        clock.now += 1 / 8  # learning steps are eight times slower
        bar.advance(step)
    # 700 steps at 8 per second. From all steps it would be 700 / 300 × 15.6 s = 36 s.
    assert bar.facts() == ["01:27 left", "8.0 steps/s"]


def test_a_resumed_run_counts_only_its_own_steps(progress, clock):
    bar = progress(5000, 5300, 1000)
    clock.now += 40
    bar.advance(5100)
    assert bar.facts() == ["01:20 left", "2.5 steps/s"]


def test_a_run_resumed_in_the_random_phase_continues_that_phase(progress, clock):
    bar = progress(50, 300, 100)
    clock.now += 10
    bar.advance(51)
    assert bar.facts() == ["random actions"]


def test_steps_of_several_environments_may_jump_over_the_end_of_the_random_phase(progress, clock):
    bar = progress(0, 208, 100)
    bar.advance(96)
    bar.advance(104)
    clock.now += 2
    bar.advance(108)
    assert bar.facts() == ["00:50 left", "2.0 steps/s"]


def test_an_evaluation_shows_its_episode_and_then_its_result(progress):
    bar = progress(0, 100, 0)
    bar.evaluate(3, 10)
    assert bar.facts() == ["evaluating 3/10"]
    bar.evaluate(0, 10)
    bar.show(Evaluation(-12.34, 1.0, 50.0, 0.5))
    assert bar.facts() == ["return -12.3", "success 0.50"]
    bar.show(Evaluation(-1.0, 1.0, 50.0, None))
    assert bar.facts() == ["return -1.0"]


def test_the_bar_of_a_terminal_moves_every_second_during_a_slow_step(terminal):
    stream, seen = terminal
    with Progress(0, 10, 0, stream) as bar:
        bar.evaluate(2, 7)
        began = time.monotonic()
        time.sleep(2.5)  # a step, an evaluation or a checkpoint that takes long
        ended = time.monotonic()
    times = [began, *(moment for moment, _ in seen if began < moment < ended), ended]
    assert max(b - a for a, b in itertools.pairwise(times)) < 1.0
    shown = "".join(text for _, text in seen)
    assert "evaluating 2/7" in shown
    assert "[00:02" in shown


def test_the_bar_ends_at_the_last_step_and_is_closed_once(terminal):
    stream, seen = terminal
    with Progress(0, 10, 0, stream) as bar:
        bar.advance(10)
        bar.close()
        time.sleep(0.3)
        written = text_of(seen)
        time.sleep(0.7)
    assert "10/10" in written.splitlines()[-1]
    assert text_of(seen) == written


def test_the_next_run_closes_the_bar_that_a_failed_one_left_open(terminal):
    stream, seen = terminal
    Progress(0, 10, 0, stream).__enter__()
    with Progress(0, 20, 0, io.StringIO()):
        time.sleep(0.3)
        written = text_of(seen)
        time.sleep(0.7)
        assert text_of(seen) == written


def test_a_log_file_is_not_flooded():
    stream = io.StringIO()
    with Progress(0, 10, 0, stream) as bar:
        for step in range(1, 11):
            bar.advance(step)
            time.sleep(0.07)
    assert stream.getvalue() == ""  # the first line comes after 30 s


def test_the_first_line_shows_the_run_its_directory_and_its_first_step(
    crashed_run, finish, tmp_path, capfd
):
    run_dir = tmp_path / "run"
    shutil.copytree(crashed_run("td3"), run_dir)
    capfd.readouterr()
    finish("td3", run_dir)
    assert capfd.readouterr().err.splitlines()[0] == (
        "td3 on ShortCheetah-v0, sampler=vmf_uncertainty, replay=uniform, device=cpu, 161 steps, "
        f"in {run_dir}. Resuming at step 120."
    )
