"""A collector that steps one Gymnasium environment with as little overhead as possible."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.envs.utils import set_exploration_type

from torchrl_vmfer._torchrl import entries_of
from vmfer_recipes.collection._upstream import OpenCollector, carried, gymnasium_env

__all__ = ["DirectCollector"]


class DirectCollector(OpenCollector):
    """A TorchRL collector that calls the simulator directly, one step at a time.

    It yields the same transitions as its parent class, but does not validate the outputs of the
    Gymnasium environment and makes no copies between steps. ``postproc`` must only select
    entries: it is applied once, to determine which entries to fill.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"return_same_td": True})

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Takes one environment step."""
        carrier = entries_of(carried(self))
        before = {key: carrier[key] for key in self._observed}
        action = self._act(before)
        now, following = self._columns
        for key, column in now:  # before the step: the simulator may return the same arrays again
            column[0] = (action if key == "action" else before[key]).numpy()
        simulator = gymnasium_env(self.env)
        after, reward, terminated, truncated, _ = simulator.step(action.numpy())
        is_over = terminated or truncated
        outcome = {"reward": reward, "done": is_over, "terminated": terminated, **_arrays(after)}
        for key, column in following:
            column[0] = outcome[key]
        if is_over:
            after = simulator.reset()[0]
        for key, value in _arrays(after).items():
            carrier[key] = torch.from_numpy(value)
        return self._transition

    @cached_property
    def _observed(self) -> list[str]:
        return list(self.env.observation_spec.keys())

    @cached_property
    def _transition(self) -> TensorDict:
        """The transition, overwritten at every step."""
        transition = self.env.fake_tensordict()
        if self.postproc is not None:
            transition = self.postproc(transition)
        return transition.unsqueeze(0).contiguous()

    @cached_property
    def _columns(self) -> list[list[tuple[str, np.ndarray]]]:
        """NumPy views of the transition: for few elements NumPy is faster than PyTorch."""
        parts = (self._transition.exclude("next"), self._transition["next"])
        return [[(key, value.numpy()) for key, value in part.items()] for part in parts]

    def _act(self, observations: dict[str, Tensor]) -> Tensor:
        if self.draws_random_action():
            return self.env.action_spec.rand()
        inputs = observations
        if self.policy_device is not None:
            inputs = {key: value.to(self.policy_device) for key, value in inputs.items()}
        policy = self.acting_policy()
        with set_exploration_type(self.exploration_type):
            if type(policy) is TensorDictModule:  # a function of tensors needs no TensorDict
                return policy.module(*(inputs[key] for key in policy.in_keys)).cpu()
            return policy(TensorDict(inputs)).get("action").cpu()


def _arrays(observation: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return observation if isinstance(observation, dict) else {"observation": observation}
