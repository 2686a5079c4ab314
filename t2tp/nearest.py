"""Did you mean: what an error says to somebody who mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Says which of the known names is meant, to stand at the end of an error's sentence.

    Args:
        name: the name that was given; upper and lower case count as the same.
        known: the names that there are.
        what: what they are, in the plural ("models").

    Returns:
        "did you mean a, b?" with the three nearest; if none is near, all the names.
    """
    known = sorted(known)
    if not known:
        return f"there are no {what}"
    near = similar(name, known)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"the {what} are {', '.join(known)}"


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Those of the known names, up to three, that may be meant; the most similar first."""
    by_lowered = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lowered, n=3)
    return [by_lowered[each] for each in near]
