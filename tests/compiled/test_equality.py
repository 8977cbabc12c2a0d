"""Compiled updates equal TorchRL's loss, backward pass and PyTorch's Adam."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from helpers.compiled_agents import LOSSES, Shape, assert_same, distance, make_batch, pair, update
from torchrl_vmfer import directional
from torchrl_vmfer.uncertainty import action_gradients

# The largest relative distance of a parameter after one update, and of Adam's averages, which are
# squared gradients.
AFTER_ONE, OF_AVERAGES = 1e-6, 2e-5

OPTIONS = [
    ("td3", {}),
    ("td3", {"num_qvalue_nets": 5}),
    ("td3", {"num_qvalue_nets": 3, "num_target_critics": None, "loss_function": "l2"}),
    ("td3", {"objective": "mean", "num_qvalue_nets": 3}),
    ("td3", {"objective": "mean", "measure": False}),
    ("td3", {"actor_noise": 0.3, "actor_noise_clip": 0.2}),
    ("td3", {"directions": "pre_tanh", "gradient_norm": True}),
    ("td3", {"measure": False, "gradient_norm": True}),
    ("td3", {"measure": False}),
    ("td3", {"used": "min", "num_qvalue_nets": 4}),
    ("td3", {"used": "mean", "num_qvalue_nets": 4}),
    ("td3", {"policy_noise": 2.0, "noise_clip": 0.7, "gamma": 0.5}),
    ("td3", {"loss_function": "l1"}),
    ("td3", {"loss_function": "smooth_l1"}),
    ("td3", {"clip_norm": 0.05}),
    ("td3", {"weighting": 4.0, "num_qvalue_nets": 3, "directions": "pre_tanh"}),
    ("td3_bc", {"weighting": -3.0}),
    ("sac", {"weighting": 2.0}),
    ("redq", {"weighting": 4.0, "clip_norm": 0.05}),
    ("tqc", {"weighting": 1.0}),
    ("td3", {"weight_decay": 0.3}),
    ("sac", {"weight_decay": 0.3, "clip_norm": 0.05}),
    *((algorithm, {"n_step": 5}) for algorithm in LOSSES),
    ("td3_bc", {}),
    ("td3_bc", {"alpha": 0.0}),
    ("td3_bc", {"num_qvalue_nets": 4}),
    ("sac", {}),
    ("sac", {"num_qvalue_nets": 4, "loss_function": "l2"}),
    ("sac", {"num_qvalue_nets": 3, "num_target_critics": None, "used": "first"}),
    ("sac", {"directions": "pre_tanh", "gradient_norm": True}),
    ("sac", {"alpha_init": 0.2, "fixed_alpha": True}),
    ("sac", {"alpha_init": 2.0, "min_alpha": 2.5, "max_alpha": 3.0}),
    ("sac", {"clip_norm": 0.05}),
    ("redq", {"num_qvalue_nets": 10}),
    ("redq", {"num_qvalue_nets": 4, "sub_sample_len": 3}),
    ("redq", {"min_alpha": 1e-9, "max_alpha": 1e9, "gradient_norm": True}),
    ("redq", {"alpha_init": 0.3, "min_alpha": 0.5, "max_alpha": 2.0}),
    ("tqc", {"num_qvalue_nets": 5}),
    ("tqc", {"top_quantiles_to_drop_per_net": 0, "gradient_norm": True}),
    ("tqc", {"num_qvalue_nets": 3, "directions": "pre_tanh"}),
]
SHAPES = {
    "small": Shape(),
    "one": Shape(1, 1, (1,), (1, 1)),
    "deep": Shape(7, 2, (33, 5, 17, 9), (16, 31, 8)),
    "wide": Shape(40, 33, (65,), (130, 64)),
    "skipping zeros": Shape(5, 2, (128, 136), (160, 128)),
    "linear": Shape(6, 2, (), ()),
    "normalized": Shape(9, 4, (31, 12), (40, 33), layer_norm=True),
    "bounded": Shape(5, 2, (16,), (24,), bounds=(-0.5, 2.0)),
}


def check_step(algorithm, shape, size, module, weights=False, **options):
    """Compares one update of everything."""
    n_step = options.pop("n_step", None)
    expected, agent = pair(algorithm, shape, **options)
    if options.get("fixed_alpha"):
        expected.alpha = agent.alpha = None
    batch = make_batch(size, shape, weights)
    # A first update of both by PyTorch: Adam's averages are not zero.
    for each in (expected, agent):
        update(each, batch, 5)
    for theirs, ours in zip(expected.tensors().values(), agent.tensors().values(), strict=True):
        assert torch.equal(theirs, ours)
    batch = make_batch(size, shape, weights)
    if n_step:
        batch["steps_to_next_obs"] = torch.randint(1, n_step + 1, (size, 1))
    given, before = batch.clone(), batch.clone()
    of_critic, of_actor = update(expected, batch, 10)
    found = update(agent.compiled(module), given, 10)
    for (loss, metadata), (other_loss, others) in zip((of_critic, of_actor), found, strict=True):
        assert other_loss == pytest.approx(loss, rel=2e-5, abs=2e-6)
        for name, values in others.items():
            torch.testing.assert_close(values, metadata[name], rtol=3e-5, atol=1e-5)
    names = {"vmf_factor", "vmf_resultant_length", "vmf_gradient_norm", "log_prob"}
    assert names & of_actor[1].keys() == names & found[1][1].keys()
    ours = agent.tensors()
    for name, tensor in expected.tensors().items():
        limit = OF_AVERAGES if "exp_avg" in name else AFTER_ONE
        assert distance(tensor, ours[name]) < limit, name
    assert (given == before).all()
    assert set(given.keys(True)) == set(before.keys(True))


@pytest.mark.parametrize(("algorithm", "options"), OPTIONS, ids=str)
def test_one_update_equals_torchrl(algorithm, options, module):
    check_step(algorithm, Shape(), 37, module, **options)


@pytest.mark.parametrize("size", [1, 2, 17, 257])
@pytest.mark.parametrize("algorithm", LOSSES)
def test_batches_of_any_size(algorithm, size, module):
    check_step(algorithm, Shape(), size, module)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("algorithm", LOSSES)
def test_networks_of_any_shape(algorithm, shape, module):
    check_step(algorithm, shape, 64 if shape.hidden[:1] == (128,) else 45, module)


@pytest.mark.parametrize("algorithm", LOSSES)
def test_importance_weights(algorithm, module):
    check_step(algorithm, Shape(), 37, module, weights=True)


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_and_options(seed, module):
    """A few of the many combinations."""
    random = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=random))

    algorithm, options = OPTIONS[draw(0, len(OPTIONS))]
    layer_norm = draw(0, 3) == 0
    # Normalized, two units are ±1 whatever their values: all that is left of a gradient is a
    # rounding error.
    least = 4 if layer_norm else 1
    hidden, critic_hidden = (tuple(draw(least, 70) for _ in range(draw(0, 4))) for _ in range(2))
    shape = Shape(draw(1, 50), draw(1, 20), hidden, critic_hidden, layer_norm)
    torch.manual_seed(seed)
    check_step(algorithm, shape, draw(2, 80), module, **options)


@pytest.mark.parametrize("algorithm", LOSSES)
def test_two_hundred_updates_stay_close(algorithm):
    expected, agent = pair(algorithm, SHAPES["small"])
    compiled = agent.compiled()
    for number in range(200):
        batch = make_batch(32)
        update(expected, batch, number)
        update(compiled, batch, number)
    ours = agent.tensors()
    for name, tensor in expected.tensors().items():
        if name.startswith("loss."):
            assert distance(tensor, ours[name]) < 1e-4, name


@pytest.mark.parametrize("used", ["first", "min", "mean"])
@pytest.mark.parametrize("directions", ["action", "pre_tanh"])
@pytest.mark.parametrize("algorithm", ["td3", "sac", "tqc"])
def test_factors_equal_brute_force(algorithm, directions, used, module):
    """Factors from the gradients of each critic, in double precision."""
    _, agent = pair(algorithm, used=used, directions=directions, num_qvalue_nets=4)
    batch = make_batch(29)
    torch.manual_seed(3)
    values, gradients = action_gradients(agent.loss, batch)
    lowest = values[: agent.loss.target_count].argmin(0)
    x = directional.directions(gradients.double())
    mean = x.mean(0)
    if used == "mean":
        moving = directional.directions(gradients.double().mean(0))
    else:
        moving = x[0] if used == "first" else x[lowest, torch.arange(29)]
    torch.manual_seed(3)
    _, metadata = agent.compiled(module).update_actor(batch)
    factor = (mean * moving).sum(-1).exp()
    torch.testing.assert_close(metadata["vmf_factor"].double(), factor, rtol=1e-5, atol=1e-5)
    length = mean.norm(dim=-1)
    torch.testing.assert_close(
        metadata["vmf_resultant_length"].double(), length, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("algorithm", ["td3", "td3_bc", "sac", "tqc"])
def test_rows_of_a_storage_equal_a_batch(algorithm, module):
    agent, other = pair(algorithm)
    storage, rows = LazyTensorStorage(500), make_batch(500)
    storage.set(torch.arange(500), rows)
    drawn = {"index": torch.randint(500, (64,)), "priority_weight": torch.rand(64)}
    batch = rows[drawn["index"]].update(drawn)
    for each, given in ((agent, TensorDict(drawn, [64])), (other, batch)):
        compiled = each.compiled(module, storage)
        for seed in (1, 2):
            torch.manual_seed(seed)
            compiled.update_critics(given)
            compiled.update_actor(given)
    assert_same(agent, other)


def test_done_is_read_if_there_is_no_terminated():
    expected, agent = pair("td3")
    batch = make_batch(20)
    del batch["next", "terminated"]
    torch.manual_seed(1)
    loss, _ = expected.update_critics(batch.clone())
    torch.manual_seed(1)
    assert agent.compiled().update_critics(batch)[0] == pytest.approx(loss, rel=1e-5)
