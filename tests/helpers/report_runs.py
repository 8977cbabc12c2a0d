"""Run directories for tests of the report."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf


def write_report_run(
    root: Path,
    sampler="uniform",
    seed=0,
    end=100.0,
    *,
    algorithm="td3",
    env="Hopper-v4",
    replay="uniform",
    total=1000,
    interval=100,
    stop=None,
    success=None,
    **settings,
) -> Path:
    """Writes a run directory whose curve rises in a straight line to ``end`` at step ``total``.

    It may have stopped at step ``stop``. ``settings`` are further keys, which may be dotted.
    """
    extra = "".join(f"-{key}{value}" for key, value in settings.items())
    method = f"{replay}-{sampler}{extra}-{total}-{interval}"
    run_dir = root / algorithm / env / method / f"seed{seed}"
    run_dir.mkdir(parents=True)
    config = {
        "seed": seed,
        "total_frames": total,
        "num_critics": 2,
        "utd_ratio": 1,
        "critic_lr": 0.001,
        "algorithm": algorithm,
        "env": {"name": env},
        "replay": {"name": replay, "kind": replay},
        "sampler": {"name": sampler, "kind": "shared" if sampler == "uniform" else sampler},
        "eval_interval": interval,
    }
    composed = OmegaConf.create(config)
    for key, value in settings.items():
        OmegaConf.update(composed, key, value)
    OmegaConf.save(composed, run_dir / "config.yaml")
    with (run_dir / "eval.csv").open("w") as file:
        file.write("step,return_mean,return_std,episode_length,success_rate\n")
        for step in range(0, (stop or total) + 1, interval):
            rate = "" if success is None else success * step / total
            file.write(f"{step},{end * step / total},1.0,1000.0,{rate}\n")
    (run_dir / "train.csv").write_text(f"step,steps_per_second\n{stop or total},90.0\n")
    if stop is None:
        (run_dir / "finished").touch()
    return run_dir
