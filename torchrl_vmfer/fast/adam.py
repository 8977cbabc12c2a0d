"""Adam with direct calls to the fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrl_vmfer._torchrl import fused_adam_

__all__ = ["Adam"]


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam, which calls the kernel directly from the second step on.

    Supports one parameter group. All its parameters must have gradients at every step.
    """

    _state: tuple[list[Tensor], ...] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state."""
        super().load_state_dict(state_dict)
        self._state = None
        for state in self.state.values():  # PyTorch requires one counter per parameter
            state["step"] = state["step"].clone()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets all gradients to ``None``."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Performs one optimization step."""
        options = self.param_groups[0]
        parameters = options["params"]
        if self._state is None:
            super().step()
            states = [self.state[parameter] for parameter in parameters]
            for state in states:  # one shared counter
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

    step.hooked = True  # type: ignore[attr-defined]  # skips the hook of PyTorch's profiler
