"""Checks the prose of the source: phrases that a reader has to read twice.

    python tools/prose.py

Docstrings, comments and strings of the source may have each phrase below only rarely. The ceilings
are per 10,000 lines; widely read code bases of the field are below them. Exit code 1 if a phrase is
above its ceiling; its places are then listed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("t2tp", "trainer", "problems", "hparams")


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


def main() -> int:
    """Prints the phrases above their ceilings; returns the exit code."""
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
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
