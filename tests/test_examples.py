"""The examples run as they stand."""

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
            "trainer.py --frames 64",
            r"64 transitions: the actor samples them 0\.\d+ to 1\.\d+ times",
        ),
        (
            "trainer.py --sac --frames 64",
            r"64 transitions: the actor samples them 0\.\d+ to 1\.\d+ times",
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
