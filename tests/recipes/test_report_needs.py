"""The report names the packages it requires."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "report.py"


@pytest.mark.parametrize("package", ["matplotlib", "rliable", "pandas"])
def test_missing_packages_are_reported_with_the_install_command(tmp_path, package):
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['report.py', '.'];"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "pip install '.[report]'" in line
