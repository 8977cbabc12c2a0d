"""The worked changes of docs/change_the_algorithm.md run from an empty folder."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from helpers.sessions import BareSession
from vmfer_recipes.config.training import to_config

PAGE = (Path(__file__).parents[2] / "docs" / "change_the_algorithm.md").read_text()
FRAME, *CHANGES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMES = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
SMALL = (
    *("env=InvertedPendulum-v4", "hidden=[16,16]", "batch_size=32", "replay.buffer_size=5000"),
    *("init_random_frames=60", "total_frames=90", "eval_interval=60", "num_eval_episodes=1"),
)


@pytest.fixture
def weights(execute, tmp_path, monkeypatch):
    """``weights(change)``: the policy that the changed file trains in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(change):
        Path("my_td3.py").write_text(FRAME.replace("# Put the change here.", change))
        execute(runpy.run_path("my_td3.py")["main"], *SMALL, f"run_dir=runs/{len(change)}")
        file = Path("runs", str(len(change)), "policy.pt")
        return torch.load(file, weights_only=True)["weights"]

    return run


def test_every_change_has_at_most_ten_lines():
    assert len(CHANGES) == len(NAMES) == 5
    for change in CHANGES:
        assert len([line for line in change.splitlines() if line]) <= 10


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_change_trains_another_policy_than_td3(weights, change):
    plain, changed = weights("pass"), weights(change)
    assert any(not torch.equal(plain[key], changed[key]) for key in plain)


def test_two_step_returns_are_those_of_the_episodes(configuration, tmp_path):
    """Against the transitions of the buffer, one after the other."""
    file = tmp_path / "my_td3.py"
    file.write_text(FRAME.replace("# Put the change here.", CHANGES[1]))
    module = runpy.run_path(str(file))
    cfg = to_config(configuration("td3", tmp_path, "env=Hopper-v4", "init_random_frames=90"))
    agent = module["td3"].make_agent(cfg)
    for _ in range(90):
        agent.collector.collect()
    agent.compiled = None
    module["change"](agent, cfg)
    assert module["td3"].update_critics(BareSession(), agent) is not None
    rows, batch = agent.buffer.storage[:], agent.critic_batch()
    for row in batch:
        slot = int(row["index"])
        reward, steps = rows["next", "reward"][slot], 1
        if slot < 89 and not rows["next", "done"][slot]:
            reward, steps = reward + cfg.gamma * rows["next", "reward"][slot + 1], 2
        last = rows["next"][slot + steps - 1]
        assert row["steps_to_next_obs"] == steps
        torch.testing.assert_close(row["next", "reward"], reward)
        assert torch.equal(row["next", "observation"], last["observation"])
        assert torch.equal(row["next", "terminated"], last["terminated"])
    assert {1, 2} == {*batch["steps_to_next_obs"].flatten().int().tolist()}
