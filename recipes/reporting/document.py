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

from vmfer_recipes.reporting.estimate import Estimate

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
figcaption, .caption { color: #4b5563; font-size: .9rem; max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #e3e6ea; text-align: left; }
th { border-bottom: 2px solid #9aa3ad; vertical-align: bottom; }
tr:hover td { background: #f7f9fb; }
td { min-width: 7rem; } td.long { min-width: 16rem; }
td.number { min-width: 0; white-space: nowrap; }
th.number, td.number { text-align: right; }
small { color: #4b5563; display: block; }
.warning { background: #fff6e0; border-left: .3rem solid #e0a100; padding: .5rem 1rem .5rem 2rem; }
/* On a phone pictures keep a size that can be read, and are moved sideways like tables. */
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .9rem; } img { max-width: none; }
}
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
    strong: bool = False


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
        self.figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
        return buffer.getvalue()


@dataclass(frozen=True)
class Table:
    """Rows of values; ``formats`` says how numbers of a column are shown.

    A table that may have no rows names its columns in ``header``.
    """

    name: str
    caption: str
    rows: Sequence[dict[str, Value]]
    formats: dict[str, str]
    header: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.rows[0] if self.rows else self.header)

    def shown(self, column: str, value: Value) -> str:
        """A value as a string."""
        if value is None:
            return "–"
        if isinstance(value, str):
            return value
        pattern = self.formats.get(column, "{:,}")
        if isinstance(value, Estimate):
            return value.shown(pattern)
        return "–" if math.isnan(value) else pattern.format(value)

    def write_csv(self, folder: Path) -> None:
        """Writes the table with all digits; an estimate takes three columns."""
        # Decided by the column, because a single value may be missing.
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
            mark = "**" if block.strong else ""
            parts.append(f"{mark}{_escape(block.text)}{mark}")
        elif isinstance(block, Listing) and block.items:
            sign = "⚠ " if block.warning else ""
            parts.append("\n".join(f"- {sign}{_escape(item)}" for item in block.items))
        elif isinstance(block, Picture):
            parts.append(f"![{_escape(block.text)}]({pictures}/{block.name}.png)")
        elif isinstance(block, Table) and block.rows:
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
            tag = "strong" if block.strong else "span"
            body.append(f"<p><{tag}>{html.escape(block.text)}</{tag}></p>")
        elif isinstance(block, Listing) and block.items:
            items = "".join(f"<li>{html.escape(item)}</li>" for item in block.items)
            kind = ' class="warning"' if block.warning else ""
            body.append(f"<ul{kind}>{items}</ul>")
        elif isinstance(block, Picture):
            data = base64.b64encode(block.png).decode()
            width = 96 * block.figure.get_figwidth()
            text = html.escape(block.text, quote=True)
            body.append(
                f'<figure><div class="wide"><img width="{width:.0f}" alt="{text}" '
                f'src="data:image/png;base64,{data}"></div><figcaption>{text}</figcaption></figure>'
            )
        elif isinstance(block, Table) and block.rows:
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
    words = {column for row in table.rows for column, v in row.items() if isinstance(v, str)}
    kinds = {column: "" if column in words else ' class="number"' for column in table.columns}
    head = "".join(f"<th{kinds[column]}>{html.escape(column)}</th>" for column in table.columns)
    lines = []
    for row in table.rows:
        cells = []
        for column, value in row.items():
            text = html.escape(table.shown(column, value)).replace(" · ", "&nbsp;·&nbsp;")
            if isinstance(value, Estimate):  # the interval below the number makes tables narrow
                text = text.replace(" [", "<small>[", 1) + "</small>"
            kind = ' class="long"' if len(text) > 45 and column in words else kinds[column]
            cells.append(f"<td{kind}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<p class="caption">{html.escape(table.caption)}</p><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _escape(text: str) -> str:
    """Keeps names of files and methods from being read as Markdown or HTML."""
    for mark in "\\`*_{}[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
