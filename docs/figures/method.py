"""Plots docs/images/method.svg: what the critics' directions mean for sampling.

python docs/figures/method.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torchrl.data import LazyTensorStorage, ReplayBuffer

from torchrl_vmfer import VMFSampler, VMFUncertainty

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"  # safe for color-blind readers
mpl.rcParams["svg.hashsalt"] = "method"  # the same bytes every time


def draw_directions(axis: Axes, angles: list[float], title: str) -> None:
    """Draws the critics' directions and their mean, with the factor."""
    directions = np.array([[np.cos(angle), np.sin(angle)] for angle in np.radians(angles)])
    vmf = VMFUncertainty.from_gradients(torch.tensor(directions)[:, None], used="first")["vmf"]
    axis.add_patch(mpl.patches.Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.8))
    for x, y in directions:
        axis.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.5})
    arrow = {"arrowstyle": "->", "color": "black", "lw": 3}
    axis.annotate("", directions.mean(0), (0, 0), arrowprops=arrow)
    length, factor = vmf["resultant_length"].item(), vmf["factor"].item()
    axis.set_title(f"{title}\nagreement R = {length:.2f}\nfactor p = {factor:.2f}", fontsize=9)
    axis.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    axis.axis("off")


def draw_probabilities(axis: Axes) -> None:
    """Draws the sampling probabilities of 1,000 transitions in both modes."""
    angles = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors = torch.exp((1 + torch.cos(angles * torch.pi)) / 2).sort().values
    for mode, color in (("uncertainty", BLUE), ("rank", ORANGE)):
        buffer = ReplayBuffer(storage=LazyTensorStorage(1000), sampler=VMFSampler(mode))
        buffer.update_priority(buffer.extend(factors), factors)
        axis.plot(factors, 1000 * buffer.sampler.probabilities(), color=color, label=mode)
    axis.axhline(1, color=GREY, linestyle="--", linewidth=1, label="uniform")
    axis.set(yscale="log", xlabel="factor p", ylabel="drawn, relative to uniform")
    axis.set_title("Sampling of the actor's batch", fontsize=9)
    axis.set_yticks([0.1, 1, 10, 100], ["0.1 ×", "1 ×", "10 ×", "100 ×"])
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


figure = Figure(figsize=(9, 2.9), layout="constrained")
agree, disagree, sampling = figure.subplots(1, 3, width_ratios=[1, 1, 1.5])
draw_directions(agree, [40, 70], "Critics agree")
draw_directions(disagree, [0, 140], "Critics disagree")
draw_probabilities(sampling)
path = Path(__file__).parents[1] / "images" / "method.svg"
figure.savefig(path, metadata={"Date": None})
print(path.name)
