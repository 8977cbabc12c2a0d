"""The forward method of the losses, a few training steps, and custom key names."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import LazyTensorStorage
from torchrl.objectives import SoftUpdate

from helpers.losses import SEED, assert_same, seeded
from torchrl_vmfer import ActorCriticReplayBuffer


def keywords(loss, batch):
    """Returns the entries of a batch as keyword arguments of a loss."""
    return {"_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys}


def with_log_prob(batch):
    """Adds an entry that TorchRL's REDQ lists among its inputs but does not read."""
    return batch.set("action_log_prob", torch.zeros(batch.shape))


class TestForward:
    def test_equals_the_parents(self, algorithm, make_batch):
        stock, vmf = algorithm.pair()
        batch, stock_batch = make_batch(20), make_batch(20)
        expected = seeded(stock, stock_batch)
        result = seeded(vmf, batch)
        for key in expected.keys():  # noqa: SIM118, a tensordict iterates over its batch
            assert_same(algorithm, result[key], expected[key])
        assert torch.equal(batch["td_error"], stock_batch["td_error"])

    def test_returns_the_factors_and_writes_them_into_the_batch(self, algorithm, make_batch):
        loss = algorithm.build(num_qvalue_nets=3)
        batch = make_batch(20)
        result = seeded(loss, batch)
        torch.manual_seed(SEED)
        if algorithm.name == "sac":
            algorithm.critic_loss(loss, make_batch(20))  # draws the random numbers before
        _, metadata = loss.actor_loss(make_batch(20))
        assert set(result.keys()) == set(loss.out_keys)
        for name in ("vmf_factor", "vmf_resultant_length"):
            torch.testing.assert_close(result[name], metadata[name])
        assert torch.equal(batch["vmf_factor"], result["vmf_factor"])

    def test_forward_and_update_tensordict_priority_store_the_factors(
        self, any_algorithm, make_batch
    ):
        loss = any_algorithm.build()
        buffer = ActorCriticReplayBuffer(storage=LazyTensorStorage(50), batch_size=16)
        buffer.extend(make_batch(50))
        batch = buffer.sample()
        loss(batch)
        buffer.update_tensordict_priority(batch)
        weight = torch.ones(50, dtype=torch.float64)
        weight[batch["index"]] = batch["vmf_factor"].double()
        torch.testing.assert_close(buffer.actor_sampler.probabilities(), weight / weight.sum())

    def test_without_measuring_returns_what_torchrl_returns(self, algorithm, make_batch):
        stock, vmf = algorithm.build(algorithm.stock_class), algorithm.build(measure=False)
        results = [seeded(loss, make_batch(20)) for loss in (stock, vmf)]
        assert set(results[1].keys()) == set(results[0].keys())
        assert vmf.out_keys == stock.out_keys

    @pytest.mark.parametrize("reduction", ["none", "sum"])
    @pytest.mark.filterwarnings("ignore:SACLoss with reduction")
    def test_returns_the_factors_with_any_reduction(self, algorithm, make_batch, reduction):
        batch = make_batch(20)
        result = seeded(algorithm.build(reduction=reduction), batch)
        assert result["vmf_factor"].shape == (20,)
        assert torch.equal(batch["vmf_factor"], result["vmf_factor"])

    def test_actor_loss_alone_does_not_change_the_batch(self, any_algorithm, make_batch):
        batch = make_batch(20)
        any_algorithm.build().actor_loss(batch)
        assert "vmf_factor" not in batch.keys()  # noqa: SIM118

    def test_of_td3_called_with_keywords_returns_all_outputs(self, td3, make_batch):
        loss, batch = td3.build(), make_batch(20)
        expected = seeded(loss, batch.clone())
        outputs = seeded(lambda: loss(**keywords(loss, batch)))
        for name, output in zip(loss.out_keys, outputs, strict=True):
            assert torch.equal(output, expected[name]), name

    @pytest.mark.parametrize(
        ("name", "count"),
        [("sac", 5), ("redq", 9), ("crossq", 5), ("tqc", 5), ("td3_bc", 8), ("cql", 7)],
    )
    def test_called_with_keywords_returns_torchrls_tuple(self, name, count, request, make_batch):
        algorithm = request.getfixturevalue(name)
        stock, vmf = algorithm.pair()
        batch = with_log_prob(make_batch(20))
        outputs = seeded(lambda: vmf(**keywords(vmf, batch)))
        assert len(outputs) == len(stock.out_keys) == count
        expected = seeded(stock, batch.clone())
        for key, output in zip(stock.out_keys, outputs, strict=True):
            assert_same(algorithm, output, expected[key])

    def test_returns_the_selected_keys_until_they_are_reset(self, any_algorithm, make_batch):
        loss, batch = any_algorithm.build(), with_log_prob(make_batch(20))
        names = loss.out_keys
        expected = seeded(loss, batch.clone())
        loss.select_out_keys("loss_actor", "vmf_factor")
        assert loss.out_keys == ["loss_actor", "vmf_factor"]
        value, factor = seeded(lambda: loss(**keywords(loss, batch)))
        assert torch.equal(value, expected["loss_actor"])
        assert torch.equal(factor, expected["vmf_factor"])
        result = seeded(loss, batch)
        assert set(result.keys()) == {"loss_actor", "vmf_factor"}
        assert torch.equal(batch["vmf_factor"], expected["vmf_factor"])
        loss.reset_out_keys()
        assert loss.out_keys == names
        assert set(seeded(loss, batch).keys()) == set(expected.keys())

    def test_accepts_keyword_arguments(self, algorithm, make_batch):
        loss = algorithm.build()
        batch = make_batch(20)
        expected = seeded(loss, batch.clone())
        loss.select_out_keys("loss_actor", "loss_qvalue")
        loss_actor, loss_qvalue = seeded(lambda: loss(**keywords(loss, batch)))
        assert torch.equal(loss_actor, expected["loss_actor"])
        assert torch.equal(loss_qvalue, expected["loss_qvalue"])

    def test_a_few_updates_give_parameters_bitwise_equal_to_torchrls(self, td3, make_batch):
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


@pytest.mark.parametrize("critics", [2, 5])
def test_with_all_critics_in_the_target_the_loss_equals_torchrls(
    algorithm, make_batch, gradients_of, critics
):
    results = []
    for loss in algorithm.pair(num_qvalue_nets=critics, num_target_critics=None):
        losses = seeded(loss, make_batch(32))
        (losses["loss_actor"] + losses["loss_qvalue"]).backward()
        gradients = gradients_of(loss.qvalue_network_params)
        gradients += gradients_of(loss.actor_network_params)
        results.append([losses["loss_actor"], losses["loss_qvalue"], *gradients])
    for expected, found in zip(*results, strict=True):
        assert_same(algorithm, found, expected)


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
    def test_with_custom_names_work_as_in_the_parents(
        self, algorithm, make_batch, gradients_of, keys
    ):
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
