"""Every configuration is either valid or ends with one line that names the problem."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import math
import sys
from typing import get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, describe
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.config.training import to_config
from vmfer_recipes.config.validation import validate

CONFIGS = algorithms()
RECIPES = tuple(CONFIGS)
# What a recipe cannot do without.
REQUIRED = {"td3_bc": ("dataset=runs/a", "init_random_frames=0")}
GROUPS = ("env", "sampler", "replay", "collector", "logger")
HUGE = "1" + "0" * 400
# Each as one argument of a command line, so without a zero byte.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
ODD = (
    *("", "null", "nan", "inf", "-inf", "-1", "0", "1", "1.5", "1e3", "1e400", "-0.0", HUGE),
    *("true", "x", "???", "'a b'", "'a\nb'", '"\u2028"', "é", "'é'", "[", "]", "{", "'", '"', "\\"),
    *("[]", "[1,2]", "[nan]", "[[1]]", f"[{HUGE}]", "{}", "{a:1}", "{a:{b:[null]}}", "1,2", "a\\"),
    *("${seed}", "${nope}", "${", "${oc.env:HOME}", "${oc.env:NOPE}", "${nope:1}", "$", "@", "="),
    *("range(3)", "int(x)", "nope(1)", "[" * 999 + "]" * 999, "{a:" * 400 + "1" + "}" * 400),
)
KEYS = tuple(sorted({key.name for each in CONFIGS.values() for key in describe(each)}))
ARGUMENT = st.one_of(
    st.builds(
        "{}{}={}".format,
        st.sampled_from(["", "", "", "", "+", "++", "~"]),
        st.sampled_from((*KEYS, *GROUPS, "nope", "seed.x", "env.x", "experiment")) | TEXT,
        st.sampled_from(ODD) | TEXT | st.integers().map(str) | st.floats().map(repr),
    ),
    TEXT,
).filter(lambda argument: not argument.startswith("-"))  # would be an option of Hydra
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a0.é\n ", max_size=4)
    | st.sampled_from([int(HUGE), -int(HUGE), "auto", "cpu", "meta", "vmf", "rank", b"a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def start(name, *arguments) -> tuple[Config | None, str]:
    """Runs a recipe up to the training. Returns its configuration or its error message."""
    accepted: list[Config] = []
    output, errors = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py", *REQUIRED.get(name, ()), *arguments])
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                recipe(name, CONFIGS[name])(lambda cfg: accepted.append(cfg))()
            except SystemExit as exit_:
                code = exit_.code
    assert output.getvalue() == ""
    assert code == (0 if accepted else 2)
    return (accepted[0] if accepted else None), errors.getvalue()


def wrong_values(config, prefix=""):
    """Values whose type is not the annotated one, and numbers that are not finite."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if isinstance(value, Config):
            yield from wrong_values(value, f"{prefix}{field.name}.")
            continue
        if type(value) is dict and get_origin(hint) is dict:
            continue  # its entries are the user's
        if type(value) is list:
            (hint,) = (list_ for list_ in (hint, *get_args(hint)) if get_origin(list_) is list)
            (hint,) = get_args(hint)
        allowed = {*(get_args(hint) or (hint,))}
        allowed |= {int} if float in allowed else set()
        for each in value if type(value) is list else [value]:
            is_sane = math.isfinite(each) if type(each) in (int, float) else each != ""
            if type(each) not in allowed or not is_sane:
                yield f"{prefix}{field.name}={value!r}"


def assert_accepted_or_rejected_by_name(name, argument):
    config, errors = start(name, argument)
    if config is not None:
        assert (errors, list(wrong_values(config))) == ("", [])
        assert torch.zeros(1, device=config.device).item() == 0
        return
    assert errors.startswith("error: ")
    assert errors.endswith("\n")
    assert len(errors.splitlines()) == 1
    written = " ".join(repr(argument).split())[1:-1], " ".join(argument.split())
    key = argument.lstrip("+").split("=")[0]
    assert any(text in errors for text in (key, *written)), errors


@settings(max_examples=15)
@given(st.sampled_from(RECIPES), ARGUMENT)
@example("td3", f"seed={HUGE}")
@example("td3", "seed={}")
@example("sac", "seed=[[" + "[" * 999 + "]" * 999 + "]]")
@example("td3", "~sampler.name")
@example("td3", "logger=[]")
@example("td3", "device='a\nb'")
@example("sac", "target_entropy=nan")
@example("td3", "total_frames=${nope}")
@example("td3_bc", "dataset=null")
@example("td3_bc", "dataset=[]")
@example("td3_bc", "num_envs=2")
def test_an_argument_is_valid_or_rejected_by_name(name, argument):
    assert_accepted_or_rejected_by_name(name, argument)


@pytest.fixture(scope="module")
def composed(configuration, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("composed")
    return {
        name: to_config(configuration(name, run_dir, *REQUIRED.get(name, ()))) for name in RECIPES
    }


@settings(max_examples=150)
@given(st.sampled_from(RECIPES), st.sampled_from(KEYS), VALUE)
@example("td3", "resume", 1)
@example("sac", "target_entropy", math.inf)
@example("td3", "critic_lr", int(HUGE))
@example("td3", "gamma", math.nan)
@example("td3", "batch_size", True)
@example("td3", "hidden", [8, 1.0])
def test_a_value_set_in_a_program_is_valid_or_rejected_by_name(composed, name, key, value):
    """A configuration that is made without Hydra is checked in the same way."""
    config = copy.deepcopy(composed[name])
    *groups, last = key.split(".")
    owner = getattr(config, groups[0]) if groups else config
    if not hasattr(owner, last):
        return
    setattr(owner, last, value)
    message = ""
    try:
        validate(config)
    except UserError as error:
        message = str(error)
    assert bool(message) or list(wrong_values(config)) == []
    assert not message or (message.startswith(f"{key} must be") and repr(value) in message)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("total_frames=3e4", "total_frames=30000"),
        ("seed=2.0", "seed=2"),
        ("hidden=[3e1,64]", "hidden=[30,64]"),
        ("replay.buffer_size=1e5", "replay.buffer_size=100000"),
        ("sampler.pool_size=1e3", "sampler.pool_size=1000"),
        ("++seed=2e0", "seed=2"),
    ],
)
def test_a_whole_number_may_be_written_as_a_float(written, meant):
    # The directory refers to both numbers.
    run_dir = "run_dir='${total_frames}/${seed}/${hidden}'"
    config, _ = start("td3", written, run_dir)
    same, _ = start("td3", meant, run_dir)
    assert repr(config) == repr(same)  # also by their types, which config.yaml keeps
