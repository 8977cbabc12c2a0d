"""The transitions of checkpoints are written once and shared by all checkpoints of a run."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictRoundRobinWriter

from helpers.saved_rows import rows_in
from torchrl_vmfer import ActorCriticReplayBuffer
from vmfer_recipes.run.checkpoints import Checkpoints, load_checkpoint


def make_buffer(capacity):
    return ActorCriticReplayBuffer(
        storage=LazyTensorStorage(capacity), writer=TensorDictRoundRobinWriter(), batch_size=4
    )


def numbered(first, last):
    numbers = torch.arange(first, last)
    return TensorDict({"number": numbers, "next": {"flag": numbers % 2 == 0}}, [len(numbers)])


def state_at(step, buffer):
    return {"step": step, "parts": {"replay": buffer.state_dict(copy_rows=False)}}


def names(folder):
    return {file.name for file in (folder / "segments").iterdir()}


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr("vmfer_recipes.run.checkpoints._SIZE", 8)


@pytest.mark.parametrize("capacity", [5, 8, 30, 32, 1000])
def test_any_sequence_of_writes_saves_and_restarts_restores_the_same_rows(capacity, tmp_path):
    chance = random.Random(capacity)
    buffer, written = make_buffer(capacity), 0
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 60):
        count = chance.choice([1, 1, 3, 7, 8, capacity])
        for first in range(written, written + count, capacity):
            buffer.extend(numbered(first, min(first + capacity, written + count)))
        written += count
        is_kept = chance.random() < 0.2
        assert checkpoints.save(step, state_at(step, buffer), is_kept=is_kept)
        folder = tmp_path / "kept" if is_kept else tmp_path
        loaded = load_checkpoint(folder / f"step_{step:012d}.pt")["parts"]["replay"]
        other = make_buffer(capacity)
        other.load_state_dict(loaded)
        assert torch.equal(other[:]["number"], buffer[:]["number"])
        assert torch.equal(other[:]["next", "flag"], buffer[:]["next", "flag"])
        if chance.random() < 0.3:  # another process resumes
            checkpoints = Checkpoints(tmp_path)
            if checkpoints.load()["step"] == step:
                buffer = other
            else:
                (tmp_path / "kept" / f"step_{step:012d}.pt").unlink()
                written -= count
                buffer = make_buffer(capacity)
                buffer.load_state_dict(checkpoints.load()["parts"]["replay"])
                written = buffer.write_count


def test_a_save_writes_new_rows_only_and_files_without_a_checkpoint_are_deleted(tmp_path):
    buffer, checkpoints = make_buffer(32), Checkpoints(tmp_path)
    files = {}
    for step in (8, 16, 24, 32, 40, 48):
        buffer.extend(numbered(step - 8, step))
        checkpoints.save(step, state_at(step, buffer), is_kept=step == 16)
        files[step] = {file.name: file.stat().st_ino for file in (tmp_path / "segments").iterdir()}
    assert [len(files[step]) for step in (8, 16, 24, 32)] == [1, 2, 3, 4]
    for step in (16, 24, 32, 40, 48):
        both = files[step].keys() & files[step - 8].keys()
        assert all(files[step][name] == files[step - 8][name] for name in both)
        assert len(files[step].keys() - both) == 1
    # Rows 0 to 16 were overwritten, but the checkpoint that is kept holds them.
    kept = tmp_path / "kept" / "step_000000000016.pt"
    assert rows_in(load_checkpoint(kept)["parts"]["replay"])["number"].tolist() == [*range(16)]
    assert len(files[48]) == 6
    kept.unlink()
    checkpoints.reduce(to=2)
    assert {int(name[:12]) for name in names(tmp_path)} == {8, 16, 24, 32, 40}
    checkpoints.reduce(to=0)
    assert not (tmp_path / "segments").exists()


def test_other_rows_with_the_same_numbers_do_not_replace_those_of_a_checkpoint(tmp_path):
    buffer, other = make_buffer(32), make_buffer(32)
    buffer.extend(numbered(0, 8))
    other.extend(numbered(100, 108))
    Checkpoints(tmp_path).save(1, state_at(1, buffer))
    Checkpoints(tmp_path).save(2, state_at(2, other))
    for step, first in ((1, 0), (2, 100)):
        state = load_checkpoint(tmp_path / f"step_{step:012d}.pt")
        assert rows_in(state["parts"]["replay"])["number"][0] == first


def test_a_failed_save_leaves_no_file(tmp_path):
    buffer, checkpoints = make_buffer(1000), Checkpoints(tmp_path)
    buffer.extend(numbered(0, 8))
    checkpoints.save(1, state_at(1, buffer))
    before = names(tmp_path)
    buffer.extend(numbered(8, 1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))  # the sampler has 1000 priorities
    assert not checkpoints.save(2, state_at(2, buffer))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == before
    shutil.rmtree(tmp_path / "segments")  # by a user, during the run
    assert checkpoints.save(3, state_at(3, buffer))
    assert checkpoints.load()["step"] == 3


MEMORY = """
    import resource, sys, threading, time
    from pathlib import Path
    sys.path += sys.argv[2:]
    import torch
    from tensordict import TensorDict
    from test_segments import make_buffer, state_at
    from vmfer_recipes.run.checkpoints import Checkpoints

    count = 400_000
    buffer = make_buffer(count)
    part = TensorDict({"observation": torch.ones(count // 4, 200)}, [count // 4])
    for _ in range(4):
        buffer.extend(part)
    del part
    checkpoints = Checkpoints(Path(sys.argv[1]))

    def used():
        pages = Path("/proc/self/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * resource.getpagesize() / 1e6

    before, most, is_over = used(), [0], threading.Event()

    def watch():
        while not is_over.wait(0.005):
            most[0] = max(most[0], used())

    thread = threading.Thread(target=watch)
    thread.start()
    checkpoints.save(1, state_at(1, buffer))
    is_over.set()
    thread.join()
    print(most[0] - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_save_needs_memory_for_one_file_not_for_the_whole_buffer(tmp_path):
    folders = [str(parent) for parent in Path(__file__).parents[:2]]
    script = [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path), *folders]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout.split()[-1]) < 150  # 320 MB of rows, 40 MB in a file
