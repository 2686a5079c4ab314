"""The page on models shows what comes of its example."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "models.md"


def test_the_example_of_the_page_gives_what_it_shows(capsys):
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    exec(compile(code, PAGE.name, "exec"), {})
    assert shown in capsys.readouterr().out
