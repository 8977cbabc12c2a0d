"""The documentation site."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.browser import CHROMIUM, REASON, view

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return target


def test_every_page_is_in_the_navigation(site):
    home = (site / "index.html").read_text()
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r'href="(\w+)\.html"', home))


def test_the_page_of_keys_lists_every_key_of_the_help(site):
    from vmfer_recipes.config.algorithms import algorithms
    from vmfer_recipes.config.keys import describe

    page = (site / "keys.html").read_text()
    described = [key for config in algorithms().values() for key in describe(config)]
    keys = {key.name for key in described if not key.is_fixed}
    listed = set(re.findall(r"<tr>\s*<td><code>([\w.]+)</code></td>", page))
    assert listed == keys


def test_the_api_reference_describes_every_public_name(site):
    import torchrl_vmfer

    page = (site / "api.html").read_text()
    for name in set(torchrl_vmfer.__all__) - {"__version__"}:
        assert re.search(rf'id="torchrl_vmfer[\w.]*\.{name}"', page), name
    for name in ("Session", "Agent", "AgentMaker"):
        assert re.search(rf'id="vmfer_recipes[\w.]*\.{name}"', page), name


@pytest.mark.skipif(CHROMIUM is None, reason=REASON)
@pytest.mark.parametrize("page", ["README.md", "docs/method.md"])
def test_a_browser_shows_a_page_with_its_pictures(page, site, tmp_path):
    source = ROOT / page
    named = re.findall(r"!\[.*?\]\(\S*?([^/\s]+)\)", source.read_text())
    assert named
    name = "index" if page == "README.md" else source.stem
    seen = view(site / f"{name}.html", tmp_path)
    assert re.findall(r'<img [^>]*src="[^"]*?([^/"]+)"', seen.document) == named
    assert f'data-shown="{len(named)}"' in seen.document
    assert 'data-wide="false"' in seen.document
    assert seen.screenshot.stat().st_size > 20_000
