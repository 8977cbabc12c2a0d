"""Untrusted files are read, never executed: every file that a program opens may be a bomb."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile

import pytest
import torch
from omegaconf import OmegaConf

from vmfer_recipes import evaluate, status
from vmfer_recipes.config.errors import UserError

YAML_BOMBS = (
    '!!python/object/apply:os.mkdir ["{}"]',
    "!!python/object/new:os.mkdir ['{}']",
    '!!python/object/apply:subprocess.check_call [["mkdir", "{}"]]',
)


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def marker(tmp_path):
    """A folder that a bomb would create, and that must not exist after the test."""
    folder = tmp_path / "executed"
    yield folder
    assert not folder.exists()


def replace_pickle(file, bomb):
    """Replaces data.pkl in a valid file with a bomb, and changes nothing else."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            is_pickle = name.endswith("data.pkl")
            archive.writestr(name, pickle.dumps(bomb, protocol=2) if is_pickle else content)


@pytest.fixture
def run_dir(tmp_path):
    """A finished run with a policy that fits no environment."""
    run_dir = tmp_path / "runs" / "run"
    run_dir.mkdir(parents=True)
    config = {"seed": 0, "total_frames": 100, "algorithm": "td3", "hidden": [4]}
    names = {"env": "InvertedPendulum-v4", "replay": "uniform", "sampler": "uniform"}
    config |= {group: {"name": name} for group, name in names.items()}
    OmegaConf.save(OmegaConf.create(config), run_dir / "config.yaml")
    rows = "".join(f"{step},{step / 10}\n" for step in range(0, 101, 10))
    (run_dir / "eval.csv").write_text(f"step,return_mean\n{rows}")
    torch.save({"weight": torch.zeros(3)}, run_dir / "policy.pt")
    (run_dir / "finished").touch()
    return run_dir


def test_the_pickle_is_a_bomb(tmp_path):
    torch.save({}, tmp_path / "file.pt")
    replace_pickle(tmp_path / "file.pt", Bomb(tmp_path / "executed"))
    torch.load(tmp_path / "file.pt", weights_only=False)
    assert (tmp_path / "executed").exists()


def test_a_policy_is_not_executed(run_dir, marker, run_program):
    replace_pickle(run_dir / "policy.pt", Bomb(marker))
    code, _, errors = run_program(evaluate.main, run_dir)
    assert code == 2
    assert errors.startswith(f"error: {run_dir / 'policy.pt'} cannot be read (it holds more than")
    assert "weights_only" not in errors  # no advice to execute it
    assert errors.count("\n") == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_of_a_run_is_not_executed(
    crashed_run, finish, tmp_path, marker, capsys, count
):
    run_dir = shutil.copytree(crashed_run("td3"), tmp_path / "run")
    files = sorted((run_dir / "checkpoint").glob("step_*.pt"))
    assert len(files) == 2
    for file in files[-count:]:
        replace_pickle(file, Bomb(marker))
    before = (run_dir / "eval.csv").read_bytes()
    if count == 2:
        # Starting from step 0 would overwrite the tables of a long run.
        with pytest.raises(UserError, match=r"No checkpoint in .* delete"):
            finish("td3", run_dir)
        assert (run_dir / "eval.csv").read_bytes() == before
    else:
        finish("td3", run_dir)
        assert (run_dir / "finished").exists()
    assert f"{files[-1]} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_a_configuration_is_not_executed(run_dir, train, marker, run_program, bomb):
    text = (run_dir / "config.yaml").read_text() + f"extra: {bomb.format(marker)}\n"
    (run_dir / "config.yaml").write_text(text)
    code, _, errors = run_program(evaluate.main, run_dir)
    assert code == 2
    assert errors.startswith(f"error: {run_dir / 'config.yaml'} is not the configuration of a run")
    with pytest.raises(UserError, match=r"config.yaml cannot be read"):
        train("td3", run_dir)
    code, _, errors = run_program(status.main, run_dir)
    assert code == 2
    assert f"{run_dir} is left out: config.yaml cannot be read" in errors
    pytest.importorskip("rliable")
    from vmfer_recipes.report import command

    code, _, errors = run_program(command.main, run_dir)
    assert code == 2
    assert "config.yaml cannot be read" in errors


@pytest.mark.parametrize(
    "record",
    [
        *YAML_BOMBS,
        '{"time": 0, "runs": [{"run_dir": "x", "algorithm": "td3", "total_frames": "many"}]}',
        '{"time": 0, "runs": [{"run_dir": ["x"], "algorithm": "td3", "total_frames": 1}]}',
        '{"time": 0, "runs": [{"run_dir": "x", "algorithm": "td3", "total_frames": -1}]}',
    ],
)
def test_the_record_of_a_sweep_is_not_executed(run_dir, marker, run_program, record):
    (run_dir / "sweep_1.json").write_text(record.replace("{}", str(marker)))
    code, output, errors = run_program(status.main, run_dir)
    assert code == 0
    assert "1 done" in output
    assert errors.startswith("warning: ")


def test_names_are_not_markup(run_dir, tmp_path, monkeypatch, run_program):
    pytest.importorskip("rliable")
    from vmfer_recipes.report import command, inference

    monkeypatch.setattr(inference, "REPETITIONS", 10)
    config, script = OmegaConf.load(run_dir / "config.yaml"), "<script>alert(1)</script>"
    config.env.name = f"=1+1{script}"
    samplers = {"odd": rf"$\frac{{{script}", "baseline": "uniform", f"{script[:8]}left out": None}
    for name, config.sampler.name in samplers.items():
        OmegaConf.save(config, shutil.copytree(run_dir, tmp_path / "odd" / name) / "config.yaml")
    arguments = (tmp_path / "odd", f"out={tmp_path / 'report'}")
    assert run_program(command.main, *arguments)[0] == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
