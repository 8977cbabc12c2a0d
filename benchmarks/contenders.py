"""The training loops that ``throughput.py`` compares, each run a number of steps at a time.

All train 256×256 networks on HalfCheetah-v4 with batches of 256 and one update per step (TD3's
actor every second), on one thread, with a replay buffer that was filled beforehand.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl import torchrl_logger

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler
from torchrl_vmfer.fast import make_backend
from vmfer_recipes.training.options import to_config

ROOT = Path(__file__).parents[1]
TASK = "HalfCheetah-v4"
HIDDEN = [256, 256]
BATCH = 256
CAPACITY = 1_000_000
LEARNING_RATE = {"td3": 1e-3, "sac": 3e-4}

# Runs a number of steps; returns the seconds taken, by part of a step where it is known.
Run = Callable[[int], dict[str, float]]


def real_transitions(count: int) -> dict[str, np.ndarray]:
    """Transitions of a random policy, repeated."""
    env = gym.make(TASK)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    rows: dict[str, list] = {name: [] for name in ("observation", "action", "next", "reward")}
    for _ in range(1000):
        action = env.action_space.sample()
        following, reward, *_ = env.step(action)
        for name, value in zip(rows, (observation, action, following, reward), strict=True):
            rows[name].append(np.float32(value))
        observation = following
    return {
        name: np.resize(np.stack(values), (count, *np.shape(values[0])))
        for name, values in rows.items()
    }


def transitions_tensordict(count: int) -> TensorDict:
    """The same for TorchRL."""
    rows = {name: torch.from_numpy(values) for name, values in real_transitions(count).items()}
    flags = {name: torch.zeros(count, 1, dtype=torch.bool) for name in ("done", "terminated")}
    following = {"observation": rows["next"], "reward": rows["reward"].unsqueeze(-1), **flags}
    rows = {"observation": rows["observation"], "action": rows["action"]}
    return TensorDict({**rows, "next": TensorDict(following, [count])}, [count])


def timed(function: Callable[[int], Any]) -> Run:
    def run(steps: int) -> dict[str, float]:
        start = time.perf_counter()
        function(steps)
        return {"step": time.perf_counter() - start}

    return run


def stable_baselines(algorithm: str, filled: int) -> Run:
    """Stable-Baselines3, of the same sizes."""
    import stable_baselines3

    make = {"td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC}[algorithm]
    model = make(
        "MlpPolicy",
        gym.make(TASK),
        learning_rate=LEARNING_RATE[algorithm],
        buffer_size=CAPACITY,
        batch_size=BATCH,
        learning_starts=0,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": HIDDEN},
        device="cpu",
        seed=0,
    )
    buffer, rows = model.replay_buffer, real_transitions(filled)
    for name, values in {
        "observations": rows["observation"],
        "next_observations": rows["next"],
        "actions": rows["action"],
        "rewards": rows["reward"],
    }.items():
        getattr(buffer, name)[:filled, 0] = values
    buffer.pos, buffer.full = filled % CAPACITY, filled == CAPACITY
    return timed(lambda steps: model.learn(steps, reset_num_timesteps=False, log_interval=10**9))


def stock_torchrl(algorithm: str, filled: int, at_once: bool) -> Run:
    """TorchRL's losses, collector and buffer, put together as its own scripts do.

    That is: its transforms of the environment, all entries stored, batches prefetched.

    Args:
        algorithm: ``"td3"`` or ``"sac"``.
        filled: transitions in the buffer.
        at_once: collect all steps and then make as many updates, as those scripts do, which is
            cheaper than one of each in turns.
    """
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import (
        Compose,
        DoubleToFloat,
        GymEnv,
        InitTracker,
        RewardSum,
        SerialEnv,
        StepCounter,
        TransformedEnv,
    )
    from torchrl.modules import AdditiveGaussianModule
    from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss, group_optimizers

    networks = importlib.import_module("vmfer_recipes.training.networks")
    descend = make_backend(fast=False).descend
    transforms = (InitTracker(), StepCounter(1000), DoubleToFloat(), RewardSum())
    env = TransformedEnv(SerialEnv(1, lambda: GymEnv(TASK)), Compose(*transforms))
    spec = env.action_spec_unbatched
    critics = networks.make_critics(env, HIDDEN, 2)
    rate = LEARNING_RATE[algorithm]
    if algorithm == "td3":
        actor = networks.deterministic_actor(env, HIDDEN)
        noise = AdditiveGaussianModule(spec, sigma_init=1, sigma_end=1, std=0.1)
        policy = TensorDictSequential(actor, noise)
        loss = TD3Loss(actor, critics, action_spec=spec, loss_function="l2")
    else:
        policy = actor = networks.gaussian_actor(env, HIDDEN)
        loss = SACLoss(actor, critics, action_spec=spec, loss_function="l2")
    loss.make_value_estimator(gamma=0.99)
    targets = SoftUpdate(loss, eps=0.995)
    actor_optimizer, critic_optimizer = (
        torch.optim.Adam(list(getattr(loss, name).flatten_keys().values()), lr=rate)
        for name in ("actor_network_params", "qvalue_network_params")
    )
    if algorithm == "sac":
        alpha_optimizer = torch.optim.Adam([loss.log_alpha], lr=rate)
        optimizers = group_optimizers(actor_optimizer, critic_optimizer, alpha_optimizer)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), batch_size=BATCH, prefetch=3
    )
    rows = next(iter(Collector(env, policy, frames_per_batch=1000, total_frames=1000)))
    buffer.extend(rows.reshape(-1)[torch.arange(filled) % 1000])
    updates = 0

    def update() -> None:
        nonlocal updates
        updates += 1
        batch = buffer.sample()
        if algorithm == "sac":
            losses = loss(batch)
            total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            descend(optimizers, total)
            targets.step()
            return
        batch = batch.clone()
        descend(critic_optimizer, loss.value_loss(batch)[0])
        if updates % 2 == 0:
            descend(actor_optimizer, loss.actor_loss(batch)[0])
            targets.step()

    collector: Any = None
    batches: Iterator = iter(())

    def run(steps: int) -> None:
        nonlocal collector, batches
        frames = steps if at_once else 1
        if collector is None:
            collector = Collector(env, policy, frames_per_batch=frames, total_frames=-1)
            batches = iter(collector)
        for _ in range(0, steps, frames):
            rows = next(batches)
            collector.update_policy_weights_()
            buffer.extend(rows.reshape(-1))
            for _ in range(frames):
                update()

    return timed(run)


def recipe(algorithm: str, filled: int, sampler: str, connection: Connection) -> NoReturn:
    """The recipe itself, whose session waits for orders."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = compose(algorithm, [f"env={TASK}", f"sampler={sampler}", "init_random_frames=0"])
    module: Any = importlib.import_module(f"vmfer_recipes.{algorithm}")
    module.train(to_config(cfg), _Session(filled, connection))
    raise AssertionError("The session never ends.")


class _Session:
    """Takes the place of a recipe's session: leads its loop as many steps as are asked for."""

    finished = False

    def __init__(self, filled: int, connection: Connection) -> None:
        self.backend = make_backend(fast=True)
        self.metrics = importlib.import_module("vmfer_recipes.training.logs").Averages()
        self._filled = filled
        self._connection = connection
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = 0.0
        # Of the class, since a recipe asks its buffer for the method before the first step.
        sample_actor = self._watched(ActorCriticReplayBuffer.sample_actor, "sample")
        setattr(ActorCriticReplayBuffer, "sample_actor", sample_actor)  # noqa: B010

    def steps(self, policy: Any, **parts: Any) -> Iterator[int]:
        buffer = parts["replay"]._buffer
        buffer.extend(transitions_tensordict(self._filled))
        if isinstance(buffer.actor_sampler, VMFSampler):
            factors = 1 + torch.rand(self._filled) * (math.e - 1) * 0.999
            buffer.update_actor_priority(torch.arange(self._filled), factors)
        optimizers = {
            "critic_optimizer": "critic",
            "actor_optimizer": "actor",
            "alpha_optimizer": "actor",
        }
        for owner, name, part in (
            (parts["collector"], "collect", "collect"),
            (buffer, "sample", "sample"),
            *((parts[key], "step", part) for key, part in optimizers.items() if key in parts),
            (buffer, "update_actor_priority", "priority"),
        ):
            setattr(owner, name, self._watched(getattr(owner, name), part))
        done = 0
        while True:
            count = self._connection.recv()
            self._seconds.clear()
            start = self._since = time.perf_counter()
            for step in range(done + 1, done + count + 1):
                yield step
                self._end_of("rest")
            done += count
            self.metrics.pop()
            self._connection.send({"step": time.perf_counter() - start, **self._seconds})

    def _watched(self, call: Callable, part: str) -> Callable:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self._end_of(part)
            return result

        return watched

    def _end_of(self, part: str) -> None:
        """Counts the time since the last call of it to a part of a step."""
        now = time.perf_counter()
        self._seconds[part] += now - self._since
        self._since = now


def serve(make: str, algorithm: str, filled: int, sampler: str, connection: Connection) -> NoReturn:
    """Builds a contender and lets it run the numbers of steps that come by the connection."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    if make == "recipe":
        recipe(algorithm, filled, sampler, connection)
    if make == "sb3":
        run = stable_baselines(algorithm, filled)
    else:
        run = stock_torchrl(algorithm, filled, at_once=make == "torchrl at once")
    while True:
        connection.send(run(connection.recv()))
