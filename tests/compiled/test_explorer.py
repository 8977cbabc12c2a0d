"""The compiled explorers take the same actions as the general ones."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_vmfer.compiled.explorer import make_explorer
from torchrl_vmfer.networks import NetworkSpec, actor_network
from vmfer_recipes.collection.worker import Explorer

NOISE = {"deterministic": 0.1, "gaussian": None}


@pytest.fixture(params=NOISE)
def kind(request):
    return request.param


def made(kind, hidden=(256, 256), observation=17, action=6, **options):
    torch.manual_seed(0)
    network = actor_network(kind, NetworkSpec(hidden=list(hidden), **options), observation, action)
    explorer = Explorer(network, NOISE[kind])
    return network, explorer, make_explorer(explorer)


@torch.no_grad()
def assert_same_actions(general, fast, observation, mode=ExplorationType.RANDOM):
    actions, states = [], []
    with set_exploration_type(mode):
        for explorer in (general, fast):
            torch.manual_seed(1)
            actions.append(explorer(observation))
            states.append(torch.get_rng_state())
    torch.testing.assert_close(*actions, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(*states)


@pytest.mark.parametrize("mode", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
@pytest.mark.parametrize(
    "sizes",
    [((256, 256), 17, 6), ((5,), 3, 1), ((33, 7, 19), 47, 9), ((400,), 376, 17), ((), 4, 2)],
)
def test_same_actions_and_random_numbers(kind, sizes, mode):
    _, general, fast = made(kind, *sizes)
    for scale in (0.1, 1, 100):
        assert_same_actions(general, fast, scale * torch.randn(sizes[1]), mode)


def test_batches_and_views(kind):
    _, general, fast = made(kind)
    batches = [torch.randn(*shape, 17) for shape in ((1,), (3,), (40,), (2, 3))]
    for observation in (*batches, torch.randn(17, 2)[:, 0]):
        assert_same_actions(general, fast, observation)


def replace(network):
    for parameter in network.parameters():
        parameter.data = parameter.detach() * 1.5


def transpose(network):
    network[0][2].weight.data = network[0][2].weight.detach().T  # the same memory


@pytest.mark.parametrize("change", [replace, transpose])
def test_weights_that_changed_are_used(kind, change):
    network, general, fast = made(kind)
    observation = torch.randn(17)
    assert_same_actions(general, fast, observation)
    change(network)
    assert_same_actions(general, fast, observation)


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_weights_of_nan_give_actions_of_nan(kind, layer):
    network, _, fast = made(kind)
    nn.init.constant_(network[0][layer].weight, torch.nan)
    with torch.no_grad():
        assert fast(torch.randn(17)).isnan().all()


def test_actions_have_bounds(kind):
    network, general, fast = made(kind)
    nn.init.constant_(network[0][-1].bias, 100.0)
    assert_same_actions(general, fast, torch.randn(17))


def test_gradients_flow_if_they_are_enabled(kind):
    network, _, fast = made(kind)
    fast(torch.randn(17)).sum().backward()
    assert network[0][0].weight.grad.abs().sum() > 0


def test_other_networks(kind):
    for options in ({"activation": "tanh"}, {"layer_norm": True}):
        _, general, fast = made(kind, **options)
        assert_same_actions(general, fast, torch.randn(17))


def test_copies(kind):
    _, general, fast = made(kind)
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert_same_actions(general, copied, torch.randn(17))


def test_without_compiled_code(kind, use_kernels):
    use_kernels(False)
    _, general, fast = made(kind)
    assert_same_actions(general, fast, torch.randn(17))
