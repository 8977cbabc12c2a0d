"""The buffer in a Ray actor, used through TorchRL's handle."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RayReplayBuffer

from torchrl_vmfer import ActorCriticReplayBuffer

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

RAY = {
    "ray_init_config": {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False},
    "remote_config": {"num_cpus": 0},
}
PARTS = {"storage": partial(LazyTensorStorage, 16), "batch_size": 8}
MAKERS = {
    "service_backend": lambda: ActorCriticReplayBuffer(
        **PARTS, service_backend="ray", service_backend_options=RAY
    ),
    "replay_buffer_cls": lambda: RayReplayBuffer(
        replay_buffer_cls=ActorCriticReplayBuffer, **PARTS, **RAY
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _end_ray():
    yield
    ray.shutdown()


@pytest.mark.parametrize("maker", MAKERS)
def test_the_handle_samples_for_the_actor_and_accepts_its_factors(maker):
    owner = MAKERS[maker]()
    buffer = owner.client()
    try:
        data = TensorDict({"observation": torch.arange(16.0)}, [16])
        buffer.extend(data)
        batch = buffer.sample_actor(keys=["observation"])
        assert torch.equal(batch["observation"], batch["index"].float())
        assert "index_generation" in batch
        buffer.extend(data[:4].clone())  # by any process
        buffer.update_actor_priority(batch["index"], 2.0)
        other = buffer.sample_uniformly(32)
        buffer.update_tensordict_priority(other.set("vmf_factor", torch.full((32,), 2.5)))
        expected = torch.ones(16)
        expected[batch["index"][batch["index"] >= 4]] = 2.0
        expected[other["index"]] = 2.5
        stored = buffer.state_dict()["actor_sampler"]["priorities"]
        torch.testing.assert_close(stored, expected)
    finally:
        owner.close()
