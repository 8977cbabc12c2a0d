"""Updates of several agents at once, with stacked parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.compiled.extension import functions

__all__ = ["ActorReport", "AdamState", "Columns", "CriticReport", "NotServedError", "Settings"]
__all__ += ["StackedNetwork", "StackedUpdates"]


class NotServedError(TypeError):
    """Raised for what the compiled updates do not serve; the message is the reason."""


class AdamState(NamedTuple):
    """A parameter of ``M`` agents, with what changes it. All tensors are float32 and contiguous.

    Attributes:
        value: the parameter, ``[M, *shape]`` of an actor or ``[M, N, *shape]`` of N critics.
        target: that of the target network, of the same shape; ``None`` if there is none.
        exp_avg: Adam's average of the gradient, of the same shape; ``None`` without an optimizer.
        exp_avg_sq: Adam's average of its square.
        step: Adam's step count of each agent, ``[M]``.
    """

    value: Tensor
    target: Tensor | None = None
    exp_avg: Tensor | None = None
    exp_avg_sq: Tensor | None = None
    step: Tensor | None = None

    @classmethod
    def zeros(cls, value: Tensor, has_target: bool = False) -> AdamState:
        """The state of a parameter before its first update; the target is a copy."""
        target = value.clone() if has_target else None
        zeros = torch.zeros_like(value), torch.zeros_like(value)
        return cls(value, target, *zeros, torch.zeros(len(value)))


@dataclass(frozen=True)
class StackedNetwork:
    """The networks of ``M`` agents: linear layers with ReLU between them.

    Attributes:
        sizes: the number of inputs, of the units of each hidden layer, and of outputs.
        parameters: weight ``[..., out, in]`` and bias of each layer, in order. With layer
            normalization before each ReLU, these are followed by its weight and bias.
        norm_eps: the ``eps`` of the layer normalization; ``None`` without it.
        betas: Adam's coefficients.
        eps: Adam's ``eps``.
    """

    sizes: tuple[int, ...]
    parameters: Sequence[AdamState]
    norm_eps: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass
class Settings:
    """The algorithm. The defaults are TD3's."""

    observation: int  # the size of an observation
    action: int
    policy: Literal["deterministic", "gaussian"] = "deterministic"  # squashed by tanh
    num_targets: int = 2  # how many critics, counted from the first, form the TD target
    is_quantile: bool = False  # whether the outputs of a critic are quantiles, as in TQC
    dropped: int = 0  # the number of largest quantiles per critic that the target leaves out
    followed: Literal["first", "min", "mean"] = "first"  # the critic that the actor maximizes
    used: Literal["first", "min", "mean"] = "first"  # the critic e of the factors
    measures: bool = True  # whether actor updates compute factors and resultant lengths
    has_norms: bool = False  # whether they compute the norm of the gradient that moves the actor
    is_pre_tanh: bool = False  # whether directions and norms refer to the pre-tanh action
    distance: Literal["l2", "l1", "smooth_l1"] = "l2"  # of values to targets
    is_mean: bool = True  # whether losses are means over the batch, not sums
    is_action_first: bool = False  # whether the critics read the action before the observation
    is_squashed: bool = True  # whether a deterministic policy ends with tanh
    critic_scale: float = 1.0  # factors of the losses
    actor_scale: float = 1.0
    policy_noise: float = 0.2  # the deviation of the noise on target actions, and its bound
    noise_clip: float = 0.5
    actor_noise: float = 0.0  # the same for the actions of the actor's batch
    actor_noise_clip: float = 0.5
    cloning: float | None = None  # the α of TD3+BC
    log_bounds: tuple[float, float] = (-20.0, 2.0)  # of a Gaussian policy's log deviation
    alpha_bounds: tuple[float, float] | None = None  # of log α
    is_alpha_loss_exp: bool = False  # whether the temperature loss is that of α, as in REDQ
    target_entropy: float = 0.0
    low: Any = -1.0  # the bounds of actions: a number, or one for each component
    high: Any = 1.0
    middle: Any = 0.0  # of the policy's action, middle + half · tanh(u)
    half: Any = 1.0
    seen_middle: Any = 0.0  # of the derivative of that action, for is_pre_tanh
    seen_half: Any = 1.0
    numbers: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = dict(vars(self))
        choices = (
            *(("policy", ("deterministic", "gaussian")), ("distance", ("l2", "l1", "smooth_l1"))),
            *((name, ("first", "min", "mean")) for name in ("followed", "used")),
        )
        for name, known in choices:
            given[name] = known.index(given[name])
        cloning, bounds = given.pop("cloning"), given.pop("alpha_bounds")
        given |= {"is_cloning": cloning is not None, "cloning": cloning or 0.0}
        given["log_low"], given["log_high"] = given.pop("log_bounds")
        given["has_alpha_bounds"] = bounds is not None
        given["alpha_low"], given["alpha_high"] = bounds or (0.0, 0.0)
        for name in ("low", "high", "middle", "half", "seen_middle", "seen_half"):
            values = np.asarray(given[name], np.float32)
            given[name] = np.ascontiguousarray(np.broadcast_to(values, self.action).copy())
        self.numbers = given


class Columns(NamedTuple):
    """The entries of transitions as NumPy arrays: batches, or all rows of a storage."""

    observation: np.ndarray  # float32 [M, rows, O], as is the next observation
    action: np.ndarray | None = None  # float32 [M, rows, A]; an actor reads it for cloning only
    reward: np.ndarray | None = None  # float32 [M, rows] or [M, rows, 1]
    terminated: np.ndarray | None = None  # bool, of the same shape
    next_observation: np.ndarray | None = None


class CriticReport(NamedTuple):
    """The result of a critic update."""

    loss: np.ndarray  # [M]
    td_error: np.ndarray  # [M, B], the largest absolute TD error of the critics; for quantiles,
    # the largest mean absolute difference


class ActorReport(NamedTuple):
    """The result of an actor update. What the settings do not ask for is ``None``."""

    loss: np.ndarray  # [M, 3]: the loss, and for cloning the squared distance and the factor λ
    factor: np.ndarray | None  # [M, B], as are the others
    length: np.ndarray | None
    gradient_norm: np.ndarray | None
    log_prob: np.ndarray | None


class StackedUpdates:
    """Whole updates of ``M`` agents with stacked parameters, one compiled call for each kind.

    The agents have networks of the same shape and the same settings. Each has its own parameters,
    batches, learning rates, discount and soft updates, given as numbers or as arrays ``[M]``. The
    results of an agent are the same bits whatever the other agents are, in any order and number.
    All parameters and states are changed in place. Random numbers are passed in.

    In all methods, ``index`` ``[M, B]`` selects the rows of the columns that form each agent's
    batch; without it, all rows do. ``active`` ``[M]`` (bool) limits a call to some agents; the
    others and their parts of the results are left alone.

    Args:
        settings: the algorithm.
        actor: the actors, with parameters ``[M, ...]``. A deterministic policy requires targets.
        critics: the critics, with parameters ``[M, N, ...]`` and targets; ``None`` if the agents
            only act.
        log_alpha: the logarithms ``[M]`` of the temperatures, for a Gaussian policy.
        alpha_betas: Adam's coefficients for the temperature.
        alpha_eps: its ``eps``.
        module: the extension module; by default, the best one for this processor.

    Raises:
        NotServedError: if the package was installed without a C compiler.

    Examples:
        >>> def network(*sizes, copies):
        ...     shapes = [s for i, o in zip(sizes, sizes[1:]) for s in [(o, i), (o,)]]
        ...     values = [torch.randn(*copies, *shape) for shape in shapes]
        ...     return StackedNetwork(sizes, [AdamState.zeros(v, has_target=True) for v in values])
        >>> agents = StackedUpdates(
        ...     Settings(observation=3, action=2),
        ...     actor=network(3, 8, 2, copies=[4]),  # four agents
        ...     critics=network(5, 8, 1, copies=[4, 2]),  # with two critics each
        ... )
        >>> observation = np.zeros((4, 16, 3), np.float32)
        >>> columns = Columns(observation, np.zeros((4, 16, 2), np.float32),
        ...                   np.ones((4, 16), np.float32), np.zeros((4, 16), bool), observation)
        >>> noise = np.zeros((4, 16, 2), np.float32)
        >>> agents.update_critics(columns, noise, lr=1e-3, gamma=[0.9, 0.95, 0.98, 0.99]).loss.shape
        (4,)
        >>> agents.update_actor(columns, lr=1e-3).factor.shape
        (4, 16)
        >>> agents.update_targets(tau=0.005)
    """

    def __init__(
        self,
        settings: Settings,
        actor: StackedNetwork,
        critics: StackedNetwork | None = None,
        log_alpha: AdamState | None = None,
        alpha_betas: tuple[float, float] = (0.9, 0.999),
        alpha_eps: float = 1e-8,
        module: Any = None,
    ) -> None:
        module = module or functions()
        if module is None:
            raise NotServedError(
                "the extension modules of torchrl_vmfer were not built: install the package where "
                "there is a C compiler"
            )
        self.settings = settings
        self.members = len(actor.parameters[0].value)
        critics = critics or StackedNetwork((), [])
        self.num_critics = critics.parameters[0].value.shape[1] if critics.parameters else 0
        self._updates = module.Updates(
            settings.numbers | {"members": self.members},
            _described(actor, 1),
            _described(critics, self.num_critics),
            None if log_alpha is None else _arrays(log_alpha),
            (*alpha_betas, alpha_eps),
        )

    def update_critics(
        self,
        columns: Columns,
        noise: np.ndarray,
        *,
        lr: Any,
        gamma: Any,
        index: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        subset: np.ndarray | None = None,
        clip: float = 0.0,
        active: np.ndarray | None = None,
    ) -> CriticReport:
        """Takes one step of the critics.

        Args:
            columns: the transitions.
            noise: standard normal numbers ``[M, B, A]`` for the next actions.
            lr: the learning rate.
            gamma: the discount.
            index: the rows of the batch, int64 ``[M, B]``.
            weights: the weight of each transition, ``[M, B]``.
            subset: the target critics of the minimum, int64 ``[M, S]``, as in REDQ.
            clip: the largest norm of the gradient; 0 for no limit.
            active: the agents to update.
        """
        rows = noise.shape[1]
        loss, error = np.zeros(self.members), np.zeros((self.members, rows), np.float32)
        observation, action, reward, terminated, next_observation = columns
        self._updates.update_critics(
            *(rows, observation.shape[1], index, observation, action, weights, noise),
            *(self._each(lr), clip, active, loss, reward, terminated, next_observation),
            *(subset, self._each(gamma), error),
        )
        return CriticReport(loss, error)

    def update_actor(
        self,
        columns: Columns,
        noise: np.ndarray | None = None,
        *,
        lr: Any,
        alpha_lr: Any = None,
        index: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        clip: float = 0.0,
        active: np.ndarray | None = None,
    ) -> ActorReport:
        """Takes one step of the actor, and of the temperature if ``alpha_lr`` is given.

        Args:
            columns: the transitions.
            noise: standard normal numbers ``[M, B, A]``, for a Gaussian policy or ``actor_noise``.
            lr: the learning rate of the actor.
            alpha_lr: that of the temperature.
            index: the rows of the batch, int64 ``[M, B]``.
            weights: the weight of each transition, ``[M, B]``.
            clip: the largest norm of the actor's gradient; 0 for no limit.
            active: the agents to update.
        """
        size = columns.observation.shape[1]
        rows = size if index is None else index.shape[1]
        settings, shape = self.settings, (self.members, rows)
        loss = np.zeros((self.members, 3))
        wanted = (
            *(settings.measures, settings.measures, settings.has_norms),
            settings.policy == "gaussian",
        )
        found = [np.zeros(shape, np.float32) if is_wanted else None for is_wanted in wanted]
        self._updates.update_actor(
            *(rows, size, index, columns.observation, columns.action, weights, noise),
            *(self._each(lr), clip, active, loss),
            *(None if alpha_lr is None else self._each(alpha_lr), *found),
        )
        return ActorReport(loss, *found)

    def update_targets(self, tau: Any, active: np.ndarray | None = None) -> None:
        """Moves the target networks by the fraction ``tau`` towards the networks."""
        self._updates.update_targets(self._each(tau), active)

    def act(
        self,
        observation: np.ndarray,
        noise: np.ndarray | None = None,
        deviation: Any = 0.0,
        active: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns an action ``[M, A]`` for one observation ``[M, O]`` of each agent.

        Args:
            observation: the observations.
            noise: standard normal numbers ``[M, A]``. Without them, the actions of a Gaussian
                policy are the centers of its distributions.
            deviation: the standard deviation of the noise on actions of a deterministic policy,
                which are clipped to their bounds.
            active: the agents that act.
        """
        action = np.zeros((self.members, self.settings.action), np.float32)
        self._updates.act(observation, noise, self._each(deviation), active, action)
        return action

    def _each(self, value: Any) -> np.ndarray:
        """One number in double precision for each agent."""
        if type(value) is float:
            return _repeated(value, self.members)
        given = np.asarray(value, np.float64)
        return given if given.ndim else np.full(self.members, given)


@lru_cache(maxsize=64)
def _repeated(value: float, count: int) -> np.ndarray:
    return np.full(count, value)


def _described(network: StackedNetwork, count: int) -> tuple[Any, ...]:
    """A network as the extension module reads it."""
    norm_eps = -1.0 if network.norm_eps is None else network.norm_eps
    parameters = [_arrays(state) for state in network.parameters]
    return network.sizes, parameters, count, norm_eps, (*network.betas, network.eps)


def _arrays(state: AdamState) -> tuple[np.ndarray | None, ...]:
    """The arrays that share memory with the tensors of a parameter."""
    found: list[np.ndarray | None] = []
    for tensor in state:
        if tensor is None:
            found.append(None)
            continue
        if tensor.dtype is not torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
            raise NotServedError(
                f"a parameter is not contiguous float32 on the CPU, but {tensor.dtype} on "
                f"{tensor.device} with strides {tensor.stride()}"
            )
        found.append(tensor.detach().numpy())
    return tuple(found)
