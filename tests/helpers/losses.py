"""Losses of each algorithm, and independent references: TorchRL's losses, and brute force."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import (
    CQLLoss,
    CrossQLoss,
    REDQLoss,
    SACLoss,
    TD3BCLoss,
    TD3Loss,
    TQCLoss,
)

from torchrl_vmfer import (
    VMFCQLLoss,
    VMFCrossQLoss,
    VMFREDQLoss,
    VMFSACLoss,
    VMFTD3BCLoss,
    VMFTD3Loss,
    VMFTQCLoss,
)

SEED = 5
OBSERVATION, ACTION, GAMMA = 5, 3, 0.9
VALUE = "state_action_value"


def _mlp(inputs, outputs, cells=(32, 32), activation=nn.Tanh):
    return MLP(inputs, outputs, num_cells=list(cells), activation_class=activation)


class NormalizedNetwork(nn.Module):
    """A critic with a normalization layer."""

    def __init__(self, layer=nn.BatchNorm1d):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 16), layer(16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, *inputs):
        return self.network(torch.cat(inputs, -1))


@dataclass(frozen=True)
class Algorithm:
    """Builds TorchRL's loss and the package's loss of one algorithm, with equal parameters.

    Attributes:
        used: the critic that the actor follows.
        defaults: arguments of both losses.
        own_defaults: arguments of the package's loss only.
        outputs: the number of outputs of each critic.
    """

    name: str
    stock_class: type
    vmf_class: type
    critic_loss_name: str
    used: str
    defaults: dict[str, Any]
    own_defaults: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def actor(self, observation="observation", action="action", **network):
        if self.used == "first":
            network = nn.Sequential(_mlp(OBSERVATION, ACTION, **network), nn.Tanh())
            return TensorDictModule(network, [observation], [action])
        network = nn.Sequential(_mlp(OBSERVATION, 2 * ACTION, **network), NormalParamExtractor())
        return ProbabilisticActor(
            TensorDictModule(network, [observation], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            out_keys=[action],
            distribution_class=TanhNormal,
            return_log_prob=True,
        )

    def critic(self, observation="observation", action="action", value=VALUE, network=None, **kw):
        network = network or _mlp(OBSERVATION + ACTION, self.outputs, **kw)
        return ValueOperator(network, in_keys=[observation, action], out_keys=[value])

    def build(
        self,
        loss_class=None,
        *,
        seed=0,
        observation="observation",
        action="action",
        value=VALUE,
        critic=None,
        **kwargs,
    ):
        torch.manual_seed(seed)
        network = {key: kwargs.pop(key) for key in ("cells", "activation") if key in kwargs}
        actor = self.actor(observation, action, **network)
        critic = critic or self.critic(observation, action, value, **network)
        loss_class = loss_class or self.vmf_class
        own_defaults = self.own_defaults if loss_class is self.vmf_class else {}
        loss = loss_class(actor, critic, **(self.defaults | own_defaults | kwargs))
        loss.set_keys(action=action, state_action_value=value)
        loss.make_value_estimator(gamma=GAMMA)
        return loss

    def pair(self, **kwargs):
        """Returns TorchRL's loss and the package's, which receives the additional arguments."""
        added = {
            "num_target_critics",
            "used",
            "actor_noise",
            "actor_noise_clip",
            "entropy_gradient",
        }
        stock = {key: value for key, value in kwargs.items() if key not in added}
        return self.build(self.stock_class, **stock), self.build(self.vmf_class, **kwargs)

    def critic_loss(self, loss, batch):
        return getattr(loss, self.critic_loss_name)(batch)


BOUNDED = {"bounds": (-1.0, 1.0)}
ENTROPIC = {"target_entropy": -3.0, "alpha_init": 0.3}
# With two critics, x̄ᵀx_1 = x̄ᵀx_2, so that the wrong critic e would go unnoticed.
ENSEMBLE = {"num_qvalue_nets": 5}
ALL_TARGETS = {"num_target_critics": None}

TD3 = Algorithm("td3", TD3Loss, VMFTD3Loss, "value_loss", "first", BOUNDED)
SAC = Algorithm("sac", SACLoss, VMFSACLoss, "qvalue_v2_loss", "min", ENTROPIC)
TD3_BC = Algorithm(
    *("td3_bc", TD3BCLoss, VMFTD3BCLoss, "qvalue_loss", "first"), BOUNDED | ENSEMBLE, ALL_TARGETS
)
CROSSQ = Algorithm(
    *("crossq", CrossQLoss, VMFCrossQLoss, "qvalue_loss", "min"), ENTROPIC | ENSEMBLE, ALL_TARGETS
)
CQL = Algorithm("cql", CQLLoss, VMFCQLLoss, "q_loss", "min", ENTROPIC)  # always two critics
REDQ = Algorithm("redq", REDQLoss, VMFREDQLoss, "qvalue_loss", "mean", ENTROPIC | ENSEMBLE)
TQC = Algorithm(
    *("tqc", TQCLoss, VMFTQCLoss, "qvalue_v2_loss", "mean"), ENTROPIC | ENSEMBLE, outputs=6
)
ENSEMBLES = [REDQ, CROSSQ, TQC, TD3_BC, CQL]


def make_batch(size, *, seed=1, observation="observation", action="action") -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    size = (size,) if isinstance(size, int) else tuple(size)

    def normal(*shape):
        return torch.randn(*size, *shape, generator=generator)

    terminated = normal(1) > 1
    batch = TensorDict(batch_size=size)
    batch[observation] = normal(OBSERVATION)
    batch[action] = normal(ACTION).tanh()
    batch["next"] = TensorDict(batch_size=size)
    batch["next"][observation] = normal(OBSERVATION)
    batch["next", "reward"] = normal(1)
    batch["next", "terminated"] = terminated
    batch["next", "done"] = terminated | (normal(1) > 1)
    return batch


def seeded(function, *args):
    """Calls a function with a fixed state of the random generator."""
    torch.manual_seed(SEED)
    return function(*args)


def perturb(params, critics, amount=0.3):
    """Perturbs the parameters of some critics."""
    generator = torch.Generator().manual_seed(9)
    for param in params.values(True, True):
        noise = torch.randn(param.shape, generator=generator)
        param.data[critics] += amount * noise[critics]


def total_loss(losses):
    """Sums all losses that ``forward`` returned."""
    return sum(value.sum() for name, value in losses.items() if name.startswith("loss_"))


def assert_same(algorithm, result, expected):
    """Asserts bitwise equality for TD3, and 1e-6 for the others, whose batched products differ."""
    if algorithm.name == "td3":
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def assert_gradients_equal(loss, reference, tolerance=1e-6):
    """Asserts that the parameters of two losses have the same gradients, or none."""
    expected = dict(reference.named_parameters())
    for name, param in loss.named_parameters():
        gradient, other = param.grad, expected[name].grad
        assert (gradient is None) == (other is None), name
        if other is not None:
            scale = other.abs().max().clamp(min=1).item()
            torch.testing.assert_close(gradient, other, rtol=0, atol=tolerance * scale, msg=name)


def gradients(loss, part=""):
    """Copies the gradients of a loss, or of a part of it, by name, and resets all."""
    found = {
        name: param.grad.clone()
        for name, param in loss.named_parameters()
        if param.grad is not None and name.startswith(part)
    }
    loss.zero_grad()
    return found
