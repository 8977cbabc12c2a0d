"""export.py writes only files that act like the policy."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch

from torchrl_vmfer import load_policy
from vmfer_recipes import export

FORMATS = ("onnx", "torchscript")
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


@pytest.fixture
def start(monkeypatch, capsys):
    """Runs the program and returns exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["export.py", *map(str, arguments)])
        code = 0
        try:
            export.main()
        except SystemExit as exit_:
            code = exit_.code
        return code, *capsys.readouterr()

    return run


def exported(file):
    """Loads the function of an exported file without this library."""
    if file.suffix == ".ts":
        module = torch.jit.load(file)
        return lambda *arrays: module(*map(torch.from_numpy, arrays)).numpy()
    session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
    names = [each.name for each in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("run", ["sac", "goals"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_policy_maps_raw_observations_to_actions(form, run, runs, start, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    file = tmp_path / "deep" / {"onnx": "policy.onnx", "torchscript": "policy.ts"}[form]
    code, output, errors = start(runs / run, f"format={form}", f"output={file}")
    assert code == 0, errors
    assert errors == ""
    assert str(runs / run / "policy.pt") in output.splitlines()[0]
    assert str(file) in output
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    policy, act = load_policy(runs / run), exported(file)
    random = np.random.default_rng(0)
    for batch in (1, 3, 100):
        arrays = [
            random.normal(size=(batch, *shape)).astype(np.float32) for shape in policy.input_shapes
        ]
        expected = policy.act(dict(zip(policy.in_keys, arrays, strict=True)))
        actions = act(*arrays)
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, atol=1e-5)
    if run == "sac":
        assert np.abs(act(arrays[0] * 1000)).max() > 1.01  # its bounds are -3 and 3


def test_a_file_that_differs_is_not_written(runs, start, tmp_path, monkeypatch):
    (tmp_path / "batch_sized.py").write_text(BATCH_SIZED)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = shutil.copytree(runs / "sac", tmp_path / "run")
    data = torch.load(run_dir / "policy.pt", weights_only=True)
    data["network"] |= {"network": "batch_sized.Net"}
    data["weights"] = {"0.weight": torch.ones(2, 4), "0.bias": torch.ones(2)}
    torch.save(data, run_dir / "policy.pt")
    (run_dir / "policy.ts").write_text("an older file")
    code, _, errors = start(run_dir, "format=torchscript")
    assert code == 2
    assert errors.splitlines()[-1].startswith("error: The policy exported to torchscript differs")
    assert (run_dir / "policy.ts").read_text() == "an older file"
    assert not list(run_dir.glob("*.unfinished"))


def test_missing_packages_are_reported(runs, start, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, errors = start(runs / "sac", "format=onnx")
    assert code == 2
    assert "pip install '.[export]'" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["format=pdf"], "format must be onnx or torchscript"),
        (["policy=worst"], "policy must be last or best"),
        (["format=torchscript", "output=/proc/nowhere/policy.ts"], "choose another output="),
        (["format=torchscript", "output=."], "output=. is a folder"),
    ],
)
def test_a_user_error_takes_one_line(runs, start, arguments, message):
    code, _, errors = start(runs / "sac", *arguments)
    assert code == 2
    assert errors.count("\n") == 1
    assert message in errors
