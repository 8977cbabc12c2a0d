"""Datasets as the recipes load them."""

from __future__ import annotations

import functools

from vmfer_recipes.config.groups import EnvConfig
from vmfer_recipes.environments.make import make_environment
from vmfer_recipes.offline.datasets import load_transitions

PENDULUM = "InvertedPendulum-v4"  # its actions lie in [-3, 3]


@functools.cache
def environment(name):
    """An environment without options, which tests share."""
    return make_environment(EnvConfig(name=name), seed=0)


def load(dataset, name=PENDULUM, **options):
    """The transitions of a dataset, for an environment with options that keep its spaces."""
    return load_transitions(str(dataset), environment(name), EnvConfig(name=name, **options))
