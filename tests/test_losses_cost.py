"""The cost of the losses: multiplications, and one compiled graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.losses import gradients, make_batch, seeded, total_loss


@pytest.mark.parametrize("options", [{}, {"deactivate_vmap": True}], ids=["vmap", "loop"])
def test_an_update_multiplies_no_more_numbers_than_torchrls(any_algorithm, options):
    for method in ("forward", "actor_loss"):
        operations = []
        for loss in any_algorithm.pair(**options):
            if not hasattr(loss, method):  # TorchRL's REDQ has no separate loss of the actor
                continue
            with FlopCounterMode(display=False) as counter:
                # A call of the module itself would fail in the counter.
                result = getattr(loss, method)(make_batch(32))
                (total_loss(result) if method == "forward" else result[0]).backward()
            operations.append(counter.get_total_flops())
        assert 0 < operations[-1] <= operations[0], method


@pytest.mark.parametrize(
    ("name", "method", "backend", "options"),
    [
        ("td3", "actor_loss", "aot_eager", {"num_qvalue_nets": 5, "actor_noise": 0.2}),
        # Requires a C++ compiler and half a minute. The case above also checks the single graph.
        pytest.param("td3", "actor_loss", "inductor", {}, marks=pytest.mark.slow),
        pytest.param("redq", "actor_loss", "aot_eager", {}, marks=pytest.mark.slow),
        pytest.param("redq", "qvalue_loss", "aot_eager", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_compiles_into_one_graph(name, method, backend, options, request):
    torch.compiler.reset()
    algorithm = request.getfixturevalue(name)
    eager, compiled = algorithm.build(**options), algorithm.build(**options)
    fast = torch.compile(getattr(compiled, method), fullgraph=True, backend=backend)
    for seed in range(2):
        batch = make_batch(16, seed=seed)
        expected, metadata = seeded(getattr(eager, method), batch.clone())
        value, compiled_metadata = seeded(fast, batch.clone())
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(compiled_metadata, metadata, rtol=1e-4, atol=1e-5)
        value.backward()
        expected.backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager), rtol=1e-4, atol=1e-6)
    torch.compiler.reset()
