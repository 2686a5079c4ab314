"""The page in a real browser: headless Chromium."""

import json
import re
import shutil
import subprocess
from html import unescape
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
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    "--hide-scrollbars",
]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
)


def chromium(tmp_path: Path, page: Path, *flags: str) -> str:
    """Opens a page; returns stdout."""
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, profile, *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


def measured(tmp_path: Path, html: str, script: Path, width: int, *flags: str) -> dict:
    """Opens a page with a script that puts measurements into its title; returns these."""
    page = tmp_path / "measured.html"
    page.write_text(html.replace("</body>", f"<script>{script.read_text()}</script></body>"))
    dom = chromium(tmp_path, page, "--dump-dom", f"--window-size={width},900", *flags)
    return json.loads(unescape(re.search("<title>(.*?)</title>", dom)[1]))


@pytest.mark.slow
def test_it_fits_wide_and_narrow_windows_light_or_dark_as_people_like_it(tmp_path):
    html, script = t2tp.explain(samples.mlp()).html(), Path(__file__).with_name("measure.js")
    wide, narrow = (
        measured(tmp_path, html, script, *options)
        for options in ((1300,), (500, "--force-dark-mode"))
    )
    assert (wide["width"], narrow["width"]) == (1300, 500)
    cards = html.count("<article")  # The mesh has one too.
    assert wide["drawn"] == narrow["drawn"] == cards
    assert wide["overlapping"] == narrow["overlapping"] == 0

    def brightness(said: str) -> float:
        return np.mean([int(number) for number in re.findall(r"\d+", said)[:3]])

    assert brightness(wide["paper"]) > 240 > 60 > brightness(wide["ink"])
    assert brightness(narrow["paper"]) < 40 < 200 < brightness(narrow["ink"])
