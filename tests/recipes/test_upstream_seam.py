"""The recipes use no private names of TorchRL and Gymnasium."""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import inspect
from pathlib import Path

import gymnasium as gym
import pytest
import tensordict.nn
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.writers import RoundRobinWriter
from torchrl.envs import GymWrapper
from torchrl.objectives import LossModule, SoftUpdate
from torchrl.record.loggers import Logger

import vmfer_recipes

RECIPES = Path(vmfer_recipes.__file__).parent
USED = (
    *(Collector, ReplayBuffer, LazyTensorStorage, RoundRobinWriter, Sampler, PrioritizedSampler),
    *(GymWrapper, gym.Env, gym.Wrapper),
    *(LossModule, SoftUpdate, Logger, tensordict.nn.TensorDictModuleBase, torch.optim.Optimizer),
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@functools.cache
def private_names(cls: type) -> frozenset[str]:
    """Returns the private attributes of a class and those that its methods assign."""
    names = set(dir(cls))
    for base in cls.__mro__:
        for member in vars(base).values():
            method = inspect.unwrap(getattr(member, "fget", member) or member)
            if inspect.isfunction(method):
                # Not from the source text: TorchRL moves classes between modules.
                names |= {
                    instruction.argval
                    for instruction in dis.get_instructions(method)
                    if instruction.opname == "STORE_ATTR"
                }
    return frozenset(filter(is_private, names))


def used_names(tree: ast.AST, derived: dict[str, frozenset[str]]) -> set[str]:
    """Returns upstream-private names that are read, called, overridden or passed to ``getattr``.

    Args:
        tree: the code.
        derived: by class that inherits from upstream ones, the private names of these. Other
            classes may use any names for their own attributes.
    """
    used: set[str] = set()

    def visit(node: ast.AST, inherited: frozenset[str]) -> None:
        if isinstance(node, ast.ClassDef):
            inherited = derived.get(node.name, frozenset())
            methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
            used.update(methods & inherited)
        elif isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            used.update({node.attr} & (inherited if of_self else UPSTREAM))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr"):
            words = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            used.update(words & UPSTREAM)
        for child in ast.iter_child_nodes(node):
            visit(child, inherited)

    visit(tree, frozenset())
    return used


def derived_classes(module: object) -> dict[str, frozenset[str]]:
    """Returns the classes that inherit from upstream ones, with the private names of these."""
    classes = {
        name: [base for base in cls.__mro__ if base in USED]
        for name, cls in vars(module).items()
        if inspect.isclass(cls) and cls.__module__ == module.__name__
    }
    return {
        name: frozenset().union(*map(private_names, bases))
        for name, bases in classes.items()
        if bases
    }


UPSTREAM = frozenset().union(*map(private_names, USED))
FILES = sorted(
    file for file in RECIPES.rglob("*.py") if "configs" not in file.relative_to(RECIPES).parts
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(RECIPES)))
def test_recipes_use_no_private_names_elsewhere(file):
    parts = file.relative_to(RECIPES).with_suffix("").parts
    if file.name == "ray_workers.py":  # Ray is optional
        pytest.importorskip("ray")
    derived = derived_classes(importlib.import_module(".".join(("vmfer_recipes", *parts))))
    used = used_names(ast.parse(file.read_text()), derived)
    assert not used, f"{file.name} uses {sorted(used)}: put this behind torchrl_vmfer/_torchrl.py."


@pytest.mark.parametrize(
    "code",
    [
        "env._env.step(0)",
        "collector._frames = 3",
        "getattr(collector, '_carrier')",
        "class Mine(Collector):\n    def _should_use_random_frames(self): ...",
        "class Mine(Collector):\n    def next(self):\n        return self._frames",
        "buffer._transform = None",
        "buffer._rng.get_state()",
        "sampler._sum_tree[0]",
    ],
)
def test_scan_finds_private_names(code):
    assert used_names(ast.parse(code), {"Mine": private_names(Collector)})


def test_scan_ignores_attributes_of_our_own_classes():
    code = "class Ours:\n    def next(self):\n        return self._frames"
    assert not used_names(ast.parse(code), {})
