"""The examples run without changes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("td3.py --frames 300 --random-frames 280", r"step 300: .* agreement (0\.\d+|1\.00)"),
        ("sac.py --frames 300 --random-frames 280", r"step 300: .* agreement (0\.\d+|1\.00)"),
        (
            "redq.py --frames 300 --random-frames 290 --critic-updates 2",
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
def test_example_trains_and_reports(command, result):
    name, *options = command.split()
    finished = subprocess.run(
        [sys.executable, EXAMPLES / name, "--env", "Hopper-v4", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert re.search(result, finished.stdout), finished.stdout[-2000:]


def test_the_quickstart_trains_without_changes(tmp_path):
    script = (EXAMPLES / "quickstart.py").read_text()
    for long, short in {"100_000": "600", "10_000": "400", "% 1000": "% 100"}.items():
        assert long in script
        script = script.replace(long, short)
    (tmp_path / "quickstart.py").write_text(script)
    finished = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert re.search(r"step 600: .* agreement of critics (0\.\d+|1\.00)", finished.stdout)
