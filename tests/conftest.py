"""Small losses of each algorithm, and independent reference implementations."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
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
from torchrl_vmfer.compiled import extension

# Failed assertions in helpers show their values, as in tests.
pytest.register_assert_rewrite("helpers")

OBSERVATION, ACTION, GAMMA = 5, 3, 0.9

# The same examples in every run, independent of the load of the machine.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Tests run in several processes, whose threads would compete for the same cores.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the programs that tests start

# Some virtual machines announce AMX but do not permit it: PyTorch's products in half precision then
# end with an illegal instruction. oneDNN reads this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _mlp(inputs, outputs, cells, activation):
    return MLP(inputs, outputs, num_cells=list(cells), activation_class=activation)


def _deterministic_actor(cells, activation, observation, action):
    network = nn.Sequential(_mlp(OBSERVATION, ACTION, cells, activation), nn.Tanh())
    return TensorDictModule(network, [observation], [action])


def _stochastic_actor(cells, activation, observation, action):
    network = nn.Sequential(
        _mlp(OBSERVATION, 2 * ACTION, cells, activation), NormalParamExtractor()
    )
    return ProbabilisticActor(
        TensorDictModule(network, [observation], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=[action],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


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

    def actor(self, cells=(32, 32), observation="observation", action="action", activation=nn.Tanh):
        make = _deterministic_actor if self.used == "first" else _stochastic_actor
        return make(cells, activation, observation, action)

    def critic(
        self,
        cells=(32, 32),
        observation="observation",
        action="action",
        value="state_action_value",
        outputs=None,
        network=None,
        activation=nn.Tanh,
    ):
        outputs = outputs or self.outputs
        network = network or _mlp(OBSERVATION + ACTION, outputs, cells, activation)
        return ValueOperator(network, in_keys=[observation, action], out_keys=[value])

    def build(
        self,
        loss_class=None,
        *,
        seed=0,
        cells=(32, 32),
        observation="observation",
        action="action",
        value="state_action_value",
        critic=None,
        activation=nn.Tanh,
        **kwargs,
    ):
        torch.manual_seed(seed)
        actor = self.actor(cells, observation, action, activation)
        if critic is None:
            critic = self.critic(cells, observation, action, value, activation=activation)
        loss_class = loss_class or self.vmf_class
        own_defaults = self.own_defaults if loss_class is self.vmf_class else {}
        loss = loss_class(actor, critic, **(self.defaults | own_defaults | kwargs))
        loss.set_keys(action=action, state_action_value=value)
        loss.make_value_estimator(gamma=GAMMA)
        return loss

    def pair(self, **kwargs):
        """Returns TorchRL's loss and the package's, which receives the additional arguments."""
        own = {"num_target_critics", "used", "actor_noise", "actor_noise_clip", "entropy_gradient"}
        stock = {key: value for key, value in kwargs.items() if key not in own}
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


def policy_action(loss, batch, *, seed=None, params=None) -> Tensor:
    """Returns the action of the policy, drawn with the seed if it is stochastic."""
    params = loss.actor_network_params if params is None else params
    with params.to_module(loss.actor_network):
        if not hasattr(loss.actor_network, "get_dist"):
            return loss.actor_network(batch.copy()).get(loss.tensor_keys.action)
        with set_exploration_type(ExplorationType.RANDOM):
            policy = loss.actor_network.get_dist(batch.copy())
    torch.manual_seed(seed)
    return policy.rsample()


def critic_values(loss, batch, action, params=None) -> Tensor:
    """Computes the values ``[N, *batch]`` of the critics, one critic after the other."""
    params = loss.qvalue_network_params if params is None else params
    values = []
    for i in range(params.batch_size[0]):
        inputs = batch.copy().set(loss.tensor_keys.action, action)
        with params[i].to_module(loss.qvalue_network):
            value = loss.qvalue_network(inputs).get(loss.tensor_keys.state_action_value)
        values.append(value.mean(-1))
    return torch.stack(values)


def action_gradients(loss, batch, action, *, entropy=False) -> Tensor:
    """Computes ∂l_i/∂a ``[N, *batch, action]`` with one ``torch.autograd.grad`` per critic."""
    action = action.detach().requires_grad_()
    losses = -critic_values(loss, batch, action)
    if entropy:
        with torch.no_grad(), loss.actor_network_params.to_module(loss.actor_network):
            policy = loss.actor_network.get_dist(batch.copy())
        losses = losses + loss.log_alpha.exp().detach() * policy.log_prob(action)
    return torch.stack(
        [torch.autograd.grad(each.sum(), action, retain_graph=True)[0] for each in losses]
    )


def sampling_factor(gradients, used) -> Tensor:
    """Computes exp(R μᵀx_e) with NumPy in double precision, one transition after the other."""
    gradients = gradients.detach().double().numpy()
    batch_size = gradients.shape[1:-1]
    used = np.broadcast_to(np.asarray(used), batch_size)
    sums = gradients.sum(0)
    factors = np.empty(batch_size)
    for j in np.ndindex(batch_size):
        x = [g[j] / np.linalg.norm(g[j]) for g in gradients]
        mean = np.mean(x, axis=0)
        length = np.linalg.norm(mean)
        x_e = sums[j] / np.linalg.norm(sums[j]) if used[j] == "mean" else x[used[j]]
        factors[j] = np.exp(length * np.dot(mean / length, x_e))
    return torch.as_tensor(factors)


def gradients_of(params) -> list[Tensor | None]:
    """Returns the gradients of a loss module's parameters, sorted by name."""
    return [params.get(key).grad for key in sorted(params.keys(True, True), key=str)]


def _fixture_of(algorithm: Algorithm) -> Any:
    return pytest.fixture(name=algorithm.name)(lambda: algorithm)


td3_fixture, sac_fixture, redq_fixture, crossq_fixture, tqc_fixture, td3_bc_fixture, cql_fixture = (
    map(_fixture_of, (TD3, SAC, REDQ, CROSSQ, TQC, TD3_BC, CQL))
)


@pytest.fixture(params=[TD3, SAC], ids=lambda algorithm: algorithm.name)
def algorithm(request) -> Algorithm:
    return request.param


@pytest.fixture(params=ENSEMBLES, ids=lambda algorithm: algorithm.name)
def ensemble(request) -> Algorithm:
    """The algorithms beyond TD3 and SAC, with five critics, which all form the TD target."""
    return request.param


@pytest.fixture(params=[TD3, SAC, *ENSEMBLES], ids=lambda algorithm: algorithm.name)
def any_algorithm(request) -> Algorithm:
    return request.param


@pytest.fixture(name="make_batch")
def make_batch_fixture():
    return make_batch


@pytest.fixture
def brute_force() -> SimpleNamespace:
    return SimpleNamespace(
        policy_action=policy_action,
        critic_values=critic_values,
        action_gradients=action_gradients,
        sampling_factor=sampling_factor,
    )


@pytest.fixture(name="gradients_of")
def gradients_of_fixture():
    return gradients_of


_MODULES = extension.modules


@pytest.fixture
def use_kernels(monkeypatch):
    """A function that turns the compiled functions on or off."""

    def use(wanted):
        monkeypatch.setattr(extension, "modules", _MODULES if wanted else dict)
        assert (extension.functions() is not None) == wanted

    return use
