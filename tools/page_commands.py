"""Finds the commands that the README and the pages of docs/ show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(t2tp_\w+ [^`]*--[^`]*)`")


def commands(page: str) -> list[list[str]]:
    """Returns the words of each command in the blocks of a page, in the page's order."""
    text = (REPOSITORY / page).read_text("utf-8")
    blocks = [code for language, code in _FENCED.findall(text) if language in ("", "sh")]
    found = [words for block in blocks for words in _commands(block)]
    return [words for words in found if words[0] == "echo" or words[0].startswith("t2tp_")]


def inline_commands(page: str) -> list[list[str]]:
    """Returns the words of each command with flags in the sentences of a page."""
    text = (REPOSITORY / page).read_text("utf-8")
    return [shlex.split(command) for command in _INLINE.findall(text)]


def _commands(block: str) -> Iterator[list[str]]:
    for line in block.replace("\\\n", "").splitlines():
        line = re.sub(r"^\s*(?:\w+\$ )?(?:TF_CONFIG='[^']*' )?", "", line)
        if line.startswith(("echo ", "t2tp_")) and not line.startswith("t2tp_trainer: "):
            yield shlex.split(line, comments=True)
