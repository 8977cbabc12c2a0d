"""The losses called as a whole, trained for a few steps, and with names of one's own."""

from __future__ import annotations

import pytest
import torch
from torchrl.objectives import SoftUpdate

from helpers.losses import SEED, assert_same, seeded


class TestForward:
    def test_equals_the_parents(self, algorithm, make_batch):
        stock, vmf = algorithm.pair()
        batch, stock_batch = make_batch(20), make_batch(20)
        expected = seeded(stock, stock_batch)
        result = seeded(vmf, batch)
        for key in expected.keys():  # noqa: SIM118, a tensordict iterates over its batch
            assert_same(algorithm, result[key], expected[key])
        assert torch.equal(batch["td_error"], stock_batch["td_error"])

    def test_takes_keyword_arguments(self, algorithm, make_batch):
        loss = algorithm.build()
        batch = make_batch(20)
        expected = seeded(loss, batch.clone())
        loss.select_out_keys("loss_actor", "loss_qvalue")
        flat = {
            "_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys
        }
        torch.manual_seed(SEED)
        loss_actor, loss_qvalue = loss(**flat)
        assert torch.equal(loss_actor, expected["loss_actor"])
        assert torch.equal(loss_qvalue, expected["loss_qvalue"])

    def test_a_few_updates_give_torchrls_parameters_bit_for_bit(self, td3, make_batch):
        stock, vmf = td3.pair(cells=(16, 16))
        for loss in (stock, vmf):
            updater = SoftUpdate(loss, tau=0.1)
            actor = torch.optim.Adam(loss.actor_network_params.values(True, True), lr=1e-2)
            critic = torch.optim.Adam(loss.qvalue_network_params.values(True, True), lr=1e-2)
            torch.manual_seed(SEED)
            for step in range(5):
                batch = make_batch(32, seed=step)
                for method, optimizer in ((loss.value_loss, critic), (loss.actor_loss, actor)):
                    method(batch)[0].backward()
                    optimizer.step()
                    optimizer.zero_grad()
                updater.step()
        expected = stock.state_dict()
        for key, value in vmf.state_dict().items():
            assert torch.equal(value, expected[key]), key


class TestKeys:
    @pytest.mark.parametrize(
        "keys",
        [
            {"action": "move", "value": "quality", "observation": "state"},
            {
                "action": ("agent", "action"),
                "value": ("agent", "quality"),
                "observation": ("agent", "seen", "state"),
            },
        ],
        ids=["flat", "nested"],
    )
    def test_of_ones_own_work_as_in_the_parents(self, algorithm, make_batch, gradients_of, keys):
        stock, vmf = algorithm.pair(num_qvalue_nets=3, num_target_critics=3, **keys)
        names = {"observation": keys["observation"], "action": keys["action"]}
        batch = make_batch(15, **names)
        expected, _ = seeded(stock.actor_loss, batch.clone())
        value, metadata = seeded(vmf.actor_loss, batch.clone())
        assert_same(algorithm, value, expected)
        value.backward()
        assert all(gradient is not None for gradient in gradients_of(vmf.actor_network_params))
        critic, _ = seeded(algorithm.critic_loss, vmf, batch.clone())
        stock_critic, _ = seeded(algorithm.critic_loss, stock, batch.clone())
        assert torch.equal(critic, stock_critic)
        plain = algorithm.build(num_qvalue_nets=3, num_target_critics=3)
        _, plain_metadata = seeded(plain.actor_loss, make_batch(15))
        assert torch.equal(metadata["vmf_factor"], plain_metadata["vmf_factor"])
