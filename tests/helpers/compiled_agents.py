"""Pairs of equal agents, for TorchRL's loss with PyTorch's Adam and for compiled updates."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torchrl.data import Bounded
from torchrl.modules import MLP, ProbabilisticActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate

from torchrl_vmfer import VMFREDQLoss, VMFSACLoss, VMFTD3BCLoss, VMFTD3Loss, VMFTQCLoss
from torchrl_vmfer.compiled import CompiledUpdates
from torchrl_vmfer.networks import LocAndScale

LOSSES = {
    "td3": VMFTD3Loss,
    "td3_bc": VMFTD3BCLoss,
    "sac": VMFSACLoss,
    "redq": VMFREDQLoss,
    "tqc": VMFTQCLoss,
}
TAU = 0.01


@dataclass
class Shape:
    """The sizes of an agent's networks."""

    observation: int = 5
    action: int = 3
    hidden: tuple[int, ...] = (16, 12)
    critic_hidden: tuple[int, ...] = (20, 8)
    layer_norm: bool = False
    bounds: tuple[float, float] = (-1.0, 1.0)
    quantiles: int = 7


def mlp(inputs: int, outputs: int, hidden: tuple[int, ...], layer_norm: bool) -> MLP:
    norm = {}
    if layer_norm:
        kwargs = [{"normalized_shape": units} for units in hidden]
        norm = {"norm_class": nn.LayerNorm, "norm_kwargs": kwargs}
    return MLP(inputs, outputs, num_cells=list(hidden), activation_class=nn.ReLU, **norm)


def make_loss(algorithm: str, shape: Shape = Shape(), **options: Any) -> Any:  # noqa: B008
    """Makes a loss whose parameters all differ from their initial values, targets included."""
    low, high = shape.bounds
    is_gaussian = algorithm in ("sac", "redq", "tqc")
    outputs = shape.quantiles if algorithm == "tqc" else 1
    network = mlp(
        shape.observation, shape.action * (1 + is_gaussian), shape.hidden, shape.layer_norm
    )
    actor: Any
    if is_gaussian:
        actor = ProbabilisticActor(
            TensorDictModule(
                nn.Sequential(network, LocAndScale()), ["observation"], ["loc", "scale"]
            ),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": low, "high": high},
            return_log_prob=True,
        )
        options = {"target_entropy": -float(shape.action), **options}
    elif shape.bounds == (-1.0, 1.0):
        actor = TensorDictModule(nn.Sequential(network, nn.Tanh()), ["observation"], ["action"])
    else:
        actor = TensorDictModule(network, ["observation"], ["action"])
        spec = Bounded(low, high, [shape.action])
        squash = TanhModule(in_keys=["action"], out_keys=["action"], spec=spec)
        actor = TensorDictSequential(actor, squash)
    if not is_gaussian:
        options = {"bounds": shape.bounds, **options}
    critics = ValueOperator(
        mlp(shape.observation + shape.action, outputs, shape.critic_hidden, shape.layer_norm),
        in_keys=["observation", "action"],
    )
    gamma = options.pop("gamma", 0.97)
    loss = LOSSES[algorithm](actor, critics, **options)
    loss.make_value_estimator(gamma=gamma)
    with torch.no_grad():
        for params in (
            *(loss.actor_network_params, loss.target_actor_network_params),
            *(loss.qvalue_network_params, loss.target_qvalue_network_params),
        ):
            for tensor in params.values(True, True):
                tensor.data.add_(0.1 * torch.randn_like(tensor))
    return loss


class Agent:
    """A loss with its optimizers, updated by TorchRL and PyTorch."""

    def __init__(
        self, loss: Any, clip_norm: float | None = None, weight_decay: float | None = None
    ) -> None:
        self.loss, self.clip_norm = loss, clip_norm
        make: Any = Adam if weight_decay is None else partial(AdamW, weight_decay=weight_decay)
        self.critic = make(_parameters(loss.qvalue_network_params), lr=3e-4)
        self.actor = make(_parameters(loss.actor_network_params), lr=1e-3)
        self.alpha = Adam([loss.log_alpha], lr=1e-2) if hasattr(loss, "log_alpha") else None
        self.targets = SoftUpdate(loss, tau=TAU)

    def update_critics(self, batch: TensorDict) -> tuple[float, dict[str, Tensor]]:
        loss, metadata = self.loss.critic_loss(batch)
        self._descend(self.critic, loss)
        error = metadata["td_error"].detach()
        if not hasattr(self.loss, "log_alpha"):
            error = error.amax(0).sqrt()
        return loss.item(), {"td_error": error}

    def update_actor(self, batch: TensorDict) -> tuple[float, dict[str, Tensor]]:
        loss, metadata = self.loss.actor_loss(batch)
        self._descend(self.actor, loss)
        if self.alpha is not None:
            alpha_loss = self.loss.alpha_loss(metadata["log_prob"])
            key = getattr(self.loss.tensor_keys, "priority_weight", None)  # REDQ has none
            weight = torch.ones_like(alpha_loss) if key is None else batch.get(key, None)
            weight = torch.ones_like(alpha_loss) if weight is None else weight
            weight = metadata.get("vmf_weight", weight)
            self.alpha.zero_grad()
            ((alpha_loss * weight).sum() / weight.sum()).backward()
            self.alpha.step()
        return loss.item(), metadata

    def update_targets(self) -> None:
        self.targets.step()

    def _descend(self, optimizer: Adam, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], self.clip_norm)
        optimizer.step()

    def compiled(self, module: Any = None, storage: Any = None) -> CompiledUpdates:
        return CompiledUpdates(
            self.loss,
            critic_optimizer=self.critic,
            actor_optimizer=self.actor,
            alpha_optimizer=self.alpha,
            targets=self.targets,
            clip_norm=self.clip_norm,
            storage=storage,
            module=module,
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that an update changes."""
        found = {f"loss.{key}": value for key, value in self.loss.state_dict().items()}
        for name in ("critic", "actor", "alpha"):
            optimizer = getattr(self, name)
            for place, state in enumerate(optimizer.state.values() if optimizer else ()):
                found |= {f"{name}.{place}.{key}": value for key, value in state.items()}
        return {key: value.clone() for key, value in found.items() if isinstance(value, Tensor)}


def update(agent: Any, batch: TensorDict, seed: int) -> tuple[Any, Any]:
    """Updates everything. Returns the results of critics and actor."""
    torch.manual_seed(seed)
    critic = agent.update_critics(batch)
    torch.manual_seed(seed + 1)
    actor = agent.update_actor(batch)
    agent.update_targets()
    return critic, actor


def assert_same(agent: Agent, other: Agent) -> None:
    """Asserts that two agents are bitwise equal."""
    tensors, others = agent.tensors(), other.tensors()
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


def _parameters(params: Any) -> list[nn.Parameter]:
    return [value for value in params.values(True, True) if isinstance(value, nn.Parameter)]


def pair(algorithm: str, shape: Shape = Shape(), **options: Any) -> tuple[Agent, Agent]:  # noqa: B008
    """Two equal agents."""
    given = options.pop("clip_norm", None), options.pop("weight_decay", None)
    loss = make_loss(algorithm, shape, **options)
    return Agent(loss, *given), Agent(copy.deepcopy(loss), *given)


def make_batch(size: int, shape: Shape = Shape(), weights: bool = False) -> TensorDict:  # noqa: B008
    low, high = shape.bounds
    batch = TensorDict(
        {
            "observation": torch.randn(size, shape.observation),
            "action": low + (high - low) * torch.rand(size, shape.action),
            "next": {
                "observation": torch.randn(size, shape.observation),
                "reward": torch.randn(size, 1),
                "terminated": torch.rand(size, 1) < 0.2,
                "done": torch.rand(size, 1) < 0.3,
            },
        },
        [size],
    )
    if weights:
        batch["priority_weight"] = 0.1 + torch.rand(size)
    return batch


def distance(a: Tensor, b: Tensor) -> float:
    """The distance of two tensors, relative to the larger of them."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / (1e-30 + max(a.norm(), b.norm()))).item()
