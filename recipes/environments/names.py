"""Names of Gymnasium environments, checked without importing torch."""

from __future__ import annotations

import contextlib
import io

from vmfer_recipes.config.errors import UserError, did_you_mean
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
    if colon:
        cure = did_you_mean(
            identifier, gym.registry, f"Call gymnasium.register({identifier!r}, ...) in it."
        )
        raise UserError(f"The module {module} registers no environment {identifier!r}. {cure}")
    cure = did_you_mean(identifier, gym.registry, "See `gymnasium.pprint_registry()`.")
    raise UserError(
        f"There is no environment {name!r}. {cure} For an environment of your module, write "
        f"env.name=my_module:{name}."
    )
