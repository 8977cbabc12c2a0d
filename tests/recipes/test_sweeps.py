"""Sweeps: each run has its own directory, and errors are reported before the first run starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from vmfer_recipes.config._hydra import sweep_composer
from vmfer_recipes.config.algorithms import TD3Config
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.launch import Recipe
from vmfer_recipes.config.names import CONFIGS
from vmfer_recipes.config.plugins import register_choice
from vmfer_recipes.run.progress import start_message
from vmfer_recipes.shooting import ShootingConfig
from vmfer_recipes.sweep.records import read_records
from vmfer_recipes.sweep.sweeps import sweep_position

DEFAULT = "runs/td3/HalfCheetah-v4/uniform-vmf_uncertainty"


def do_nothing(cfg):
    pass


@pytest.fixture
def sweep(tmp_path, monkeypatch, execute):
    """``sweep(*arguments)``: returns the directories of a sweep whose runs only call ``act``."""
    monkeypatch.chdir(tmp_path)
    started = []

    def run(cfg, act):
        assert sweep_position()[0] == len(started) + 1
        started.append(cfg.run_dir)
        act(cfg)

    def start(*arguments: str, name: str = "td3", config=TD3Config, act=do_nothing) -> list[str]:
        started.clear()
        execute(Recipe(name, config, partial(run, act=act), name), "-m", *arguments)
        return [*started]

    return start


@pytest.fixture
def error_line(sweep, tmp_path, error_of):
    """``error_line(*arguments)``: returns the error message of a sweep that must not start."""

    def start(*arguments: str) -> str:
        before = {*tmp_path.rglob("*")}
        line = error_of(Recipe("td3", TD3Config, do_nothing, "td3"), "-m", *arguments)
        assert {*tmp_path.rglob("*")} == before
        return line

    return start


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["seed=0,1"], ["seed0", "seed1"]),
        (["batch_size=64,128"], ["batch_size_64/seed0", "batch_size_128/seed0"]),
        (
            ["tau=0.1", "seed=1,2", "batch_size=range(64,66)"],
            [f"batch_size_{size}/seed{seed}" for seed in (1, 2) for size in (64, 65)],
        ),
        (
            ["tau=0.1,0.2", "gamma=choice(0.9)"],
            ["gamma_0.9/tau_0.1/seed0", "gamma_0.9/tau_0.2/seed0"],
        ),
        (["hidden=[8,8],[16]"], ["hidden_8-8/seed0", "hidden_16/seed0"]),
        (["compile=false", "fast=true,false"], ["fast_true/seed0", "fast_false/seed0"]),
        (
            ["collector=glob(*,exclude=ray)"],
            ["collector_processes/seed0", "collector_single/seed0"],
        ),
        (
            ["sampler.mode=rank,uncertainty"],
            ["sampler.mode_rank/seed0", "sampler.mode_uncertainty/seed0"],
        ),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)
def test_swept_keys_become_part_of_the_directory(sweep, arguments, expected):
    assert sweep(*arguments) == [f"{DEFAULT}/{end}" for end in expected]


def test_the_directory_of_a_run_depends_only_on_its_own_values(sweep):
    few = sweep("batch_size=64,128", "tau=choice(0.1)")
    many = sweep("tau=0.1,0.2", "batch_size=64,128")
    assert len({*many}) == 4
    assert {*few} < {*many}
    assert sweep("critic_lr=choice(1e-3)") == sweep("critic_lr=choice(0.001)")


def test_experiments_keep_their_directories(sweep):
    # The lists of values of an experiment count as well.
    assert sweep("+experiment=hopper", "batch_size=8,9", "sampler=uniform", "seed=range(1,2)") == [
        f"runs/hopper/100000_steps/td3/Hopper-v4/uniform-uniform/batch_size_{size}/seed1"
        for size in (8, 9)
    ]


def test_a_recipe_without_a_seed_in_its_directory(sweep):
    started = sweep("updates=5,6", name="shooting", config=ShootingConfig)
    assert started == ["runs/shooting/updates_5", "runs/shooting/updates_6"]


def test_all_runs_are_recorded_before_the_first_starts(sweep, tmp_path):
    recorded = []

    def act(cfg):
        recorded.append({run.run_dir for run in read_records(tmp_path)[0]})
        assert start_message(cfg, 0).startswith(f"Run {len(recorded)} of 2: td3 on HalfCheetah-v4")

    sweep("tau=0.1,0.2", "run_dir=out/${tau}", act=act)
    assert recorded == [{tmp_path / "out/0.1", tmp_path / "out/0.2"}] * 2
    assert sweep_position() is None


def test_a_failed_run_does_not_end_a_sweep_of_several_batches(sweep, capsys):
    started = []

    def act(cfg):
        started.append(cfg.seed)
        if cfg.seed == 1:
            raise UserError("no luck")

    with pytest.raises(SystemExit) as exit_:
        sweep("seed=0,1,2,3", "hydra.sweeper.max_batch_size=2", act=act)
    assert exit_.value.code == 2
    assert started == [0, 1, 2, 3]
    assert "(no luck). The other runs have ended" in capsys.readouterr().err


def test_two_runs_with_the_same_directory_are_rejected(error_line, sweep):
    line = error_line("batch_size=8,9", "seed=1", "run_dir=runs/x")
    assert line == (
        "error: Two runs of this sweep have run_dir=runs/x: batch_size=8 and batch_size=9. Give "
        "each value once, and put ${batch_size} into run_dir=, or leave run_dir out."
    )
    assert sweep("batch_size=8,9", "run_dir=runs/x/${batch_size}") == ["runs/x/8", "runs/x/9"]
    line = error_line("sampler=uniform,fresh", "run_dir=runs/${tau}")
    assert "put ${sampler.name} into run_dir=" in line
    assert "Give each value once" in error_line("seed=0,0")


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=3", "sampler=vmf_rank", "sampler.power=2", "replay=her"],
        ["+experiment=hopper", "seed=1", "env=Hopper-v4", "run_dir='runs/a b'"],
        ["sampler=torchrl.data.RandomSampler", "++sampler.kwargs={a: 1}", "hidden=[8,9]"],
        ["env.name=Hopper-v4", "++env.kwargs.gain=2", "hydra.job.name=x"],
    ],
)
def test_a_run_of_a_sweep_is_composed_as_by_hydra(overrides):
    register_choice("sampler", "torchrl.data.RandomSampler")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = compose("td3", [], return_hydra_config=True)
        composer = sweep_composer(loader, master)
        composer([*overrides, "batch_size=999"])  # leaves no trace
        expected = loader.load_sweep_config(master, list(overrides))
        composed = composer(overrides)
    with open_dict(expected):
        del expected["hydra"]
    contents = [OmegaConf.to_container(each, resolve=False) for each in (composed, expected)]
    assert contents[0] == contents[1]
    assert OmegaConf.to_object(composed) == OmegaConf.to_object(expected)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["seed=0,1,-1"], ["seed must be a whole number", "got -1"]),
        (["num_critics=2,1"], ["needs several critics", "this one is num_critics=1"]),
        (["env.name=Hopper-v4,Hoper-v4"], ["no environment 'Hoper-v4'", "Hopper-v4"]),
        (["sampler=uniform,vmfrank"], ["no sampler=vmfrank"]),
        (["replay=uniform,her", "env=Hopper-v4"], ["goal", "this one is replay=her"]),
        (["tau=interval(0.1,0.2)"], ["tau=interval(0.1,0.2)", "recipes/tune.py"]),
        (["seed=range(0,0)"], ["no runs"]),
        (["seed=0,1", "hydra.sweeper.max_batch_size=-1"], ["max_batch_size must be at least 1"]),
        (["+experiment=overhead,hopper"], ["start one experiment at a time."]),
        *(
            ([f"{group}=nowhere_at_all.Typo", "seed=0,1"], ["nowhere_at_all", "No run was started"])
            for group in ("sampler", "replay", "logger")
        ),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)
def test_an_error_in_any_value_is_reported_before_the_first_run(error_line, arguments, messages):
    line = error_line(*arguments)
    assert all(message in line for message in messages), line


def test_another_run_in_a_directory_is_reported_before_the_first_run(error_line, train, tmp_path):
    train("td3", tmp_path / "runs/2", "total_frames=70")
    line = error_line("run_dir=runs/${seed}", "seed=1,2", "env=InvertedPendulum-v4")
    assert f"{Path('runs/2')} holds a run of another configuration" in line
    assert line.endswith("No run was started; this one is seed=2.")
