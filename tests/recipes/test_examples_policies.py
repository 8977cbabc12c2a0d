"""The examples of policies and custom networks run from a folder outside the repository."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_policy_with_a_custom_network_is_trained_and_used_elsewhere(
    train, tmp_path, monkeypatch, capsys
):
    shutil.copy(EXAMPLES / "own_network" / "residual.py", tmp_path)
    shutil.copy(EXAMPLES / "use_policy.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = ("network=residual.Residual", "++network_kwargs.width=16")
    train("td3", "runs/residual", *own, "total_frames=80")
    # As in a new process, which finds modules in the directory of its program.
    sys.modules.pop("residual")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(p for p in sys.path if p != str(tmp_path))])
    monkeypatch.setattr(sys, "argv", ["use_policy.py", "runs/residual"])
    capsys.readouterr()
    runpy.run_path("use_policy.py", run_name="__main__")
    output = capsys.readouterr().out
    assert "residual.Residual" in output
    assert re.search(r"Return \d+\.\d in \d+ steps\.", output)
    assert Path(sys.modules.pop("residual").__file__).parent == tmp_path
