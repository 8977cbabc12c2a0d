"""The paper's toy experiments: the simple example, and three ways of resampling in Shooting.

python recipes/shooting.py seeds=20 updates=500 run_dir=runs/shooting
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from vmfer_recipes.config.errors import UserError, first_line
from vmfer_recipes.config.launch import recipe
from vmfer_recipes.toy.settings import ShootingConfig


@recipe("shooting", ShootingConfig)
def main(cfg: ShootingConfig) -> None:
    """Trains all seeds, and writes tables and pictures."""
    # Imported here to keep --help and error messages fast.
    import torch

    from vmfer_recipes.toy.record import compare, verdict

    torch.set_num_threads(cfg.threads)
    run_dir = _make_directory(cfg)
    record = compare(cfg)
    paths = record.write(run_dir, cfg.log_interval)
    try:
        from vmfer_recipes.toy.drawing import draw
    except ImportError:
        print("No pictures: they need matplotlib (`pip install matplotlib`).")
    else:
        paths += draw(record, cfg, run_dir)
    for (way, measure), ends in record.differences().items():
        print(verdict(way, measure, ends))
    print(f"(mean over {cfg.seeds} seeds, 95 % bootstrap interval of the paired difference)")
    for path in paths:
        print(path)


def _make_directory(cfg: ShootingConfig) -> Path:
    run_dir = Path(cfg.run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(cfg.as_dict()))
    except OSError as error:
        raise UserError(f"run_dir={run_dir} cannot be written to ({first_line(error)}).") from error
    return run_dir


if __name__ == "__main__":
    main()
