"""Draws depend on the random generator and the priorities only."""

import numpy as np
import pytest
import torch

from helpers.recorded_buffer import KINDS, RecordedBuffer, each
from helpers.sampler_buffers import distinct_priorities, filled_buffer, seeded


class TestRandomness:
    def test_the_state_of_the_generator_determines_the_sample(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        buffer.update_priority(torch.arange(10), distinct_priorities(10))
        state = buffer._rng.get_state()
        first, second = buffer.sample()["index"], buffer.sample()["index"]
        torch.manual_seed(0)
        buffer._rng.set_state(state)
        assert torch.equal(buffer.sample()["index"], first)
        assert not torch.equal(first, second)

        twin = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        twin.update_priority(torch.arange(10), distinct_priorities(10))
        assert torch.equal(twin.sample()["index"], first)

    def test_a_generator_does_not_change_the_global_one(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32, generator=seeded(5))
        torch.manual_seed(1)
        before = torch.get_rng_state()
        np.random.seed(1)  # noqa: NPY002 - TorchRL's own prioritised sampler draws from it
        numpy_before = np.random.get_state()[1]  # noqa: NPY002
        buffer.sample()
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002

    def test_without_a_generator_the_global_seed_determines_the_sample(self, make_sampler):
        buffer = filled_buffer(make_sampler(), batch_size=32)
        buffer.update_priority(torch.arange(10), distinct_priorities(10))
        torch.manual_seed(7)
        first, second = buffer.sample()["index"], buffer.sample()["index"]
        torch.manual_seed(7)
        assert torch.equal(buffer.sample()["index"], first)
        assert not torch.equal(first, second)

    def test_draws_do_not_depend_on_the_history_of_the_priorities(self, make_sampler):
        """One history sorts from scratch, the other updates after a draw."""
        priorities = distinct_priorities(10)
        direct = filled_buffer(make_sampler(), batch_size=64, generator=seeded(1))
        direct.update_priority(torch.arange(10), priorities)
        winding = filled_buffer(make_sampler(), batch_size=64, generator=seeded(2))
        for slot in torch.randperm(10, generator=seeded(3)).tolist():
            winding.update_priority(slot, 1.01)
            winding.sample()
            winding.update_priority(slot, priorities[slot])
        winding._rng.set_state(seeded(1).get_state())
        assert torch.equal(winding.sample()["index"], direct.sample()["index"])


@each(KINDS)
@pytest.mark.parametrize("size", [300, 20_000])
def test_draws_depend_on_the_priorities_and_not_on_their_history(kind, size):
    rng = np.random.default_rng(13)
    updated = RecordedBuffer(kind, size)
    updated.extend(size // 2)
    for step in range(120):
        live = len(updated)
        slots = rng.integers(live, size=rng.integers(1, 200))
        priorities = np.round(kind.random_priorities(rng, len(slots)), 2 if step % 2 else 6)
        updated.update(slots, np.clip(priorities, 0.01, 2.71))
        if step % 2:
            updated.draw(4)
        if step % 10 == 0:
            updated.extend(size // 10)
    fresh = kind.make_sampler()
    fresh.load_state_dict(updated.sampler.state_dict())
    draws = []
    for sampler in (updated.sampler, fresh):
        sampler._rng = torch.Generator().manual_seed(14)
        draws.append([sampler.sample(updated.buffer.storage, count) for count in (5, 256, 9999)])
    for (index, info), (other_index, other_info) in zip(*draws, strict=True):
        assert torch.equal(index, other_index)
        assert info.keys() == other_info.keys()
        assert all(torch.equal(info[key], other_info[key]) for key in info)
