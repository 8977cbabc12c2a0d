"""The cost of the losses: passes through the critics, multiplications, and one compiled graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchrl.modules import MLP

from helpers.losses import seeded, total_loss


class CountedIdentity(torch.autograd.Function):
    """Counts how often a backward pass runs through it."""

    generate_vmap_rule = True
    backwards = 0

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        CountedIdentity.backwards += 1
        return gradient.clone()


class CountedNetwork(nn.Module):
    """A critic network that counts its forward calls; vmap makes one call for all critics."""

    forwards = 0

    def __init__(self, outputs=1):
        super().__init__()
        self.network = MLP(in_features=8, out_features=outputs, num_cells=[16])

    def forward(self, *inputs):
        CountedNetwork.forwards += 1
        return self.network(CountedIdentity.apply(torch.cat(inputs, -1)))


class TestCost:
    @pytest.mark.parametrize("critics", [2, 5])
    @pytest.mark.parametrize("options", [{}, {"deactivate_vmap": True}], ids=["vmap", "loop"])
    def test_the_critics_run_forward_and_backward_once_as_in_torchrl(
        self, algorithm, make_batch, critics, options
    ):
        counts = []
        for loss_class in (algorithm.stock_class, algorithm.vmf_class):
            critic = algorithm.critic(network=CountedNetwork())
            loss = algorithm.build(loss_class, critic=critic, num_qvalue_nets=critics, **options)
            CountedNetwork.forwards = CountedIdentity.backwards = 0
            value, _ = loss.actor_loss(make_batch(6))
            value.backward()
            counts.append((CountedNetwork.forwards, CountedIdentity.backwards))
        calls = critics if options else 1
        assert counts[0] == (calls, calls)
        assert counts[1] == counts[0]

    def test_an_update_with_forward_evaluates_as_many_critics_as_torchrls(
        self, ensemble, make_batch
    ):
        counts = []
        for loss_class in (ensemble.stock_class, ensemble.vmf_class):
            critic = ensemble.critic(network=CountedNetwork(ensemble.outputs))
            # In a loop over the critics, each evaluation is one call.
            loss = ensemble.build(loss_class, critic=critic, deactivate_vmap=True)
            CountedNetwork.forwards = CountedIdentity.backwards = 0
            total_loss(loss(make_batch(6))).backward()
            counts.append((CountedNetwork.forwards, CountedIdentity.backwards))
        assert min(counts[0]) > 0
        assert counts[1] == counts[0]

    def test_an_update_multiplies_no_more_numbers_than_torchrls(self, any_algorithm, make_batch):
        operations = []
        for loss in any_algorithm.pair():
            with FlopCounterMode(display=False) as counter:
                # A call of the module itself would fail in the counter.
                total_loss(loss.forward(make_batch(32))).backward()
            operations.append(counter.get_total_flops())
        assert 0 < operations[1] <= operations[0]


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("aot_eager", {"num_qvalue_nets": 5, "actor_noise": 0.2}),
        # Requires a C++ compiler and half a minute. The case above also checks the single graph.
        pytest.param("inductor", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_actor_loss_of_td3_compiles_into_one_graph(
    td3, make_batch, gradients_of, backend, options
):
    torch.compiler.reset()
    eager, compiled = td3.build(**options), td3.build(**options)
    compiled_loss = torch.compile(compiled.actor_loss, fullgraph=True, backend=backend)
    for seed in range(2):
        batch = make_batch(16, seed=seed)
        expected, metadata = seeded(eager.actor_loss, batch.clone())
        value, compiled_metadata = seeded(compiled_loss, batch.clone())
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            compiled_metadata["vmf_factor"], metadata["vmf_factor"], rtol=0, atol=1e-5
        )
        value.backward()
        expected.backward()
    for gradient, reference in zip(
        gradients_of(compiled.actor_network_params),
        gradients_of(eager.actor_network_params),
        strict=True,
    ):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_update_with_forward_compiles(algorithm, make_batch):
    torch.compiler.reset()
    eager, compiled = algorithm.build(), algorithm.build()

    def update(loss, optimizer, batch):
        optimizer.zero_grad()
        losses = loss(batch)
        (losses["loss_actor"] + losses["loss_qvalue"]).backward()
        optimizer.step()
        return losses.detach()

    compiled_update = torch.compile(update, backend="aot_eager")
    optimizers = [torch.optim.SGD(loss.parameters(), lr=0.1) for loss in (eager, compiled)]
    for seed in range(2):
        batches = [make_batch(16, seed=seed) for _ in range(2)]
        expected = seeded(update, eager, optimizers[0], batches[0])
        found = seeded(compiled_update, compiled, optimizers[1], batches[1])
        assert set(found.keys()) == set(expected.keys())
        for name, entry in expected.items():
            torch.testing.assert_close(found[name], entry, rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(batches[1]["vmf_factor"], expected["vmf_factor"])
    torch.compiler.reset()
