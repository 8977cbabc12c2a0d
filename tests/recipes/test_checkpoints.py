"""Checkpoints survive damaged files, full disks and interrupted writes."""

from __future__ import annotations

import collections
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import to_config
from vmfer_recipes.run.checkpoints import Checkpoints
from vmfer_recipes.run.files import replacing

RUN = ("td3", "sampler=vmf_rank")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if not file.is_dir())


@contextmanager
def largest_file(size: int):
    """Makes writes past ``size`` bytes fail in the kernel, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def mark_tensors_as_directories(file: Path) -> None:
    # PyTorch does not read the data of such entries.
    content = bytearray(file.read_bytes())
    header = content.index(b"PK\x01\x02")  # the central directory
    while header >= 0:
        if b"/data/" in content[header + 46 : header + 100]:
            content[header + 38] |= 0x10
        header = content.find(b"PK\x01\x02", header + 46)
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, mark_tensors_as_directories, Path.unlink])
@pytest.mark.parametrize("files", ["step_*.pt", "segments/*.pt"])
def test_damaged_newest_checkpoint_is_reported_and_the_previous_one_used(
    damage, files, straight_run, crashed_run, finish, assert_same_run, tmp_path, capfd
):
    run_dir = shutil.copytree(crashed_run(*RUN), tmp_path / "run")
    assert names(run_dir / "checkpoint") == ["step_000000000080.pt", "step_000000000120.pt"]
    newest = run_dir / "checkpoint" / "step_000000000120.pt"
    damage(max((run_dir / "checkpoint").glob(files)))
    straight = straight_run(*RUN)
    capfd.readouterr()
    finish(RUN[0], run_dir, *RUN[1:])
    errors = capfd.readouterr().err
    assert f"{newest} cannot be read" in errors or not newest.exists()
    assert "Resuming" in errors
    assert "at step 80." in errors
    assert_same_run(straight, run_dir)


def test_run_continues_on_a_full_disk_and_keeps_the_older_checkpoint(
    straight_run, crashed_run, finish, checkpoint, tmp_path, capfd
):
    run_dir = shutil.copytree(crashed_run(*RUN), tmp_path / "run")
    size = (run_dir / "checkpoint" / "step_000000000120.pt").stat().st_size
    with largest_file(size):  # the checkpoint of step 160 has more rows
        finish(RUN[0], run_dir, *RUN[1:])
    errors = capfd.readouterr().err
    assert "Could not save the checkpoint of step 160" in errors
    assert "step_000000000120.pt is intact" in errors
    assert names(run_dir / "checkpoint") == ["step_000000000120.pt"]
    assert checkpoint(run_dir)["step"] == 120
    assert (run_dir / "finished").exists()
    # The failed attempt does not affect training.
    straight = straight_run(*RUN)
    assert (run_dir / "eval.csv").read_bytes() == (straight / "eval.csv").read_bytes()


def test_two_processes_may_write_the_same_file(tmp_path):
    file = tmp_path / "report.md"
    write = (
        "import sys; from pathlib import Path; from vmfer_recipes.run.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file: file.write('theirs')"
    )
    with replacing(file) as stream:
        stream.write("ours")
        subprocess.run([sys.executable, "-c", write, file], check=True)
        assert file.read_text() == "theirs"
    assert file.read_text() == "ours"
    assert names(tmp_path) == ["report.md"]


def test_every_saved_state_can_be_loaded(tmp_path, assert_equal):
    Pair = collections.namedtuple("Pair", "one two")
    weights = collections.OrderedDict(weight=torch.ones(2))
    state = {
        "step": 3,
        "name": np.str_("Franka"),
        "numbers": [np.float64(0.5), np.int32(2), np.bool_(True), 1j, b"x", None],
        np.str_("key"): {"set": {np.str_("a"), "b"}, "frozen": frozenset({1})},
        "counts": collections.defaultdict(int, a=1),
        "recent": collections.deque([1, 2]),
        "pair": Pair(1, torch.zeros(2)),
        "weights": weights,
        "shape": torch.Size([2]),
    }
    Checkpoints(tmp_path).save(3, state)
    loaded = Checkpoints(tmp_path).load()
    assert_equal(
        loaded,
        {
            "step": 3,
            "name": "Franka",
            "numbers": [0.5, 2, True, 1j, b"x", None],
            "key": {"set": {"a", "b"}, "frozen": {1}},
            "counts": {"a": 1},
            "recent": [1, 2],
            "pair": (1, torch.zeros(2)),
            "weights": weights,
            "shape": torch.Size([2]),
        },
    )


@pytest.mark.parametrize("bad", [object(), np.zeros(2, object), Path("x"), lambda: 0])
def test_state_that_could_not_be_loaded_is_rejected_when_saving(bad, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"step": step})
    with pytest.raises(UserError, match=r"the state of step 3\['parts'\]\['x'\]\[1\] holds a"):
        checkpoints.save(3, {"step": 3, "parts": {"x": [1, bad]}})
    assert names(tmp_path) == ["step_000000000001.pt", "step_000000000002.pt"]
    assert checkpoints.load() == {"step": 2}


def test_run_whose_state_cannot_be_saved_ends_before_its_first_step(
    configuration, tmp_path, monkeypatch
):
    from vmfer_recipes import td3
    from vmfer_recipes.run.session import Session

    cfg = to_config(configuration("td3", tmp_path))
    session = Session(cfg)
    agent = td3.make_agent(cfg)
    monkeypatch.setattr(agent.observations, "state_dict", lambda: {"camera": Path("lens")})
    with pytest.raises(
        UserError, match=r"state\['parts'\]\['observations'\]\['camera'\] holds an object of type P"
    ):
        td3.train(cfg, session, agent)
    assert names(tmp_path) == ["lock"]


def test_checkpoint_of_another_run_is_rejected(crashed_run, finish, tmp_path):
    run_dir = shutil.copytree(crashed_run(*RUN), tmp_path / "run")
    other = crashed_run(*RUN, "seed=1")
    shutil.copytree(other / "checkpoint", run_dir / "checkpoint", dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"step 120 in .* another run \(seed=1 there, 0 here\)"):
        finish(RUN[0], run_dir, *RUN[1:])


def test_a_copy_with_another_name_is_no_checkpoint_and_one_with_another_step_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"step": 7})
    shutil.copy(tmp_path / "step_000000000007.pt", tmp_path / "step_000000000009_backup.pt")
    assert checkpoints.load()["step"] == 7
    shutil.copy(tmp_path / "step_000000000007.pt", tmp_path / "step_000000000009.pt")
    with pytest.raises(
        UserError, match=r"step_000000000009\.pt is a checkpoint of step 7: delete it"
    ):
        checkpoints.load()
