"""Suggests similar names in errors about unknown names, and matches names with patterns."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

# Names that other frameworks have, and ours.
_OURS = {
    "bf16": ["precision", "activation_dtype"],
    "epochs": ["train_steps"],
    "fp16": ["precision", "activation_dtype"],
    "learning_rate": ["learning_rate_constant"],
    "lr": ["learning_rate_constant"],
    "max_new_tokens": ["decode_length", "decode_hparams"],
    "max_steps": ["train_steps"],
    "seed": ["random_seed"],
    "warmup_steps": ["learning_rate_warmup_steps"],
}

# Max number of names to list if none is similar.
_MAX_LISTED = 100


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Suggests known names, as the end of an error's sentence.

    `what` is a plural noun for the known names ("models"). The case of `name` is ignored.

    Returns:
      "did you mean a, b?" with up to three similar names. If none is similar, all names, or the
      three nearest if there are more than 100 names.
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


def first_few(texts: Sequence[str], most: int = 3, joint: str = "; ") -> str:
    """Joins the first texts and counts the others, as in `a; b; c; and 2 more`."""
    more = f"{joint}and {len(texts) - most:,} more" if len(texts) > most else ""
    return joint.join(texts[:most]) + more


def check_known(
    name: str,
    known: Iterable[str],
    what: str,
    sentence: str,
    error: Callable[[str], Exception] = ValueError,
) -> None:
    """Raises an error unless a name is known.

    The message is `sentence` ("norm_type is 'rsm'") and the suggestions of `nearest`.
    """
    known = list(known)
    if name not in known:
        raise error(f"{sentence}: {nearest(str(name), known, what)}")


def matches(name: str, patterns: str) -> bool:
    """Whether a name has a part like one of the patterns, which are separated by `|`.

    `*` is any text; `^` and `$` are the name's begin and end. Regular expressions of a file that
    somebody sent could take forever.
    """
    each = [fnmatch.translate(f"*{pattern}*") for pattern in patterns.split("|") if pattern]
    return bool(each) and re.match("|".join(each), f"^{name}$") is not None


def similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Returns up to three similar names, most similar first; see `difflib.get_close_matches`."""
    by_lowered = {each.lower(): each for each in sorted(known)}
    if ours := [each for each in _OURS.get(name.lower(), ()) if each in by_lowered]:
        return ours
    near = difflib.get_close_matches(name.lower(), by_lowered, n=3, cutoff=cutoff)
    return [by_lowered[each] for each in near]
