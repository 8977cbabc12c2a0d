"""The configuration files are complete and match the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs"
SAMPLERS = ("uniform", "fresh", "vmf_uncertainty", "vmf_rank")
REPLAYS = ("uniform", "per", "per_rank")
LABORATORY = (
    *("vmf_power", "anti_vmf", "vmf_weighted", "inverse_td", "gradient_norm", "recent"),
    *("old", "saturated", "on_policy"),
)


def defaults(algorithm, *overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(algorithm, list(overrides))


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_every_choice_composes_and_is_part_of_the_run_directory(algorithm, sampler, replay):
    cfg = defaults(algorithm, f"sampler={sampler}", f"replay={replay}", "env=Hopper-v4", "seed=7")
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert cfg.run_dir == f"runs/{algorithm}/Hopper-v4/{replay}-{sampler}/seed7"


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
@pytest.mark.parametrize(
    ("sampler", "replay"), [*((name, "uniform") for name in LABORATORY), ("fresh", "lap")]
)
def test_every_method_is_one_word(algorithm, sampler, replay):
    cfg = defaults(algorithm, f"sampler={sampler}", f"replay={replay}", "env=Hopper-v4")
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert cfg.run_dir == f"runs/{algorithm}/Hopper-v4/{replay}-{sampler}/seed0"


def test_an_environment_without_a_file_is_part_of_the_run_directory():
    cfg = defaults("td3", "env.name=Pusher-v4")
    assert cfg.run_dir == "runs/td3/Pusher-v4/uniform-vmf_uncertainty/seed0"


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


def test_the_seven_environments_exist():
    names = ["Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedPendulum", "Swimmer", "Walker2d"]
    found = {file.stem for file in (CONFIGS / "env").glob("*.yaml")}
    assert {f"{name}-v4" for name in names} <= found


# The table of hyperparameters in the paper's appendix.
COMMON = {
    "tau": 0.005,
    "batch_size": 256,
    "utd_ratio": 1,
    "gamma": 0.99,
    "hidden": [256, 256],
    "num_critics": 2,
}


@pytest.mark.parametrize(
    ("algorithm", "table"),
    [
        ("td3", {"critic_lr": 1e-3, "actor_lr": 1e-3, "exploration_noise": 0.1}),
        ("sac", {"critic_lr": 3e-4, "actor_lr": 3e-4, "target_entropy": "auto"}),
    ],
)
def test_defaults_match_the_table_of_the_paper(algorithm, table):
    cfg = OmegaConf.to_container(defaults(algorithm), resolve=True)
    expected = COMMON | table
    assert {key: cfg[key] for key in expected} == expected
    assert cfg["replay"]["buffer_size"] == 1_000_000
    assert cfg["replay"]["kind"] == "uniform"


def test_td3_updates_its_actor_every_second_step():
    assert defaults("td3").policy_delay == 2


def test_default_evaluations_and_logger():
    cfg = defaults("td3")
    assert (cfg.eval_interval, cfg.num_eval_episodes) == (5000, 10)
    assert cfg.logger.kind == "csv"


@pytest.mark.parametrize("replay", ["per", "per_rank"])
def test_prioritized_replay_has_the_default_buffer_size(replay):
    assert defaults("sac", f"replay={replay}").replay.buffer_size == 1_000_000


def test_automatic_target_entropy_is_minus_the_number_of_actions():
    # `auto` is TorchRL's name for -dim(A), the value of the paper. HalfCheetah has six actions.
    from torchrl_vmfer import VMFSACLoss
    from torchrl_vmfer.networks import NetworkSpec
    from vmfer_recipes.agent.networks import gaussian_actor, make_critics
    from vmfer_recipes.config.groups import EnvConfig
    from vmfer_recipes.environments.make import make_environment

    env = make_environment(EnvConfig("HalfCheetah-v4"), 0)
    loss = VMFSACLoss(
        gaussian_actor(env, NetworkSpec(hidden=[8])),
        make_critics(env, NetworkSpec(hidden=[8]), 2),
        action_spec=env.action_spec,
        target_entropy=defaults("sac").target_entropy,
    )
    assert float(loss.target_entropy) == -6
