"""One module uses TorchRL's private names, and they exist in the installed version."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules import module as module_globals
from torchrl import objectives
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, Sampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import RoundRobinWriter, Writer
from torchrl.envs import GymEnv, GymWrapper

from torchrl_vmfer import _torchrl as seam

PACKAGE = Path(seam.__file__).parent
OTHERS = sorted(module for module in PACKAGE.rglob("*.py") if module != Path(seam.__file__))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# The private names in use, by the class or module that defines them.
RELIED_ON = {
    objectives.TD3Loss: ("_make_vmap", "_vmap_qvalue_network00"),
    objectives.TD3BCLoss: ("_make_vmap", "_vmap_qvalue_network00"),
    objectives.REDQLoss: ("_make_vmap", "_vmap_qvalue_network00", "_safe_log_alpha"),
    objectives.SACLoss: ("_make_vmap", "_vmap_qnetworkN0"),
    objectives.TQCLoss: ("_make_vmap", "_vmap_qnetworkN0"),
    objectives.CrossQLoss: ("_make_vmap", "_vmap_qnetworkN0"),
    objectives.CQLLoss: ("_make_vmap", "_vmap_qvalue_networkN0"),
    objectives.LossModule: ("_reduce_loss",),
    objectives.SoftUpdate: ("_sources", "_targets"),
    objectives.utils: ("_vmap_func",),
    nn.Module: (*HOOKS, "_modules", "_parameters", "_buffers"),
    module_globals: tuple(f"_global{name}" for name in HOOKS),
    Tensor: ("_backward_hooks", "_post_accumulate_grad_hooks"),
    Sampler: ("_empty", "_rng"),
    TensorDictReplayBuffer: (
        *("_init", "_initialized", "_sample", "_rng", "_transform", "_collate_fn"),
        *("_replay_lock", "_write_lock", "_futures_lock", "_pin_memory"),
        *("_capture_prefetch_state", "_clear_prefetch_queue_locked", "_prefetch_cap"),
        *("_restore_prefetch_queue_locked", "_prefetch", "_service_shutdown"),
        "_sample_dependency",
    ),
    TensorDict: ("_new_unsafe", "_tensordict"),
    Storage: ("_empty", "_set_last_cursor", "_mutation_revision", "_attached_entities"),
    TensorStorage: ("_storage",),
    LazyTensorStorage: ("_len", "_bump_mutation_revision", "_mutation_revision_value"),
    RoundRobinWriter: ("_track_generations", "_cursor", "_write_count", "_storage"),
    TensorDictRoundRobinWriter: ("_bump_generation", "_replicate_index"),
}
UPSTREAM = [
    *RELIED_ON,
    *(ReplayBuffer, PrioritizedSampler, Writer, Collector, GymWrapper, GymEnv),
    *(TensorDictBase, torch, torch.optim.Adam, torch.autograd.Function),
]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


@functools.cache
def private_names(owner: object) -> set[str]:
    """Returns the private names of a module, or of a class including those its methods assign."""
    names = set(dir(owner))
    for parent in inspect.getmro(owner) if inspect.isclass(owner) else ():
        names |= set(vars(parent).get("__annotations__", ()))
        names |= assigned_names(parent)
    return {name for name in names if is_private(name)}


def assigned_names(cls: type) -> set[str]:
    """Returns the attributes that the methods of a class assign, read from their bytecode."""
    methods = [inspect.unwrap(getattr(m, "fget", m) or m) for m in vars(cls).values()]
    pending = [method.__code__ for method in methods if hasattr(method, "__code__")]
    names = set()
    while pending:
        code = pending.pop()
        pending += [constant for constant in code.co_consts if inspect.iscode(constant)]
        names |= {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    return names


def names_used(source: str) -> dict[str, int]:
    """Returns the private names that a module reads, assigns, defines or imports, with lines."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.Call):  # such as getattr(buffer, "_storage")
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            found |= {word: node.lineno for word in words if isinstance(word, str)}
        elif isinstance(node, ast.ImportFrom):
            if not (node.module or "").startswith("torchrl_vmfer"):
                found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                targets = [part, *getattr(part, "targets", ()), getattr(part, "target", None)]
                for target in targets:
                    name = getattr(target, "name", None) or getattr(target, "id", None)
                    if name:
                        found.setdefault(name, part.lineno)
    return {name: line for name, line in found.items() if is_private(name)}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        pytest.param(owner, name, id=f"{owner.__name__}.{name}")
        for owner, names in RELIED_ON.items()
        for name in names
    ],
)
def test_a_private_name_that_is_relied_on_exists(owner, name):
    assert name in private_names(owner), (
        f"{owner.__name__} has no `{name}` in this version: adapt torchrl_vmfer/_torchrl.py, the "
        "only module that uses it."
    )


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_are_used_in_the_seam_only(path):
    upstream = {
        name: getattr(owner, "__name__", owner)
        for owner in UPSTREAM
        for name in private_names(owner)
    }
    offending = {
        f"line {line}: `{name}` of {upstream[name]}"
        for name, line in names_used(path.read_text()).items()
        if name in upstream
    }
    assert not offending, (
        f"{path.name} uses private names of TorchRL, {sorted(offending)}: give them a public name "
        "in torchrl_vmfer/_torchrl.py, or choose another name for the attribute."
    )


def test_every_private_name_that_the_seam_uses_is_listed():
    upstream = {name for owner in UPSTREAM for name in private_names(owner)}
    listed = {name for names in RELIED_ON.values() for name in names}
    used = set(names_used(Path(seam.__file__).read_text())) & upstream
    assert used <= listed
