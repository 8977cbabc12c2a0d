"""Networks by import path, from a folder outside the repository, and the options of the MLP."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from torchrl_vmfer import load_policy
from torchrl_vmfer.networks import NetworkSpec
from vmfer_recipes.config.errors import UserError

MODULE = """
from torch import nn, stack, zeros

class Gated(nn.Module):
    def __init__(self, in_features, out_features, width=8):
        super().__init__()
        self.inner, self.gate = nn.Linear(in_features, width), nn.Linear(in_features, width)
        self.norm, self.outer = nn.LayerNorm(width), nn.Linear(width, out_features)

    def forward(self, inputs):
        return self.outer(self.norm(self.inner(inputs) * self.gate(inputs).sigmoid()))

class Transposed(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).mean(-1)

class Tuple(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs), None

class Batched(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.reshape(len(inputs), -1)[:, :self.in_features])

class Branching(nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if outputs.sum() > 0 else -outputs

class Dropping(nn.Sequential):
    def __init__(self, in_features, out_features):
        super().__init__(nn.Dropout(), nn.Linear(in_features, out_features))

class Random(nn.Linear):
    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs), 0.5, self.training)

class NoArguments(nn.Module):
    def __init__(self):
        super().__init__()

def function(in_features, out_features):
    raise RuntimeError("called")
"""
OWN = ("network=my_networks.Gated", "network_kwargs.width=8")


def own(*overrides):
    """Overrides in the form that the command line passes on: dictionary entries may be new."""
    return [f"++{each}" if each.startswith("network_kwargs.") else each for each in overrides]


@pytest.fixture(scope="module", autouse=True)
def module_of_the_user(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "my_networks.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_actor_and_critics_use_the_custom_network(algorithm, agent_of, tmp_path):
    agent = agent_of(algorithm, tmp_path, *own(*OWN), "num_critics=3")
    critics = agent.loss.qvalue_network_params["module", "network"]
    assert critics["inner", "weight"].shape == (3, 8, 5)
    kinds = [type(module).__name__ for module in agent.policy.modules()]
    assert "Gated" in kinds
    assert "MLP" not in kinds


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("td3", OWN),
        ("sac", OWN),
        ("td3", ("layer_norm=true", "activation=gelu")),
        ("sac", ("activation=silu",)),
        ("redq", ("num_critics=4", "utd_ratio=2")),
        ("tqc", ("num_critics=3", "num_quantiles=7", "critic_hidden=[24,24]")),
        ("crossq", ("critic_hidden=[24,24]",)),
        ("td3", ("n_step=3", "max_grad_norm=0.1", "weight_decay=0.1", "reward_scale=3")),
        ("sac", ("lr_schedule=linear", "normalize_rewards=true", "critic_layer_norm=true")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_fast_path_gives_the_same_policy(algorithm, train, tmp_path, overrides):
    weights = []
    for fast in ("true", "false"):
        options = (*own(*overrides), f"fast={fast}", "total_frames=76")
        weights.append(load_policy(train(algorithm, tmp_path / fast, *options)).actor.state_dict())
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_a_run_with_a_custom_network_resumes_bitwise(algorithm, assert_crashed_run_resumes_exactly):
    assert_crashed_run_resumes_exactly(algorithm, *own(*OWN))


def test_dropout_is_off_in_evaluations_and_on_in_training(train, table, tmp_path):
    options = ("network=my_networks.Dropping", "total_frames=70", "env.name=Pendulum-v1")
    run_dir = train("td3", tmp_path / "run", *options)
    policy, env = load_policy(run_dir), gym.make("Pendulum-v1")
    observation, _ = env.reset(seed=1_000_000)  # the seed of evaluations
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, _, is_over, _ = env.step(policy.act(observation))
        total += reward
    assert float(table(run_dir / "eval.csv")[-1]["return_mean"]) == pytest.approx(total, rel=1e-4)


def test_the_policy_of_a_custom_network_requires_its_module(straight_run, monkeypatch):
    policy = load_policy(straight_run("td3", *own(*OWN)))
    assert policy.act(np.zeros(17)).shape == (6,)
    assert "my_networks.Gated" in repr(policy)
    monkeypatch.setitem(__import__("sys").modules, "my_networks", None)
    with pytest.raises(RuntimeError, match="the module my_networks cannot be imported"):
        load_policy(straight_run("td3", *own(*OWN)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["network=Gated"], "must name a module and a class"),
        (["network=my_networks.Gatde"], "my_networks has no such name"),
        (["network=nowhere.Gated"], "the module nowhere cannot be imported"),
        (["network=my_networks.function"], "derived from Module, but my_networks defines it as"),
        (["network=my_networks.NoArguments"], "cannot be constructed"),
        (["network=my_networks.Gated", "network_kwargs.depth=3"], "depth"),
        (["network=my_networks.Transposed"], r"maps an input of shape \[4\] to \[\]"),
        (["network=my_networks.Tuple"], "to tuple"),
        (["network=my_networks.Batched"], r"fails for an input of shape \[4\]"),
        (["network=my_networks.Branching"], "torch.vmap"),
        (["network=my_networks.Random"], "other than those of nn.Dropout"),
        (["network=my_networks.Gated", "layer_norm=true"], "no effect on network=my_networks"),
        (["network_kwargs.width=3"], "has no effect on network=mlp"),
        (["activation=sine"], "activation must be relu"),
    ],
)
def test_an_invalid_network_is_reported_in_one_line(train, tmp_path, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        train("td3", tmp_path / "run", *own(*overrides))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "gelu", "silu", "leaky_relu"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_mlp_has_the_configured_layers(activation, layer_norm):
    spec = NetworkSpec(hidden=[5, 7], activation=activation, layer_norm=layer_norm)
    names = [type(layer).__name__.lower() for layer in spec.make(3, 2)]
    block = ["linear", *(["layernorm"] * layer_norm), activation.replace("_", "")]
    assert names == [*block, *block, "linear"]
    assert spec.make(3, 2)(torch.zeros(4, 3)).shape == (4, 2)
