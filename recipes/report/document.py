"""A small document: blocks that templates show as Markdown and HTML, and tables as CSV files."""

from __future__ import annotations

import base64
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from matplotlib.figure import Figure

from vmfer_recipes.report.inference import Estimate

Value = str | int | float | Estimate | None


class Text(NamedTuple):
    """A heading, a paragraph, or sentences point by point.

    Headings of the second level make the table of contents.
    """

    kind: Literal["h1", "h2", "h3", "p", "strong", "list", "warnings"]
    content: str | Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A figure, and what it shows."""

    name: str
    figure: Figure
    text: str
    kind: ClassVar = "picture"

    @property
    def file(self) -> str:
        """The name of its file."""
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.name).strip("_") + ".png"

    @functools.cached_property
    def png(self) -> bytes:
        """The picture as a file. It holds no date, so the same numbers make the same bytes."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
        return buffer.getvalue()


@dataclass(frozen=True)
class Table:
    """Rows of values. ``columns`` maps names to number formats; the default is ``{:,}``."""

    name: str
    caption: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Value]]
    kind: ClassVar = "table"

    @property
    def shown(self) -> list[list[str]]:
        """The rows as strings."""
        patterns = [pattern or "{:,}" for pattern in self.columns.values()]
        return [list(map(_shown, row, patterns)) for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Whether a column holds numbers only."""
        return [
            not any(isinstance(v, str) for v in values) for values in zip(*self.rows, strict=True)
        ]

    def write_csv(self, folder: Path) -> None:
        """Writes the table with all digits; an estimate takes three columns."""
        columns: dict[str, Sequence[Value]] = {}
        for i, name in enumerate(self.columns):
            columns[name] = values = [row[i] for row in self.rows]
            # Decided by the column, because a single value may be missing.
            if any(isinstance(value, Estimate) for value in values):
                parts = [v if isinstance(v, Estimate) else Estimate(math.nan) for v in values]
                names = (name, f"{name} low", f"{name} high")
                columns |= zip(names, zip(*parts, strict=True), strict=True)
        frame = pd.DataFrame(columns, dtype=object)
        frame.to_csv(folder / f"{self.name}.csv", index=False, lineterminator="\n")


Block = Text | Picture | Table


def _shown(value: Value, pattern: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, Estimate):
        return value.shown(pattern)
    return value if isinstance(value, str) else pattern.format(value)


def _plain(text: str) -> str:
    """Keeps names of files and methods from being read as Markdown or HTML."""
    return re.sub(r"[\\`*_{}\[\]<>|]", r"\\\g<0>", " ".join(text.split()))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=lambda name: "html" in str(name),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "plain": _plain,
    "base64": lambda data: base64.b64encode(data).decode(),
}


def to_markdown(blocks: Sequence[Block], pictures: str) -> str:
    """The document in Markdown; pictures are looked for in the folder ``pictures``."""
    page = _TEMPLATES.get_template("document.md.j2")
    return page.render(blocks=blocks, pictures=pictures).strip() + "\n"


def to_html(blocks: Sequence[Block], title: str) -> str:
    """The document as one page that needs no other file."""
    return _TEMPLATES.get_template("document.html.j2").render(blocks=blocks, title=title)
