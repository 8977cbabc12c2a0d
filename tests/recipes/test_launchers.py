"""Sweeps in several processes skip finished runs, resume others and report user errors."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from vmfer_recipes.sweep.records import read_records

SHORT = ("total_frames=70", "eval_interval=1000", "hidden=[8,8]", "batch_size=8")
LAUNCHERS = {
    "joblib": "hydra_joblib_launcher",
    "ray": "hydra_ray_launcher",
    "submitit_local": "hydra_submitit_launcher",  # differs from Slurm's launcher only in the queue
}


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=pytest.mark.slow) for name in LAUNCHERS],
)
def test_workers_skip_resume_and_start_runs_despite_a_user_error(
    launcher, command, train, contents, tmp_path
):
    pytest.importorskip(f"hydra_plugins.{LAUNCHERS[launcher]}")
    finished, unfinished, new = (tmp_path / f"runs/seed{seed}" for seed in range(3))
    for seed, run_dir in enumerate((finished, unfinished)):
        train("td3", run_dir, *SHORT, f"seed={seed}")
    (unfinished / "finished").unlink()
    before = contents(finished), contents(unfinished / "checkpoint")
    (tmp_path / "runs/seed3").write_text("a file where a directory should be")

    overrides = (*SHORT, "seed=0,1,3,2", f"hydra/launcher={launcher}")
    single = command("td3", Path("runs/seed${seed}"), *overrides)
    sweep = subprocess.run(
        [*single, "-m"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert sweep.returncode == 2, sweep.stderr
    last = sweep.stderr.splitlines()[-1]
    assert last.startswith("error:"), last
    assert "seed=3" in last
    assert "failed (The run directory runs/seed3 cannot be written" in last
    assert "Traceback" not in sweep.stderr
    assert (contents(finished), contents(unfinished / "checkpoint")) == before
    assert (unfinished / "finished").exists()
    assert (new / "finished").exists()
    planned, complaints = read_records(tmp_path)
    assert {run.run_dir.name for run in planned} == {"seed0", "seed1", "seed2", "seed3"}
    assert not complaints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "count"),
    [pytest.param("0,1,2", 2, id="a run waits"), pytest.param("0,1", 3, id="a worker idles")],
)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_all_workers_of_a_sweep_save(sign, seeds, count, command, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    frames = ("total_frames=1000000", "checkpoint_interval=1000000")
    workers = ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}")
    single = command("td3", Path("runs/${seed}"), *SHORT, *frames, f"seed={seeds}", *workers)
    with subprocess.Popen(
        [*single, "-m"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as sweep:
        while not all((tmp_path / f"runs/{seed}/policy_best.pt").exists() for seed in (0, 1)):
            assert sweep.poll() is None, sweep.stderr.read()
            time.sleep(0.1)
        # A terminal sends SIGINT to all processes; `kill` sends SIGTERM to one.
        (os.killpg if sign == signal.SIGINT else os.kill)(sweep.pid, sign)
        _, error = sweep.communicate(timeout=300)  # waits for all processes that hold stderr
    assert sweep.returncode == 130, error
    assert error.endswith("The sweep was stopped. The same command resumes it.\n")
    assert "Traceback" not in error, error
    assert all(f"Stopped runs/{seed} at step" in error for seed in (0, 1)), error
    assert all(list((tmp_path / f"runs/{seed}/checkpoint").iterdir()) for seed in (0, 1))
    assert not (tmp_path / "runs/2").exists()


SBATCH = """#!/bin/sh
cp "$1" "$(dirname "$0")/submitted.part"
mv "$(dirname "$0")/submitted.part" "$(dirname "$0")/submitted"
echo "Submitted batch job 12"
"""


@pytest.mark.slow
def test_jobs_of_slurm_are_named_after_the_recipe_and_signaled_before_their_time_limit(
    command, tmp_path
):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    for name in ("sbatch", "srun", "squeue", "sacct", "scancel"):
        (tmp_path / name).write_text(SBATCH if name == "sbatch" else "#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    words = command("sac", tmp_path / "${seed}", "hydra/launcher=slurm", "seed=0,1")
    path = f"{tmp_path}:{os.environ['PATH']}"
    with subprocess.Popen(
        [*words, "-m"], cwd=tmp_path, env={**os.environ, "PATH": path}, stderr=subprocess.PIPE
    ) as sweep:
        while not (tmp_path / "submitted").exists():
            assert sweep.poll() is None, sweep.stderr.read()
            time.sleep(0.1)
        sweep.kill()
    lines = (tmp_path / "submitted").read_text().splitlines()
    assert {"#SBATCH --job-name=sac", "#SBATCH --signal=USR2@120"} <= {*lines}
