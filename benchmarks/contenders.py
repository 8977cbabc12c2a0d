"""The training loops that ``throughput.py`` compares, each run a number of steps at a time.

All make one update per step (TD3's actor every second), on one thread, with networks and batches of
the same sizes and a replay buffer that was filled beforehand.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl import torchrl_logger
from workload import CAPACITY, LEARNING_RATE, SIZES, Size, peer_loop, real_transitions

from torchrl_vmfer import ActorCriticReplayBuffer, VMFSampler
from torchrl_vmfer.compiled import extension
from torchrl_vmfer.networks import NetworkSpec
from vmfer_recipes.agent import networks
from vmfer_recipes.config.training import to_config
from vmfer_recipes.run.session import Averages, TrainingSession

LOG_INTERVAL = 1000  # as in a run

# Runs a number of steps; returns the seconds taken, by part of a step where it is known.
Run = Callable[[int], dict[str, float]]


def transitions_tensordict(task: str, count: int) -> TensorDict:
    """Transitions of a random policy, for TorchRL."""
    arrays = real_transitions(task, count)
    rows = {name: torch.from_numpy(values) for name, values in arrays.items()}
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


def stable_baselines(algorithm: str, filled: int, size: Size) -> Run:
    """Stable-Baselines3, with the same sizes."""
    import stable_baselines3

    make = {"td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC}[algorithm]
    return timed(peer_loop(make, algorithm, filled, size))


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def stock_torchrl(algorithm: str, filled: int, size: Size, at_once: bool, tuned: bool) -> Run:
    """TorchRL's losses, collector and buffer, combined as in its scripts.

    That is: its transforms of the environment, all entries stored, batches prefetched.

    Args:
        algorithm: ``"td3"`` or ``"sac"``.
        filled: transitions in the buffer.
        size: the task and the sizes of networks and batches.
        at_once: collect all steps and then make as many updates, as those scripts do, which is
            cheaper than one of each in turns.
        tuned: use fused Adam and flush denormal numbers to zero, as the recipes do.
    """
    torch.set_flush_denormal(tuned)
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

    transforms = (InitTracker(), StepCounter(1000), DoubleToFloat(), RewardSum())
    env = TransformedEnv(SerialEnv(1, lambda: GymEnv(size.task)), Compose(*transforms))
    spec = env.action_spec_unbatched
    critics = networks.make_critics(env, NetworkSpec(hidden=size.hidden), 2)
    rate = LEARNING_RATE[algorithm]
    if algorithm == "td3":
        actor = networks.deterministic_actor(env, NetworkSpec(hidden=size.hidden))
        noise = AdditiveGaussianModule(spec, sigma_init=1, sigma_end=1, std=0.1)
        policy = TensorDictSequential(actor, noise)
        loss = TD3Loss(actor, critics, action_spec=spec, loss_function="l2")
    else:
        policy = actor = networks.gaussian_actor(env, NetworkSpec(hidden=size.hidden))
        loss = SACLoss(actor, critics, action_spec=spec, loss_function="l2")
    loss.make_value_estimator(gamma=0.99)
    targets = SoftUpdate(loss, eps=0.995)
    actor_optimizer, critic_optimizer = (
        torch.optim.Adam(list(getattr(loss, name).flatten_keys().values()), lr=rate, fused=tuned)
        for name in ("actor_network_params", "qvalue_network_params")
    )
    if algorithm == "sac":
        alpha_optimizer = torch.optim.Adam([loss.log_alpha], lr=rate, fused=tuned)
        optimizers = group_optimizers(actor_optimizer, critic_optimizer, alpha_optimizer)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), batch_size=size.batch, prefetch=3
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


def recipe(
    algorithm: str,
    filled: int,
    size: Size,
    sampler: str,
    module_name: str | None,
    connection: Connection,
) -> NoReturn:
    """The recipe itself, with a session that waits for commands and components that are timed."""
    if module_name is not None:
        use_module(module_name)
    module: Any = importlib.import_module(f"vmfer_recipes.{algorithm}")
    with initialize_config_module("vmfer_recipes.configs", version_base="1.3"):
        options = [f"env={size.task}", f"hidden={size.hidden}", f"batch_size={size.batch}"]
        options += [f"sampler={sampler}", "init_random_frames=0"]
        cfg = to_config(compose(algorithm, options))
    session = BenchmarkSession(connection)
    agent = module.make_agent(cfg)
    fill(agent.buffer, transitions_tensordict(size.task, filled))
    watch(agent, session.stopwatch)
    module.train(cfg, session, agent)
    raise AssertionError("The session never ends.")


def use_module(name: str) -> None:
    """Makes the package use the extension module of another instruction set."""
    chosen = extension.modules()[name]
    extension.modules = lambda: {name: chosen}  # type: ignore[assignment]


def fill(buffer: ActorCriticReplayBuffer, rows: TensorDict) -> None:
    """Fills a replay buffer, and gives each transition a factor if its sampler uses them."""
    buffer.extend(rows.copy())  # to which the slots are added
    if isinstance(buffer.actor_sampler, VMFSampler):
        factors = 1 + torch.rand(len(rows)) * (math.e - 1) * 0.999
        buffer.update_actor_priority(torch.arange(len(rows)), factors)


class Stopwatch:
    """Splits the time of a step into parts: each ends where it is reported."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._since = 0.0

    def start(self) -> None:
        """Discards the measurements so far."""
        self.seconds.clear()
        self._since = time.perf_counter()

    def end_of(self, part: str) -> None:
        """Adds the time since the last report to a part of a step."""
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now


class Watched:
    """A proxy of an object, some of whose methods report when they end.

    Args:
        watched: the object.
        stopwatch: receives the reports.
        **parts: by method, the part of a step that ends with it.
    """

    def __init__(self, watched: Any, stopwatch: Stopwatch, **parts: str) -> None:
        self._watched = watched
        for method, part in parts.items():
            setattr(self, method, reporting(getattr(watched, method), stopwatch, part))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)


def reporting(call: Callable, stopwatch: Stopwatch, part: str) -> Callable:
    """A function that reports when it ends."""

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        stopwatch.end_of(part)
        return result

    return timed_call


def watch(agent: Any, stopwatch: Stopwatch) -> None:
    """Replaces the parts of an agent with watched ones."""
    agent.collector = Watched(agent.collector, stopwatch, collect="collect")
    agent.critic_batch = reporting(agent.critic_batch, stopwatch, "sample")
    agent.actor_batch = reporting(agent.actor_batch, stopwatch, "sample")
    agent.store_signal = reporting(agent.store_signal, stopwatch, "priority")
    agent.critic_optimizer = Watched(agent.critic_optimizer, stopwatch, step="critic")
    agent.actor_optimizer = Watched(agent.actor_optimizer, stopwatch, step="actor")
    if agent.alpha_optimizer is not None:
        agent.alpha_optimizer = Watched(agent.alpha_optimizer, stopwatch, step="actor")
    if agent.compiled is not None:
        agent.compiled = Watched(
            agent.compiled, stopwatch, update_critics="critic", update_actor="actor"
        )


class BenchmarkSession(TrainingSession):
    """A ``TrainingSession`` that takes as many steps as requested, and writes nothing."""

    def __init__(self, connection: Connection) -> None:
        self.metrics = Averages()
        self.stopwatch = Stopwatch()
        self._connection = connection

    def steps(self, policy: Any, **components: Any) -> Iterator[int]:
        done = 0
        while True:
            count = self._connection.recv()
            self.stopwatch.start()
            start = time.perf_counter()
            for step in range(done + 1, done + count + 1):
                yield step
                self.stopwatch.end_of("rest")
            done += count
            if done % LOG_INTERVAL == 0:
                self.metrics.pop()  # the next step measures the diagnostics of a row
            self._connection.send({"step": time.perf_counter() - start, **self.stopwatch.seconds})


def serve(
    make: str,
    algorithm: str,
    filled: int,
    size_name: str,
    sampler: str,
    module: str | None,
    connection: Connection,
) -> NoReturn:
    """Builds a contender and runs the numbers of steps received through the connection."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    size = SIZES[size_name]
    if make == "recipe":
        recipe(algorithm, filled, size, sampler, module, connection)
    if make == "sb3":
        run = stable_baselines(algorithm, filled, size)
    else:
        run = stock_torchrl(
            algorithm,
            filled,
            size,
            at_once=make == "torchrl at once",
            tuned=make == "torchrl tuned",
        )
    while True:
        connection.send(run(connection.recv()))
