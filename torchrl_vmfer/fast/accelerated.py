"""The choice between TorchRL's losses and the fast path, batch by batch."""

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
    """Gives a loss the argument ``fast`` and a fast path; first among the bases of the loss.

    A loss names its :attr:`fast_updates`, whose ``methods`` take the place of the methods of the
    loss with the same names, wherever they can.

    Args:
        *args: as in the loss.
        fast: whether to take the fast path where there is one.
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
        """``"fast"``, or the reason why TorchRL's path is taken.

        The reason is one of the networks or of the options as they are now, or else that of the
        last batch.
        """
        if not self.fast:
            return "fast=False"
        try:
            self._current_fast_updates()
        except NotPlainError as reason:
            return str(reason)
        return self._reason_of_batch or "fast"

    def fast_updates_for(self, tensordict: TensorDictBase) -> Any:
        """Returns the fast updates for a batch, or ``None`` where there are none."""
        if not self.fast:
            return None
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
        """As :func:`~torchrl_vmfer.gradients.action_gradients` for this loss."""
        updates = self.fast_updates_for(tensordict)
        if updates is None:
            return action_gradients(self, tensordict)
        return updates.action_gradients(tensordict)

    def _current_fast_updates(self) -> FastUpdates:
        """The fast updates for the networks and options as they are now."""
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
                f"{type(self).__name__}(fast=True) takes TorchRL's path: {reason}. This is said "
                "once; the loss's `fast_path` tells the present reason.",
                UserWarning,
                stacklevel=5,
            )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has networks and parameters of its own.
        return self.__dict__ | {"_updates": None, "_module_watch": None}


def _fast_or(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a loss, or that of its fast updates where there are some for the batch."""

    @wraps(method)
    def dispatched(self: Accelerated, tensordict: TensorDictBase) -> Any:
        updates = self.fast_updates_for(tensordict)
        if updates is None:
            return method(self, tensordict)
        return getattr(updates, method.__name__)(tensordict)

    return dispatched
