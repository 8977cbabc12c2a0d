"""The learning curve, plotted at the end of a run from the files of its directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from vmfer_recipes.config.errors import first_line
from vmfer_recipes.config.names import run_title
from vmfer_recipes.config.saved import read_config
from vmfer_recipes.run.evaluation import solved_at
from vmfer_recipes.run.tables import read_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which color-blind readers can tell apart, for all pictures.
ORANGE = "#e69f00"
SKY = "#56b4e9"
GREEN = "#009e73"
BLUE = "#0072b2"
VERMILION = "#d55e00"
PINK = "#cc79a7"
GRAY = "#4d4d4d"  # in place of their black, which hides what lies below

Columns = dict[str, np.ndarray]

# Columns of train.csv that have quantiles, and their labels.
_QUANTILES = {"resultant_length": "agreement R", "factor": "factor p"}
# Below this fraction, the effective sample size needs a logarithmic axis.
_SMALL_FRACTION = 0.1
# Columns of train.csv in the two panels of diagnostics: their labels, colors and markers.
_SAMPLING = {
    "effective_fraction": ("effective sample size / stored transitions", BLUE, "."),
    "unscored_fraction": ("unscored transitions", ORANGE, "x"),
}
_GRADIENT = {
    "gradient_snr": ("signal-to-noise ratio of the actor's gradient", SKY, "."),
    "gradient_cosine": ("cosine with the gradient of a uniform batch", GREEN, "x"),
    "saturated_fraction": ("saturated actions of the policy", PINK, "+"),
}


def draw_learning_curve(run_dir: Path) -> Path | None:
    """Plots ``learning_curve.png`` from the run's tables. Returns ``None`` if matplotlib fails."""
    try:
        return _draw(run_dir)
    except ImportError:
        print("No learning curve was plotted: it requires matplotlib (`pip install matplotlib`).")
    except OSError:  # a full disk, for example
        raise
    except Exception as error:  # the run is complete without it
        print(f"No learning curve was plotted: {type(error).__name__}: {first_line(error)}")
    return None


def _draw(run_dir: Path) -> Path:
    from matplotlib.figure import Figure

    cfg = OmegaConf.create(read_config(run_dir / "config.yaml"))
    evaluations, at_random, training = (
        read_columns(run_dir / name) if (run_dir / name).exists() else {}
        for name in ("eval.csv", "random.csv", "train.csv")
    )
    if {"effective_sample_size", "stored_transitions"} <= training.keys():
        fraction = training["effective_sample_size"] / training["stored_transitions"]
        training["effective_fraction"] = fraction
    has_success = not np.isnan(evaluations["success_rate"]).all()
    levels = {"random policy": at_random, "solved": solved_at(cfg, has_success)}
    panels: list[Callable[[Axes], None]] = [partial(_draw_returns, evaluations, levels)]
    if has_success:
        panels.append(partial(_draw_success, evaluations, levels))
    if _are_signs(training, cfg.num_critics):
        panels.append(partial(_draw_mean_agreement, training, cfg.num_critics))
    else:
        names = [name for name in _QUANTILES if f"{name}_q50" in training]
        panels += [partial(_draw_quantiles, training, name) for name in names]
    diagnosed = [names for names in (_SAMPLING, _GRADIENT) if not training.keys().isdisjoint(names)]
    panels += [partial(_draw_diagnostics, training, names) for names in diagnosed]
    heights = [1.8] + [1] * (len(panels) - 1)
    figure = Figure(figsize=(8, 1.8 * sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    named: dict[str, Any] = {}
    for axis, draw in zip(axes, panels, strict=True):
        draw(axis)
        if (end := cfg.init_random_frames) > 0:
            axis.axvspan(0, end, color=GRAY, alpha=0.12, lw=0, label="random actions")
        axis.grid(alpha=0.3)
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    axes[0].set_title(f"{run_title(cfg)}, seed {cfg.seed}", parse_math=False)
    axes[-1].set_xlabel("environment steps")
    figure.align_ylabels(axes)
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=2, frameon=False)
    path = run_dir / "learning_curve.png"
    figure.savefig(path, dpi=110)
    return path


def _draw_returns(evaluations: Columns, levels: dict[str, Any], axis: Axes) -> None:
    steps, mean, spread = (evaluations[key] for key in ("step", "return_mean", "return_std"))
    axis.plot(steps, mean, "o-", color=BLUE, markersize=4, label="evaluation: mean over episodes")
    label = "± standard deviation over episodes"
    band = mean - spread, mean + spread
    axis.fill_between(steps, *band, color=BLUE, alpha=0.2, linewidth=0, label=label)
    _draw_levels(axis, "return_mean", levels)
    axis.set_ylabel("evaluation return")


def _draw_success(evaluations: Columns, levels: dict[str, Any], axis: Axes) -> None:
    axis.plot(evaluations["step"], evaluations["success_rate"], "o-", color=BLUE, markersize=4)
    _draw_levels(axis, "success_rate", levels)
    axis.set_ylim(-0.05, 1.05)
    axis.set_ylabel("success rate")


def _draw_levels(axis: Axes, name: str, levels: dict[str, Any]) -> None:
    """Draws the result of the random policy and the level at which the task counts as solved."""
    at_random, solved = levels["random policy"].get(name, ()), levels["solved"]
    if len(at_random):
        axis.axhline(float(at_random[-1]), color=GRAY, linestyle="--", label="random policy")
    if solved is not None and solved.is_success_rate == (name == "success_rate"):
        label = f"solved (at {solved.level:g})"
        axis.axhline(solved.level, color=GREEN, linestyle="-.", label=label)


def _are_signs(training: Columns, critics: int) -> bool:
    """Whether the directions of the gradients are only signs, as with one-dimensional actions.

    The resultant length of n signs is a multiple of 1/n; that of other directions hardly ever is.
    """
    names = [f"resultant_length_q{percent}" for percent in (10, 50, 90)]
    values = np.concatenate([training.get(name, np.empty(0)) for name in names])
    values = values[np.isfinite(values)] * critics
    return len(values) > 0 and bool(np.allclose(values, np.round(values), atol=1e-4))


def _draw_mean_agreement(training: Columns, critics: int, axis: Axes) -> None:
    """Draws one line, because quantiles of signs are not informative."""
    # Two signs agree (R = 1) or do not (R = 0), so that the mean is a fraction of the batch.
    label = "fraction of the batch with agreement"
    if critics > 2:
        label = "mean of R over the actor's batch"
    _draw_line(axis, training, "resultant_length_mean", f"{label} (1-D actions)")
    axis.set_ylim(-0.05, 1.05)
    axis.set_ylabel("agreement")


def _draw_quantiles(training: Columns, name: str, axis: Axes) -> None:
    _draw_line(axis, training, f"{name}_q50", "median over the actor's batch")
    band = training["step"], training[f"{name}_q10"], training[f"{name}_q90"]
    label = "10 % to 90 % of the actor's batch"
    axis.fill_between(*band, color=ORANGE, alpha=0.3, linewidth=0, label=label)
    axis.set_ylabel(_QUANTILES[name])


def _draw_diagnostics(training: Columns, names: dict[str, Any], axis: Axes) -> None:
    for name in [name for name in names if name in training]:
        _draw_line(axis, training, name, *names[name])
    if names is _GRADIENT:
        axis.set_yscale("symlog", linthresh=1)  # only the ratio has no bounds
        axis.set_ylabel("actor's gradient")
        return
    axis.set_ylabel("fraction of buffer")
    smallest = np.nanmin(training.get("effective_fraction", np.ones(1)), initial=1.0)
    if smallest < _SMALL_FRACTION:
        axis.set_yscale("log")
        axis.set_ylim(10 ** np.floor(np.log10(smallest)), 1.5)
        axis.minorticks_off()
    else:
        axis.set_ylim(-0.05, 1.05)


def _draw_line(
    axis: Axes, training: Columns, name: str, label: str, color: str = VERMILION, marker: str = "."
) -> None:
    known = np.isfinite(training[name])
    points = training["step"][known], training[name][known]
    axis.plot(*points, f"{marker}-", color=color, markersize=3, linewidth=1, label=label)
