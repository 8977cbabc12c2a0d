"""A mixin that chooses between TorchRL's general path and the fast path for each batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor

from torchrl_vmfer._torchrl import LossMixin, ModuleWatch
from torchrl_vmfer.fast.critics import FastUpdates
from torchrl_vmfer.fast.plain_network import NotPlainError
from torchrl_vmfer.gradients import action_gradients

__all__ = ["Accelerated"]


class Accelerated(LossMixin):
    """Adds the argument ``fast`` and a fast path to a loss. Must be the first base class.

    A loss sets :attr:`fast_updates`. The ``methods`` of that class replace the methods of the loss
    with the same names where a fast path exists.

    Args:
        *args: as in the loss.
        fast: whether to use the fast path where it exists.
        **kwargs: as in the loss.
    """

    fast_updates: ClassVar[type[FastUpdates]]
    _updates: FastUpdates | None
    _module_watch: ModuleWatch | None
    _reason_of_networks: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "fast_updates" in vars(cls):
            for name in cls.fast_updates.methods:
                setattr(cls, name, _fast_or(getattr(cls, name)))

    def __init__(self, *args: Any, fast: bool = False, **kwargs: Any) -> None:
        self.fast = fast
        self._has_warned = False
        self._reason_of_batch = ""
        self._forget_fast_updates()
        super().__init__(*args, **kwargs)

    @property
    def fast_path(self) -> str:
        """``"fast"``, or the reason why the loss uses TorchRL's general path.

        The reason refers to the current networks and options or, if these have a fast path, to
        the last batch.
        """
        if not self.fast:
            return "fast=False"
        try:
            self._current_fast_updates()
        except NotPlainError as reason:
            return str(reason)
        return self._reason_of_batch or "fast"

    def fast_updates_for(self, tensordict: TensorDictBase) -> Any:
        """Returns the fast updates for a batch, or ``None`` if the batch has no fast path."""
        if not self.fast:
            return None
        if self._reason_of_batch:  # assigning to a module is slow
            self._reason_of_batch = ""
        try:
            updates = self._current_fast_updates()
            try:
                updates.check_batch(tensordict)
            except NotPlainError as reason:
                self._reason_of_batch = str(reason)
                raise
        except NotPlainError as reason:
            self._warn_once(str(reason))
            return None
        return updates

    def action_gradients(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Computes :func:`~torchrl_vmfer.gradients.action_gradients` for this loss."""
        updates = self.fast_updates_for(tensordict)
        if updates is None:
            return action_gradients(self, tensordict)
        return updates.action_gradients(tensordict)

    def _current_fast_updates(self) -> FastUpdates:
        """Returns the fast updates for the current networks and options."""
        if self._module_watch is None or not self._module_watch.is_unchanged():
            self._forget_fast_updates()
            self._module_watch = ModuleWatch(self.actor_network, self.qvalue_network)
        if self._module_watch.has_hooks():
            raise NotPlainError("a network has hooks")
        self.fast_updates.check_options(self)
        if self._reason_of_networks:
            raise NotPlainError(self._reason_of_networks)
        if self._updates is None or not self._updates.is_current():
            try:
                self._updates = self.fast_updates(self)  # type: ignore[arg-type]
            except NotPlainError as reason:
                self._reason_of_networks = str(reason)
                raise
        return self._updates

    def _forget_fast_updates(self) -> None:
        self._updates, self._module_watch, self._reason_of_networks = None, None, ""

    def _warn_once(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{type(self).__name__}(fast=True) uses TorchRL's general path: {reason}. This "
                "warning is shown once; the `fast_path` of the loss gives the current reason.",
                UserWarning,
                stacklevel=5,
            )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own networks and parameters.
        return self.__dict__ | {"_updates": None, "_module_watch": None}


def _fast_or(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of a loss to use the fast updates for batches that have a fast path."""

    @wraps(method)
    def dispatched(self: Accelerated, tensordict: TensorDictBase) -> Any:
        updates = self.fast_updates_for(tensordict)
        if updates is None:
            return method(self, tensordict)
        return getattr(updates, method.__name__)(tensordict)

    return dispatched
