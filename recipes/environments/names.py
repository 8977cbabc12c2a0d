"""Names of Gymnasium environments, checked without importing torch."""

from __future__ import annotations

import contextlib
import io

from vmfer_recipes.config.errors import UserError, near_names
from vmfer_recipes.config.plugins import import_module


def registered_id(name: str) -> str:
    """The id of an environment that is registered with Gymnasium."""
    import gymnasium as gym

    module, colon, identifier = name.rpartition(":")
    import_module(module or "vmfer_recipes.environments.tasks", f"env.name={name}")
    if not colon and name not in gym.registry:
        # The Fetch tasks. The package takes a second to import and prints outdated warnings.
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)
    if identifier in gym.registry:
        return identifier
    near = near_names(identifier, gym.registry)
    cure = f"Did you mean: {', '.join(near)}?" if near else ""
    if colon:
        cure = cure or f"Call gymnasium.register({identifier!r}, ...) in it."
        raise UserError(f"The module {module} registers no environment {identifier!r}. {cure}")
    raise UserError(
        f"There is no environment {name!r}. {cure or 'See `gymnasium.pprint_registry()`.'} For an "
        f"environment of your own module, write env.name=my_module:{name}."
    )
