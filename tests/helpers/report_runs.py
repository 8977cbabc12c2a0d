"""Run directories for tests of the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vmfer_recipes.report import inference
from vmfer_recipes.report.methods import Baseline
from vmfer_recipes.report.runs import read_runs
from vmfer_recipes.report.study import Study, make_study


class ReportRuns:
    """A folder of runs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
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
        """Writes a run directory whose curve rises in a straight line to ``end`` at its last step.

        It may have stopped at step ``stop``. ``settings`` are further keys, which may be dotted.
        """
        extra = "".join(f"-{key}{value}" for key, value in settings.items())
        method = f"{replay}-{sampler}{extra}-{total}-{interval}"
        run_dir = self.root / algorithm / env / method / f"seed{seed}"
        run_dir.mkdir(parents=True)
        config = {
            "seed": seed,
            "total_frames": total,
            "num_critics": 2,
            "utd_ratio": 1,
            "critic_lr": 0.001,
            "algorithm": algorithm,
            "env": {"name": env},
            "replay": {"name": replay},
            "sampler": {"name": sampler},
            "eval_interval": interval,
        }
        composed = OmegaConf.create(config)
        for key, value in settings.items():
            OmegaConf.update(composed, key, value)
        OmegaConf.save(composed, run_dir / "config.yaml")
        rows = ["step,return_mean,return_std,episode_length,success_rate"]
        for step in range(0, (stop or total) + 1, interval):
            rate = "" if success is None else success * step / total
            rows.append(f"{step},{end * step / total},1.0,1000.0,{rate}")
        (run_dir / "eval.csv").write_text("\n".join([*rows, ""]))
        (run_dir / "train.csv").write_text(f"step,steps_per_second\n{stop or total},90.0\n")
        return run_dir

    def write_seeds(self, sampler: str, ends: Iterable[float], **options) -> None:
        """Writes a run for each of these ends, with the seeds 0, 1, 2 and so on."""
        for seed, end in enumerate(ends):
            self.write(sampler, seed, float(end), **options)

    def study(self, baseline: str = "uniform", until: int | None = None) -> Study:
        """The results of all runs, with intervals of few resamples."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inference, "REPETITIONS", 50)
            study = make_study(*read_runs(self.root, until), Baseline(baseline))
            for cell in study.cells:
                _ = cell.curves  # computed on demand
            return study
