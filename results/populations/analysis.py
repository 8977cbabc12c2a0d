"""The analysis of PROTOCOL.md: prints every number of the study as tables in Markdown.

``python results/populations/analysis.py`` reads ``tables/`` and stops if a run is missing: nothing
is compared before all runs are done. ``--pilot`` prints what the protocol takes from ``pilot/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests
from study import ARMS, CELLS, CONFIRMATORY, NUM_SEEDS, ROUND, Cell, rounds

HERE = Path(__file__).parent
ALPHA, BOUND, RESAMPLES = 0.05, 0.1, 10_000
TESTED = [arm for arm in CONFIRMATORY if arm != "fresh"]
_DESCRIBED = ("fresh", "power4", "old", "saturated")


def load(folder: Path, cells: Sequence[Cell] = CELLS) -> pd.DataFrame:
    """All runs, with the columns ``cell``, ``arm``, ``seed``, ``auc``, ``final`` and others."""
    files = {cell.name: folder / f"{cell.name}.csv" for cell in cells}
    found = [pd.read_csv(file).assign(cell=name) for name, file in files.items() if file.exists()]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def complete(runs: pd.DataFrame, number: int) -> pd.DataFrame:
    """The runs of the first rounds of the protocol. Ends the program if one is missing."""
    planned = [(cell.name, *run) for cell, chosen in rounds(number) for run in chosen]
    found = runs.set_index(["cell", "arm", "seed"]) if len(runs) else runs
    missing = len(set(planned) - set(found.index))
    if missing:
        sys.exit(f"{missing} runs are missing: nothing is compared before the last.")
    return found.loc[planned].reset_index()


class Effects:
    """Paired differences between arms, in standard deviations of ``fresh``.

    Args:
        runs: the runs.
        column: what is compared.
    """

    def __init__(self, runs: pd.DataFrame, column: str = "auc") -> None:
        self._values = runs.pivot(index="seed", columns=["cell", "arm"], values=column)
        self.cells = [*dict.fromkeys(runs["cell"])]
        self.units = pd.Series({cell: self._values[cell, "fresh"].std() for cell in self.cells})

    def differences(
        self, arm: str, reference: str = "fresh", cells: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row for each seed that both arms have, one column for each cell."""
        chosen = [c for c in cells or self.cells if (c, arm) in self._values]
        values = {c: self._values[c, arm] - self._values[c, reference] for c in chosen}
        return (pd.DataFrame(values) / self.units[chosen]).dropna()

    def pooled(self, *args: str, cells: Sequence[str] | None = None) -> np.ndarray:
        """The mean of the differences over the cells, for each seed."""
        return self.differences(*args, cells=cells).mean(axis=1).to_numpy()

    def placebo(self) -> np.ndarray:
        """The control with the second half of its seeds minus that with the first half."""
        fresh = self._values.xs("fresh", axis=1, level=1)[self.cells] / self.units
        half = len(fresh) // 2
        return (fresh[half:].to_numpy() - fresh[:half].to_numpy()).mean(1)

    def bootstrap(self, arm: str) -> np.ndarray:
        """Means of resampled seeds, with the unit of each cell computed again."""
        generator = np.random.default_rng(0)
        raw = (self.differences(arm) * self.units).to_numpy()
        fresh = np.stack([self._values[cell, "fresh"].to_numpy() for cell in self.cells], 1)
        means = []
        for _ in range(RESAMPLES):
            chosen = generator.integers(len(raw), size=len(raw))
            unit = fresh[generator.integers(len(fresh), size=len(fresh))].std(0, ddof=1)
            means.append((raw[chosen].mean(0) / unit).mean())
        return np.array(means)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of a mean."""
    return stats.t.interval(level, len(values) - 1, values.mean(), stats.sem(values))


def shown(values: np.ndarray, level: float = 0.95) -> str:
    """A mean with its interval."""
    low, high = interval(values, level)
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def equivalence(values: np.ndarray, bound: float = BOUND) -> float:
    """The p value of two one-sided tests of a mean in (-bound, bound)."""
    above = stats.ttest_1samp(values, -bound, alternative="greater").pvalue
    below = stats.ttest_1samp(values, bound, alternative="less").pvalue
    return float(max(above, below))


def verdict(mean: float, differs: bool, is_equivalent: bool) -> str:
    """What the protocol concludes."""
    if differs:
        return ("helps" if mean > 0 else "hurts") + (", negligibly" if is_equivalent else "")
    return "no effect" if is_equivalent else "undecided"


def head(title: str, *names: str) -> None:
    """Prints a title and the first lines of a table."""
    print(f"\n## {title}\n")
    row(*names)
    print("|---|" + "---:|" * (len(names) - 1))


def row(*values: object) -> None:
    """Prints a row of a table; p values and other plain numbers with two digits."""
    print("|", " | ".join(f"{v:.2g}" if isinstance(v, float) else str(v) for v in values), "|")


def p_value(values: np.ndarray, alternative: str = "two-sided") -> float:
    """The p value of Student's test of a zero mean."""
    return float(stats.ttest_1samp(values, 0, alternative=alternative).pvalue)


def confirmatory(effects: Effects) -> dict[str, str]:
    """Prints the two confirmatory tests. Returns the verdicts."""
    values = {arm: effects.pooled(arm) for arm in TESTED}
    differs, p = multipletests([*map(p_value, values.values())], ALPHA, "holm")[:2]
    is_equal, q = multipletests([*map(equivalence, values.values())], ALPHA, "holm")[:2]
    head(
        "Confirmatory", "arm", "effect [95 %]", "p, Holm", "90 %", "equivalence: p, Holm", "verdict"
    )
    verdicts = {}
    for i, (arm, found) in enumerate(values.items()):
        verdicts[arm] = verdict(found.mean(), bool(differs[i]), bool(is_equal[i]))
        row(arm, shown(found), float(p[i]), shown(found, 0.9), float(q[i]), verdicts[arm])
    return verdicts


def mechanism(effects: Effects, power4: str) -> None:
    """Prints the test of power 4 against both matched controls, in the direction of its effect."""
    head("Mechanism", "power4 minus", "effect [95 %]", "p, one-sided")
    worst = 0.0
    for control in ("old", "saturated"):
        values = effects.pooled("power4", control)
        p = p_value(values, "less" if power4.startswith("hurts") else "greater")
        worst = max(worst, p)
        row(control, shown(values), p)
    if not power4.startswith(("helps", "hurts")):
        result = "not tested, because power 4 did not differ from fresh"
    else:
        result = "beyond age and saturation" if worst < ALPHA else "not shown"
    print(f"\nThe larger p value is {worst:.2g}: {result}.")


def sensitivity(effects: Effects) -> None:
    """Prints whether the design detects what is known to act, and finds nothing in nothing."""
    head("Sensitivity", "comparison", "effect [95 %]", "p")
    for cell in effects.differences("per"):
        values = effects.pooled("per", cells=[cell])
        row(f"per minus fresh, {cell}", shown(values), p_value(values))
    values = effects.placebo()
    row("fresh minus fresh with other seeds", shown(values), p_value(values))


def exploratory(effects: Effects, final: Effects) -> None:
    """Prints everything else that is compared."""
    arms = [arm for arm in ARMS if arm not in ("fresh", "per")]
    groups = [None, *([c for c in effects.cells if c.startswith(a)] for a in ("td3", "sac"))]
    groups.append([c for c in effects.cells if "GoalReaching" not in c])
    names = ("all cells", "TD3", "SAC", "without goal reaching", "all cells: final return")
    head("Exploratory: all arms", "arm", *names)
    for arm in arms:
        row(arm, *(shown(effects.pooled(arm, cells=c)) for c in groups), shown(final.pooled(arm)))
    head("Exploratory: cells", "cell", *arms)
    for cell in effects.cells:
        row(cell, *(shown(effects.pooled(arm, cells=[cell])) for arm in arms))
    head("Robustness", "arm", "bootstrap 95 %", "Wilcoxon p", "p, same effect in all cells")
    for arm in TESTED:
        low, high = np.quantile(effects.bootstrap(arm), [0.025, 0.975])
        found = effects.differences(arm)
        mean, weight = found.mean(), 1 / found.sem() ** 2
        spread = (weight * (mean - np.average(mean, weights=weight)) ** 2).sum()
        same = float(stats.chi2.sf(spread, len(weight) - 1))
        ranks = float(stats.wilcoxon(effects.pooled(arm)).pvalue)
        row(arm, f"[{low:+.3f}, {high:+.3f}]", ranks, same)


def describe(runs: pd.DataFrame) -> None:
    """Prints how the control learns, and age and saturation of the actor's batches."""
    arms = [arm for arm in dict.fromkeys(runs["arm"]) if arm.startswith(_DESCRIBED)]
    columns = ("AUC of fresh", "sd", "first, last interval", "diverged")
    head("Batches", "cell", *columns, *(f"{arm}: age, saturation" for arm in arms))
    for cell, part in runs.groupby("cell", sort=False):
        of = {arm: part[part["arm"] == arm] for arm in arms}
        curve = np.array([np.array(line.split(), float) for line in of["fresh"]["curve"]]).mean(0)
        row(
            *(cell, f"{of['fresh']['auc'].mean():.4g}", f"{of['fresh']['auc'].std():.3g}"),
            *(f"{curve[0]:.4g}, {curve[-1]:.4g}", (part["status"] != "finished").sum()),
            *(f"{of[a]['age'].mean():.3f}, {of[a]['saturation'].mean():.3f}" for a in arms),
        )


def plan(runs: pd.DataFrame) -> None:
    """Prints the spread over seeds, what pairs of seeds save, and what the study can detect."""
    names = ("0.1 sd in % of progress", "power4 minus fresh in % of progress", "its sd in sd")
    head("Spread", "cell", *names, "correlation", "seeds per arm that a pair replaces")
    variances = []
    for cell, part in runs.groupby("cell", sort=False):
        auc = part.pivot(index="seed", columns="arm", values="auc")[["fresh", "power4"]]
        curves = part[part["arm"] == "fresh"]["curve"].str.split(expand=True).astype(float)
        progress = auc["fresh"].mean() - curves[0].mean()
        unit = auc["fresh"].std()
        difference = auc["power4"] - auc["fresh"]
        variances.append((difference / unit).var())
        spread = f"{variances[-1] ** 0.5:.2f}"
        saved = auc.var().sum() / difference.var()
        correlation = f"{auc.corr().iloc[0, 1]:.2f}"
        parts = (f"{10 * unit / progress:.1f}", f"{100 * difference.mean() / progress:+.1f}")
        row(cell, *parts, spread, correlation, f"{saved:.1f}")
    head("Power", "pairs", "standard error", "detectable", "power of equivalence, no effect")
    for pairs in (48, 96):
        error = (sum(variances) / pairs) ** 0.5 / len(variances)
        detectable = (stats.norm.isf(ALPHA / 4) + stats.norm.isf(0.2)) * error
        margin = BOUND / error - stats.norm.isf(ALPHA / 2)  # Holm's first step
        equal = max(0.0, 2 * stats.norm.cdf(margin) - 1)
        row(pairs, f"{error:.3f}", f"{detectable:.2f}", f"{equal:.2f}")


def main() -> None:
    """Prints the analysis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pilot", action="store_true")
    parser.add_argument("--rounds", type=int, default=NUM_SEEDS // ROUND)
    options = parser.parse_args()
    runs = load(HERE / ("pilot" if options.pilot else "tables"))
    if options.pilot:
        describe(runs)
        plan(runs)
        return
    runs = complete(runs, options.rounds)
    effects = Effects(runs)
    verdicts = confirmatory(effects)
    mechanism(effects, verdicts["power4"])
    sensitivity(effects)
    exploratory(effects, Effects(runs, "final"))
    describe(runs)
    plan(runs)


if __name__ == "__main__":
    main()
