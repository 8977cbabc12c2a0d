"""A small document: written once, shown as Markdown, HTML and CSV files."""

from __future__ import annotations

import base64
import csv
import functools
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from reporting.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Heading", "Listing", "Paragraph", "Picture", "Table", "Value", "to_html", "to_markdown"]

Value = str | int | float | Estimate | None

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1e21;
  max-width: 72rem; margin: 2rem auto; padding: 0 1.5rem; background: #fff; }
h1 { font-size: 1.9rem; } h2 { margin-top: 2.6rem; border-bottom: 1px solid #d5d9de; }
h3 { margin-top: 1.8rem; }
nav { background: #f4f6f8; padding: .7rem 1.2rem; border-radius: .4rem; }
nav a { margin-right: 1.2rem; white-space: nowrap; }
img { max-width: 100%; height: auto; display: block; }
figure { margin: 1rem 0 1.6rem; }
figcaption { color: #4b5563; font-size: .9rem; max-width: 60rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; color: #4b5563; padding-bottom: .4rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #e3e6ea; text-align: left; }
th { border-bottom: 2px solid #9aa3ad; vertical-align: bottom; }
tr:hover td { background: #f7f9fb; }
td.number { text-align: right; white-space: nowrap; }
.warning { background: #fff6e0; border-left: .3rem solid #e0a100; padding: .5rem 1rem; }
code { background: #f0f2f4; padding: 0 .25rem; border-radius: .2rem; }
"""


@dataclass(frozen=True)
class Heading:
    """A heading; those of level 2 make the table of contents."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Listing:
    """Sentences point by point."""

    items: Sequence[str]
    warning: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure; ``name`` names its file and ``text`` says what it shows."""

    name: str
    figure: Figure
    text: str

    @functools.cached_property
    def png(self) -> bytes:
        """The picture as a file. It holds no date, so the same numbers make the same bytes."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
        return buffer.getvalue()


@dataclass(frozen=True)
class Table:
    """Rows of values; ``formats`` says how numbers of a column are shown."""

    name: str
    caption: str
    rows: Sequence[dict[str, Value]]
    formats: dict[str, str]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def shown(self, column: str, value: Value) -> str:
        """A value as text."""
        if value is None:
            return "–"
        if isinstance(value, str):
            return value
        pattern = self.formats.get(column, "{:,}")
        if not isinstance(value, Estimate):
            return "–" if math.isnan(value) else pattern.format(value)
        text = pattern.format(value.value)
        if math.isnan(value.low):
            return f"{text} [one seed]"
        return f"{text} [{pattern.format(value.low)}, {pattern.format(value.high)}]"

    def write_csv(self, folder: Path) -> None:
        """Writes the table with all digits; an estimate takes three columns."""
        # Decided by the column, for a single value may be missing.
        wide = {
            column
            for column in self.columns
            if any(isinstance(row[column], Estimate) for row in self.rows)
        }
        header = [
            name
            for column in self.columns
            for name in (
                [column, f"{column} low", f"{column} high"] if column in wide else [column]
            )
        ]
        with (folder / f"{self.name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            for row in self.rows:
                values: list[Value] = []
                for column, value in row.items():
                    if column in wide:
                        values += value if isinstance(value, Estimate) else [None] * 3
                    else:
                        values.append(value)
                writer.writerow([_plain(value) for value in values])


Block = Heading | Paragraph | Listing | Picture | Table


def _plain(value: Value) -> Value:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"  # a spreadsheet would compute it
    return "" if missing else value


def to_markdown(blocks: Sequence[Block], pictures: str) -> str:
    """The document in Markdown; pictures are looked for in the folder ``pictures``."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {_escape(block.text)}")
        elif isinstance(block, Paragraph):
            parts.append(("> **Warning.** " if block.warning else "") + _escape(block.text))
        elif isinstance(block, Listing):
            mark = "⚠ " if block.warning else ""
            parts.append("\n".join(f"- {mark}{_escape(item)}" for item in block.items))
        elif isinstance(block, Picture):
            parts.append(f"![{_escape(block.text)}]({pictures}/{block.name}.png)")
        elif block.rows:
            lines = [block.columns, ["---"] * len(block.columns)]
            lines += [[_escape(block.shown(k, v)) for k, v in row.items()] for row in block.rows]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            parts.append(f"{_escape(block.caption)}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def to_html(blocks: Sequence[Block], title: str) -> str:
    """The document as one page that needs no other file."""
    contents, body = [], []
    for number, block in enumerate(blocks):
        if isinstance(block, Heading):
            text = html.escape(block.text)
            if block.level == 2:
                contents.append(f'<a href="#part{number}">{text}</a>')
            body.append(f'<h{block.level} id="part{number}">{text}</h{block.level}>')
            if block.level == 1:
                body.append("<nav></nav>")
        elif isinstance(block, Paragraph):
            body.append(f"<p{_warning(block)}>{html.escape(block.text)}</p>")
        elif isinstance(block, Listing):
            items = "".join(f"<li>{html.escape(item)}</li>" for item in block.items)
            body.append(f"<div{_warning(block)}><ul>{items}</ul></div>")
        elif isinstance(block, Picture):
            data = base64.b64encode(block.png).decode()
            text = html.escape(block.text, quote=True)
            body.append(
                f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
                f"<figcaption>{text}</figcaption></figure>"
            )
        elif block.rows:
            body.append(_html_table(block))
    page = "\n".join(body).replace("<nav></nav>", f"<nav>{' '.join(contents)}</nav>", 1)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without it a browser asks for /favicon.ico and reports an error.
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{page}\n</body>\n</html>\n"
    )


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    lines = []
    for row in table.rows:
        cells = []
        for column, value in row.items():
            kind = "" if isinstance(value, str) else ' class="number"'
            cells.append(f"<td{kind}>{html.escape(table.shown(column, value))}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="table"><table><caption>{html.escape(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _warning(block: Paragraph | Listing) -> str:
    return ' class="warning"' if block.warning else ""


def _escape(text: str) -> str:
    """Keeps names of files and methods from being read as Markdown or HTML."""
    for mark in "\\`*_{}[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
