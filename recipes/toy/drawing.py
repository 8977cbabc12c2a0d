"""The pictures of the toy experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, ORANGE, SKY, VERMILION
from vmfer_recipes.toy.agents import OPTIMAL_ACTION, FixedCritics, action_grid
from vmfer_recipes.toy.record import ANGLE_EDGES, WAYS, Record, angle, mean_interval

_CRITICS = {"$Q_1$": ORANGE, "$Q_2$": SKY}
_COLORS = dict(zip(WAYS, (GRAY, VERMILION, BLUE), strict=True))
_SHADING: Any = {"cmap": "Greys", "norm": Normalize(0, 180)}
_SCALE: Any = {"ticks": range(0, 181, 45), "label": "angle between gradients (°)"}


def draw(record: Record, example_noise: float, run_dir: Path) -> list[Path]:
    """Draws the four pictures and returns their paths."""
    figures = {
        "simple_example": _example(example_noise, record.seeds[0]),
        "angles": _angles(record),
        "rewards": _rewards(record),
        "trajectories": _trajectories(record),
    }
    for name, figure in figures.items():
        figure.savefig(run_dir / f"{name}.png", dpi=100)
    return [run_dir / f"{name}.png" for name in figures]


def _example(noise: float, seed: int) -> Figure:
    """Surfaces of two fixed critics, their gradients over contours, and the angle between these.

    Each critic draws its noise at each action, like the errors of a critic that still learns.
    """
    actions = action_grid(3.0)
    generator = torch.Generator().manual_seed(seed)
    noisy = FixedCritics(noise * torch.randn(2, *actions.shape, generator=generator))
    values, slopes = noisy.values(actions).numpy(), -noisy.gradients(actions)
    smooth = FixedCritics(torch.zeros(())).values(actions).numpy()
    x, y = actions.numpy().transpose(2, 0, 1)
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.97))  # type: ignore[union-attr, call-arg]
    surfaces: Any = figure.add_subplot(1, 3, 1, projection="3d")
    arrows, plane = figure.add_subplot(1, 3, 2), figure.add_subplot(1, 3, 3)
    image = plane.pcolormesh(x, y, angle(slopes).numpy(), **_SHADING)
    figure.colorbar(image, ax=plane, **_SCALE)

    # A few arrows can be told apart, and those at the edge would point out of the picture.
    some = (slice(3, None, 6), slice(3, None, 6))
    size: Any = {"angles": "xy", "scale_units": "xy", "scale": 16, "width": 0.004}
    for index, (name, color) in enumerate(_CRITICS.items()):
        surfaces.plot_surface(x, y, values[index], color=color, alpha=0.6, rcount=40, ccount=40)
        # Matplotlib's legend does not show surfaces.
        surfaces.plot([], [], [], color=color, linewidth=4, label=name)
        # Contours of the noise would hide the arrows.
        arrows.contour(x, y, smooth[index], levels=8, colors=color, alpha=0.35, linestyles="solid")
        along = slopes[index][some].numpy().transpose(2, 0, 1)
        slope = f"$\\partial Q_{index + 1} / \\partial a$"
        arrows.quiver(x[some], y[some], *along, color=color, label=slope, **size)
        peak = 2 * index - 1
        plane.plot(peak, peak, "o", color=color, markeredgecolor="white", label=f"peak of {name}")
    surfaces.set_title("Two critics that still differ")
    surfaces.view_init(elev=28, azim=-50)
    surfaces.legend(loc="upper left", frameon=False)
    surfaces.set_box_aspect(None, zoom=0.9)
    arrows.set_title("The direction in which each critic moves the action")
    plane.set_title("How much they disagree")
    for axes in (surfaces, arrows, plane):
        axes.set(xlabel="$a_1$", ylabel="$a_2$")
    for axes in (arrows, plane):
        axes.set_aspect("equal")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    return figure


def _angles(record: Record) -> Figure:
    """The distribution of the angles of the transitions used, over all updates and seeds."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for way, fractions in zip(WAYS, 100 * record.angle_fractions, strict=True):
        name = way.capitalize()
        axes.stairs(fractions, ANGLE_EDGES, color=_COLORS[way], linewidth=1.8, label=name)
    axes.set_yscale("log")  # most angles are small, and the ways differ in the others
    axes.set(xticks=range(0, 181, 30), xlim=(0, 180))
    axes.set_xlabel("angle between the gradients of the two critics (°)")
    axes.set_ylabel("fraction of the transitions used (%)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure


def _rewards(record: Record) -> Figure:
    """The reward of the policies over the updates: all of it, and the end enlarged."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    whole, end = figure.subplots(1, 2)
    curves = mean_interval(record.rewards, resamples=2000)  # [end, update, way]
    updates = range(curves.shape[1])
    for axes, start in ((whole, 0), (end, len(updates) // 2)):
        for index, (way, color) in enumerate(_COLORS.items()):
            mean, low, high = curves[:, start:, index]
            axes.plot(updates[start:], mean, color=color, label=way.capitalize())
            axes.fill_between(updates[start:], low, high, color=color, alpha=0.2, linewidth=0)
        axes.set_xlabel("updates of the actor")
        axes.grid(alpha=0.3)
    whole.set_ylabel("reward of the policy's action")
    whole.set_title(f"Mean of {len(record.seeds)} seeds, 95 % bootstrap interval")
    whole.legend(frameon=False, loc="lower right")
    end.set_title("The second half")
    return figure


def _trajectories(record: Record) -> Figure:
    """The path of the action, over the contours of the first seed's critics at that time.

    Critics that differ between the ways have a row for each way.
    """
    columns, rows = len(record.snapshots), len(record.snapshots[0][1])
    figure = Figure(figsize=(3.4 * columns, 3.3 * rows + 1), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    grid = action_grid()
    x, y = grid.numpy().transpose(2, 0, 1)
    everywhere = grid.flatten(0, 1).expand(len(record.seeds), -1, -1)
    actions = torch.stack(record.actions).numpy()  # [update, way, seed, 2]
    outline = [withStroke(linewidth=3.5, foreground="white")]  # visible on a dark background
    star = {"color": GREEN, "markersize": 15, "markeredgecolor": "black"}
    for column, (update, critics) in zip(panels.T, record.snapshots, strict=True):
        for index, (axes, critic) in enumerate(zip(column, critics, strict=True)):
            angles = angle(critic.gradients(everywhere)[:, 0]).view(x.shape)
            shaded = axes.pcolormesh(x, y, angles.numpy(), **_SHADING)
            values = critic.values(everywhere)[:, 0].detach().view(2, *x.shape).numpy()
            for each, color in zip(values, _CRITICS.values(), strict=True):
                axes.contour(x, y, each, levels=8, colors=color, linewidths=0.8, linestyles="solid")
            axes.set(aspect="equal", title=f"after {update} updates", xlabel="$a_1$")
            axes.plot(*OPTIMAL_ACTION, "*", label="best action $a^*$", **star)
            for way in WAYS if rows == 1 else WAYS[index : index + 1]:
                path, color = actions[: update + 1, WAYS.index(way), 0], _COLORS[way]
                name = way.capitalize()
                axes.plot(*path.T, linewidth=2, color=color, label=name, path_effects=outline)
                axes.plot(*path[-1], "o", color=color, markeredgecolor="white")
    for axes in panels[:, 0]:
        axes.set_ylabel("$a_2$")
    for name, color in _CRITICS.items():
        panels[-1, 0].plot([], [], color=color, label=f"contours of {name}")
    figure.colorbar(shaded, ax=panels, **_SCALE, pad=0.01, shrink=0.8)
    lines = [line for axes in panels[:, 0] for line in axes.get_legend_handles_labels()[0]]
    entries = {line.get_label(): line for line in lines}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=6)
    return figure
