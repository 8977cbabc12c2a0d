"""The examples run without changes."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_script(monkeypatch, capsys):
    """``run_script(file, *arguments)``: runs a program in this process; returns its output.

    The imports of a new process would take longer than the example itself.
    """

    def run(file, *arguments):
        monkeypatch.setattr(sys, "argv", [str(file), *arguments])
        runpy.run_path(str(file), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("td3_loop.py --frames 300 --random-frames 280", r"step 300: .* agreement (0\.\d+|1\.00)"),
        ("sac_loop.py --frames 300 --random-frames 280", r"step 300: .* agreement (0\.\d+|1\.00)"),
        (
            "redq_loop.py --frames 300 --random-frames 290 --critic-updates 2",
            r"step 300: .* agreement (0\.\d+|1\.00)",
        ),
        (
            "trainer.py --frames 64",
            r"64 transitions: the actor samples them 0\.\d+ to 1\.\d+ times",
        ),
        pytest.param(
            "trainer.py --sac --frames 64",
            r"64 transitions: the actor samples them 0\.\d+ to 1\.\d+ times",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_example_trains_and_reports(command, result, run_script):
    name, *options = command.split()
    assert re.search(result, run_script(EXAMPLES / name, "--env", "Hopper-v4", *options))


def test_the_quickstart_trains_without_changes(tmp_path, run_script):
    script = (EXAMPLES / "quickstart.py").read_text()
    for long, short in {"100_000": "400", "10_000": "300", "% 1000": "% 100"}.items():
        assert long in script
        script = script.replace(long, short)
    (tmp_path / "quickstart.py").write_text(script)
    output = run_script(tmp_path / "quickstart.py")
    assert re.search(r"step 400: .* agreement of critics (0\.\d+|1\.00)", output)
