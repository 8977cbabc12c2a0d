"""The progress output of a run."""

from __future__ import annotations

import io
import os
import pty
import select
import shutil
import time

import pytest

from vmfer_recipes.run.evaluation import Evaluation
from vmfer_recipes.run.progress import Progress


@pytest.fixture
def terminal():
    """The writing end of a terminal, and a function that returns everything written to it."""
    reader, writer = pty.openpty()

    def shown():
        text = b""
        while select.select([reader], [], [], 0.2)[0]:
            text += os.read(reader, 65536)
        return text.decode()

    with os.fdopen(writer, "w") as stream:
        yield stream, shown
    os.close(reader)


def test_a_terminal_shows_phase_evaluation_result_and_the_last_step(terminal):
    stream, shown = terminal
    with Progress(0, 20, 10, stream) as bar:
        assert "random actions" in shown()
        bar.update(10)
        bar.note()
        assert "random actions" not in shown()
        bar.note(3, 10)
        assert "evaluating 3/10" in shown()
        bar.note(0, 10)
        bar.show(Evaluation(-12.34, 1.0, 50.0, 0.5))
        assert "return -12.3, success 0.50" in shown()
        time.sleep(0.6)
        bar.update(2)
        assert "return -12.3" in (line := shown())
        assert " left, " in line
        assert " steps/s" in line
        bar.update(8)
    assert "20/20" in shown()


def test_the_next_run_closes_the_bar_that_a_failed_one_left_open(terminal):
    failed = Progress(0, 10, 0, terminal[0])
    with Progress(0, 20, 0, terminal[0]) as bar:
        assert failed.disable
        assert not bar.disable


def test_a_closed_terminal_does_not_end_the_run():
    reader, writer = pty.openpty()
    stream = os.fdopen(writer, "w")
    with Progress(0, 10, 0, stream) as bar:
        os.close(reader)
        bar.note(1, 2)
        bar.update(5)
        with pytest.raises(OSError, match="Input/output"):  # otherwise this would prove nothing
            os.write(writer, b"x")
    assert bar.n == 5
    assert bar.disable  # closed


@pytest.mark.parametrize("seconds", [0.05, 30])
def test_a_log_file_gets_a_line_at_intervals(seconds):
    stream = io.StringIO()
    with Progress(100, 200, 0, stream, seconds) as bar:
        bar.show(Evaluation(1.0, 1.0, 50.0, None))
        for _ in range(3):
            time.sleep(0.06)
            bar.update()
    lines = stream.getvalue().splitlines()
    assert len(lines) == (3 if seconds < 1 else 0)
    assert all(line.startswith("step 10") and line.endswith("return 1.0") for line in lines)


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
