"""Pages seen by headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium")
REASON = "Debian's chromium is not installed"

# A script of the test, not of the page, writes what the browser sees into the page.
_PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images];
  document.body.dataset.images = images.length;
  document.body.dataset.shown = images.filter(i => i.complete && i.naturalWidth > 0).length;
  document.body.dataset.wide =
    document.documentElement.scrollWidth > document.documentElement.clientWidth;
})</script></body>"""


@dataclass
class View:
    """What a browser shows of a page.

    Attributes:
        document: the page after its scripts have run; its body has what the probe saw.
        messages: what the browser logged.
        screenshot: a picture of it.
    """

    document: str
    messages: str
    screenshot: Path


def view(page: Path, folder: Path) -> View:
    """Opens a page. A copy beside it holds the probe.

    Args:
        page: the HTML file.
        folder: where the browser may write.
    """
    probed = page.with_name(f"probed_{page.name}")
    probed.write_text(page.read_text().replace("</body>", _PROBE))
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1280,2000",
        "--virtual-time-budget=10000",
    ]
    screenshot = folder / "page.png"
    seen = subprocess.run(
        [*command, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=120
    )
    subprocess.run(
        [*command, f"--screenshot={screenshot}", probed.as_uri()], capture_output=True, timeout=120
    )
    probed.unlink()
    return View(seen.stdout, seen.stderr, screenshot)
