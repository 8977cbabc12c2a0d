"""Several agents with stacked parameters: each as if it were alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from torchrl_vmfer.compiled.stacked import (
    AdamState,
    Columns,
    Settings,
    StackedNetwork,
    StackedUpdates,
)

MEMBERS, ROWS, STORED = 4, 19, 50
LRS = np.array([1e-3, 3e-4, 1e-2, 1e-4])
GAMMAS = np.array([0.9, 0.99, 0.5, 0.95])
TAUS = np.array([0.1, 0.01, 0.5, 0.2])


def adam_state(value):
    zeros = torch.zeros_like(value), torch.zeros_like(value)
    return AdamState(value, value.clone(), *zeros, torch.zeros(len(value)))


def parameters(sizes, copies):
    shapes = [s for i, o in pairwise(sizes) for s in [(o, i), (o,)]]
    return [adam_state(torch.randn(*copies, *s) / s[-1] ** 0.5) for s in shapes]


def chosen(states, members):
    """Copies of the parameters of some members."""
    return [AdamState(*(tensor[members].clone() for tensor in state)) for state in states]


class Population:
    """Networks, transitions and random numbers of some members."""

    def __init__(self, policy, module, states=None, members=None):
        self.policy, self.module = policy, module
        sizes = (5, 16, 6 if policy == "gaussian" else 3), (8, 24, 8, 1)
        if states is None:
            torch.manual_seed(0)
            states = parameters(sizes[0], [MEMBERS]), parameters(sizes[1], [MEMBERS, 2])
            states = *states, [adam_state(torch.randn(MEMBERS))]
        self.members = list(range(MEMBERS)) if members is None else members
        self.states = tuple(chosen(part, self.members) for part in states)
        is_gaussian, adam = policy == "gaussian", (0.9, 0.999, 1e-8, 0.0)
        options = {"is_gaussian": True, "followed": "min", "used": "min"} if is_gaussian else {}
        self.updates = StackedUpdates(
            Settings(5, 3, len(self.members), **options),
            StackedNetwork(sizes[0], self.states[0]),
            StackedNetwork(sizes[1], self.states[1], copies=2),
            (self.states[2][0], adam) if is_gaussian else None,
            module=module,
        )

    def update(self, seed, active=None):
        """Updates everything; the data of a member do not depend on the others."""
        random = np.random.default_rng(seed)

        def some(*shape):
            drawn = random.standard_normal((MEMBERS, *shape)).astype(np.float32)
            return np.ascontiguousarray(drawn[self.members])

        index = random.integers(STORED, size=(MEMBERS, ROWS))[self.members]
        columns = Columns(
            some(STORED, 5), some(STORED, 3), some(STORED), some(STORED) > 1, some(STORED, 5)
        )
        noise, lr = some(ROWS, 3), LRS[self.members]
        options = {"index": np.ascontiguousarray(index), "active": active}
        critic = self.updates.update_critics(
            columns, noise, lr=lr, gamma=GAMMAS[self.members], **options
        )
        alpha_lr = lr if self.policy == "gaussian" else None
        loss, found = self.updates.update_actor(columns, noise, lr=lr, alpha_lr=alpha_lr, **options)
        self.updates.update_targets(TAUS[self.members], active)
        actions = self.updates.act(some(5), some(3), 0.1, active)
        return [*critic, loss, *found.values(), actions]


@pytest.mark.parametrize("members", [[0], [3], [2, 1], [3, 0, 1, 2]])
@pytest.mark.parametrize("policy", ["deterministic", "gaussian"])
def test_a_member_does_not_notice_its_company(policy, members, module):
    together = Population(policy, module)
    some = Population(policy, module, together.states, members)
    for seed in range(3):
        results, others = together.update(seed), some.update(seed)
        for result, other in zip(results, others, strict=True):
            np.testing.assert_array_equal(result[members], other)
    for part, other in zip(together.states, some.states, strict=True):
        for state, copied in zip(part, other, strict=True):
            for tensor, found in zip(state, copied, strict=True):
                assert torch.equal(tensor[members], found)


@pytest.mark.parametrize("policy", ["deterministic", "gaussian"])
def test_members_that_are_not_active_are_left_alone(policy, module):
    population, other = Population(policy, module), None
    other = Population(policy, module, population.states)
    active = np.array([True, False, True, False])
    population.update(0, active)
    for part, before in zip(population.states, other.states, strict=True):
        for state, initial in zip(part, before, strict=True):
            for tensor, found in zip(state, initial, strict=True):
                assert torch.equal(tensor[~active], found[~active])
    other.update(0)
    assert torch.equal(population.states[0][0].value[active], other.states[0][0].value[active])
    assert not torch.equal(population.states[0][0].value, other.states[0][0].value)


def test_arrays_of_other_shapes_are_refused(module):
    population = Population("deterministic", module)
    columns = Columns(np.zeros((MEMBERS, ROWS, 5), np.float32))
    with pytest.raises(ValueError, match="lr"):
        population.updates.update_actor(columns, lr=np.ones(3))
    with pytest.raises(ValueError, match="observation"):
        population.updates.update_actor(Columns(columns[0][:, :, :4].copy()), lr=1e-3)
    with pytest.raises(ValueError, match="observation"):
        population.updates.update_actor(Columns(columns[0].astype(np.float64)), lr=1e-3)
    index = np.full((MEMBERS, 3), ROWS)
    with pytest.raises(IndexError, match=f"slot {ROWS}"):
        population.updates.update_actor(columns, lr=1e-3, index=index)
    with pytest.raises(ValueError, match="C-contiguous"):
        population.updates.update_actor(Columns(columns[0].transpose(1, 0, 2)), lr=1e-3)
    wrong = StackedNetwork((5, 16, 4), population.states[0])
    with pytest.raises(ValueError, match="parameter"):
        StackedUpdates(Settings(5, 4, MEMBERS), wrong, wrong, module=module)
