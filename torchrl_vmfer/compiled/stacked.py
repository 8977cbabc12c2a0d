"""Updates of one or more agents in one call, with stacked parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_vmfer.compiled.extension import functions

__all__ = [
    "AdamState",
    "Columns",
    "NotServedError",
    "Settings",
    "StackedNetwork",
    "StackedUpdates",
    "built_functions",
]

_MEASURED = ("vmf_factor", "vmf_resultant_length", "vmf_gradient_norm", "log_prob")
_NUMBERS = {"first": 0, "min": 1, "mean": 2, "l2": 0, "l1": 1, "smooth_l1": 2}


class NotServedError(TypeError):
    """Raised for what the compiled updates do not serve; the message is the reason."""


def built_functions() -> Any:
    """The extension module for this processor, which must have been built."""
    module = functions()
    if module is None:
        raise NotServedError(
            "the extension modules of torchrl_vmfer were not built: install the package where "
            "there is a C compiler"
        )
    return module


class AdamState(NamedTuple):
    """A parameter of M agents, with its target and its Adam state.

    All tensors are float32 and contiguous. The dimensions of the first four are agents, networks
    and components, in this order.
    """

    value: Tensor
    target: Tensor | None = None  # the same parameter of the target network
    exp_avg: Tensor | None = None  # Adam's average of the gradient
    exp_avg_sq: Tensor | None = None  # Adam's average of its square
    step: Tensor | None = None  # Adam's step count of each agent


class StackedNetwork(NamedTuple):
    """The networks of M agents: linear layers with ReLU between them."""

    sizes: tuple[int, ...]  # the numbers of inputs, of units in each hidden layer, and of outputs
    # Weight and bias of each layer, in order. With layer normalization before each ReLU, these are
    # followed by its weight and bias.
    parameters: list[AdamState]
    copies: int = 1  # the number of networks of an agent
    norm_eps: float = -1.0  # the eps of the layer normalization; negative without it
    # Both betas, eps, and the decoupled weight decay, as in AdamW.
    adam: tuple[float, float, float, float] = (0.9, 0.999, 1e-8, 0.0)


@dataclass
class Settings:
    """The algorithm. The defaults are TD3's."""

    observation: int  # the size of an observation
    action: int
    members: int = 1  # the number of agents
    is_gaussian: bool = False  # whether the policy, squashed by tanh, is stochastic
    num_targets: int = 2  # how many critics, counted from the first, form the TD target
    is_quantile: bool = False  # whether the outputs of a critic are quantiles, as in TQC
    dropped: int = 0  # the number of largest quantiles per critic that the target leaves out
    followed: Literal["first", "min", "mean"] = "first"  # the critic that the actor maximizes
    used: Literal["first", "min", "mean"] = "first"  # the critic e of the factors
    measures: bool = True  # whether actor updates compute factors and resultant lengths
    has_norms: bool = False  # whether they compute the norm of the gradient that moves the actor
    is_pre_tanh: bool = False  # whether directions and norms refer to the pre-tanh action
    distance: Literal["l2", "l1", "smooth_l1"] = "l2"  # between values and targets
    critic_scale: float = 1.0  # a factor of the critics' loss
    policy_noise: float = 0.2  # the deviation of the noise on target actions, and its bound
    noise_clip: float = 0.5
    actor_noise: float = 0.0  # the same for the actions of the actor's batch
    actor_noise_clip: float = 0.5
    weighting: float = 0.0  # rows of the actor's loss are weighted by their factors to this power
    cloning: float = -1.0  # the α of TD3+BC; negative for no cloning
    log_low: float = -20.0  # the bounds of a Gaussian policy's log deviation
    log_high: float = 2.0
    alpha_low: float = -math.inf  # the bounds of log α
    alpha_high: float = math.inf
    is_alpha_loss_exp: bool = False  # whether the temperature loss is that of α, as in REDQ
    target_entropy: float = 0.0
    low: Any = -1.0  # the bounds of actions: a number, or one for each component
    high: Any = 1.0
    middle: Any = 0.0  # the policy's action is middle + half · tanh(u)
    half: Any = 1.0
    seen_middle: Any = 0.0  # for the derivative of that action, with is_pre_tanh
    seen_half: Any = 1.0

    def numbers(self) -> dict[str, Any]:
        """The settings as the extension module reads them."""
        found = dict(vars(self))
        for name in ("followed", "used", "distance"):
            found[name] = _NUMBERS[found[name]]
        for name in ("low", "high", "middle", "half", "seen_middle", "seen_half"):
            found[name] = np.broadcast_to(np.float32(found[name]), self.action).copy()
        return found


class Columns(NamedTuple):
    """The entries of transitions as NumPy arrays: batches, or all rows of a storage."""

    observation: np.ndarray  # float32 [M, rows, O], as is the next observation
    action: np.ndarray | None = None  # float32 [M, rows, A]; an actor reads it for cloning only
    reward: np.ndarray | None = None  # float32 [M, rows]
    terminated: np.ndarray | None = None  # bool [M, rows]
    next_observation: np.ndarray | None = None


class StackedUpdates:
    """Whole updates of M agents with stacked parameters, one compiled call for each kind.

    The agents have networks of the same shape and the same settings. Each has its own parameters,
    batches, learning rates, discount and soft updates: ``lr``, ``gamma``, ``tau`` and ``deviation``
    are numbers or arrays ``[M]``. The results of an agent do not depend on the other agents, their
    number or their order, bit for bit. All parameters and states are changed in place. Random
    numbers are passed in.

    In all methods, ``index`` (int64 ``[M, B]``) selects the rows of the columns that form each
    agent's batch; without it, all rows do. ``weights`` ``[M, B]`` are those of the transitions, and
    ``clip`` is the largest norm of a gradient, 0 for no limit. ``active`` ``[M]`` (bool) limits a
    call to some agents; the others and their parts of the results are left alone.

    Args:
        settings: the algorithm.
        actor: the actors. A deterministic policy requires targets.
        critics: the critics, with targets; ``None`` if the agents only act.
        temperature: the logarithms ``[M]`` of the temperatures of a Gaussian policy, and the
            numbers of their Adam as in :class:`StackedNetwork`.
        module: the extension module; by default, the best one for this processor.

    Raises:
        NotServedError: if the package was installed without a C compiler.
    """

    def __init__(
        self,
        settings: Settings,
        actor: StackedNetwork,
        critics: StackedNetwork | None = None,
        temperature: tuple[AdamState, tuple[float, float, float, float]] | None = None,
        module: Any = None,
    ) -> None:
        module = module or built_functions()
        self.settings = settings
        networks = (actor, critics or StackedNetwork((), [], 0))
        self._updates = module.Updates(
            settings.numbers(),
            *(net._replace(parameters=[_arrays(p) for p in net.parameters]) for net in networks),  # type: ignore[misc]
            None if temperature is None else (_arrays(temperature[0]), temperature[1]),
        )
        measures, has_norms = settings.measures, settings.has_norms
        self._is_measured = (measures, measures, has_norms, settings.is_gaussian)

    def update_critics(
        self,
        columns: Columns,
        noise: np.ndarray,
        *,
        lr: Any,
        gamma: Any,
        subset: np.ndarray | None = None,
        **options: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Takes one step of the critics.

        The ``noise`` ``[M, B, A]`` of the next actions is standard normal. A ``subset`` (int64
        ``[M, S]``) of the critics forms the minimum, as in REDQ. ``discounts`` ``[M, B]`` are those
        of the next values, instead of ``gamma``.

        Returns:
            the loss of each agent, and the largest absolute TD error of its critics for each
            transition, ``[M, B]``; for quantiles, the largest mean absolute difference.
        """
        update, wanted = self._updates.update_critics, (True, False, False, False)
        losses, found = self._update(update, wanted, columns, noise, subset, lr, gamma, **options)
        return losses[:, 0], found[0]

    def update_actor(
        self,
        columns: Columns,
        noise: np.ndarray | None = None,
        *,
        lr: Any,
        alpha_lr: Any = None,
        **options: Any,
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Takes one step of the actor, and of the temperature if ``alpha_lr`` is given.

        A Gaussian policy and ``actor_noise`` need ``noise``, as for the critics.

        Returns:
            the loss of each agent and, for cloning, the squared distance and the factor λ,
            ``[M, 3]``; and the metadata that the settings request, under the names that the losses
            use, ``[M, B]`` each.
        """
        update, wanted = self._updates.update_actor, self._is_measured
        losses, found = self._update(update, wanted, columns, noise, None, lr, alpha_lr, **options)
        measured = zip(_MEASURED, found, strict=True)
        return losses, {name: values for name, values in measured if values is not None}

    def _update(
        self,
        update: Any,
        wanted: tuple[bool, ...],
        columns: Columns,
        noise: np.ndarray | None,
        subset: np.ndarray | None,
        *rates: Any,
        index: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        discounts: np.ndarray | None = None,
        clip: float = 0.0,
        active: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Calls an update. Returns the losses, and one array for each wanted result."""
        size = columns.observation.shape[1]
        rows, members = size if index is None else index.shape[1], self.settings.members
        losses, shape = np.zeros((members, 3)), (members, rows)
        found = [np.zeros(shape, np.float32) if each else None for each in wanted]
        update(
            *(rows, size, clip, index, *columns, weights, discounts, noise, subset),
            *(*map(self._each, rates), active, losses, *found),
        )
        return losses, found

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

        Without ``noise`` ``[M, A]``, a Gaussian policy returns the centers of its distributions. A
        deterministic policy adds the noise times ``deviation`` and clips its actions.
        """
        action = np.zeros((self.settings.members, self.settings.action), np.float32)
        self._updates.act(observation, noise, self._each(deviation), active, action)
        return action

    def _each(self, value: Any) -> np.ndarray:
        """One number in double precision for each agent."""
        return _repeated(value, self.settings.members) if type(value) is float else value


@lru_cache(maxsize=64)
def _repeated(value: float, count: int) -> np.ndarray:
    return np.full(count, value)


def _arrays(state: AdamState) -> tuple[np.ndarray | None, ...]:
    """The arrays that share memory with the tensors of a parameter."""
    for tensor in state:
        if tensor is not None and not (
            tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
        ):
            raise NotServedError(
                f"a parameter is not contiguous float32 on the CPU, but {tensor.dtype} on "
                f"{tensor.device} with strides {tensor.stride()}"
            )
    return tuple(None if tensor is None else tensor.detach().numpy() for tensor in state)
