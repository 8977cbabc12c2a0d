"""Reads the plain networks of a loss: linear layers with ReLU, optionally normalized."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from operator import contains
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
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

__all__ = ["ModuleWatch", "PlainNetwork", "Squashed", "read_gaussian", "read_network"]

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
    """A stack of linear layers with ReLU, or an ensemble of such stacks.

    Attributes:
        sizes: the number of inputs, of the units of each hidden layer, and of outputs.
        places: where each parameter is, as a dictionary and a key, in the order of a
            :class:`~torchrl_vmfer.compiled.stacked.StackedNetwork`.
        norm_eps: the ``eps`` of the layer normalization; ``None`` without it.
        last: what follows the stack: :class:`Squashed`, a ``LocAndScale``, or ``None``.
    """

    sizes: tuple[int, ...]
    places: list[tuple[dict[str, Tensor], str]]
    norm_eps: float | None
    last: Any

    def tensors(self) -> list[Tensor]:
        """The parameters."""
        return [entries[key] for entries, key in self.places]


def read_network(module: nn.Module, params: TensorDictBase) -> PlainNetwork:
    """Reads the layers of a network from its module, and their parameters.

    Args:
        module: the module that defines the order of the layers.
        params: its parameters, with a leading dimension for an ensemble.

    Raises:
        NotServedError: if the module is not such a stack.
    """
    steps = list(_steps(module, params))
    sizes: list[int] = []
    places: list[tuple[dict[str, Tensor], str]] = []
    norms: set[float | None] = set()
    while steps:
        kind, entries, _ = steps.pop(0)
        if kind != "linear":
            raise NotServedError(f"a network has {kind} where a linear layer is expected")
        if entries.get("bias") is None:
            raise NotServedError("a linear layer has no bias")
        places += [(entries, "weight"), (entries, "bias")]
        out, inputs = entries["weight"].shape[-2:]
        sizes += [out] if sizes else [inputs, out]
        if not steps or steps[0][0] == "last":
            break
        eps = None
        if steps[0][0] == "norm":
            _, entries, eps = steps.pop(0)
            places += [(entries, "weight"), (entries, "bias")]
        norms.add(eps)
        if not steps or steps.pop(0)[0] != "relu":
            raise NotServedError("a hidden layer of a network is not followed by a ReLU")
    else:
        raise NotServedError("a network ends with a ReLU")
    if len(norms) > 1:
        raise NotServedError("only some of the hidden layers are normalized")
    last = [last for _, _, last in steps]
    if len(last) > 1:
        raise NotServedError("a network has another activation than ReLU between its layers")
    return PlainNetwork(tuple(sizes), places, next(iter(norms), None), last[0] if last else None)


def read_gaussian(actor: Any, params: TensorDictBase) -> tuple[PlainNetwork, Squashed]:
    """Reads a squashed Gaussian policy with a ``LocAndScale``.

    Args:
        actor: the policy.
        params: its parameters.
    """
    if _has_hooks(actor):
        raise NotServedError(f"{type(actor).__name__} has hooks")
    parts = list(actor.module.children()) if type(actor) in _POLICIES else []
    if len(parts) < 2 or type(parts[-1]) not in _HEADS:
        raise NotServedError(f"{type(actor).__name__} is not a network with a distribution")
    *networks, head = parts
    if not list(networks[-1].out_keys) == list(head.in_keys) == ["loc", "scale"]:
        raise NotServedError("the network does not return `loc` and `scale`, in this order")
    given = head.distribution_kwargs
    known = {"low", "high", "event_dims", "safe_tanh", "tanh_loc", "upscale"}
    if head.distribution_class is not TanhNormal or not given.keys() <= known:
        raise NotServedError("the policy is not a TanhNormal")
    if given.get("tanh_loc") or not given.get("safe_tanh", True):
        raise NotServedError("the TanhNormal has tanh_loc=True or safe_tanh=False")
    if head.num_samples is not None or given.get("event_dims") not in (None, 1):
        raise NotServedError("the policy draws several actions, or matrices of them")
    network = read_network(TensorDictSequential(*networks), params)
    if type(network.last) is not LocAndScale:
        raise NotServedError("the policy's network does not end with a LocAndScale")
    low, high = (torch.as_tensor(given.get(k, d)) for k, d in (("low", -1.0), ("high", 1.0)))
    return network, Squashed(low.float(), high.float())


def _steps(module: Any, params: TensorDictBase) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The kind of each layer, the entries of its parameters, and its option."""
    name = type(module).__name__
    if _has_hooks(module):
        raise NotServedError(f"{name} has hooks")
    if type(module) in _WRAPPERS:
        yield from _steps(module.module, _child(params, "module"))
    elif type(module) in (nn.Sequential, MLP):
        for child, part in _children(module):
            yield from _steps(part, _child(params, child))
    elif type(module) in _SEQUENCES:
        parts = list(_children(module.module))
        for (_, first), (_, second) in pairwise(parts):
            if len(first.out_keys) != 1 or list(first.out_keys) != list(second.in_keys):
                raise NotServedError("the modules of the policy are not a chain")
        for child, part in parts:
            yield from _steps(part, _child(_child(params, "module"), child))
    elif type(module) is nn.Linear:
        yield "linear", entries_of(params), None
    elif type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        entries = entries_of(params)
        if entries.get("weight") is None or entries.get("bias") is None:
            raise NotServedError("a LayerNorm has no weight or no bias")
        yield "norm", entries, module.eps
    elif type(module) is nn.ReLU:
        yield "relu", {}, None
    elif type(module) is nn.Tanh:
        yield "last", {}, Squashed(torch.tensor(-1.0), torch.tensor(1.0))
    elif type(module) is LocAndScale:
        yield "last", {}, module
    elif type(module) is TanhModule:
        if module.clamp or len(module.out_keys) != 1:
            raise NotServedError("the TanhModule clamps, or has several outputs")
        (key,) = module.out_keys
        key = key if isinstance(key, str) else "_".join(key)
        low, high = (params.get(f"{key}_{bound}").detach().float() for bound in ("low", "high"))
        yield "last", {}, Squashed(low, high)
    else:
        raise NotServedError(f"a network has a layer of the type {name}")


def _children(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Like ``named_children``, but also yields modules that occur more than once."""
    for name, part in module.named_modules(remove_duplicate=False):
        if name and "." not in name:
            yield name, part


def _child(params: Any, name: str) -> Any:
    return None if params is None else params.get(name, None)


def _has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, or a ``forward`` that was assigned to the instance."""
    return "forward" in vars(module) or any(hooks_of(module))


class ModuleWatch:
    """Detects hooks on networks, replaced submodules and replaced tensors, within microseconds.

    Args:
        loss: a loss, whose own parameters and modules are watched.
        *networks: networks, which are watched with all their parts.
    """

    def __init__(self, loss: nn.Module, *networks: nn.Module) -> None:
        parts = [part for network in networks for part in network.modules()]
        self._attributes = [vars(part) for part in parts]
        self._hooks = [hooks for part in parts for hooks in hooks_of(part)] + global_hooks()
        submodules = [members_of(part)[0] for part in parts]
        self._entries = [*filter(None, submodules), *members_of(loss)]
        self._seen = self._identities()

    def _identities(self) -> list[list[int]]:
        return [list(map(id, entries.values())) for entries in self._entries]

    def has_hooks(self) -> bool:
        """Whether any of the networks has a hook, or a global module hook is registered.

        A ``forward`` that was assigned to an instance counts as a hook.
        """
        return any(self._hooks) or any(map(contains, self._attributes, repeat("forward")))

    def is_unchanged(self) -> bool:
        """Whether the networks still have the same parts, and the loss the same members."""
        return self._identities() == self._seen
