"""evaluate.py plays the saved policy of a run and trusts no file."""

from __future__ import annotations

import csv
import shutil
import sys

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
def play(monkeypatch, capsys):
    def start(*arguments):
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, arguments)])
        evaluate.main()
        return capsys.readouterr().out

    return start


@pytest.fixture
def error_line(monkeypatch, capsys):
    def start(*arguments):
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            evaluate.main()
        lines = capsys.readouterr().err.splitlines()
        assert exit_.value.code == 2
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return start


def test_the_same_seeds_reproduce_the_last_evaluation_of_the_run(run_dir, play):
    with (run_dir / "eval.csv").open() as file:
        last = {key: float(value or 0) for key, value in list(csv.DictReader(file))[-1].items()}
    expected = (
        f"Return {last['return_mean']:.1f} ± {last['return_std']:.1f} over 3 episodes of "
        f"{last['episode_length']:.0f} steps on average."
    )
    first, second = play(run_dir, "episodes=3", "seed=1000003").splitlines()
    assert first == f"Evaluating {run_dir / 'policy.pt'}, step 70, on InvertedPendulum-v4."
    assert second == expected


def test_a_directory_that_holds_no_run_is_rejected(error_line, tmp_path):
    line = error_line(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in line
    assert "config.yaml" in line


def test_a_configuration_does_not_read_environment_variables(error_line, copy, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    config = OmegaConf.load(copy / "config.yaml")
    config.env.name = "${oc.env:TOKEN}"
    OmegaConf.save(config, copy / "config.yaml")
    assert "secret" not in error_line(copy)


def test_a_run_without_policy_and_checkpoint_is_rejected(error_line, copy):
    (copy / "policy.pt").unlink()
    shutil.rmtree(copy / "checkpoint")
    assert "policy.pt" in error_line(copy)


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


def test_the_best_policy_is_evaluated_on_request(copy, play, error_line):
    (copy / "policy_best.pt").unlink()
    assert "policy_best.pt" in error_line(copy, "policy=best")
    best = torch.load(copy / "policy.pt", weights_only=True) | {"step": 40}
    torch.save(best, copy / "policy_best.pt")
    assert "policy_best.pt, step 40," in play(copy, "policy=best", "episodes=1")
    assert "policy.pt, step 70," in play(copy, "episodes=1")


def test_a_policy_of_another_environment_is_rejected(error_line, copy):
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("InvertedPendulum-v4", "Hopper-v4"))
    assert "observations of size 4" in error_line(copy)


@pytest.mark.parametrize("keep", [0, 100, 1500], ids=["empty", "start", "truncated"])
def test_a_corrupt_policy_is_rejected(error_line, copy, keep):
    content = (copy / "policy.pt").read_bytes()
    assert len(content) > keep
    (copy / "policy.pt").write_bytes(content[:keep])
    assert str(copy / "policy.pt") in error_line(copy)


@pytest.mark.parametrize("content", ["", "env: [", "algorithm: ppo\nenv: {name: Hopper-v4}"])
def test_a_corrupt_config_is_rejected(error_line, copy, content):
    (copy / "config.yaml").write_text(content)
    assert str(copy / "config.yaml") in error_line(copy)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("vidoe=true", ["vidoe", "video"]),
        ("episodes=0", ["episodes", "0"]),
        ("episodes=ten", ["episodes", "ten"]),
        ("seed=first", ["seed", "first"]),
        ("seed=-1", ["seed", "-1"]),
        ("video=perhaps", ["video", "perhaps"]),
        ("video", ["video"]),
    ],
)
def test_a_bad_option_is_rejected(error_line, td3_run, option, named):
    line = error_line(td3_run, option)
    assert [name for name in named if name not in line] == []


def test_a_video_is_playable_or_the_missing_backend_is_named(copy, monkeypatch, capsys):
    # Set and deleted, so that the recipe's choice is undone afterwards.
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(copy), "episodes=1", "video=true"])
    code = 0
    try:
        evaluate.main()
    except SystemExit as exit_:
        code = exit_.code
    output, error = capsys.readouterr()
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
