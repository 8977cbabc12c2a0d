"""Loading a saved buffer executes no code from its file."""

import contextlib
import os
import pickle
import re

import pytest
import torch

from helpers.actor_critic import make, used_buffer


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.makedirs, (str(self.folder),)


def plant_pickle(file, bomb):
    file.write_bytes(pickle.dumps(bomb))


def plant_archive(file, bomb):
    torch.save({"storage": bomb, "actor_sampler": {"priorities": bomb}}, file)


@pytest.mark.parametrize("plant", [plant_pickle, plant_archive])
def test_loading_runs_no_code_from_the_file(plant, tmp_path):
    used_buffer(prefetch=2).dumps(tmp_path / "saved")
    (file,) = (tmp_path / "saved").iterdir()
    plant(file, Bomb(tmp_path / "marker"))
    with pytest.raises(RuntimeError, match="cannot be read"):
        make("rank_per", "vmf_rank", seed=99, prefetch=2).loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()
    with contextlib.suppress(RuntimeError):
        torch.load(file, weights_only=False)
    assert (tmp_path / "marker").exists(), "the example executes nothing"


@pytest.mark.parametrize("content", [b"", b"no tensors here", None], ids=["empty", "text", "half"])
def test_another_file_is_reported_by_name(content, tmp_path):
    used_buffer().actor_sampler.dumps(tmp_path)
    (file,) = tmp_path.iterdir()
    saved = file.read_bytes()
    file.write_bytes(saved[: len(saved) // 2] if content is None else content)
    with pytest.raises(RuntimeError, match=re.escape(str(file))):
        make("rank_per", "vmf_rank").actor_sampler.loads(tmp_path)


def test_a_damaged_file_is_not_loaded(tmp_path):
    used_buffer().dumps(tmp_path / "saved")
    (file,) = (tmp_path / "saved").iterdir()
    content = bytearray(file.read_bytes())
    content[content.index(torch.arange(25, 30).numpy().tobytes())] ^= 64
    file.write_bytes(content)
    target = make("rank_per", "vmf_rank", seed=99)
    with pytest.raises(RuntimeError, match=r"the checksum of .* is wrong"):
        target.loads(tmp_path / "saved")
    assert len(target) == 0
