"""The page in a real browser: headless Chromium."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import t2tp
from tests.layout_report import samples
from tests.patience import PATIENCE

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
)


# A script that writes measurements of the page into it, for --dump-dom.
MEASURE = """
<script>
  const boxes = [...document.querySelectorAll("svg[role=img]")].map(s => s.getBoundingClientRect());
  const overlap = [...document.querySelectorAll("article")].filter(a => {
    const [drawing, facts] = [...a.children].map(c => c.getBoundingClientRect());
    return drawing.right > facts.left && drawing.bottom > facts.top;
  });
  document.title = JSON.stringify({
    width: document.documentElement.scrollWidth,
    drawn: boxes.filter(b => b.width > 30 && b.height > 30).length,
    overlapping: overlap.length,
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
  });
</script>
"""


def chromium(tmp_path: Path, page: Path, *flags: str) -> str:
    """Opens a page; returns stdout."""
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, profile, *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


def measure(tmp_path: Path, width: int, *flags: str) -> dict:
    page = tmp_path / "measured.html"
    whole = t2tp.explain(samples.mlp()).html()
    page.write_text(whole.replace("</body>", f"{MEASURE}</body>"))
    dom = chromium(tmp_path, page, "--dump-dom", f"--window-size={width},900", *flags)
    return json.loads(re.search("<title>(.*?)</title>", dom)[1])


@pytest.mark.slow
def test_it_fits_wide_and_narrow_windows_light_or_dark_as_people_like_it(tmp_path):
    wide, narrow = measure(tmp_path, 1300), measure(tmp_path, 500, "--force-dark-mode")
    assert (wide["width"], narrow["width"]) == (1300, 500)
    cards = t2tp.explain(samples.mlp()).html().count("<article")  # The mesh has one too.
    assert wide["drawn"] == narrow["drawn"] == cards
    assert wide["overlapping"] == narrow["overlapping"] == 0

    def brightness(said: str) -> float:
        return np.mean([int(number) for number in re.findall(r"\d+", said)[:3]])

    assert brightness(wide["paper"]) > 240 > 60 > brightness(wide["ink"])
    assert brightness(narrow["paper"]) < 40 < 200 < brightness(narrow["ink"])
