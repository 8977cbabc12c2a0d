"""Datasets as the recipes load them, and an object that must not be loaded."""

from __future__ import annotations

import functools
import os

from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.offline.datasets import load_transitions

PENDULUM = "InvertedPendulum-v4"  # its actions lie in [-3, 3]


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@functools.cache
def environment(name):
    """An environment without options, which tests share."""
    return make_environment(EnvConfig(name=name), seed=0)


def load(dataset, name=PENDULUM, **options):
    """The transitions of a dataset, for an environment with options that keep its spaces."""
    return load_transitions(str(dataset), environment(name), EnvConfig(name=name, **options))
