"""The diagnostics of the actor's batch and gradient in ``train.csv``."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from vmfer_recipes.agent.diagnostics import measure, signal_to_noise
from vmfer_recipes.agent.replay import unchanged_random_numbers

OF_ACTOR = {
    *("saturation", "saturated_fraction", "gradient_snr", "gradient_cosine"),
    *("stored_transitions", "relative_age"),
}
OF_PRIORITIES = {"factor_age", "unscored_fraction"}
CHEETAH = "env.name=ShortCheetah-v0"


@pytest.fixture
def make_agent(agent_of, tmp_path, recorded_run):
    """Makes an agent whose buffer holds 100 transitions."""
    offline = (f"dataset={recorded_run}", "init_random_frames=0")

    def make(algorithm, *overrides):
        torch.manual_seed(0)
        given = (*offline, *overrides) if algorithm == "td3_bc" else overrides
        return agent_of(algorithm, tmp_path / "run", *given, frames=100)

    return make


def actor_gradient(agent, batch):
    """Computes the gradient of the actor loss with an ordinary backward pass on a copy."""
    loss = copy.deepcopy(agent.loss)
    loss.fast = False
    loss.actor_loss(batch)[0].backward()
    params = loss.actor_network_params.flatten_keys().values()
    return torch.cat([p.grad.flatten() for p in params if isinstance(p, nn.Parameter)]).double()


def test_the_ratio_and_the_cosine_equal_ordinary_backward_passes(make_agent):
    agent = make_agent("td3", "sampler=vmf_rank", CHEETAH)
    batch = agent.actor_batch(None)
    one, other = actor_gradient(agent, batch[::2]), actor_gradient(agent, batch[1::2])
    found = measure(agent, batch)
    noise = (one - other).square().sum() / 4  # in the mean of both halves
    torch.testing.assert_close(found["gradient_snr"], one @ other / noise, rtol=1e-3, atol=1e-3)

    uniform = agent.buffer.sample_uniformly(keys=["observation"])  # the next uniform draw
    gradients = np.stack([actor_gradient(agent, each) for each in (batch, uniform)])
    lengths = np.linalg.norm(gradients, axis=1)
    expected = gradients[0] @ gradients[1] / lengths.prod()
    assert float(found["gradient_cosine"]) == pytest.approx(expected, abs=1e-4)


def test_the_ratio_estimates_the_signal_and_noise_of_the_batch_gradient():
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(100_000, generator=generator)
    for scale in (0.3, 1.0, 3.0):
        noise = scale * torch.randn(2, 100_000, generator=generator)
        # The mean of both halves has half the variance of each.
        expected = signal.square().sum() / (100_000 * scale**2 / 2)
        torch.testing.assert_close(signal_to_noise(*signal + noise), expected, rtol=0.1, atol=0)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_saturated_components_of_the_mean_action_are_counted(make_agent, algorithm):
    agent = make_agent(algorithm, CHEETAH)
    batch = agent.buffer.sample_uniformly(64, keys=["observation"])
    with torch.no_grad():
        agent.loss.actor_network_params.data.mul_(3)
        network = agent.policy.module if algorithm == "td3" else agent.policy.module[0].module
        outputs = network(batch["observation"])
    action = outputs if algorithm == "td3" else outputs[0].tanh()
    expected = np.mean(np.abs(action.numpy()) > 0.99)
    assert 0 < expected < 1
    found = measure(agent, batch)
    assert float(found["saturated_fraction"]) == pytest.approx(expected)
    assert float(found["saturation"]) == pytest.approx(np.abs(action.numpy()).mean())


def test_ages_count_from_the_newest_transition_also_after_old_ones_were_overwritten(make_agent):
    agent = make_agent("td3", "replay.buffer_size=80", CHEETAH)  # the run has 100 transitions
    for slots, expected in {(19, 19): 0, (20, 20): 1, (79, 0): 19.5 / 79}.items():
        index = torch.tensor(slots)
        found = measure(agent, agent.buffer[index].set("index", index))
        assert float(found["relative_age"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("algorithm", "override", "expected"),
    [
        ("td3", "sampler=uniform", 100),
        ("sac", "sampler=fresh", 100),
        ("td3_bc", "sampler=uniform", 100),
        ("td3", "sampler=vmf_uncertainty", 100 * 1.5**2 / (2**2 + 1) * 2),
        ("td3", "sampler=gradient_norm", 100 * 1.5**2 / (2**2 + 1) * 2),
        ("td3", "sampler=saturated sampler.power=3", 100 * 4.5**2 / (8**2 + 1) * 2),
        ("sac", "sampler=vmf_power sampler.power=3", 100 * 4.5**2 / (8**2 + 1) * 2),
        ("sac", "sampler=vmf_uncertainty sampler.share=0.5", 300**2 / (50 * (3.5**2 + 2.5**2))),
        ("td3", "sampler=recent sampler.min_size=20 sampler.decay=0.3", 30),
        ("sac", "sampler=old sampler.exponent=1", 100),
    ],
)
def test_the_effective_sample_size_is_that_of_the_actors_distribution(
    make_agent, algorithm, override, expected
):
    agent = make_agent(algorithm, *override.split())
    has_priorities = agent.signal is not None
    if has_priorities:
        factors = torch.ones(100)
        factors[:50] = 2
        agent.buffer.update_actor_priority(torch.arange(100), factors)
    batch = agent.buffer.sample_uniformly(32, keys=list(agent.actor_keys))
    found = measure(agent, batch)
    assert found["effective_sample_size"] == pytest.approx(expected)
    assert found["stored_transitions"] == 100
    assert found.keys() >= OF_ACTOR
    assert has_priorities == (found.keys() >= OF_PRIORITIES)


@pytest.mark.parametrize("sampler", ["vmf_pool", "vmf_direct", "on_policy"])
def test_without_a_stored_distribution_its_size_is_left_out(make_agent, sampler):
    agent = make_agent("td3", f"sampler={sampler}", CHEETAH)
    found = measure(agent, agent.actor_batch(None))
    assert "effective_sample_size" not in found
    assert found.keys() >= OF_ACTOR


def test_what_is_not_defined_is_left_out(make_agent):
    agent = make_agent("td3", "sampler=vmf_rank", "batch_size=1")
    for param in agent.loss.qvalue_network_params.values(True, True):
        param.data.zero_()  # no gradient: neither a ratio nor an angle
    found = measure(agent, agent.actor_batch(None))
    assert found.keys().isdisjoint({"gradient_snr", "gradient_cosine", "factor_age"})
    assert all(value.isfinite() for value in found.values())


SAMPLERS = {
    "td3": ["sampler=vmf_rank", CHEETAH],
    "sac": ["sampler=vmf_uncertainty", "replay=per_rank"],
    "crossq": ["sampler=uniform", "batch_renorm_warmup=0", "critic_hidden=[16,16]"],
    "td3_bc": ["sampler=vmf_rank"],
}


@pytest.mark.parametrize("algorithm", SAMPLERS)
def test_measuring_changes_nothing(make_agent, algorithm, assert_equal):
    agent = make_agent(algorithm, *SAMPLERS[algorithm])
    batch = agent.actor_batch(agent.critic_batch())
    agent.loss.actor_loss(batch.clone())[0].backward()

    def state():
        parts = {name: part.state_dict() for name, part in agent.components().items()}
        parts["gradients"] = [p.grad for p in agent.loss.parameters() if p.grad is not None]
        parts["random"] = [torch.get_rng_state(), torch.tensor(np.random.get_state()[2])]  # noqa: NPY002
        parts["batch"] = {name: batch[name] for name in batch.keys()}  # noqa: SIM118
        return copy.deepcopy(parts)

    before = state()
    assert measure(agent, batch)
    after = state()
    del before["policy"], after["policy"]
    assert_equal(before.pop("gradients"), after.pop("gradients"))
    assert_equal(dict(before["loss"]), dict(after["loss"]))
    for name in before.keys() - {"loss"}:
        assert_equal(_plain(before[name]), _plain(after[name]), name)


def _plain(state):
    return dict(state) if hasattr(state, "keys") else state


@pytest.mark.parametrize(("device", "saved"), [("cpu", []), ("cuda:1", [1])])
def test_only_the_device_of_the_networks_is_used(device, saved, monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda each: used.append(each.index))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, each: None)
    with unchanged_random_numbers(device):
        pass
    assert used == saved
