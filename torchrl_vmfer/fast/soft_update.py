"""Soft update of all target networks in one call."""

from __future__ import annotations

from torchrl.objectives import SoftUpdate

from torchrl_vmfer._torchrl import lerp_all_, target_pairs

__all__ = ["FastSoftUpdate"]


class FastSoftUpdate(SoftUpdate):
    """:class:`~torchrl.objectives.SoftUpdate` in one call for all parameters."""

    def init_(self) -> None:
        """Copies the parameters to their targets."""
        super().init_()
        self._pairs = target_pairs(self)

    def step(self) -> None:
        """Moves the targets toward the parameters."""
        targets, sources = zip(
            *((target.data, source.data) for target, source in self._pairs), strict=True
        )
        lerp_all_(targets, sources, 1 - self.eps)
