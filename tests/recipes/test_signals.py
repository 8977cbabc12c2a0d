"""Samplers by any signal: what they receive, and what custom functions can do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from helpers import brute_force
from helpers.sessions import BareSession
from torchrl_vmfer import SignalSampler
from vmfer_recipes import sac, td3
from vmfer_recipes.config.errors import UserError

RECIPES = {"td3": td3, "sac": sac}
DOCS = Path(__file__).parents[2] / "docs"
# Networks that do not change.
FROZEN = ("critic_lr=0", "actor_lr=0", "tau=0", "gamma=0.9", "sampler=signal")


@pytest.fixture
def received(agent_of, tmp_path, monkeypatch):
    """``received(algorithm, *overrides)``: an agent, and what its sampler got in five updates."""
    values = []
    update = SignalSampler.update_priority

    def recording(self, index, priority, **kwargs):
        values.append((index.clone(), priority.clone()))
        return update(self, index, priority, **kwargs)

    monkeypatch.setattr(SignalSampler, "update_priority", recording)

    def run(algorithm, *overrides, frames=130):
        agent = agent_of(algorithm, tmp_path, *FROZEN, *overrides, frames=frames)
        recipe, session = RECIPES[algorithm], BareSession()
        for _ in range(5):
            recipe.update_actor(session, agent, recipe.update_critics(session, agent))
        assert len(values) == 5
        return agent, values

    return run


def actions(agent, rows):
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return agent.policy(rows.select("observation"))["action"]


def value_gap(agent, rows):
    values = brute_force.critic_values(agent.loss, rows, actions(agent, rows))
    return (values[0] - values[1]).abs()


def on_policy_distance(agent, rows):
    return (actions(agent, rows) - rows["action"]).norm(dim=-1)


def episodes(rows):
    """The rows of each episode."""
    ends = (rows["next", "done"].flatten().nonzero().flatten() + 1).tolist()
    starts = [0, *ends]
    return [
        range(*pair) for pair in zip(starts, [*ends, len(rows)], strict=True) if pair[0] < pair[1]
    ]


def returns(agent, rows):
    rewards, found = rows["next", "reward"].flatten(), torch.empty(len(rows))
    for episode in episodes(rows):
        found[list(episode)] = rewards[list(episode)].sum()
    return found


def advantages(agent, rows):
    rewards, found = rows["next", "reward"].flatten(), torch.empty(len(rows))
    value = brute_force.critic_values(agent.loss, rows, actions(agent, rows)).mean(0)
    after = rows["next"]
    beyond = brute_force.critic_values(agent.loss, after, actions(agent, after)).mean(0)
    for episode in episodes(rows):
        total = beyond[episode[-1]] * (not rows["next", "terminated"][episode[-1]])
        for slot in reversed(episode):
            total = rewards[slot] + 0.9 * total
            found[slot] = total - value[slot]
    return found.detach()


REFERENCES = {
    "value_gap": value_gap,
    "on_policy_distance": on_policy_distance,
    "return": returns,
    "advantage": advantages,
}


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.parametrize("signal", REFERENCES)
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_the_sampler_receives_the_signal_of_its_transitions(algorithm, signal, fast, received):
    words = (f"sampler.signal={signal}", f"fast={fast}", "env.name=ShortCheetah-v0")
    agent, values = received(algorithm, *words)  # two whole episodes, and a part of the third
    expected = REFERENCES[signal](agent, agent.buffer[:])
    for index, found in values:
        torch.testing.assert_close(found.float(), expected[index], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("signal", ["return", "advantage"])
def test_episodes_of_a_full_buffer_are_those_of_its_rows(signal, received):
    words = (f"sampler.signal={signal}", "env.name=ShortCheetah-v0", "replay.buffer_size=70")
    agent, values = received("td3", *words)  # the oldest episode is partly overwritten
    order = (torch.arange(70) + agent.buffer.write_count) % 70
    expected = torch.empty(70)
    expected[order] = REFERENCES[signal](agent, agent.buffer[:][order])
    for index, found in values:
        torch.testing.assert_close(found.float(), expected[index], rtol=1e-4, atol=1e-4)


def documented_example():
    """The custom signal of the documentation, which has at most ten lines."""
    text = (DOCS / "laboratory.md").read_text()
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "Critics" in block
    )
    assert len(code.splitlines()) <= 10
    return code


@pytest.fixture
def my_signals(monkeypatch):
    module = ModuleType("my_signals")
    exec(documented_example(), module.__dict__)
    module.scalar = lambda loss, batch: torch.zeros(())
    module.rewards = lambda loss, batch: batch["next", "reward"].flatten()
    monkeypatch.setitem(sys.modules, "my_signals", module)
    return module


def test_the_example_of_the_documentation_runs(my_signals, received):
    agent, values = received("td3", "sampler.signal=my_signals.pessimism")
    expected = my_signals.pessimism(agent.loss, agent.buffer[:])
    for index, found in values:
        torch.testing.assert_close(found, expected[index], rtol=1e-4, atol=1e-5)


def test_a_custom_signal_reads_all_entries_of_the_transitions(my_signals, received):
    agent, values = received("sac", "sampler.signal=my_signals.rewards")
    for index, found in values:
        assert torch.equal(found, agent.buffer[:]["next", "reward"].flatten()[index])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sampler.signal=anger", "has signal='anger', but the recipes provide factor,"),
        ("sampler.signal=my_signals.nothing", "has no function nothing"),
        ("sampler.signal=my_signals.scalar", "returned the shape"),
        ("sampler.signal=return num_envs=2", "use num_envs=1"),
    ],
)
def test_mistakes_are_named(words, message, my_signals, received):
    with pytest.raises(UserError, match=re.escape(message)):
        received("td3", *words.split())


def test_the_batches_of_the_critics_do_not_depend_on_the_signal(agent_of, tmp_path):
    states = []
    for signal in ("value_gap", "td_error"):
        agent = agent_of("td3", tmp_path, "sampler=signal", f"sampler.signal={signal}", frames=70)
        torch.manual_seed(0)
        agent.store_signal(agent.actor_batch(agent.critic_batch()), {})
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
