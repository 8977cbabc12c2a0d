"""Random sequences of replay buffer operations against a plain dictionary as a model."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from helpers.sampler_buffers import ALPHA, BETA, exact_probabilities, rows
from torchrl_vmfer import InverseTDSampler, LAPSampler, RankPrioritizedSampler, VMFSampler

# How to make each sampler, and the range of its priorities.
FACTORS, ERRORS = (2**-6, float(np.float32(np.e))), (0.0, 1e6)
SAMPLERS = {
    "uncertainty": (partial(VMFSampler, "uncertainty"), FACTORS),
    "rank": (partial(VMFSampler, "rank"), FACTORS),
    "power": (partial(VMFSampler, power=-3), FACTORS),
    "lap": (partial(LAPSampler, exponent=1.5), ERRORS),
    "inverse_td": (partial(InverseTDSampler, exponent=2, floor=0.5), ERRORS),
    "rank_prioritized": (partial(RankPrioritizedSampler, ALPHA, BETA), ERRORS),
}


class BufferMachine(RuleBasedStateMachine):
    """A buffer and its model: ``{slot: priority}``, the next slot and the highest priority seen."""

    def __init__(self, name, capacity):
        super().__init__()
        self.make_sampler, self.priority_range = SAMPLERS[name]
        self.capacity = capacity
        self.buffer = self.make_buffer()
        self.priorities = {}
        self.cursor = 0
        self.highest = None
        self.is_written = False

    def make_buffer(self):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(self.capacity), sampler=self.make_sampler()
        )

    def default_priority(self):
        if isinstance(self.buffer.sampler, VMFSampler):
            return 1.0
        return max(self.buffer.sampler.floor or 1.0, self.highest or 0.0)

    def record_written(self, count):
        self.is_written = True
        for _ in range(count):
            self.priorities[self.cursor] = self.default_priority()
            self.cursor = (self.cursor + 1) % self.capacity

    @rule()
    def add(self):
        self.record_written(1)
        self.buffer.add(rows(0, 1)[0])

    @rule(count=st.integers(1, 16))
    def extend(self, count):
        count = min(count, self.capacity + 4)  # may wrap
        self.record_written(count)
        self.buffer.extend(rows(0, count))

    @precondition(lambda self: self.priorities)
    @rule(data=st.data())
    def update(self, data):
        low, high = self.priority_range
        # Few values, so that ties are common, and any value.
        priority = st.sampled_from([1.0, 1.5, 2.0]) | st.floats(low, high, width=32)
        pair = st.tuples(st.sampled_from(sorted(self.priorities)), priority)
        pairs = data.draw(st.lists(pair, min_size=1, max_size=2 * self.capacity), label="update")
        for slot, value in pairs:
            self.priorities[slot] = value
        self.highest = max([value for _, value in pairs] + [self.highest or 0.0])
        slots, values = zip(*pairs, strict=True)
        self.buffer.update_priority(torch.tensor(slots), torch.tensor(values))

    @precondition(lambda self: self.priorities)
    @rule(count=st.integers(1, 20), seed=st.integers(0, 2**16))
    def sample(self, count, seed):
        torch.manual_seed(seed)
        batch = self.buffer.sample(count)
        index = batch["index"].tolist()
        probability = self.probabilities()
        assert len(index) == count
        assert all(probability[slot] > 0 for slot in index)
        if isinstance(self.buffer.sampler, RankPrioritizedSampler):
            weight = (probability.min() / probability[index]) ** BETA
            np.testing.assert_allclose(batch["priority_weight"], weight, rtol=1e-6)

        # Draws depend only on the priorities, not on their history.
        twin = self.make_sampler()
        twin.load_state_dict(self.buffer.sampler.state_dict())
        torch.manual_seed(seed)
        assert twin.sample(self.buffer.storage, count)[0].tolist() == index

    @precondition(lambda self: not self.priorities)
    @rule()
    def sample_nothing(self):
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            self.buffer.sample(1)

    @rule()
    def empty(self):
        self.buffer.empty()
        self.priorities = {}
        self.cursor = 0
        self.highest = None

    @precondition(lambda self: self.is_written)
    @rule()
    def copy_state(self):
        state = self.buffer.state_dict()
        self.buffer = self.make_buffer()
        self.buffer.load_state_dict(state)

    def probabilities(self):
        in_order = [self.priorities[slot] for slot in range(len(self.priorities))]
        return exact_probabilities(self.buffer.sampler, in_order) if in_order else np.empty(0)

    @invariant()
    def probabilities_and_default_agree(self):
        actual = self.buffer.sampler.probabilities()
        np.testing.assert_allclose(actual, self.probabilities(), rtol=1e-12)
        assert self.buffer.sampler.default_priority == self.default_priority()


@pytest.mark.filterwarnings("ignore:last_cursor is None:UserWarning")
@pytest.mark.parametrize(
    "capacity", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 12))]
)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_buffer_behaves_like_a_dictionary_of_priorities(name, capacity):
    run_state_machine_as_test(
        partial(BufferMachine, name, capacity),
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
