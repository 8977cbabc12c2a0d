"""The seam to TorchRL: every private name of torch, TorchRL and tensordict that the package uses.

The rest of the package reaches TorchRL's internals through the functions and base classes here,
which have public names. :data:`RELIED_ON` lists the private ones; ``tests/test_torchrl_seam.py``
checks that each exists and that no other module uses any, so that an upgrade of TorchRL breaks in
one place with a clear message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictRoundRobinWriter
from torchrl.envs import EnvBase, GymWrapper
from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss
from torchrl.objectives import utils as objective_utils
from torchrl.objectives.common import LossModule

# --- Losses ---------------------------------------------------------------------------------

Critics = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]

if TYPE_CHECKING:
    from torchrl.objectives.common import LossModule as LossMixin
else:
    # LossModule's metaclass would give a mixin a `forward` that hides its siblings'.
    LossMixin = object

# How a loss calls its critics: the name of the batched callable, and whether all critics read
# the same inputs ``[*batch]``, rather than the i-th critic the i-th of ``[N, *batch]``.
_BATCHED_CRITICS: dict[type[LossModule], tuple[str, bool]] = {
    TD3Loss: ("_vmap_qvalue_network00", False),
    SACLoss: ("_vmap_qnetworkN0", True),
}


def paired_critics(loss: LossModule) -> Critics:
    """The critics of a loss as one callable, of which the i-th reads the i-th inputs."""
    return objective_utils._vmap_func(
        loss.qvalue_network,
        randomness=loss.vmap_randomness,
        pseudo_vmap=getattr(loss, "deactivate_vmap", False),
    )


class TappedLoss(LossMixin):
    """A TorchRL loss that calls :meth:`critics` wherever it would call its batched critics.

    Attributes:
        stock_critics: the batched critics of the TorchRL loss.
        paired_critics: critics of which the i-th reads the i-th inputs.
        has_shared_inputs: whether all of ``stock_critics`` read the same inputs.
    """

    stock_critics: Critics
    paired_critics: Critics
    has_shared_inputs: bool

    def critics(self, tensordict: TensorDictBase, params: TensorDictBase) -> TensorDictBase:
        """Takes the place of ``stock_critics``."""
        raise NotImplementedError

    def _make_vmap(self) -> None:
        # TorchRL calls it at construction and whenever the randomness of vmap changes.
        super()._make_vmap()
        name, self.has_shared_inputs = next(
            found for parent, found in _BATCHED_CRITICS.items() if isinstance(self, parent)
        )
        self.stock_critics = getattr(self, name)
        self.paired_critics = paired_critics(self) if self.has_shared_inputs else self.stock_critics
        setattr(self, name, self.critics)


def temperature(loss: SACLoss) -> Tensor:
    """The α of a SAC loss, within its bounds and without gradient."""
    return loss._alpha


# --- Networks and gradients -----------------------------------------------------------------

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_module_hooks(module: nn.Module) -> bool:
    """Whether calling the module also calls functions of the user."""
    return any(getattr(module, name) for name in _HOOKS)


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether a backward pass through the tensor also calls functions of the user."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


class ModuleWatch:
    """Tells, within microseconds, of hooks on some modules and of parts that were replaced."""

    def __init__(self, *modules: nn.Module) -> None:
        parts = [part for module in modules for part in module.modules()]
        # PyTorch changes these dictionaries in place.
        self._hooks = [getattr(part, name) for part in parts for name in _HOOKS]
        self._hooks += [getattr(module_globals, f"_global{name}") for name in _HOOKS]
        self._children = [
            (part._modules, tuple(part._modules.values())) for part in parts if part._modules
        ]

    def has_hooks(self) -> bool:
        """Whether any of the modules has a hook, or all modules of the process have one."""
        return any(self._hooks)

    def is_unchanged(self) -> bool:
        """Whether the modules still consist of the same parts."""
        return all(tuple(children.values()) == seen for children, seen in self._children)


# --- Optimizers -----------------------------------------------------------------------------

fused_adam_ = torch._fused_adam_
lerp_all_ = torch._foreach_lerp_


def target_pairs(updater: SoftUpdate) -> list[tuple[Tensor, Tensor]]:
    """Each target parameter that an updater moves, with the parameter that it follows."""
    sources, targets = updater._sources.flatten_keys(), updater._targets.flatten_keys()
    return [(targets.get(f"target_{name}"), source) for name, source in sources.items()]


# --- Collectors -----------------------------------------------------------------------------


class OpenCollector(Collector):
    """A collector whose ``rollout`` a subclass writes, and whose batches are not processed."""

    @property
    def carrier(self) -> TensorDictBase:
        """What the environment returned last."""
        return self._carrier

    @property
    def acting_policy(self) -> Any:
        """The policy as it is called, on its device."""
        return self._wrapped_policy

    def draws_random_action(self) -> bool:
        """Whether the next frame is one of the first random ones."""
        return self._should_use_random_frames()

    def _postproc(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict


def gymnasium_env(env: EnvBase) -> Any:
    """The Gymnasium environment behind TorchRL's wrapper."""
    return env._env


# --- Storage and writer of the fast path ----------------------------------------------------

unchecked_tensordict = TensorDict._new_unsafe


def storage_rows(storage: LazyTensorStorage) -> TensorDictBase:
    """All rows of a storage, whether written or not."""
    return storage._storage


def add_to_length(storage: LazyTensorStorage, count: int) -> None:
    """Counts rows that were added to a storage."""
    storage._len = min(len(storage) + count, storage.max_size)


def claim_slots(writer: TensorDictRoundRobinWriter, count: int) -> Tensor:
    """The slots that rows are to be written to; the writer's cursor moves behind them."""
    cursor: int = writer._cursor
    size = writer._storage.max_size
    writer._cursor = (cursor + count) % size
    writer._write_count += count
    return torch.from_numpy(np.arange(cursor, cursor + count) % size)


def write_rows(writer: TensorDictRoundRobinWriter, slots: Tensor, data: TensorDictBase) -> None:
    """Writes rows to the slots of the writer's storage and tells the buffers attached to it."""
    writer._storage.set(slots, data)
    if writer.tracks_generations:
        writer._bump_generation(slots, data)
    writer._mark_update_entities(slots)


# --------------------------------------------------------------------------------------------

RELIED_ON: dict[tuple[Any, str], tuple[str, ...]] = {
    (TD3Loss, "TappedLoss"): ("_make_vmap", "_vmap_qvalue_network00"),
    (SACLoss, "TappedLoss"): ("_make_vmap", "_vmap_qnetworkN0"),
    (objective_utils, "paired_critics"): ("_vmap_func",),
    (SACLoss, "temperature"): ("_alpha",),
    (nn.Module, "has_module_hooks"): _HOOKS,
    (nn.Module, "ModuleWatch"): ("_modules",),
    (module_globals, "ModuleWatch"): tuple(f"_global{name}" for name in _HOOKS),
    (Tensor, "has_tensor_hooks"): ("_backward_hooks", "_post_accumulate_grad_hooks"),
    (torch, "fused_adam_"): ("_fused_adam_",),
    (torch, "lerp_all_"): ("_foreach_lerp_",),
    (SoftUpdate, "target_pairs"): ("_sources", "_targets"),
    (Collector, "OpenCollector"): (
        "_carrier",
        "_wrapped_policy",
        "_should_use_random_frames",
        "_postproc",
    ),
    (GymWrapper, "gymnasium_env"): ("_env",),
    (TensorDict, "unchecked_tensordict"): ("_new_unsafe",),
    (LazyTensorStorage, "storage_rows"): ("_storage",),
    (LazyTensorStorage, "add_to_length"): ("_len",),
    (TensorDictRoundRobinWriter, "claim_slots"): ("_cursor", "_storage", "_write_count"),
    (TensorDictRoundRobinWriter, "write_rows"): ("_bump_generation", "_mark_update_entities"),
}
"""The private names relied on, by the class or module that has them and by their user here."""
