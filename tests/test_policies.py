"""Policies map raw observations to actions of the environment, and their files are not trusted."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from torchrl_vmfer import Policy, load_policy, save_policy
from torchrl_vmfer.networks import NetworkSpec
from torchrl_vmfer.policies import Normalization
from torchrl_vmfer.policy_files import PolicyError

SPEC = NetworkSpec(hidden=[8, 8], activation="tanh")


def make_policy(kind="deterministic", **changes):
    arguments = {"inputs": {"observation": (3,)}, "low": [-2.0, 0.0], "high": [2.0, 5.0]}
    torch.manual_seed(0)
    return Policy(kind, **{"network": SPEC, **arguments, **changes})


@pytest.fixture
def file(tmp_path):
    save_policy(make_policy(environment="Task-v0", step=7), tmp_path / "policy.pt")
    return tmp_path / "policy.pt"


def by_hand(policy, observation):
    """Computes the center of the policy's actions in [-1, 1] with NumPy, layer by layer."""
    weights = {name: weight.numpy() for name, weight in policy.actor.state_dict().items()}
    units = observation
    for layer in ("0.0", "0.2", "0.4"):
        units = units @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        units = np.tanh(units)  # also the last: actions are squashed
    return units[..., : policy.action_size]


@pytest.mark.parametrize("kind", ["deterministic", "gaussian"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_actions_equal_gymnasiums_rescaling(kind, dtype):
    policy = make_policy(kind, dtype=dtype)
    observations = np.random.default_rng(0).normal(size=(50, 3))
    box = gym.spaces.Box(np.array([-2, 0]), np.array([2, 5]), dtype=np.float64)
    wrapper = gym.wrappers.RescaleAction(OneStep(box), np.float64(-1), np.float64(1))
    actions = policy.act(observations)
    assert actions.dtype == dtype
    expected = np.stack([wrapper.func(each) for each in by_hand(policy, observations)])
    tolerance = 0.5 + 1e-5 if dtype == "int64" else 1e-5
    np.testing.assert_allclose(actions, expected, atol=tolerance)


class OneStep(gym.Env):
    def __init__(self, action_space):
        self.action_space = action_space
        self.observation_space = gym.spaces.Box(-1, 1, (3,))


@pytest.mark.parametrize("shape", [(), (5,), (2, 5)])
def test_single_observations_and_batches_give_the_same_actions(shape):
    policy = make_policy()
    observations = np.random.default_rng(0).normal(size=(*shape, 3)).astype(np.float32)
    actions = policy.act(observations)
    assert actions.shape == (*shape, 2)
    data = TensorDict({"observation": torch.from_numpy(observations)}, shape)
    np.testing.assert_array_equal(policy(data)["action"].numpy(), actions)
    first = policy.act(observations.reshape(-1, 3)[0])
    np.testing.assert_allclose(first, actions.reshape(-1, 2)[0], atol=1e-6)


def test_normalization_and_clipping_precede_the_network():
    mean, deviation = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.1, 1.0, 10.0])
    policy = make_policy(normalization=Normalization(mean, deviation, 1.5))
    raw = np.array([1.05, 100.0, -100.0])
    expected = make_policy().act(np.array([0.5, 1.5, -1.5]))
    np.testing.assert_allclose(policy.act(raw), expected, atol=1e-5)


def test_entries_are_read_by_name_in_the_order_of_the_inputs():
    policy = make_policy(inputs={"goal": (1,), ("body", "pose"): (2,)})
    observation = {"body": {"pose": np.array([2.0, 3.0])}, "goal": np.array([1.0]), "other": None}
    expected = make_policy().act(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(policy.act(observation), expected)
    with pytest.raises(KeyError, match="pose"):
        policy.act({"goal": np.array([1.0]), "body": {}})
    with pytest.raises(TypeError, match="pass a dictionary"):
        policy.act(np.zeros(3))
    with pytest.raises(ValueError, match=r"has the shape \[4\], but the policy needs \[3\]"):
        make_policy().act(np.zeros(4))


def test_a_saved_policy_is_the_same(file):
    policy, original = load_policy(file), make_policy()
    observations = np.random.default_rng(0).normal(size=(9, 3))
    np.testing.assert_array_equal(policy.act(observations), original.act(observations))
    assert (policy.environment, policy.step, policy.source) == ("Task-v0", 7, file)
    assert load_policy(file.parent).source == file
    for word in ("deterministic", "Task-v0", "step 7", "[8, 8] tanh", "observation[3]"):
        assert word in repr(policy)


def test_a_policy_with_batch_renormalization_acts_on_single_observations(tmp_path):
    policy = make_policy(network=NetworkSpec(hidden=[8], batch_renorm=True))
    policy.actor.train()
    policy.actor(torch.randn(50, 3) * 3 + 1)  # updates the running statistics
    policy.actor.eval()
    save_policy(policy, tmp_path / "policy.pt")
    loaded, observations = load_policy(tmp_path), np.random.default_rng(0).normal(size=(9, 3))
    expected = policy.act(observations)
    np.testing.assert_array_equal(loaded.act(observations), expected)
    for observation, action in zip(observations, expected, strict=True):
        np.testing.assert_allclose(loaded.act(observation), action, rtol=1e-5)


def test_a_policy_requires_neither_hydra_nor_gymnasium_nor_the_trainers(file):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['hydra', 'omegaconf', 'gymnasium']))\n"
        "import numpy as np; from torchrl_vmfer import load_policy\n"
        f"print(load_policy({str(file)!r}).act(np.zeros(3)).shape)\n"
        "assert 'torchrl.trainers' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout == "(2,)\n"


WRONG = {
    "no policy": lambda data: {"weight": torch.zeros(3)},
    "a list": lambda data: [1],
    "version": lambda data: data | {"version": 2},
    "kind": lambda data: data | {"kind": "eval"},
    "hidden": lambda data: data | {"network": data["network"] | {"hidden": [10**12]}},
    "negative": lambda data: data | {"network": data["network"] | {"hidden": [-1]}},
    "activation": lambda data: data | {"network": data["network"] | {"activation": "exec"}},
    "unknown option": lambda data: data | {"network": data["network"] | {"extra": 1}},
    "a function": lambda data: data | {"network": data["network"] | {"network": "os.system"}},
    "no module": lambda data: data | {"network": data["network"] | {"network": "nowhere.Net"}},
    "inputs": lambda data: data | {"inputs": []},
    "shape": lambda data: data | {"inputs": [{"key": ["observation"], "shape": [4]}]},
    "negative shape": lambda data: data | {"inputs": [{"key": ["x"], "shape": [-1, -3]}]},
    "step": lambda data: data | {"step": "seven"},
    "bounds": lambda data: data | {"action": data["action"] | {"low": torch.full((2,), 9.0)}},
    "bound": lambda data: data | {"action": data["action"] | {"low": torch.zeros(1)}},
    "dtype": lambda data: data | {"action": data["action"] | {"dtype": "object"}},
    "normalization": lambda data: data | {"normalization": {"mean": torch.zeros(3)}},
    "no weights": lambda data: data | {"weights": {}},
    "other weights": lambda data: data | {"weights": data["weights"] | {"old": torch.zeros(1)}},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_file_in_another_format_is_reported_by_name(tmp_path, change):
    torch.save(change(make_policy().data()), tmp_path / "foreign.pt")
    with pytest.raises(PolicyError, match=r"foreign\.pt") as error:
        load_policy(tmp_path / "foreign.pt")
    assert "\n" not in str(error.value)


def test_a_missing_policy_is_reported(tmp_path):
    with pytest.raises(PolicyError, match=r"has no policy\.pt and no checkpoint"):
        load_policy(tmp_path)
    with pytest.raises(PolicyError, match=r"nothing\.pt does not exist"):
        load_policy(tmp_path / "nothing.pt")
    with pytest.raises(ValueError, match="'last' or 'best'"):
        load_policy(tmp_path, which="first")


CUSTOM = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, in_features, out_features, scale=1.0):
        super().__init__(in_features, out_features)
        self.scale = scale

    def forward(self, inputs):
        return super().forward(inputs) * self.scale

def make(in_features, out_features):
    raise RuntimeError("called")
"""


def test_a_custom_network_is_imported_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    policy = make_policy(network=NetworkSpec("my_nets.Net", {"scale": 0.5}))
    save_policy(policy, tmp_path / "policy.pt")
    observation = np.ones(3, np.float32)
    expected = policy.act(observation)
    np.testing.assert_array_equal(load_policy(tmp_path).act(observation), expected)
    data = policy.data()
    data["network"]["network"] = "my_nets.make"  # not a class: must not be called
    torch.save(data, tmp_path / "policy.pt")
    with pytest.raises(PolicyError, match="derived from Module"):
        load_policy(tmp_path)
