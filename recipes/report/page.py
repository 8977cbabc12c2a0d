"""Writes a report: which blocks it has, and in which order."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

from vmfer_recipes.config.errors import UserError, counted
from vmfer_recipes.report import figures, tables
from vmfer_recipes.report.document import Block, Picture, Table, Text, to_html, to_markdown
from vmfer_recipes.report.runs import METRICS
from vmfer_recipes.report.study import TOO_FEW, Comparison, Result, Study

_TITLE = "Methods compared with their baselines"


def check_folder(folder: Path) -> None:
    """Raises an error if a report would replace files in a folder that are not part of a report."""
    markdown = folder / "report.md"
    if markdown.is_file() and markdown.read_bytes().startswith(f"# {_TITLE}\n".encode()):
        return
    for file in (markdown, folder / "report.html", *_earlier(folder)):
        if file.is_file():
            raise UserError(
                f"{file} was not written by this program and would be replaced: move it, or choose "
                "another out=."
            )


def _earlier(folder: Path) -> list[Path]:
    """The tables and pictures of an earlier report, some of which a new one may not have."""
    files = [folder / "tables" / f"{name}.csv" for name in tables.NAMES]
    for pattern in ("improvement_*.png", "curves_*.png"):
        files += sorted((folder / "pictures").glob(pattern))
    return files


def write_report(study: Study, folder: Path) -> list[Path]:
    """Writes ``report.md`` and ``report.html``, which are returned, ``tables/``, ``pictures/``."""
    blocks = _blocks(study)
    for name in ("tables", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    markdown, page = folder / "report.md", folder / "report.html"
    # First, because it marks the other files as those of a report.
    markdown.write_text(to_markdown(blocks, "pictures"), encoding="utf-8")
    for file in _earlier(folder):
        file.unlink(missing_ok=True)
    for table in [*(b for b in blocks if isinstance(b, Table)), tables.curve_table(study)]:
        table.write_csv(folder / "tables")
    for picture in (b for b in blocks if isinstance(b, Picture)):
        (folder / "pictures" / picture.file).write_bytes(picture.png)
    page.write_text(to_html(blocks, _TITLE), encoding="utf-8")
    return [markdown, page]


def _blocks(study: Study) -> list[Block]:
    finding, *numbers = summary(study)
    blocks: list[Block] = [
        Text("h1", _TITLE),
        Text("p", _compared(study)),
        Text("strong", finding),
        Text("list", numbers),
        Text("warnings", _warnings(study)),
    ]
    # The average over a single task says no more than the row of the task.
    if study.wide_averages or any(average.paper for average in study.averages):
        blocks += [Text("h2", "Average improvement"), tables.average_table(study)]
    if study.comparisons:
        blocks.append(Text("h2", "Task by task"))
        blocks += figures.improvement_figures(study)
        blocks += [tables.comparison_table(study), tables.significance_table(study)]
    blocks.append(Text("h2", "Scores"))
    blocks += [tables.score_table(study, metric) for metric in METRICS]
    blocks.append(Text("h2", "Learning curves"))
    for task, label in study.task_labels.items():
        blocks += [Text("h3", label), *figures.curve_figures(study, task)]
    speeds = tables.speed_table(study)
    blocks += [*([Text("h2", "Speed")] if speeds.rows else []), speeds]
    blocks.append(Text("h2", "What was left out"))
    if not (study.left_out or study.notes):
        blocks.append(Text("p", "Nothing: every run that was found is part of the numbers."))
    blocks += [Text("list", study.notes), tables.left_out_table(study)]
    blocks += [Text("h2", "Runs"), tables.run_table(study)]
    return [*blocks, Text("h2", "How to read this"), Text("list", tables.EXPLANATIONS)]


def _compared(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells)
    tasks = "; ".join(study.task_labels.values())
    labels = study.method_labels.items()
    names = dict.fromkeys(name for m, name in labels if not study.baseline.matches(m))
    return (
        f"Compared: {'; '.join(names) or '–'}, against the baseline {study.baseline}, on {tasks}. "
        f"{counted(runs, 'run')} included, {len(study.left_out)} left out."
    )


def summary(study: Study) -> list[str]:
    """The finding, and the numbers behind it; an average over tasks replaces those of its tasks."""
    results: list[Result] = [*study.wide_averages]
    covered = [id(each) for average in study.wide_averages for each in average.comparisons]
    results += [comparison for comparison in study.comparisons if id(comparison) not in covered]
    lines = [_finding(results)]
    for result in results:
        numbers = [f"P(improvement) {result.probability.shown('{:.2f}')}"]
        if result.improvement is not None:
            numbers.insert(0, f"AUC {result.improvement.shown('{:.0f} %')} of the baseline's")
        end = "."
        if isinstance(result, Comparison):
            numbers.append(f"p = {result.p_value:.2g}")
            if result.corrected_p != result.p_value:
                numbers.append(f"corrected {result.corrected_p:.2g}")
            end = f". {_smallest_effect(result)}"
        name = f"{study.method_labels[result.method]}, {result.place}"
        lines.append(f"{name}: {', '.join(numbers)}: {result.verdict}{end}")
    return lines


def _finding(results: list[Result]) -> str:
    count = Counter(result.verdict for result in results)
    if not count:
        return "Finding: none, because no finished method has a finished baseline."
    if count.keys() <= {TOO_FEW, "undecided"}:
        return "Finding: no method is shown to differ from its baseline."
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
    return f"Finding: of {counted(len(results), 'comparison')}, {told}."


def _smallest_effect(comparison: Comparison) -> str:
    if math.isnan(comparison.detectable):
        return "The smallest detectable effect is unknown: neither method has two seeds."
    pattern = tables.number_format([comparison.cell.score_name])
    effect = f"a difference of {pattern.format(comparison.detectable)}"
    if comparison.is_ratio:
        digits = 2 if comparison.detectable < 10 else 0
        effect = f"a ratio of {comparison.detectable:,.{digits}f}"
    if comparison.verdict == TOO_FEW:
        return f"Even a t-test could have detected only {effect} or more."
    return f"These seeds could have detected {effect} or more."


def _warnings(study: Study) -> list[str]:
    warnings = []
    concerned = defaultdict(list)
    for comparison in study.comparisons:
        if comparison.verdict == TOO_FEW:
            task, method = study.label(comparison.cell)
            concerned[comparison.seeds[0], comparison.best_p].append(f"{method} on {task}")
    for (seeds, best_p), places in sorted(concerned.items()):
        warnings.append(
            f"{counted(seeds[0], 'seed')} against {seeds[1]} of the baseline are too few to detect "
            "a difference: even if every seed beat every seed of the baseline, the corrected "
            f"p-value would be {best_p:.2f} (two-sided permutation test). This concerns "
            f"{'; '.join(places)}."
        )
    fewest = min((len(c.runs) for c in study.cells if c.complete), default=0)
    if 0 < fewest < 10 and study.comparisons:
        warnings.append(
            f"The smallest cell has {counted(fewest, 'seed')}. Below about ten, bootstrap "
            "intervals are too narrow: with five normally distributed seeds, the 95 % interval of "
            "the mean contains the true mean in about 84 % of cases. The permutation test is exact "
            "for any number of seeds."
        )
    return warnings
