"""export.py writes only files that act like the policy."""

from __future__ import annotations

import shutil

import gymnasium
import gymnasium_robotics
import numpy as np
import pytest
import torch

from torchrl_vmfer import load_policy
from vmfer_recipes import export

gymnasium.register_envs(gymnasium_robotics)
FETCH = ("env=FetchReach-v4", "replay=her", "hidden=[16]", "num_eval_episodes=1")
BATCH_SIZED = """
from torch import nn

class Net(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) / (inputs.ndim == 1 or len(inputs))
"""


@pytest.fixture(scope="module")
def runs(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train("sac", folder / "sac", "total_frames=80")
    train("td3", folder / "goals", *FETCH, "init_random_frames=60", "total_frames=70")
    return folder


@pytest.mark.parametrize("run", ["sac", "goals"])
def test_an_exported_policy_maps_raw_observations_to_actions(run, runs, execute, capsys, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "mine.onnx"
    execute(export.main, str(runs / run), f"output={file}")
    output, errors = capsys.readouterr()
    assert errors == ""
    assert str(runs / run / "policy.pt") in output.splitlines()[0]
    assert str(file) in output
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    policy, session = load_policy(runs / run), onnxruntime.InferenceSession(str(file))
    names = [each.name for each in session.get_inputs()]
    random = np.random.default_rng(0)
    for batch in (1, 3, 100):
        arrays = [
            random.normal(size=(batch, *shape)).astype(np.float32) for shape in policy.input_shapes
        ]
        expected = policy.act(dict(zip(policy.in_keys, arrays, strict=True)))
        actions = session.run(None, dict(zip(names, arrays, strict=True)))[0]
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, atol=1e-5)
    if run == "sac":
        far = session.run(None, {"observation": arrays[0] * 1000})[0]
        assert np.abs(far).max() > 1.01  # its bounds are -3 and 3
    else:  # as documented, one input per entry of the dictionary
        observation, _ = gymnasium.make("FetchReach-v4").reset(seed=0)
        assert names == ["observation", "desired_goal"]
        inputs = {name: observation[name][None].astype("float32") for name in names}
        np.testing.assert_allclose(
            session.run(None, inputs)[0][0], policy.act(observation), atol=1e-5
        )


def test_a_file_that_differs_is_not_written(runs, error_of, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    (tmp_path / "batch_sized.py").write_text(BATCH_SIZED)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = shutil.copytree(runs / "sac", tmp_path / "run")
    data = torch.load(run_dir / "policy.pt", weights_only=True)
    data["network"] |= {"network": "batch_sized.Net"}
    data["weights"] = {"0.weight": torch.ones(2, 4), "0.bias": torch.ones(2)}
    torch.save(data, run_dir / "policy.pt")
    (run_dir / "policy.onnx").write_text("an older file")
    assert error_of(export.main, run_dir)
    assert (run_dir / "policy.onnx").read_text() == "an older file"
    assert not list(run_dir.glob("*.unfinished"))


def test_missing_packages_are_reported(runs, error_of, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install '.[export]'" in error_of(export.main, runs / "sac")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("policy=worst", "policy must be last or best"),
        ("output=.", "output=. is a folder"),
        ("output=deep/er/policy.onnx", "There is no folder deep/er"),
    ],
)
def test_a_user_error_takes_one_line(runs, error_of, tmp_path, monkeypatch, argument, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(export.main, runs / "sac", argument)
    assert not list(tmp_path.iterdir())
