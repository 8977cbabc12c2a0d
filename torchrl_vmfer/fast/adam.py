"""Adam by its kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_vmfer._torchrl import fused_adam_

__all__ = ["Adam"]


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam, whose kernel is called without detours from the second step on.

    For one group of parameters, all of which have gradients at every step.
    """

    _state: tuple[list[Tensor], ...] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state."""
        super().load_state_dict(state_dict)
        self._state = None
        for state in self.state.values():  # PyTorch requires a counter for each
            state["step"] = state["step"].clone()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves the parameters."""
        options = self.param_groups[0]
        parameters = options["params"]
        if self._state is None:
            super().step()
            states = [self.state[parameter] for parameter in parameters]
            for state in states:  # one counter for all
                state["step"] = states[0]["step"]
            names = ("exp_avg", "exp_avg_sq", "step")
            self._state = tuple([state[name] for state in states] for name in names)
            return
        means, squares, steps = self._state
        steps[0] += 1
        fused_adam_(
            parameters,
            [parameter.grad for parameter in parameters],
            means,
            squares,
            [],
            steps,
            lr=options["lr"],
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch need not watch it for its profiler
