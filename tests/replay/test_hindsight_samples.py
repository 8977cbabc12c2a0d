"""Relabeled samples: new goals and rewards, and the requested entries."""

import pickle

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.transforms import CatTensors

from helpers.goal_world import BATCH, ORIGINAL, World, assert_equal, make, reward_fn
from torchrl_vmfer import HindsightReplayBuffer

# Tests of distributions draw more than one batch.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

# --- relabeled entries -----------------------------------------------------------


@pytest.mark.parametrize("side", ["sample", "sample_actor"])
@pytest.mark.parametrize("shape", ["[n]", "[n, 1]", "numpy"])
def test_goal_next_goal_and_reward_change_together_and_nothing_else_does(side, shape):
    rewards = {
        "[n]": reward_fn,
        "[n, 1]": lambda achieved, desired: reward_fn(achieved, desired)[:, None],
        "numpy": lambda achieved, desired: reward_fn(achieved, desired).double().numpy(),
    }
    buffer = make(her_ratio=0.5, reward_fn=rewards[shape])
    buffer.extend(World().steps(50))
    batch = getattr(buffer, side)(500)
    original = buffer[batch["index"]]
    goal = batch["desired_goal"]
    relabelled = goal[:, 0] != ORIGINAL
    assert 0.3 < relabelled.float().mean() < 0.7
    assert torch.equal(batch["next", "desired_goal"], goal)
    expected = reward_fn(batch["next", "achieved_goal"], goal)[:, None]
    assert torch.equal(batch["next", "reward"][relabelled], expected[relabelled])
    changed = ["desired_goal", ("next", "desired_goal"), ("next", "reward")]
    assert_equal(batch[~relabelled].exclude("index"), original[~relabelled].exclude("index"))
    assert_equal(batch.exclude(*changed, "index"), original.exclude(*changed, "index"))


def test_dtypes_equal_the_stored_ones():
    buffer = make()
    rows = World().steps(20)
    rows["next", "achieved_goal"] = rows["next", "achieved_goal"].double()
    rows["next", "reward"] = rows["next", "reward"].squeeze(-1)
    buffer.extend(rows)
    batch = buffer.sample()
    assert batch["desired_goal"].dtype == batch["next", "reward"].dtype == torch.float32
    assert batch["next", "reward"].shape == (BATCH,)


def test_other_names_and_nested_goals_are_supported():
    rows = World().steps(20)
    renamed = TensorDict(
        {
            "observation": rows["observation"],
            "task": {"goal": rows["desired_goal"]},
            "outcome": rows["next", "achieved_goal"],
            "gain": rows["next", "reward"],
            "over": rows["next", "done"],
            "run": rows["collector", "traj_ids"],
            "next": {"task": {"goal": rows["desired_goal"].clone()}},
        },
        [20],
    )
    buffer = make(
        goal_key=("task", "goal"),
        achieved_goal_key="outcome",
        reward_key="gain",
        done_key="over",
        trajectory_key="run",
    )
    twin = make()
    buffer.extend(renamed)
    twin.extend(rows)
    batch, expected = buffer.sample(), twin.sample()
    assert torch.equal(batch["task", "goal"], expected["desired_goal"])
    assert torch.equal(batch["next", "task", "goal"], expected["desired_goal"])
    assert torch.equal(batch["gain"], expected["next", "reward"])


def test_buffer_transforms_see_the_new_goals():
    keys = ["observation", "desired_goal"]
    buffer = make(transform=CatTensors(keys, "input", del_keys=False, sort=False))
    buffer.extend(World().steps(40))
    for batch in (buffer.sample(), buffer.sample_actor(keys=["input", "desired_goal"])):
        assert (batch["desired_goal"] != ORIGINAL).all()
        assert torch.equal(batch["input"][:, 3:], batch["desired_goal"])


# --- reading only the requested entries --------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        ["observation"],
        ["desired_goal"],
        [("next", "reward")],
        [("next", "desired_goal"), ("next", "reward")],
        ["next"],
        ["observation", "desired_goal", ("next", "achieved_goal")],
    ],
)
def test_entries_do_not_depend_on_the_other_entries_read(keys):
    buffer, twin = make(her_ratio=0.6), make(her_ratio=0.6)
    rows = World().steps(50)
    for one in (buffer, twin):
        one.extend(rows.clone())
    for _ in range(3):
        expected = twin.sample_actor().select(*keys, "index")
        assert_equal(buffer.sample_actor(keys=keys), expected)


# --- the environment's reward ------------------------------------------------------------------


def test_gymnasium_rewards_equal_those_of_the_environment():
    gymnasium_robotics = pytest.importorskip("gymnasium_robotics")
    gymnasium.register_envs(gymnasium_robotics)
    environment = gymnasium.make("FetchReach-v4")
    reward = HindsightReplayBuffer.gymnasium_reward(environment)
    achieved = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    desired = torch.tensor([[0.0, 0.0, 0.04], [0.0, 0.0, 0.06]])
    assert reward(achieved, desired).tolist() == [0.0, -1.0]
    assert pickle.loads(pickle.dumps(reward))(achieved, desired).tolist() == [0.0, -1.0]
    environment.close()


def test_an_environment_without_goals_is_an_error_that_says_what_to_do():
    environment = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"CartPoleEnv has no compute_reward.*FetchReach"):
        HindsightReplayBuffer.gymnasium_reward(environment)
