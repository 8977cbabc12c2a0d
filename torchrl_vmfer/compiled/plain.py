"""Reads the plain networks of a loss: linear layers with ReLU, optionally normalized."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.modules import (
    MLP,
    Actor,
    ProbabilisticActor,
    SafeModule,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    SafeSequential,
    TanhModule,
    TanhNormal,
    ValueOperator,
)

from torchrl_vmfer._torchrl import entries_of, global_hooks, hooks_of, members_of
from torchrl_vmfer.compiled.stacked import NotServedError
from torchrl_vmfer.networks import LocAndScale

__all__ = ["PlainNetwork", "Squashed", "read_network", "read_policy", "watched_parts"]

# Containers that only forward tensors.
_WRAPPERS = (TensorDictModule, SafeModule, Actor, ValueOperator)
_SEQUENCES = (TensorDictSequential, SafeSequential)
_POLICIES = (
    ProbabilisticActor,
    ProbabilisticTensorDictSequential,
    SafeProbabilisticTensorDictSequential,
)
_HEADS = (ProbabilisticTensorDictModule, SafeProbabilisticModule)


class Squashed(NamedTuple):
    """The bounds of a = (low + high) / 2 + (high - low) / 2 · tanh(u)."""

    low: Tensor
    high: Tensor


class PlainNetwork(NamedTuple):
    """A stack of linear layers with ReLU, or an ensemble of such stacks."""

    sizes: tuple[int, ...]  # the numbers of inputs, of units in each hidden layer, and of outputs
    # The dictionary and the key of each parameter, in the order of a `StackedNetwork`.
    places: list[tuple[dict[str, Tensor], str]]
    norm_eps: float  # the eps of the layer normalization; negative without it
    last: Any  # what follows the stack: `Squashed`, a `LocAndScale`, or `None`

    def tensors(self) -> list[Tensor]:
        """The parameters."""
        return [entries[key] for entries, key in self.places]


def read_network(module: nn.Module, params: Any) -> PlainNetwork:
    """Reads the layers of a network from its module, and their parameters.

    Args:
        module: the module that defines the order of the layers.
        params: its parameters, with a leading dimension for an ensemble.

    Raises:
        NotServedError: if the module is not such a stack.
    """
    order, last = "", None
    sizes: list[int] = []
    places: list[tuple[dict[str, Tensor], str]] = []
    norms: set[float] = set()
    for place, part in _layers(module):
        kind, given = type(part), params.get(place, None) if place else params
        if kind in (nn.Linear, nn.LayerNorm):
            entries = entries_of(given)
            if entries.get("weight") is None or entries.get("bias") is None:
                raise NotServedError(f"a {kind.__name__} has no weight or no bias")
            places += [(entries, "weight"), (entries, "bias")]
            if kind is nn.Linear:
                out, inputs = entries["weight"].shape[-2:]
                sizes += [out] if sizes else [inputs, out]
            else:
                norms.add(part.eps)
        elif kind is nn.Tanh:
            last = Squashed(torch.tensor(-1.0), torch.tensor(1.0))
        elif kind is LocAndScale:
            last = part
        elif kind is TanhModule:
            if part.clamp or len(part.out_keys) != 1:
                raise NotServedError("the TanhModule clamps, or has several outputs")
            (key,) = part.out_keys
            name = key if isinstance(key, str) else "_".join(key)
            bounds = (given.get(f"{name}_{bound}") for bound in ("low", "high"))
            last = Squashed(*(bound.detach().float() for bound in bounds))
        elif kind is not nn.ReLU:
            raise NotServedError(f"a network has a layer of the type {kind.__name__}")
        order += {nn.Linear: "L", nn.LayerNorm: "N", nn.ReLU: "R"}.get(kind, "E")
    if not re.fullmatch("((LR)*|(LNR)*)LE?", order) or len(norms) > 1:
        raise NotServedError(
            "a network is not a stack of linear layers with ReLU between them, all or none of them "
            "with equal layer normalization"
        )
    return PlainNetwork(tuple(sizes), places, next(iter(norms), -1.0), last)


def read_policy(actor: Any, params: Any) -> PlainNetwork:
    """Reads a squashed Gaussian policy, whose ``last`` is then ``Squashed``.

    Args:
        actor: the policy.
        params: its parameters.
    """
    parts = list(actor.module.children()) if type(actor) in _POLICIES else []
    if len(parts) < 2 or type(parts[-1]) not in _HEADS or _has_hooks(actor):
        raise NotServedError(f"{type(actor).__name__} is not a network with a distribution")
    *networks, head = parts
    given, keys = head.distribution_kwargs, ["loc", "scale"]
    is_served = (
        list(networks[-1].out_keys) == list(head.in_keys) == keys
        and head.distribution_class is TanhNormal
        and given.keys() <= {"low", "high", "event_dims", "safe_tanh", "tanh_loc", "upscale"}
        and not given.get("tanh_loc")
        and given.get("safe_tanh", True)
        and given.get("event_dims") in (None, 1)
        and head.num_samples is None
    )
    network = read_network(TensorDictSequential(*networks), params)
    if not is_served or type(network.last) is not LocAndScale:
        raise NotServedError(
            "the policy is not a TanhNormal with default options, of a LocAndScale's `loc` and "
            "`scale`"
        )
    low, high = (torch.as_tensor(given.get(k, d)) for k, d in (("low", -1.0), ("high", 1.0)))
    return network._replace(last=Squashed(low.float(), high.float()))


def _layers(module: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the modules that compute something, in order, each with its place in the policy."""
    kind = type(module)
    if _has_hooks(module):
        raise NotServedError(f"{kind.__name__} has hooks")
    if kind in _WRAPPERS:
        yield from _layers(module.module, (*place, "module"))
        return
    if kind in _SEQUENCES:
        module, place = module.module, (*place, "module")
        for first, second in pairwise(module.children()):
            if len(first.out_keys) != 1 or list(first.out_keys) != list(second.in_keys):
                raise NotServedError("the modules of the policy are not a chain")
    elif kind not in (nn.Sequential, MLP):
        yield place, module
        return
    # Unlike `named_children`, this also yields modules that occur more than once.
    for name, part in module.named_modules(remove_duplicate=False):
        if name and "." not in name:
            yield from _layers(part, (*place, name))


def _has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, or a ``forward`` that was assigned to the instance."""
    return "forward" in vars(module) or any(hooks_of(module))


def watched_parts(loss: nn.Module, *networks: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries with the members of a loss, and the attributes and hooks of its networks.

    Raises:
        NotServedError: if a network has hooks, or there are hooks of all modules.
    """
    parts = [part for network in networks for part in network.modules()]
    hooks = [each for part in parts for each in hooks_of(part)] + global_hooks()
    if any(hooks):
        raise NotServedError("a network has hooks")
    return [*hooks, *map(vars, parts), *(members_of(part)[0] for part in parts), *members_of(loss)]
