"""State, probabilities and signal of any TorchRL sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchrl.data import PrioritizedSampler, RandomSampler
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_vmfer._torchrl import empty_sampler
from torchrl_vmfer.plain_state import check_saved, plain
from torchrl_vmfer.samplers.base import BaseSampler


def signal_of(sampler: Sampler) -> str | None:
    """What ``update_priority`` of a sampler expects: its attribute ``signal``.

    Without this attribute, ``"factor"`` if it defines ``update_priority``, and ``None`` otherwise.
    """
    takes_priorities = type(sampler).update_priority is not Sampler.update_priority
    return getattr(sampler, "signal", "factor" if takes_priorities else None)


def takes_td_errors(sampler: Sampler) -> bool:
    """Whether a sampler of the critics is updated with TD errors."""
    if isinstance(sampler, PrioritizedSampler):
        return True  # its priorities can be anything
    default = getattr(sampler, "signal", None) == "td_error"
    return getattr(sampler, "takes_td_errors", default)


def probabilities_of(sampler: Sampler, storage: Storage | int) -> Tensor:
    """The probability with which a sampler draws each slot, in double precision.

    ``storage`` may also be the number of slots in use. Samplers of other packages, except two of
    TorchRL, must have a method ``probabilities()``.
    """
    length = storage if isinstance(storage, int) else len(storage)
    if type(sampler) is RandomSampler:
        return torch.full((length,), 1 / max(length, 1), dtype=torch.float64)
    if isinstance(sampler, PrioritizedSampler):
        weights = _prioritized_state(sampler, length)["leaves"].double()
        return weights / weights.sum()
    if not hasattr(sampler, "probabilities"):
        raise NotImplementedError(
            f"The probabilities of {type(sampler).__name__} are unknown: it has no method "
            "probabilities()."
        )
    if isinstance(sampler, BaseSampler) and not isinstance(storage, int):
        sampler.follow(storage)
    return sampler.probabilities()


def report_existing(sampler: Sampler, storage: Storage, first: int = 0) -> None:
    """Reports the slots from ``first`` on, which were written before a sampler was attached.

    Only the samplers of this package and TorchRL's ``PrioritizedSampler`` need this.
    """
    if isinstance(sampler, BaseSampler):
        sampler.follow(storage)
    if isinstance(sampler, PrioritizedSampler) and len(storage) > first:
        slots = torch.arange(first, len(storage))
        default = torch.full((len(slots),), float(sampler.default_priority))
        sampler.update_priority(slots, default, storage=storage)


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "max": Tensor.amax,
    "min": Tensor.amin,
    "mean": Tensor.mean,
    "median": lambda rows, dim: rows.median(dim).values,
}


def reduced(values: Tensor, sampler: Sampler) -> Tensor:
    """Reduces the last dimension by the ``reduction`` of a sampler; the maximum by default."""
    return _REDUCTIONS[getattr(sampler, "reduction", "max")](values, -1)


def one_per_item(
    index: Any, values: Any, generation: Tensor | None, sampler: Sampler
) -> tuple[Any, Any, Tensor | None]:
    """Reduces values ``[batch, time]`` to one per item if the items are trajectories.

    For trajectories, TorchRL repeats the index and the generation of an item at every time step.
    """
    if not (isinstance(index, Tensor) and index.ndim == 2 and bool((index == index[:, :1]).all())):
        return index, values, generation
    values = torch.as_tensor(values)
    if values.numel() > 1 and len(values) == len(index):
        values = reduced(values.reshape(len(index), -1), sampler)
    if generation is not None:
        generation = generation.reshape(len(index), -1)[:, 0]
    return index[:, 0], values, generation


def sampler_state(sampler: Sampler, length: int, where: str) -> dict[str, Any]:
    """The state of any sampler of ``length`` slots, as a copy of plain values.

    ``where`` names the sampler in error messages.
    """
    if isinstance(sampler, PrioritizedSampler):
        return plain(_prioritized_state(sampler, length), where)
    return plain(sampler.state_dict(), where)


def load_sampler_state(sampler: Sampler, state: dict[str, Any]) -> None:
    """Loads the output of :func:`sampler_state`."""
    if isinstance(sampler, PrioritizedSampler):
        _load_prioritized_state(sampler, state)
        return
    # TorchRL's samplers would ignore or miss entries without an error.
    is_stock = type(sampler).__module__.startswith("torchrl.")
    if is_stock and state.keys() != sampler.state_dict().keys():
        raise ValueError(
            f"The state has the entries {sorted(state)}, but {type(sampler).__name__} saves "
            f"{sorted(sampler.state_dict())}: construct the buffer with the same samplers as the "
            "saved one."
        )
    sampler.load_state_dict(state)


def _prioritized_state(sampler: PrioritizedSampler, length: int) -> dict[str, Any]:
    """The state of TorchRL's sampler as plain tensors and numbers.

    TorchRL's own state holds C++ trees, which only pickle can save. The leaves determine the inner
    nodes of a tree.
    """
    state, leaves = sampler.state_dict(), torch.empty(0)
    if length:
        # The tree returns a number for a single slot.
        leaves = torch.as_tensor(state["_sum_tree"][torch.arange(length)]).reshape(-1).cpu()
    return {
        "sampler": type(sampler).__name__,
        "alpha": float(sampler.alpha),
        "beta": float(sampler.beta),
        "epsilon": state["_eps"],
        "max_priority": list(state["_max_priority"]),
        "leaves": leaves,
    }


def _load_prioritized_state(sampler: PrioritizedSampler, state: dict[str, Any]) -> None:
    check_saved(state, _prioritized_state(sampler, 0))
    leaves = state["leaves"]
    if len(leaves) > sampler.max_size:
        raise ValueError(
            f"The state holds {len(leaves)} priorities, but the {type(sampler).__name__} has "
            f"{sampler.max_size} slots: construct it with the capacity of the saved one."
        )
    empty_sampler(sampler)
    loaded = sampler.state_dict()
    if len(leaves):
        loaded["_sum_tree"][torch.arange(len(leaves))] = leaves
        loaded["_min_tree"][torch.arange(len(leaves))] = leaves
    loaded |= {"_alpha": state["alpha"], "_beta": state["beta"], "_eps": state["epsilon"]}
    sampler.load_state_dict(loaded | {"_max_priority": tuple(state["max_priority"])})
