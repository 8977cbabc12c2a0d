"""Keys that change the updates: clipping, weight decay, learning rates, rewards, critics."""

from __future__ import annotations

import copy
import csv

import numpy as np
import pytest
import torch
from torch import nn

from helpers.sessions import BareSession
from vmfer_recipes import td3
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.training import to_config
from vmfer_recipes.run.checkpoints import load_checkpoint

EACH = ("td3", "sac", "redq", "tqc", "crossq")
MANY = {"tqc": ["num_quantiles=7"], "crossq": ["batch_renorm=false"], "redq": ["num_critics=3"]}


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize("norm", [1e-3, 1e3])
def test_a_step_clips_gradients_and_decays_weights(fast, norm, agent_of, tmp_path):
    options = (f"max_grad_norm={norm}", "weight_decay=0.1", "critic_lr=0.01", f"fast={fast}")
    agent = agent_of("td3", tmp_path, *options, frames=40)
    loss = copy.deepcopy(agent.loss)
    state = agent.buffer.generator.get_state()
    batch = agent.critic_batch()
    agent.buffer.generator.set_state(state)
    params = list(loss.qvalue_network_params.parameters())
    torch.manual_seed(0)
    gradients = torch.autograd.grad(loss.critic_loss(batch)[0], params)
    total = sum(gradient.double().square().sum() for gradient in gradients).sqrt().item()
    factor = min(1, norm / total)
    assert (factor < 1) == (norm < 1)
    torch.manual_seed(0)
    td3.update_critics(BareSession(), agent)
    new = agent.loss.qvalue_network_params.parameters()
    for before, after, gradient in zip(params, new, gradients, strict=True):
        clipped = gradient * factor
        torch.testing.assert_close(
            agent.critic_optimizer.state[after]["exp_avg"], 0.1 * clipped, rtol=1e-4, atol=1e-9
        )
        # The first step of Adam, whose averages are the gradient and its square.
        expected = before * (1 - 0.01 * 0.1) - 0.01 * clipped / (clipped.abs() + 1e-8)
        has_slope = clipped.abs() > 1e-6  # otherwise eps and rounding decide
        torch.testing.assert_close(after[has_slope], expected[has_slope], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_learning_rates_fall_linearly_to_the_end(algorithm, train, checkpoint, tmp_path):
    options = (
        "lr_schedule=linear",
        "total_frames=80",
        "critic_lr=0.01",
        "keep_checkpoints_at=[61]",
    )
    run_dir = train(algorithm, tmp_path / "run", *options)
    (group,) = checkpoint(run_dir)["parts"]["critic_optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.01 / 80)  # of the last step
    (file,) = (run_dir / "checkpoint" / "kept").glob("step_*.pt")
    kept = load_checkpoint(file)
    (group,) = kept["parts"]["critic_optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.01 * 20 / 80)


def test_a_schedule_does_not_continue_with_another_end(train, tmp_path):
    train("td3", tmp_path, "lr_schedule=linear", "total_frames=70")
    with pytest.raises(UserError, match="lr_schedule=linear"):
        train("td3", tmp_path, "lr_schedule=linear", "total_frames=80")


@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_temperature_without_a_learning_rate_is_fixed(fast, train, tmp_path):
    options = ("alpha_lr=0", "alpha_init=0.2", f"fast={fast}", "total_frames=150")
    run_dir = train("sac", tmp_path / "run", *options)
    rows = list(csv.DictReader((run_dir / "train.csv").open()))
    (alpha,) = {float(row["alpha"]) for row in rows}
    assert alpha == pytest.approx(0.2)


@pytest.mark.parametrize("algorithm", EACH)
def test_critics_have_layers_of_their_own(algorithm, agent_of, tmp_path):
    words = ("critic_hidden=[24,12]", "critic_layer_norm=true", "critic_dropout=0.1")
    agent = agent_of(algorithm, tmp_path, *words, *MANY.get(algorithm, []), frames=40)
    critic = agent.loss.qvalue_network.module
    kinds = [nn.Linear, nn.Dropout, nn.LayerNorm, nn.ReLU]
    assert [type(part) for part in critic] == [*kinds, *kinds, nn.Linear]
    assert [part.out_features for part in critic if isinstance(part, nn.Linear)][:2] == [24, 12]
    actor = [part for part in agent.actor.modules() if isinstance(part, nn.Linear)]
    assert [part.out_features for part in actor[:2]] == [16, 16]
    assert not any(isinstance(part, nn.LayerNorm | nn.Dropout) for part in agent.actor.modules())
    # Dropout draws different units for the same batch, in the compiled updates' place.
    assert agent.compiled is None
    batch = agent.critic_batch()
    losses = [agent.loss.critic_loss(batch.clone())[0].item() for _ in range(2)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("algorithm", EACH)
def test_only_critics_can_have_a_custom_network(algorithm, agent_of, tmp_path):
    words = ["critic_network=torch.nn.Linear", *MANY.get(algorithm, [])]
    agent = agent_of(algorithm, tmp_path, *words)
    assert type(agent.loss.qvalue_network.module.network) is nn.Linear
    assert len([part for part in agent.actor.modules() if isinstance(part, nn.Linear)]) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("+critic_network_kwargs.width=3",),
        ("critic_network=torch.nn.Linear", "critic_dropout=0.1"),
        ("critic_network=torch.nn.Linear", "critic_layer_norm=false"),
    ],
)
def test_keys_without_effect_on_the_critics_are_refused(words, configuration, tmp_path):
    with pytest.raises(UserError, match="has no effect"):
        to_config(configuration("td3", tmp_path, *words))


@pytest.mark.parametrize("replay", ["uniform", "per"])
def test_rewards_of_batches_are_scaled_and_stored_ones_are_not(replay, agent_of, tmp_path):
    agent = agent_of("td3", tmp_path, "reward_scale=0.1", f"replay={replay}", frames=40)
    batch = agent.critic_batch(lean=True)
    stored = agent.buffer[batch["index"]]["next", "reward"]
    assert torch.equal(stored, torch.ones(32, 1))  # InvertedPendulum's
    torch.testing.assert_close(batch["next", "reward"], 0.1 * stored)


@pytest.mark.parametrize("words", [("num_envs=3",), ("replay=her", "env=FetchReach-v4")])
def test_rewards_are_divided_by_the_deviation_of_discounted_returns(words, agent_of, tmp_path):
    options = ("normalize_rewards=true", "reward_scale=2", "gamma=0.9", *words)
    agent = agent_of("td3", tmp_path, *options, frames=99)
    count = 3 if "num_envs=3" in words else 1
    rows = agent.buffer.storage.get(torch.arange(99))["next"]
    returns, found = np.zeros(count), []
    for step in range(0, 99, count):
        for env in range(count):
            returns[env] = 0.9 * returns[env] + rows["reward"][step + env].item()
            found.append(returns[env])
            if rows["done"][step + env]:
                returns[env] = 0
    assert rows["done"].any()
    assert agent.observations.rewards.factor() == pytest.approx(2 / np.std(found), rel=1e-5)


@pytest.mark.parametrize("algorithm", EACH)
def test_every_loss_discounts_the_next_value_by_the_number_of_steps(algorithm, agent_of, tmp_path):
    options = ("n_step=3", "gamma=0.9", "batch_size=512", *MANY.get(algorithm, []))
    agent = agent_of(algorithm, tmp_path, *options, frames=40)
    batch = agent.critic_batch()
    whole = batch[(batch["steps_to_next_obs"] == 3).squeeze(-1)]
    agent.loss.eval()
    losses = []
    for steps, gamma in ((whole, 0.9), (whole.exclude("steps_to_next_obs"), 0.9**3)):
        agent.loss.make_value_estimator(gamma=gamma)
        torch.manual_seed(0)
        losses.append(agent.loss.critic_loss(steps.clone())[0].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    agent.loss.make_value_estimator(gamma=0.9)
    torch.manual_seed(0)
    assert agent.loss.critic_loss(whole.exclude("steps_to_next_obs"))[0].item() != losses[0]
