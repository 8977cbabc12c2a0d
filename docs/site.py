"""MkDocs hooks: pages of the site that are generated or lie outside this folder."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from vmfer_recipes.config.algorithms import algorithms
from vmfer_recipes.config.keys import MISSING, Key, describe

ROOT = Path(__file__).parents[1]
# Files of the repository that pages link to.
LINKED = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "examples/**/*.py",
    "results/**/*.*",
)
RECIPES = algorithms()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README as the home page, the table of keys, and linked files."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=_without_folder(readme)))
    files.append(File.generated(config, "keys.md", content=_keys_page()))
    for pattern in LINKED:
        for path in sorted(filter(Path.is_file, ROOT.glob(pattern))):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adapts links: the pages of docs/ are at the top of the site."""
    if (ROOT / "docs" / page.file.src_uri).exists():
        return markdown.replace("](../", "](")
    return _without_folder(markdown)


def _without_folder(markdown: str) -> str:
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)


def _keys_page() -> str:
    """All keys of the recipes, from the dataclasses that define them."""
    defaults: dict[str, tuple[Key, dict[str, str]]] = {}  # the defaults of a key by recipe
    for recipe, config in RECIPES.items():
        for key in describe(config):
            if not key.is_fixed:
                shared = dataclasses.replace(key, default=None)
                _, by_recipe = defaults.setdefault(repr(shared), (shared, {}))
                by_recipe[recipe] = "" if key.default == MISSING else f"`{_written(key.default)}`"
    lines = ["# All keys", "", "The keys of the training recipes, as `--help` lists them.", ""]
    lines += ["| key | default | meaning | values |", "|---|---|---|---|"]
    for key, by_recipe in defaults.values():
        default, *others = {*by_recipe.values()}
        if others:
            default = ", ".join(f"{value} ({recipe})" for recipe, value in by_recipe.items())
        notes = [key.range] if key.range else []
        notes += [f"only {', '.join(by_recipe)}"] if len(by_recipe) < len(RECIPES) else []
        notes += [f"only {', '.join(key.only)}"] if key.only else []
        lines.append(f"| `{key.name}` | {default} | {key.meaning} | {'; '.join(notes)} |")
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    """A value as on the command line."""
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
