"""Plots docs/images/data_flow.svg: one training step of the recipes.

python docs/figures/data_flow.py
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"  # safe for color-blind readers
mpl.rcParams["svg.hashsalt"] = "data_flow"  # the same bytes every time

# Position of the center, and text.
BOXES = {
    "environment": (0.9, 2, "environment"),
    "collector": (2.7, 2, "collector"),
    "buffer": (5.1, 2, "ActorCriticReplayBuffer\none storage, two samplers"),
    "critics": (8.6, 3.2, "critic update\nvalue_loss(batch)"),
    "actor": (8.6, 0.8, "actor update\nactor_loss(batch)"),
}
# From, to, text, its position, color, and curvature.
ARROWS = [
    ("environment", "collector", "", (0, 0), GREY, 0),
    ("collector", "buffer", "", (0, 0), GREY, 0),
    ("buffer", "critics", "sample()\nuniform or prioritized", (6.4, 3.1), GREY, 0),
    ("buffer", "actor", "sample_actor()\nmore often where critics agree", (8.0, 1.85), BLUE, -0.15),
    ("actor", "buffer", "update_actor_priority(batch, vmf_factor)", (5.2, 0.5), ORANGE, -0.35),
]

figure = Figure(figsize=(9, 3.4), layout="constrained")
axis = figure.subplots()
boxes = {}
for name, (x, y, text) in BOXES.items():
    lines = text.split("\n")
    width, height = 0.085 * max(map(len, lines)) + 0.3, 0.35 * len(lines) + 0.25
    boxes[name] = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0.05",
        facecolor="white",
        edgecolor=GREY,
    )
    axis.add_patch(boxes[name])
    axis.text(x, y, text, ha="center", va="center", fontsize=9)
for start, end, text, place, color, curve in ARROWS:
    axis.annotate(
        "",
        BOXES[end][:2],
        BOXES[start][:2],
        arrowprops={
            "arrowstyle": "-|>",
            "color": color,
            "patchA": boxes[start],
            "patchB": boxes[end],
            "connectionstyle": f"arc3,rad={curve}",
        },
    )
    axis.text(*place, text, color=color, ha="center", va="center", fontsize=8)
axis.set(xlim=(0, 10), ylim=(0, 4))
axis.axis("off")
path = Path(__file__).parents[1] / "images" / "data_flow.svg"
figure.savefig(path, metadata={"Date": None})
print(path.name)
