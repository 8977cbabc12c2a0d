"""Writes a report: which blocks it has, and in which order."""

from __future__ import annotations

import re
from pathlib import Path

from reporting import pictures, tables
from reporting.document import (
    Block,
    Heading,
    Listing,
    Paragraph,
    Picture,
    Table,
    to_html,
    to_markdown,
)
from reporting.results import Study
from reporting.statistics import REPETITIONS, best_possible_p

__all__ = ["write_report"]

_TITLE = "vMFER beside its baselines"


def write_report(study: Study, folder: Path) -> list[Path]:
    """Writes ``report.md`` and ``report.html``, which are returned, ``tables/``, ``pictures/``."""
    blocks = _blocks(study)
    for name in ("tables", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for table in [*(b for b in blocks if isinstance(b, Table)), tables.curve_table(study)]:
        table.write_csv(folder / "tables")
    for picture in (b for b in blocks if isinstance(b, Picture)):
        (folder / "pictures" / f"{picture.name}.png").write_bytes(picture.png)
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text(to_markdown(blocks, "pictures"), encoding="utf-8")
    page.write_text(to_html(blocks, _TITLE), encoding="utf-8")
    return [markdown, page]


def _blocks(study: Study) -> list[Block]:
    blocks: list[Block] = [Heading(1, _TITLE), Paragraph(_summary(study))]
    warnings = _warnings(study)
    if warnings:
        blocks.append(Listing(warnings, warning=True))
    if study.averages:
        blocks += [Heading(2, "Average improvement"), tables.average_table(study)]
        blocks += [
            Picture(f"improvement_{_file_name(family)}", figure, text)
            for family, figure, text in pictures.improvement_figures(study)
        ]
    if study.comparisons:
        blocks += [Heading(2, "Task by task"), tables.comparison_table(study)]
    blocks += [Heading(2, "Final scores"), tables.final_table(study, "return")]
    blocks.append(tables.final_table(study, "success_rate"))
    blocks.append(Heading(2, "Learning curves"))
    for task in study.tasks:
        blocks.append(Heading(3, study.task_labels[task]))
        for family, figure, text in pictures.curve_figures(study, task):
            name = f"curves_{study.task_labels[task]}_{family}"
            blocks.append(Picture(_file_name(name), figure, text))
    blocks += [Heading(2, "Speed"), tables.speed_table(study)]
    blocks.append(Heading(2, "What was left out"))
    if not (study.left_out or study.notes):
        blocks.append(Paragraph("Nothing: every run that was found is part of the numbers."))
    if study.notes:
        blocks.append(Listing(study.notes))
    blocks += [tables.left_out_table(study), Heading(2, "Runs"), tables.run_table(study)]
    blocks += [Heading(2, "How to read this"), Listing(_EXPLANATIONS)]
    return blocks


def _summary(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells.values())
    return (
        f"{runs} runs on {len(study.tasks)} tasks; {len(study.left_out)} runs are left out. "
        "Methods with different hyper-parameters, versions of an environment or lengths of "
        "training are kept apart everywhere."
    )


def _warnings(study: Study) -> list[str]:
    warnings = []
    for comparison in study.comparisons:
        if not comparison.too_few:
            continue
        cell, seeds, others = (
            comparison.cell,
            len(comparison.cell.runs),
            len(comparison.baseline.runs),
        )
        warnings.append(
            f"{study.task_labels[cell.task]}: {cell.method.family_label} with "
            f"{study.method_labels[cell.method]} has {_count(seeds)} against {others} of the "
            "baseline, too few to tell anything: even if every seed beat every seed of the "
            f"baseline, chance would do so with p = {best_possible_p(seeds, others):.2f} "
            "(two-sided rank-sum test)."
        )
    fewest = min((len(c.runs) for c in study.cells.values() if c.complete), default=0)
    if 0 < fewest < 10 and study.comparisons:
        warnings.append(
            f"The smallest cell has {_count(fewest)}. Below about ten, bootstrap intervals are "
            "narrower than they claim: of five normally distributed seeds the 95 % interval of the "
            "mean holds the truth in about 84 % of cases."
        )
    return warnings


def _count(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", text).strip("_")


_EXPLANATIONS = (
    "A seed is one run. Its score is the mean of its evaluations in the last tenth of the "
    "training: success rate where the task has one, return otherwise.",
    "IQM is the mean without the lowest and the highest quarter of the seeds; with fewer than four "
    "seeds it is the mean.",
    f"Intervals are 95 % percentile intervals of {REPETITIONS:,} stratified bootstrap samples "
    "(rliable, fixed seed): the seeds of every method on every task are drawn anew. They speak of "
    "other seeds on these tasks, not of other tasks. Those of curves hold step by step.",
    "Runs that were evaluated at different steps are interpolated linearly to the steps of the "
    "coarsest of their cell.",
    "A method is compared with sampler=uniform of the same hyper-parameters. Only the number of "
    "critics may differ, as critics beyond the second do not influence the baseline.",
    "Many comparisons are made at once: among twenty of equal methods one interval is expected to "
    "miss the truth.",
)
