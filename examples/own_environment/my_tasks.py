"""A custom environment and a custom wrapper, without any change to this repository.

Copy this file to any directory, change to that directory, and train (about a minute):

    python /path/to/recipes/td3.py env.name=my_tasks:Point-v0 total_frames=5000 \
        init_random_frames=1000 eval_interval=1000

`my_tasks:` is the module to import. Importing it registers the environment (see the last lines).
The output is in runs/td3/my_tasks-Point-v0/.

Arguments of the environment, wrappers by import path, and normalized observations:

    python /path/to/recipes/td3.py env.name=my_tasks:Point-v0 env.kwargs.gain=0.2 \
        env.wrappers=[my_tasks.Wind] env.normalize_observations=true total_frames=5000 \
        init_random_frames=1000 eval_interval=1000 run_dir=runs/windy

Eight environments at a time:

    python /path/to/recipes/td3.py env.name=my_tasks:Point-v0 num_envs=8 run_dir=runs/eight

Evaluate the trained policy from the same directory, because evaluation imports this module too:

    python /path/to/recipes/evaluate.py runs/windy
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class Point(gym.Env):
    """A point on a plane that should move to the origin; an episode ends when it is there.

    Args:
        gain: how far the largest action moves the point.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, gain: float = 0.1, render_mode: str | None = None):
        self.gain = gain
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        """Starts at a random point at a distance of 1."""
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.position = np.array([np.cos(angle), np.sin(angle)])
        return self.position.astype(np.float32), {}

    def step(self, action):
        """Moves the point."""
        self.position = np.clip(self.position + self.gain * action, -2, 2)
        distance = float(np.linalg.norm(self.position))
        is_there = distance < 0.1
        return self.position.astype(np.float32), -distance, is_there, False, {"success": is_there}


class Wind(gym.ActionWrapper):
    """Adds a slowly changing wind to the actions.

    Its state (an array and a random generator) is saved in checkpoints, like that of any wrapper.
    """

    def __init__(self, env):
        super().__init__(env)
        self.wind = np.zeros(2)
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        """Starts an episode. The wind continues, unless there is a new seed."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
            self.wind = np.zeros(2)
        return self.env.reset(seed=seed, options=options)

    def action(self, action):
        """The action, plus the wind."""
        self.wind = 0.9 * self.wind + 0.1 * self.rng.normal(size=2)
        return np.clip(action + self.wind, -1, 1).astype(np.float32)


gym.register("Point-v0", Point, max_episode_steps=50)
