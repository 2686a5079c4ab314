"""Checks prose: phrases that a reader has to read twice, and words that the glossary has retired.

    python tools/prose.py

Docstrings, comments and strings of the source may have each phrase below only rarely. The ceilings
are per 10,000 lines; widely read code bases of the field are below them. No name, docstring,
comment or page of the repository may have a retired word. If a phrase is above its ceiling or a
retired word occurs, the places are listed and the exit code is 1.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("t2tp", "trainer", "problems", "hparams")
GLOSSARY = "docs/glossary.md"
# Files in which a retired word is correct. The "symbols" in libc_calls.py are those of a library.
ALLOWED = {
    "symbol": {
        *("problems/algorithmic.py", "problems/codec.py", "tests/problems/test_algorithmic.py"),
        *("docs/data.md", "docs/new_problem.md", "t2tp/processes/libc_calls.py"),
    }
}
# Text that names things outside the repository or in stored files.
QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]*'|--\w+|\bSymbolic\b")
# Ruff checks the names of sections, but not the indentation of their lines.
WRONG_SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields):\n(?!  \S)", re.MULTILINE)


class Phrase(NamedTuple):
    """A phrase, the pattern that finds it, and how often it may occur in 10,000 lines."""

    name: str
    pattern: str
    ceiling: float


_WORDS = "the|a|an|its|each|what|that"
PHRASES = (
    Phrase("that of, those of: repeat the noun", r"\b(?:that|those) of\b", 2.0),
    Phrase("of which, of whom: use two sentences", r"\bof (?:which|whom)\b", 1.0),
    Phrase("as many, so many: give the number", r"\b(?:as|so) (?:many|much)\b", 1.0),
    Phrase("beside: next to, or compared with", r"\bbeside\b", 0.5),
    Phrase(
        "a clause with what: name the thing",
        r"\b(?:what|whatever) (?:is|was|are|it|they|a|the)\b",
        3.0,
    ),
    Phrase("comes to, stands in, lies in: is", r"\b(?:comes to|stands in|lies in)\b", 0.5),
    Phrase(
        "a sentence that begins with Of, In or For",
        r'(?m)^\s*(?:#|""")?\s*(?:Of|In|For) (?:a|an|each|those|what|this|the)\b',
        6.0,
    ),
    Phrase(
        "an argument's doc without a noun",
        rf"(?m)^\s+\w+: (?:of|in|for|by|from|as|with) (?:{_WORDS})\b",
        1.0,
    ),
)


def places(phrase: Phrase, texts: dict[str, str]) -> list[str]:
    """Returns `path:line` of each occurrence of a phrase."""
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        for path, text in texts.items()
        for match in re.finditer(phrase.pattern, text)
    ]


def docstrings(text: str) -> list[str]:
    """Returns the docstrings of a module and of all that it defines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    return [ast.get_docstring(node) or "" for node in nodes]


def own_words(path: str, text: str) -> str:
    """Returns names, comments and docstrings of a module, or a page without its code."""
    if not path.endswith(".py"):
        return QUOTED.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = [t.string for t in tokens if t.type in (tokenize.NAME, tokenize.COMMENT)]
    return QUOTED.sub("", "\n".join([*words, *docstrings(text)]))


def retired_words() -> list[str]:
    """Returns the words of the glossary's last table."""
    table = (ROOT / GLOSSARY).read_text("utf-8").partition("## Retired words")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)[2:]
    return [word for row in rows for word in row.split(", ")]


def mistakes() -> list[str]:
    """Returns where retired words are, and sections that are not indented by two spaces."""
    # Also within names, as in last_symbols.
    retired = re.compile(rf"(?<![a-z])({'|'.join(retired_words())})s?(?![a-z])", re.IGNORECASE)
    command = ["git", "ls-files", "*.py", "*.md", ":!CHANGELOG.md", ":!tools/prose.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for path in listed.stdout.split():
        text = (ROOT / path).read_text("utf-8")
        for match in retired.finditer(own_words(path, text)) if path != GLOSSARY else ():
            if path not in ALLOWED.get(match[1].lower(), ()):
                found.append(f"{path}: {match[0]!r} is a retired word: see {GLOSSARY}")
        if path.endswith(".py") and any(map(WRONG_SECTION.search, docstrings(text))):
            found.append(f"{path}: a docstring's section is not indented by two spaces")
    return found


def main() -> int:
    """Prints the phrases above their ceilings and other mistakes; returns the exit code."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}
    scale = 10_000 / sum(text.count("\n") for text in texts.values())
    above = [
        (phrase, found)
        for phrase in PHRASES
        if len(found := places(phrase, texts)) * scale > phrase.ceiling
    ]
    for phrase, found in above:
        print(f"{phrase.name}: {len(found) * scale:.1f} per 10,000 lines, at most {phrase.ceiling}")
        print("\n".join(f"  {place}" for place in found))
    wrong = mistakes()
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return 1 if above or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
