"""Links, snippets and files in the documentation exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "results").glob("**/*.md")),
]


def anchor(heading):
    """Returns GitHub's anchor of a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_existing_files_and_headings(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, section = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        file = page.parent / path if path else page
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M) if section else []
        if not file.exists() or (section and section not in map(anchor, headings)):
            broken.append(target)
    assert not broken


def test_the_training_script_of_the_readme_is_the_quickstart_example():
    (script,) = re.findall(
        r"```python\n(from functools.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    example = (ROOT / "examples" / "quickstart.py").read_text()
    assert script == example.split('"""\n\n', 1)[1]
