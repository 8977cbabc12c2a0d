"""The examples of policies and custom networks run from a folder outside the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_policy_with_a_custom_network_is_trained_and_used_elsewhere(train, tmp_path, monkeypatch):
    shutil.copy(EXAMPLES / "own_network" / "residual.py", tmp_path)
    shutil.copy(EXAMPLES / "use_policy.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    own = ("network=residual.Residual", "++network_kwargs.width=16")
    train("td3", "runs/residual", *own, "total_frames=80")
    finished = subprocess.run(
        [sys.executable, "use_policy.py", "runs/residual"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "residual.Residual" in finished.stdout
    assert re.search(r"Return \d+\.\d in \d+ steps\.", finished.stdout)
