"""The examples of extensions run in a directory outside the repository, as for a user."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import brute_force
from helpers.losses import TD3, gradients, make_batch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = (
    *("hidden=[16,16]", "batch_size=32", "replay.buffer_size=5000", "init_random_frames=60"),
    *("total_frames=70", "eval_interval=60", "num_eval_episodes=1", "log_interval=50"),
)


def words_of(command: str) -> list[str]:
    """Splits a command of a docstring, whose directory is that of the example."""
    words = command.removeprefix("python ").split()
    if words[0] == "vmfer-train":
        words[0] = str(Path(sys.executable).parent / words[0])
    return [str(ROOT / word[6:]) if word.startswith("../../") else word for word in words]


@pytest.fixture
def run(tmp_path):
    """``run(command, *overrides)``: runs a command in a copy of the example, in a new process."""

    def run_in_copy(command: str, *overrides: str) -> str:
        result = subprocess.run(
            [sys.executable, *words_of(command), *overrides],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout

    return run_in_copy


def commands(module: Path) -> list[str]:
    """Returns the commands in the docstring of an example."""
    docstring = module.read_text().split('"""')[1]
    return re.findall(r"^    ((?:python|vmfer-train) .+)$", docstring, re.MULTILINE)


def finished(folder: Path) -> list[str]:
    return sorted(str(file.parent.relative_to(folder)) for file in folder.rglob("finished"))


@pytest.mark.slow
def test_custom_samplers_train_for_the_actor_and_for_the_critics(tmp_path, run):
    module = EXAMPLES / "own_sampler" / "recent.py"
    shutil.copy(module, tmp_path)
    _, critics, sweep, _ = commands(module)
    run(sweep.replace("vmf_rank", "recent.AgreementSampler").replace("0,1", "0"), *SMALL)
    run(critics, *SMALL, "sampler=uniform")
    assert finished(tmp_path / "runs" / "td3" / "InvertedPendulum-v4") == [
        "RecentSampler-uniform/seed0",
        "uniform-AgreementSampler/seed0",
        "uniform-RecentSampler/seed0",
    ]


def test_custom_algorithm_trains_resumes_and_is_listed(tmp_path, run):
    module = EXAMPLES / "own_algorithm" / "smooth_td3.py"
    shutil.copy(module, tmp_path)
    script, _, by_name, _ = commands(module)
    run(script, *SMALL)
    run(by_name, *SMALL, "total_frames=80", "sampler=vmf_uncertainty", "action_cost=0.1")
    (run_dir,) = finished(tmp_path / "runs")
    assert run_dir == "smooth_td3/InvertedPendulum-v4/uniform-vmf_uncertainty/seed0"
    evaluations = (tmp_path / "runs" / run_dir / "eval.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in evaluations] == ["0", "60", "80"]
    assert f"{run_dir}  done" in run(f"../../recipes/status.py {tmp_path / 'runs'}")


def test_copied_recipe_does_not_resume_the_run_of_the_original(tmp_path, run):
    shutil.copy(ROOT / "recipes" / "td3.py", tmp_path / "my_td3.py")
    # Answered before the seconds that a run needs to start.
    config = run("my_td3.py env=InvertedPendulum-v4 sampler=uniform --cfg job --resolve")
    assert "run_dir: runs/my_td3/InvertedPendulum-v4/uniform-uniform/seed0\n" in config


def test_loss_of_the_example_adds_the_cost_to_value_and_gradient(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "own_algorithm")
    from smooth_td3 import SmoothTD3Loss

    results = []
    for cost in (0.0, 5.0):
        loss, batch = TD3.build(SmoothTD3Loss, action_cost=cost), make_batch(6)
        value, _ = loss.actor_loss(batch.clone())
        value.backward()
        results.append((value.detach(), gradients(loss)))
    expected = 5 * brute_force.policy_action(loss, batch).square().mean()
    expected.backward()
    torch.testing.assert_close(results[1][0] - results[0][0], expected.detach())
    for name, by_hand in gradients(loss).items():
        added = results[1][1][name] - results[0][1][name]
        torch.testing.assert_close(added, by_hand, rtol=1e-4, atol=1e-6)
