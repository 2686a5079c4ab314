"""The example of docs/checkpoints.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/checkpoints.md"


def test_the_page_s_example_says_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(code, "checkpoints.md", "exec"), names)
    for line in code.splitlines():
        expression, _, shown = line.partition("  # ")
        if expression.startswith("checkpoint."):
            assert eval(expression, names) == eval(shown)
    assert names["value"].shape == (5000, 64)
