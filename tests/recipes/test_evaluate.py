"""evaluate.py plays the saved policy of a run and trusts no file."""

from __future__ import annotations

import shutil

import pytest
import torch
from omegaconf import OmegaConf

from vmfer_recipes import evaluate

SHORT = ("total_frames=70", "num_eval_episodes=3", "eval_interval=1000", "seed=3")


@pytest.fixture(scope="module", params=["td3", "sac"])
def run_dir(request, train, tmp_path_factory):
    return train(request.param, tmp_path_factory.mktemp(request.param) / "run", *SHORT)


@pytest.fixture(scope="module")
def td3_run(train, tmp_path_factory):
    return train("td3", tmp_path_factory.mktemp("finished") / "run", *SHORT)


@pytest.fixture
def copy(td3_run, tmp_path):
    return shutil.copytree(td3_run, tmp_path / "run")


@pytest.fixture
def play(execute, capsys):
    """``play(*arguments)``: what the program prints."""

    def start(*arguments):
        execute(evaluate.main, *map(str, arguments))
        return capsys.readouterr().out

    return start


def test_the_same_seeds_reproduce_the_last_evaluation_of_the_run(run_dir, play, table):
    last = {key: float(value or 0) for key, value in table(run_dir / "eval.csv")[-1].items()}
    expected = (
        f"Return {last['return_mean']:.1f} ± {last['return_std']:.1f} over 3 episodes of "
        f"{last['episode_length']:.0f} steps on average."
    )
    first, second = play(run_dir, "episodes=3", "seed=1000003").splitlines()
    assert first == f"Evaluating {run_dir / 'policy.pt'}, step 70, on InvertedPendulum-v4."
    assert second == expected


def test_a_configuration_does_not_read_environment_variables(error_of, copy, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    config = OmegaConf.load(copy / "config.yaml")
    config.env.name = "${oc.env:TOKEN}"
    OmegaConf.save(config, copy / "config.yaml")
    assert "secret" not in error_of(evaluate.main, copy)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_an_unfinished_run_is_evaluated_at_its_last_checkpoint(
    algorithm, crashed_run, straight_run, play, tmp_path
):
    run_dir = shutil.copytree(crashed_run(algorithm), tmp_path / "run")
    assert not (run_dir / "policy.pt").exists()
    newest = sorted((run_dir / "checkpoint").glob("step_*.pt"))[-1]
    assert f"Evaluating {newest}, step 120, on ShortCheetah-v0." in play(run_dir, "episodes=1")
    newest.write_bytes(newest.read_bytes()[:-100])
    assert ", step 80, on" in play(run_dir, "episodes=1")


def test_the_best_policy_is_evaluated_on_request(copy, play, error_of):
    (copy / "policy_best.pt").unlink()
    assert "policy_best.pt" in error_of(evaluate.main, copy, "policy=best")
    best = torch.load(copy / "policy.pt", weights_only=True) | {"step": 40}
    torch.save(best, copy / "policy_best.pt")
    assert "policy_best.pt, step 40," in play(copy, "policy=best", "episodes=1")
    assert "policy.pt, step 70," in play(copy, "episodes=1")


def rename_task(run_dir):
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("InvertedPendulum-v4", "Hopper-v4"))


def truncate_policy(run_dir):
    (run_dir / "policy.pt").write_bytes((run_dir / "policy.pt").read_bytes()[:1500])


def remove_policies(run_dir):
    (run_dir / "policy.pt").unlink()
    shutil.rmtree(run_dir / "checkpoint")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "has no config.yaml: give the directory of a run"),
        (lambda run_dir: (run_dir / "config.yaml").write_text("env: ["), "config.yaml is not"),
        (rename_task, "observations of size 4"),
        (truncate_policy, "policy.pt cannot be read"),
        (remove_policies, "policy.pt"),
    ],
)
def test_a_damaged_run_is_rejected(error_of, copy, damage, message):
    damage(copy)
    assert message in error_of(evaluate.main, copy)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("vidoe=true", "There is no key vidoe. Did you mean: video?"),
        ("episodes=0", "episodes must be a whole number from 1 to"),
        ("video", "write video=true"),
    ],
)
def test_a_bad_option_is_rejected(error_of, td3_run, option, message):
    assert message in error_of(evaluate.main, td3_run, option)


def test_a_video_is_playable_or_the_missing_backend_is_named(copy, monkeypatch, run_program):
    # Set and deleted, so that the recipe's choice is undone afterwards.
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("MUJOCO_GL")
    code, output, error = run_program(evaluate.main, copy, "episodes=1", "video=true")
    if code:
        assert code == 2
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert "apt-get install" in error
        assert not (copy / "video.mp4").exists()
    else:
        imageio = pytest.importorskip("imageio.v3")
        assert str(copy / "video.mp4") in output
        frames = imageio.imread(copy / "video.mp4", plugin="pyav")
        assert len(frames) > 1
        assert frames.std() > 0
