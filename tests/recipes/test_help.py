"""``--help`` and the description of the keys follow from the dataclasses."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from vmfer_recipes import sac, shooting, td3, td3_bc
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, describe, key
from vmfer_recipes.config.names import flat
from vmfer_recipes.config.validation import validate

ROOT = Path(__file__).parents[2]
RECIPES = {"td3": td3, "sac": sac, "td3_bc": td3_bc, "shooting": shooting}


@pytest.fixture
def help_of(run_program):
    return lambda name, *arguments: run_program(RECIPES[name].main, *arguments)[1]


@pytest.mark.parametrize("name", RECIPES)
def test_help_names_every_key_with_the_default_that_hydra_composes(name, help_of):
    shown = help_of(name, "--help")
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        composed = OmegaConf.to_container(compose(name))
    # The default of a key can depend on the choice.
    defaults = defaultdict(list)
    for full, default in re.findall(r"^  ([\w.]+)=(\S*)", shown, re.MULTILINE):
        written = OmegaConf.to_container(OmegaConf.create(f"v: {default}"))
        defaults[full].append(written["v"])
    for full, value in flat(composed).items():
        if full in ("algorithm", "collector.name") or full.endswith("._target_"):
            continue  # they follow from the recipe and the choice
        assert full in defaults
        if not full.endswith(".name"):
            assert value in defaults[full], full


@pytest.mark.parametrize("name", RECIPES)
def test_help_fits_the_screen_with_any_other_arguments(name, help_of):
    shown = help_of(name, "--help")
    assert shown == help_of(name, "seed=3", "-h", "nonsense=1")
    assert shown.startswith(f"Usage: python recipes/{name}.py")
    assert max(map(len, shown.splitlines())) <= 100


def test_help_lists_the_choices_of_every_group(help_of):
    words = set(re.findall(r"[\w-]+", help_of("td3", "--help")))
    for group in ("env", "sampler", "replay", "collector", "logger", "experiment"):
        choices = {file.stem for file in (ROOT / "configs" / group).glob("*.yaml")}
        assert choices <= words


def test_a_key_names_the_choices_that_have_it():
    only = {each.name: each.only for each in describe(TD3Config)}
    assert only["sampler.pool_size"] == ("vmf",)
    assert only["sampler.name"] == only["gamma"] == ()


def test_a_field_without_a_description_raises_an_error():
    @dataclass
    class MineConfig(Config):
        gamma: float = 0.5

    with pytest.raises(TypeError, match=r"gamma has no meaning: define it with key\(\)"):
        describe(MineConfig)


def test_values_at_the_ends_of_a_range_are_allowed_and_those_beyond_are_not():
    @dataclass
    class MineConfig(Config):
        share: float = key(0.5, "a share", low=0.25, high=1)

    for share in (0.25, 1, 1.0):
        validate(MineConfig(share))
    for share in (0.2499, 1.0001, True, None, "0.5"):
        with pytest.raises(UserError, match=r"share must be a number from 0\.25 to 1"):
            validate(MineConfig(share))
