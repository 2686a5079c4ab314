"""The words that the glossary has retired do not come back."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/glossary.md"

# Files in which a retired word is the right one.
ALLOWED = {
    "symbol": {
        *("problems/algorithmic.py", "problems/codec.py", "tests/problems/test_algorithmic.py"),
        *("docs/data.md", "docs/new_problem.md"),
        "t2tp/processes/libc_calls.py",  # Symbols of a shared library.
    }
}
# Text that names things outside the repository or in stored files.
QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]*'|--\w+|\bSymbolic\b")


def retired() -> list[str]:
    table = GLOSSARY.read_text("utf-8").partition("## Retired words")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)[2:]
    return [word for row in rows for word in row.split(", ")]


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


@functools.cache
def prose(file: str) -> str:
    """Names, docstrings and comments of a module; a page without its code; no quotations."""
    text = (ROOT / file).read_text("utf-8")
    if not file.endswith(".py"):
        return QUOTED.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = [t.string for t in tokens if t.type in (tokenize.NAME, tokenize.COMMENT)]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    return QUOTED.sub("", "\n".join([*words, *docstrings]))


@pytest.mark.slow
def test_retired_words_do_not_come_back():
    files = tracked("*.py", "*.md", ":!CHANGELOG.md", f":!{GLOSSARY.relative_to(ROOT)}")
    files.remove("tests/test_glossary.py")
    words = retired()
    assert words
    where = {}
    # Also within names: `last_symbols`, `SymbolCodec`.
    found = re.compile(rf"(?<![a-z])({'|'.join(words)})s?(?![a-z])", re.IGNORECASE)
    for file in files:
        for match in found.finditer(prose(file)):
            if file not in ALLOWED.get(match[1].lower(), ()):
                where[match[1], file] = match[0]
    assert not where, "write these words as docs/glossary.md says"


@functools.cache
def docstrings() -> list[tuple[str, str]]:
    """Each docstring, with its file."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [
        (file, ast.get_docstring(node) or "")
        for file in tracked("*.py")
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
        if isinstance(node, documented)
    ]


@pytest.mark.slow
def test_sections_of_docstrings_are_indented_by_two_spaces():
    """Ruff checks the names of sections, and not what they contain."""
    section = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields):\n(?!  \S)", re.MULTILINE)
    assert not [each for each in docstrings() if section.search(each[1])]
