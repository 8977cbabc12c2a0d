"""Loading a saved buffer runs no code from its files."""

import contextlib
import json
import os
import pickle
import shutil

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torchrl.envs.transforms import RewardScaling

from helpers.actor_critic import CAPACITY, make, used_buffer


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.makedirs, (str(self.folder),)


def plant_pickle(file, bomb):
    file.write_bytes(pickle.dumps(bomb))


def plant_archive(file, bomb):
    torch.save({"queue": [bomb], "keys": bomb}, file)


def plant_non_tensor(folder, bomb):
    """Adds an entry to a saved TensorDict that tensordict would unpickle."""
    spare = folder.with_name("spare")
    TensorDict({"bomb": NonTensorData(object())}, []).memmap(spare)
    meta = json.loads((folder / "meta.json").read_text())
    meta["bomb"] = json.loads((spare / "meta.json").read_text())["bomb"]
    (folder / "meta.json").write_text(json.dumps(meta))
    (spare / "bomb").rename(folder / "bomb")
    (folder / "bomb" / "other.pickle").write_bytes(pickle.dumps(bomb))


def plant_zipped_non_tensor(folder, bomb):
    """Puts a zip archive, which tensordict also reads, in the place of a saved TensorDict."""
    plant_non_tensor(folder, bomb)
    archive = shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)
    os.replace(archive, folder)


def saved_buffer_with_every_file(folder):
    buffer = used_buffer(prefetch=2)
    buffer.append_transform(RewardScaling(loc=0.0, scale=1.0, in_keys=[("next", "reward")]))
    buffer.dumps(folder)
    target = make("rank_per", "vmf_rank", seed=99, prefetch=2)
    target.append_transform(RewardScaling(loc=0.0, scale=1.0, in_keys=[("next", "reward")]))
    return target


def test_the_bombs_go_off_when_they_are_unpickled(tmp_path):
    for number, plant in enumerate([plant_pickle, plant_archive]):
        plant(tmp_path / "file", Bomb(tmp_path / f"marker{number}"))
        with contextlib.suppress(RuntimeError):
            torch.load(tmp_path / "file", weights_only=False)
        assert (tmp_path / f"marker{number}").exists()


@pytest.mark.parametrize("plant", [plant_pickle, plant_archive])
@pytest.mark.parametrize(
    "file", ["prefetched/queue.pt", "sampler/keys.pt", "actor_sampler/keys.pt", "transform.t"]
)
def test_loading_runs_no_code_from_a_file_that_torch_reads(plant, file, tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    assert (tmp_path / "saved" / file).exists()
    plant(tmp_path / "saved" / file, Bomb(tmp_path / "marker"))
    with pytest.raises((RuntimeError, pickle.UnpicklingError)):
        target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()


def test_loading_runs_no_code_from_a_pickled_queue(tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    plant_pickle(tmp_path / "saved" / "prefetch.pkl", Bomb(tmp_path / "marker"))
    target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()
    assert len(target) == CAPACITY


@pytest.mark.parametrize(
    ("plant", "folder"),
    [
        (plant_non_tensor, "storage"),
        (plant_non_tensor, "storage/next"),
        (plant_non_tensor, "rng_state"),
        (plant_zipped_non_tensor, "rng_state"),
    ],
)
@pytest.mark.filterwarnings("ignore:TensorDict.load_memmap:FutureWarning")
def test_loading_runs_no_code_from_a_saved_tensordict(plant, folder, tmp_path):
    target = saved_buffer_with_every_file(tmp_path / "saved")
    plant(tmp_path / "saved" / folder, Bomb(tmp_path / "marker"))
    # Whether the entry is refused or passed over is not the point here.
    with contextlib.suppress(Exception):
        target.loads(tmp_path / "saved")
    assert not (tmp_path / "marker").exists()
