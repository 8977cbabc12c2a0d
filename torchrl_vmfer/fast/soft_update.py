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
        self._addresses: list[int] = []

    def step(self) -> None:
        """Moves the targets toward the parameters."""
        addresses = [tensor.data_ptr() for pair in self._pairs for tensor in pair]
        if addresses != self._addresses:  # the memory of a parameter may be replaced
            self._addresses = addresses
            self._targets_data = [target.data for target, _ in self._pairs]
            self._sources_data = [source.data for _, source in self._pairs]
        lerp_all_(self._targets_data, self._sources_data, 1 - self.eps)
