"""The pictures of the toy experiments."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from vmfer_recipes.run.curve import BLUE, GRAY, GREEN, ORANGE, SKY, VERMILION
from vmfer_recipes.toy.environment import ACTION_BOUND, OPTIMAL_ACTION
from vmfer_recipes.toy.record import Record, Snapshot, mean_interval
from vmfer_recipes.toy.resampling import WAYS
from vmfer_recipes.toy.simple_example import Example, square_grid

__all__ = ["draw_angles", "draw_example", "draw_rewards", "draw_trajectories"]

_CRITICS = (ORANGE, SKY)
_COLORS = {"uniform": GRAY, "uncertainty": VERMILION, "oracle": BLUE}
_DEGREES = Normalize(0, 180)


def draw_example(example: Example, path: Path) -> Path:
    """Surfaces of both critics, their gradients over contours, and the angle between these."""
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.97))  # type: ignore[union-attr, call-arg]
    x, y = (coordinate.numpy() for coordinate in example.actions.unbind(-1))
    surfaces = figure.add_subplot(1, 3, 1, projection="3d")
    for index, (values, color) in enumerate(zip(example.values, _CRITICS, strict=True)):
        surfaces.plot_surface(  # type: ignore[attr-defined]
            x, y, values.numpy(), color=color, alpha=0.6, rcount=40, ccount=40
        )
        # A surface has no legend of its own.
        surfaces.plot([], [], [], color=color, linewidth=4, label=f"$Q_{index + 1}$")
    surfaces.set_title("Two critics that still differ")
    surfaces.view_init(elev=28, azim=-50)  # type: ignore[attr-defined]
    surfaces.legend(loc="upper left", frameon=False)
    surfaces.set_box_aspect(None, zoom=0.9)  # type: ignore[call-arg]

    arrows = figure.add_subplot(1, 3, 2)
    # A few arrows can be told apart, and those at the edge would point out of the picture.
    some = slice(3, None, 6)
    for index, color in enumerate(_CRITICS):
        # Contours of the noise would hide the arrows.
        smooth = example.smooth_values[index].numpy()
        arrows.contour(x, y, smooth, levels=8, colors=color, alpha=0.35, linestyles="solid")
        slope = example.gradients[index, some, some].numpy()
        arrows.quiver(
            x[some, some],
            y[some, some],
            slope[..., 0],
            slope[..., 1],
            color=color,
            angles="xy",
            scale_units="xy",
            scale=16,
            width=0.004,
            label=f"$\\partial Q_{index + 1} / \\partial a$",
        )
    arrows.set_title("The direction in which each critic moves the action")

    plane = figure.add_subplot(1, 3, 3)
    image = plane.pcolormesh(x, y, example.angles.numpy(), cmap="Greys", norm=_DEGREES)
    figure.colorbar(image, ax=plane, ticks=range(0, 181, 45), label="angle between gradients (°)")
    for peak, color, name in zip((-1, 1), _CRITICS, ("$Q_1$", "$Q_2$"), strict=True):
        plane.plot(peak, peak, "o", color=color, markeredgecolor="white", label=f"peak of {name}")
    plane.set_title("How much they disagree")
    for axes in (surfaces, arrows, plane):
        axes.set_xlabel("$a_1$")
        axes.set_ylabel("$a_2$")
    for axes in (arrows, plane):
        axes.set_aspect("equal")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    return _save(figure, path)


def draw_angles(record: Record, path: Path) -> Path:
    """How the angles of the transitions used are spread, over all updates and seeds."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for way, shares in zip(WAYS, record.angle_shares, strict=True):
        axes.stairs(
            100 * shares,
            record.angle_edges,
            color=_COLORS[way],
            linewidth=1.8,
            fill=False,
            label=way.capitalize(),
        )
    axes.set_yscale("log")  # most angles are small, and the ways differ in the others
    axes.set_xticks(range(0, 181, 30))
    axes.set_xlim(0, 180)
    axes.set_xlabel("angle between the gradients of the two critics (°)")
    axes.set_ylabel("fraction of the transitions used (%)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return _save(figure, path)


def draw_rewards(record: Record, path: Path) -> Path:
    """The reward of the policies over the updates: all of it, and the end enlarged."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    rewards = record.rewards
    updates = range(len(rewards))
    whole, end = figure.subplots(1, 2)
    curves = mean_interval(rewards, resamples=2000)
    half = len(rewards) // 2
    for axes, start in ((whole, 0), (end, half)):
        for index, way in enumerate(WAYS):
            shown = slice(start, None)
            axes.plot(
                updates[shown],
                curves.mean[shown, index],
                color=_COLORS[way],
                label=way.capitalize(),
            )
            axes.fill_between(
                updates[shown],
                curves.low[shown, index],
                curves.high[shown, index],
                color=_COLORS[way],
                alpha=0.2,
                linewidth=0,
            )
        axes.set_xlabel("updates of the actor")
        axes.grid(alpha=0.3)
    whole.set_ylabel("reward of the policy's action")
    whole.set_title(f"Mean of {len(record.seeds)} seeds, 95 % bootstrap interval")
    whole.legend(frameon=False, loc="lower right")
    end.set_title("The second half")
    return _save(figure, path)


def draw_trajectories(record: Record, path: Path) -> Path:
    """The path of the action, over the contours of the first seed's critics at that time.

    Critics that differ between the ways have a row for each way.
    """
    rows = len({snapshot.ways for snapshot in record.snapshots})
    columns = len(record.snapshots) // rows
    size = (3.4 * columns, 3.3 * rows + 1)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, snapshot in zip(panels.T.flat, record.snapshots, strict=True):
        _draw_snapshot(axes, snapshot)
        axes.plot(
            *OPTIMAL_ACTION,
            "*",
            color=GREEN,
            markersize=15,
            markeredgecolor="black",
            label="best action $a^*$",
        )
        for way in snapshot.ways:
            trajectory = record.actions[: snapshot.update + 1, WAYS.index(way), 0]
            axes.plot(
                *trajectory.T,
                color=_COLORS[way],
                linewidth=2,
                label=way.capitalize(),
                path_effects=[withStroke(linewidth=3.5, foreground="white")],  # on dark ground too
            )
            axes.plot(*trajectory[-1], "o", color=_COLORS[way], markeredgecolor="white")
        axes.set_title(f"after {snapshot.update} updates")
        axes.set_xlabel("$a_1$")
    for axes in panels[:, 0]:
        axes.set_ylabel("$a_2$")
    for index, color in enumerate(_CRITICS):
        panels[-1, 0].plot([], [], color=color, label=f"contours of $Q_{index + 1}$")
    figure.colorbar(
        panels[0, -1].collections[0],
        ax=panels,
        ticks=range(0, 181, 45),
        label="angle between gradients (°)",
        pad=0.01,
        shrink=0.8,
    )
    entries = {
        label: handle
        for axes in panels[:, 0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=6)
    return _save(figure, path)


def _draw_snapshot(axes: Axes, snapshot: Snapshot) -> None:
    side = snapshot.angles.shape[0]
    x, y = (coordinate.numpy() for coordinate in square_grid(ACTION_BOUND, side).unbind(-1))
    axes.pcolormesh(x, y, snapshot.angles.numpy(), cmap="Greys", norm=_DEGREES)
    for values, color in zip(snapshot.values.numpy(), _CRITICS, strict=True):
        axes.contour(x, y, values, levels=8, colors=color, linewidths=0.8, linestyles="solid")
    axes.set_aspect("equal")


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=100)
    return path
