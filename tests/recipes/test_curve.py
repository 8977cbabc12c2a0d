"""The learning curve shows the contents of the tables of a run."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from omegaconf import OmegaConf

from vmfer_recipes.run.curve import draw_learning_curve

EVALUATION = "step,return_mean,return_std,episode_length,success_rate\n"


@pytest.fixture
def draw(monkeypatch):
    """``draw(run_dir, render=False)``: draws the learning curve of a run and returns the figure.

    Rendering takes most of the time. Tests that depend on the layout need it.
    """
    figures, savefig = [], Figure.savefig

    def run(run_dir, render=False):
        def remember(figure, *args, **kwargs):
            figures.append(figure)
            if render:
                savefig(figure, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", remember)
            assert draw_learning_curve(run_dir) == run_dir / "learning_curve.png"
        if render:
            assert imread(run_dir / "learning_curve.png").std() > 0  # not a blank page
        return figures[-1]

    return run


@pytest.fixture
def write_run(tmp_path):
    """Writes the files of a run by hand, with two critics and known agreement."""

    def write(*, env="Reacher-v4", success=False, lengths=(0.3, 0.5, 0.71), columns=None, **keys):
        config = {"algorithm": "td3", "seed": 3, "num_critics": 2, "init_random_frames": 40}
        config |= {"solved_at": None, "env": {"name": env, "kwargs": {}, "wrappers": []}}
        names = {"sampler": {"name": "vmf_rank"}, "replay": {"name": "her"}}
        OmegaConf.save({**config, **names, **keys}, tmp_path / "config.yaml")
        rates = ("0.0", "0.5", "1.0") if success else ("", "", "")
        rows = [f"{50 * i},{10.0 * i},2.0,50.0,{rate}\n" for i, rate in enumerate(rates)]
        (tmp_path / "eval.csv").write_text(EVALUATION + "".join(rows))
        (tmp_path / "random.csv").write_text(f"{EVALUATION}0,-7.5,2.0,50.0,{rates[0]}\n")
        quantiles = [*lengths, *(math.exp(length**2) for length in lengths)]
        names = [f"{name}_q{p}" for name in ("resultant_length", "factor") for p in (10, 50, 90)]
        training = {"step": (60, 80, 100), "resultant_length_mean": (sum(lengths) / 3,) * 3}
        training |= {name: (value,) * 3 for name, value in zip(names, quantiles, strict=True)}
        training |= columns or {}
        rows = [training, *zip(*training.values(), strict=True)]
        (tmp_path / "train.csv").write_text("".join(",".join(map(str, r)) + "\n" for r in rows))
        return tmp_path

    return write


def _levels(axes):
    """Returns the horizontal lines by name."""
    return {
        line.get_label(): line.get_ydata()[0]
        for line in axes.lines
        if list(line.get_xdata()) == [0, 1]  # spans the width of the axes
    }


def test_every_evaluation_has_a_marker_and_the_random_phase_is_shaded(draw, write_run):
    figure = draw(write_run())
    curve = figure.axes[0].lines[0]
    assert curve.get_marker() == "o"
    assert list(curve.get_xdata()) == [0, 50, 100]
    assert list(curve.get_ydata()) == [0, 10, 20]
    for axes in figure.axes:
        (shade,) = [patch for patch in axes.patches if patch.get_label() == "random actions"]
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0, 40)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"solved (at -3.75)": -3.75}),  # as registered for Reacher-v4
        ({"solved_at": 15.0}, {"solved (at 15)": 15.0}),
        ({"env": "Ant-v5", "solved_at": None}, {"solved (at 6000)": 6000}),
        ({"env": "my_package:Point-v0"}, {}),
    ],
)
def test_the_random_policy_and_the_level_of_a_solved_task_are_lines(
    draw, write_run, keys, expected
):
    assert _levels(draw(write_run(**keys)).axes[0]) == {"random policy": -7.5, **expected}


def test_the_level_of_a_task_with_success_is_a_success_rate(draw, write_run):
    figure = draw(write_run(success=True, solved_at=0.95))
    assert _levels(figure.axes[0]) == {"random policy": -7.5}
    assert _levels(figure.axes[1]) == {"random policy": 0.0, "solved (at 0.95)": 0.95}
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "evaluation return",
        "success rate",
        "agreement R",
        "factor p",
    ]


def test_a_table_without_rows_has_no_panel(draw, write_run):
    run_dir = write_run()
    (run_dir / "train.csv").write_text("step\n")
    assert len(draw(run_dir, render=True).axes) == 1


DIAGNOSTICS = {
    "stored_transitions": (100, 200, 400),
    "effective_sample_size": (80, 150, 200),
    "unscored_fraction": (0.5, "", 0.2),
    "gradient_snr": (30.0, 2.0, -0.5),
    "gradient_cosine": (0.9, 0.7, 0.1),
    "saturated_fraction": (0.0, 0.25, 0.5),
}


def _lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_diagnostics_have_two_panels(draw, write_run):
    figure = draw(write_run(columns=DIAGNOSTICS), render=True)
    sampling, gradient = figure.axes[-2:]
    assert _lines(sampling) == {
        "effective sample size / stored transitions": [0.8, 0.75, 0.5],
        "unscored transitions": [0.5, 0.2],
    }
    assert sampling.get_yscale() == "linear"
    assert list(_lines(gradient).values()) == [[30, 2, -0.5], [0.9, 0.7, 0.1], [0, 0.25, 0.5]]
    extent = figure.legends[0].get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1


@pytest.mark.usefixtures("pixels")
def test_one_dimensional_actions_have_one_line_instead_of_bands(draw, train, table, tmp_path):
    run_dir = train("td3", tmp_path / "run", "total_frames=130", "eval_interval=50")
    assert imread(run_dir / "learning_curve.png").std() > 0  # not a blank page
    figure = draw(run_dir)
    labels = ["evaluation return", "agreement", "fraction of buffer", "actor's gradient"]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    (line,) = figure.axes[1].lines
    means = [float(row["resultant_length_mean"]) for row in table(run_dir / "train.csv")]
    assert "1-D actions" in line.get_label()
    assert list(line.get_ydata()) == means
    assert len(figure.axes[1].collections) == 0  # no band
    (row,) = table(run_dir / "random.csv")
    assert _levels(figure.axes[0])["random policy"] == float(row["return_mean"])


def test_problem_with_matplotlib_is_reported_and_leaves_the_run_complete(
    write_run, monkeypatch, capsys
):
    def fail(*args, **kwargs):
        raise RuntimeError("latex could not be found")

    monkeypatch.setattr(Figure, "savefig", fail)
    assert draw_learning_curve(write_run()) is None
    assert "No learning curve was plotted: RuntimeError: latex" in capsys.readouterr().out
