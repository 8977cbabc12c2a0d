"""Plays an episode with a trained policy in a plain Gymnasium environment.

python examples/use_policy.py runs/td3/Hopper-v4/uniform-vmf_rank/seed0
"""

import argparse
import warnings

import gymnasium as gym
import gymnasium_robotics

from torchrl_vmfer import load_policy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", help="a run directory, or a file such as policy_best.pt")
parser.add_argument("--env", help="an environment id; default: the one of the training run")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

policy = load_policy(arguments.run)
print(policy)

gym.register_envs(gymnasium_robotics)
warnings.filterwarnings("ignore", message=".*out of date")  # the paper uses the -v4 tasks
env = gym.make(arguments.env or policy.environment)
observation, _ = env.reset(seed=arguments.seed)
total, length, is_over = 0.0, 0, False
while not is_over:
    observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
    total, length, is_over = total + float(reward), length + 1, terminated or truncated
print(f"Return {total:.1f} in {length} steps.")
