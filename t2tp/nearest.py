"""Did you mean: what an error says to somebody who mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Most names that are listed where none is near; of more, as of a catalog, only the nearest.
_MAX_LISTED = 100


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Says which of the known names is meant, to stand at the end of an error's sentence.

    Args:
        name: the name that was given; upper and lower case count as the same.
        known: the names that there are.
        what: what they are, in the plural ("models").

    Returns:
        "did you mean a, b?" with the three nearest; if none is near, all the names, or the three
        nearest if there are more than 100.
    """
    known = sorted(known)
    if not known:
        return f"there are no {what}"
    near = similar(name, known)
    if near:
        return f"did you mean {', '.join(near)}?"
    if len(known) > _MAX_LISTED:
        near = similar(name, known, cutoff=0.0)
        return f"of the {len(known)} {what} the nearest are {', '.join(near)}"
    return f"the {what} are {', '.join(known)}"


def similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Those of the known names, up to three, that may be meant; the most similar first.

    Args:
        name: the name that was given.
        known: the names that there are.
        cutoff: how similar they must be, from 0 to 1; see `difflib.get_close_matches`.
    """
    by_lowered = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lowered, n=3, cutoff=cutoff)
    return [by_lowered[each] for each in near]
