"""The components of an agent, and the batches that its updates read."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from tensordict import TensorDict

from torchrl_vmfer import VMFTD3Loss
from torchrl_vmfer.batch_renorm import BatchRenorm
from vmfer_recipes.agent.agent import AgentMaker, adam
from vmfer_recipes.agent.networks import deterministic_actor, exploring, make_critics
from vmfer_recipes.config.algorithms import TemperatureConfig
from vmfer_recipes.config.keys import key
from vmfer_recipes.config.training import to_config


def imitating_agent(cfg):
    """TD3 whose actor loss also reads the stored action."""
    maker = AgentMaker(cfg)
    actor = deterministic_actor(maker.env, maker.networks)
    loss = maker.loss(
        VMFTD3Loss,
        actor,
        make_critics(maker.env, maker.critic_networks, cfg.num_critics),
    )
    return maker.agent(
        actor,
        loss,
        explorer=exploring(actor, cfg.fast, 0.1),
        critic_optimizer=adam(loss.qvalue_network_params.parameters(), 1e-3),
        actor_optimizer=adam(loss.actor_network_params.parameters(), 1e-3),
        actor_keys=("observation", "action"),
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ("sampler=uniform", "replay=per"),
        ("sampler=fresh",),
        ("sampler=vmf_rank",),
        ("sampler=vmf_direct", "sampler.num_candidates=64"),
        ("sampler=on_policy",),
        ("sampler=fresh", "weighting=4"),
        ("sampler=uniform", "replay=her", "env=FetchReach-v4"),
        ("sampler=vmf_ema", "replay=her", "env=FetchReach-v4"),
        ("sampler=vmf_direct", "replay=her", "env=FetchReach-v4"),
        ("sampler=on_policy", "replay=her", "env=FetchReach-v4"),
    ],
    ids=" ".join,
)
def test_the_actor_batch_has_the_requested_entries(configuration, tmp_path, overrides):
    cfg = to_config(configuration("td3", tmp_path, *overrides))
    agent = imitating_agent(cfg)
    for _ in range(100):  # two episodes of FetchReach
        agent.collector.collect()
    batch = agent.actor_batch(agent.critic_batch())
    assert len(batch) == cfg.batch_size
    entries = {"observation", "action", "index"}
    assert entries <= set(batch.keys()) <= entries | {"desired_goal"}
    assert torch.equal(batch["action"], agent.buffer[batch["index"]]["action"])
    assert agent.loss.actor_loss(batch)[0].isfinite()  # the observation is preprocessed


@dataclass
class WideConfig(TemperatureConfig):
    """An algorithm with batch renormalization in wide critics."""

    algorithm: str = "wide"
    critic_hidden: list[int] = key([40, 24], "hidden units of the critics", low=1)
    batch_renorm: bool = key(True, "batch renormalization of the critics")
    batch_renorm_warmup: int = key(100, "updates without its correction", low=0)


def test_critics_can_have_other_networks_than_the_actor(configuration, tmp_path):
    shared = to_config(configuration("sac", tmp_path, "sampler=uniform"))
    names = {field.name for field in fields(WideConfig)} - {"algorithm", "critic_hidden"}
    given = {name: value for name, value in vars(shared).items() if name in names}
    maker = AgentMaker(WideConfig(**given))
    assert maker.networks.hidden == [16, 16]
    assert not maker.networks.batch_renorm
    critics = make_critics(maker.env, maker.critic_networks, 2, outputs=25)
    layers = [layer for layer in critics[0].module if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [40, 24, 25]
    renorms = [layer for layer in critics[0].module if isinstance(layer, BatchRenorm)]
    assert [len(layer.weight) for layer in renorms] == [5, 40, 24]
    assert {layer.warmup for layer in renorms} == {100}
    td = TensorDict({"observation": torch.randn(7, 4), "action": torch.randn(7, 1)}, [7])
    assert critics[1](td)["state_action_value"].shape == (7, 25)
