"""The package as users install it: a wheel that contains the recipes' configurations."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torchrl_vmfer

ROOT = Path(__file__).parents[2]


def run(*command, cwd):
    finished = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stdout[-1000:] + finished.stderr[-2000:]
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel from a copy, because setuptools writes into the source folder."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("torchrl_vmfer", "recipes", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target)
    run(*build, source, cwd=target)
    (file,) = target.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Makes an environment with the wheel. It reuses the installed dependencies."""
    path = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", path, cwd=path)
    python = path / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet")
    run(*pip, wheel, cwd=path)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return path / "bin"


def test_the_wheel_passes_the_checks_of_the_package_index(wheel):
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=ROOT)


def test_the_wheel_has_the_version_of_the_library(wheel):
    assert wheel.name.startswith(f"torchrl_vmfer-{torchrl_vmfer.__version__}-")


def test_the_installed_commands_train_and_evaluate_in_an_empty_directory(environment, tmp_path):
    where = run(
        environment / "python", "-c", "import vmfer_recipes as r; print(r.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(environment.parent)  # not the checkout
    run_dir = "runs/td3/InvertedPendulum-v4/uniform-vmf_rank/seed0"
    small = ["total_frames=200", "init_random_frames=100", "num_eval_episodes=1", "hidden=[16]"]
    run(
        *(environment / "vmfer-train", "td3", "env=InvertedPendulum-v4", "sampler=vmf_rank"),
        *small,
        cwd=tmp_path,
    )
    assert (tmp_path / run_dir / "finished").exists()
    evaluation = run(environment / "vmfer-evaluate", run_dir, "episodes=1", cwd=tmp_path)
    assert "Return" in evaluation
    assert "1 done" in run(environment / "vmfer-status", "runs", cwd=tmp_path)
