"""Actor and critic networks, specified by plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import MLP
from torchrl.objectives.utils import RANDOM_MODULE_LIST

from torchrl_vmfer.batch_renorm import BatchRenorm
from torchrl_vmfer.imports import import_class

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}
KINDS = ("deterministic", "gaussian")
"""The kinds of actors: TD3's and SAC's."""


@dataclass(frozen=True)
class NetworkSpec:
    """The specification of a network as plain data.

    Attributes:
        network: ``"mlp"``, or the import path of a subclass of ``nn.Module``, which is constructed
            as ``MyNetwork(in_features, out_features, **network_kwargs)`` and maps ``[..., in]`` to
            ``[..., out]``.
        network_kwargs: keyword arguments of a custom network.
        hidden: the hidden units of an MLP, per layer.
        activation: a key of :data:`ACTIVATIONS`, for an MLP.
        layer_norm: whether an MLP normalizes each hidden layer, before the activation.
        batch_renorm: whether an MLP has batch renormalization before each linear layer, as in
            CrossQ's critics.
        batch_renorm_warmup: the number of initial batches for which it is plain batch
            normalization.

    Example:
        >>> NetworkSpec(hidden=[8], activation="tanh").make(3, 2)
        MLP(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): Tanh()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    network: str = "mlp"
    network_kwargs: dict[str, Any] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    activation: str = "relu"
    layer_norm: bool = False
    batch_renorm: bool = False
    batch_renorm_warmup: int = 100_000

    @property
    def is_mlp(self) -> bool:
        """Whether the network is the built-in MLP."""
        return self.network == "mlp"

    def make(self, inputs: int, outputs: int, device: str | None = None) -> nn.Module:
        """Makes a network; an MLP on the given device."""
        if not self.is_mlp:
            return self._make_custom(inputs, outputs)
        if self.layer_norm and self.batch_renorm:
            raise ValueError("layer_norm and batch_renorm cannot be combined: choose one of them.")
        network = MLP(
            inputs,
            outputs,
            num_cells=list(self.hidden),
            activation_class=ACTIVATIONS[self.activation],
            norm_class=nn.LayerNorm if self.layer_norm else None,
            norm_kwargs=[{"normalized_shape": units} for units in self.hidden]
            if self.layer_norm
            else None,
            device=device,
        )
        if self.batch_renorm:
            for position in reversed(range(0, len(network), 2)):  # before each linear layer
                features = network[position].in_features
                renorm = BatchRenorm(features, warmup=self.batch_renorm_warmup)
                network.insert(position, renorm.to(device))
        return network

    def _make_custom(self, inputs: int, outputs: int) -> nn.Module:
        setting = f"network={self.network}"
        custom: Callable[..., nn.Module] = import_class(self.network, nn.Module, setting)
        given = "".join(f", {key}={value!r}" for key, value in self.network_kwargs.items())
        try:
            network = custom(inputs, outputs, **self.network_kwargs)
        except Exception as error:
            raise ValueError(
                f"{setting} cannot be constructed as {custom.__name__}({inputs}, {outputs}{given}) "
                f"({_reason(error)}): accept in_features, out_features and network_kwargs."
            ) from error
        # Actors receive single observations and batches of any shape.
        for shape in ((), (3,), (2, 3)):
            points = torch.zeros(*shape, inputs)
            try:
                # Must not change the random numbers of a run or the network's running statistics.
                with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(network):
                    values = network(points)
            except Exception as error:
                raise ValueError(
                    f"{setting} fails for an input of shape {list(points.shape)} "
                    f"({_reason(error)}): map [..., {inputs}] to [..., {outputs}]."
                ) from error
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            if got != [*shape, outputs]:
                raise ValueError(
                    f"{setting} maps an input of shape {list(points.shape)} to {got}, not to "
                    f"{[*shape, outputs]}: return one output for each of the {outputs} "
                    "out_features."
                )
        return network


def check_ensemble(network: nn.Module, inputs: int, setting: str) -> None:
    """Raises ``ValueError`` if TorchRL cannot evaluate several such networks with ``vmap``."""
    # As TorchRL's losses: random numbers are an error, unless a module declares them.
    is_random = any(isinstance(part, RANDOM_MODULE_LIST) for part in network.modules())
    try:
        params, buffers = torch.func.stack_module_state([network, network])  # type: ignore[arg-type]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.vmap(
                lambda *state: torch.func.functional_call(network, state, torch.zeros(3, inputs)),
                randomness="different" if is_random else "error",
            )(params, buffers)
    except Exception as error:
        raise ValueError(
            f"{setting} cannot be evaluated as an ensemble of critics with torch.vmap "
            f"({_reason(error)}): avoid in-place changes, control flow that depends on values, and "
            "random numbers other than those of nn.Dropout."
        ) from error


class LocAndScale(nn.Module):
    """Splits a network's output into a mean and a standard deviation within SAC's usual bounds."""

    bounds = (-20.0, 2.0)  # for the logarithm of the standard deviation

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and the standard deviation."""
        loc, log_scale = output.chunk(2, dim=-1)
        return loc, log_scale.clamp(*self.bounds).exp()


def actor_network(
    kind: str, spec: NetworkSpec, observation: int, action: int, device: str | None = None
) -> nn.Sequential:
    """Makes the network of an actor with actions in [-1, 1].

    Args:
        kind: ``"deterministic"`` (TD3: returns the action) or ``"gaussian"`` (SAC: returns mean and
            standard deviation of the pre-tanh action).
        spec: the specification of the layers.
        observation: the size of an observation.
        action: the size of an action.
        device: the device of an MLP.
    """
    if kind == "deterministic":
        return nn.Sequential(spec.make(observation, action, device), nn.Tanh())
    return nn.Sequential(spec.make(observation, 2 * action, device), LocAndScale())


def drawn_action(loc: Tensor, scale: Tensor) -> Tensor:
    """Draws an action in (-1, 1) from a squashed Gaussian; its center if exploration is off."""
    if exploration_type() is ExplorationType.RANDOM:
        loc = loc + torch.randn_like(loc) * scale
    limit = 1.0 - torch.finfo(loc.dtype).resolution  # as in TorchRL's TanhNormal
    return loc.tanh().clamp(-limit, limit)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Puts a module in evaluation mode, and restores the mode of each of its parts afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
