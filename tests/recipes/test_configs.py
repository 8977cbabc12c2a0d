"""The configuration files are complete and match the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from vmfer_recipes import sac
from vmfer_recipes.config.names import choices_of
from vmfer_recipes.config.training import to_config

CONFIGS = Path(__file__).parents[2] / "configs"


def defaults(algorithm, *overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(algorithm, list(overrides))


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
@pytest.mark.parametrize("group", ["sampler", "replay"])
def test_every_method_is_one_word_and_part_of_the_run_directory(algorithm, group):
    for choice in choices_of(group):
        cfg = defaults(algorithm, f"{group}={choice}", "env=Hopper-v4", "seed=7")
        OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        method = f"{choice}-vmf_uncertainty" if group == "replay" else f"uniform-{choice}"
        assert cfg.run_dir == f"runs/{algorithm}/Hopper-v4/{method}/seed7"


@pytest.mark.parametrize("file", sorted((CONFIGS / "env").glob("*.yaml")), ids=lambda f: f.stem)
def test_environment_files_are_named_after_their_environment(file):
    assert OmegaConf.load(file).name == file.stem


GROUP_FILES = [
    file
    for group in ("sampler", "replay", "collector", "logger")
    for file in sorted((CONFIGS / group).glob("*.yaml"))
]


@pytest.mark.parametrize("file", GROUP_FILES, ids=lambda f: f"{f.parent.name}={f.stem}")
def test_group_files_contain_only_values_that_differ_from_the_defaults(file):
    content = OmegaConf.to_container(OmegaConf.load(file))
    group = file.parent.name
    chosen = defaults("td3", f"{group}={file.stem}")[group]
    usual = OmegaConf.structured(OmegaConf.get_type(chosen))
    for key, value in content.get(group, content).items():
        if key != "defaults":
            assert OmegaConf.is_missing(usual, key) or usual[key] != value, key


# The table of hyperparameters in the paper's appendix.
COMMON = {
    "tau": 0.005,
    "batch_size": 256,
    "utd_ratio": 1,
    "gamma": 0.99,
    "hidden": [256, 256],
    "num_critics": 2,
    "eval_interval": 5000,
    "num_eval_episodes": 10,
}


@pytest.mark.parametrize(
    ("algorithm", "table"),
    [
        ("td3", {"critic_lr": 1e-3, "actor_lr": 1e-3, "exploration_noise": 0.1, "policy_delay": 2}),
        ("sac", {"critic_lr": 3e-4, "actor_lr": 3e-4, "target_entropy": "auto"}),
    ],
)
def test_defaults_match_the_table_of_the_paper(algorithm, table):
    cfg = OmegaConf.to_container(defaults(algorithm), resolve=True)
    expected = COMMON | table
    assert {key: cfg[key] for key in expected} == expected
    assert cfg["replay"]["buffer_size"] == 1_000_000
    assert cfg["replay"]["name"] == "uniform"


def test_automatic_target_entropy_is_minus_the_number_of_actions(configuration, tmp_path):
    # `auto` is TorchRL's name for -dim(A), the value of the paper. HalfCheetah has six actions.
    cfg = to_config(configuration("sac", tmp_path, "env=HalfCheetah-v4"))
    assert float(sac.make_agent(cfg).loss.target_entropy) == -6


@pytest.mark.slow
def test_a_misspelled_key_in_a_recipe_fails_the_type_check(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(CONFIGS.parent)
    code = "from vmfer_recipes.config.algorithms import TD3Config\ncfg = TD3Config()\n"
    (tmp_path / "recipe.py").write_text(f"{code}cfg.gamma, cfg.sampler.name, cfg.gama\n")
    output, _, code = api.run([str(tmp_path / "recipe.py")])
    assert code == 1
    assert output.count("error:") == 1
    assert '"TD3Config" has no attribute "gama"' in output
