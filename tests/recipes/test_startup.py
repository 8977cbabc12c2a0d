"""Help and error messages appear before torch, TorchRL and the simulators are imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = [
    ("td3", "--help", 0),
    ("shooting", "--help", 0),
    ("evaluate", "--help", 0),
    ("report", "--help", 0),
    ("status", "--help", 0),
    ("td3", "--cfg job", 0),
    ("td3", "--cfg jobs", 2),
    ("td3", "--config-dir nowhere", 2),
    ("td3", "sede=3", 2),
    ("td3", "sampler=nonsense", 2),
    ("td3", "total_frames=10", 2),
    ("td3", "device=mps", 2),
    ("td3", "env.name=Hoper-v4", 2),
    ("td3", "-m seed=0,1 gamma=2", 2),
    ("shooting", "seeds=1", 2),
    ("evaluate", "nowhere", 2),
    ("evaluate", ". --video", 2),
    ("report", "nowhere", 2),
    ("export", "--help", 0),
    ("export", "nowhere", 2),
    ("fork", "--help", 0),
    ("fork", "run=nowhere", 2),
    ("fork", "run=nowhere stepps=10", 2),
    ("vmfer-train", "--help", 0),
    ("vmfer-train", "sac sede=3", 2),
    ("status", "nowhere", 2),
    ("my_td3", "--help", 0),
]
# Runs every command as a script, in one process, and records which modules it has imported.
PROGRAM = """
import contextlib, io, json, runpy, sys
for script, arguments in json.loads(sys.argv[1]):
    sys.argv[:] = [script, *arguments.split()]
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(script, run_name="__main__")
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
    heavy = [name for name in ("torch", "torchrl") if name in sys.modules]
    print(json.dumps([code, out.getvalue(), err.getvalue(), heavy]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(ROOT / "recipes" / "td3.py", folder / "my_td3.py")
    scripts = {name: ROOT / "recipes" / f"{name}.py" for name, _, _ in CASES}
    scripts["my_td3"], scripts["vmfer-train"] = folder / "my_td3.py", folder / "vmfer-train"
    scripts["vmfer-train"].write_text("from vmfer_recipes.config.launch import train\ntrain()\n")
    commands = [(str(scripts[name]), arguments) for name, arguments, _ in CASES]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    lines = map(json.loads, ran.stdout.splitlines())
    return dict(zip([case[:2] for case in CASES], lines, strict=True))


def test_answers_do_not_wait_for_the_heavy_imports(answers):
    """One test for all, because the process that runs the commands takes seconds."""
    for name, arguments, code in CASES:
        ended_with, out, err, heavy = answers[name, arguments]
        assert (ended_with, heavy) == (code, []), (name, arguments)
        if code == 2:
            assert err.startswith("error: "), (name, arguments)
            assert len(err.splitlines()) == 1, (name, arguments)
        else:
            assert out, (name, arguments)
    keys = {"evaluate": ["episodes=", "seed=", "video="], "report": ["out="], "status": ["recent="]}
    for name, listed in keys.items():
        _, out, _, _ = answers[name, "--help"]
        assert out.startswith(f"Usage: python recipes/{name}.py <")
        assert [key for key in listed if f"\n  {key}" not in out] == []


def test_help_into_a_closed_pipe_is_not_an_error():
    ended = subprocess.run(
        f"{sys.executable} {ROOT}/recipes/td3.py --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.stdout.startswith("Usage: ")
    assert ended.stderr == ""
