"""Parses the name of a mixture, and passes its options to its problems."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from t2tp.problems.data.mixture_stream import Stage
from t2tp.problems.problem import Problem
from t2tp.suggestions import nearest

PREFIX = "mixture:"

# Max rows of a block (see `Stage`): four digits are precise enough for proportions.
_LARGEST_BLOCK = 10_000


def read_name(name: str) -> tuple[list[str], list[Stage]]:
    """Parses a mixture's name.

    "mixture:a=0.7,b=0.3" has seven rows of a for every three rows of b.
    "mixture:a=1,b=0;1000:a=1,b=1" has two stages: before step 1000 only rows of a, and then equally
    many rows of a and b. In "mixture:a,b" the problems' numbers of rows determine the proportions;
    see `proportional_parts`.

    Returns:
      The names of the problems, and the stages; no stages if the name has no proportions.

    Raises:
      ValueError: the name is invalid.
    """
    problems = [each.strip() for each in name.removeprefix(PREFIX).split(",")]
    if (
        len(problems) > 1
        and all(problems)
        and not any(c in each for c in "=;" for each in problems)
    ):
        if len({*problems}) < len(problems):
            raise ValueError(f"{name}: each problem is named once")
        return problems, []
    stages = []
    for number, text in enumerate(name.removeprefix(PREFIX).split(";")):
        step, colon, shares = text.partition(":")
        if not number:
            stages.append((0, _shares(text, name)))
        elif colon and step.isdigit() and int(step) > stages[-1][0]:
            stages.append((int(step), _shares(shares, name)))
        else:
            raise ValueError(
                f"{name}: {text!r} is no stage; after the first they begin with their step, each "
                "later than the one before, as in mixture:a=1,b=0;1000:a=1,b=1"
            )
    names = list(dict.fromkeys(each for _, shares in stages for each in shares))
    schedule = [
        Stage(step, _whole([shares.get(each, Fraction(0)) for each in names], name))
        for step, shares in stages
    ]
    return names, schedule


def proportional_parts(rows: Sequence[int], temperature: float, max_rows: int) -> tuple[int, ...]:
    """Returns the rows of each problem in a block (`Stage.parts`), from the problems' sizes.

    The proportions are min(rows, max_rows) ** (1 / temperature), as in "Exploring the Limits of
    Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2020, section 3.5.2):
    temperature 1 is examples-proportional mixing, and a high temperature approaches equal
    proportions. The proportions are rounded to integers in a block of about 10,000 rows, with at
    least one row of each problem.

    `rows` are the problems' numbers of training rows. `max_rows` is 0 for no cap.
    """
    counted = [min(n, max_rows) if max_rows else n for n in rows]
    # Relative to the largest number of rows, so that no power overflows.
    rates = [(n / max(counted)) ** (1 / temperature) for n in counted]
    exact = [rate / sum(rates) * _LARGEST_BLOCK for rate in rates]
    parts = [max(1, int(each)) for each in exact]
    # The largest remainders are rounded up, to fill the block.
    by_remainder = sorted(range(len(parts)), key=lambda n: parts[n] - exact[n])
    for number in by_remainder[: max(0, _LARGEST_BLOCK - sum(parts))]:
        parts[number] += 1
    divisor = math.gcd(*parts)
    return tuple(part // divisor for part in parts)


def find_parts(
    name: str, names: Sequence[str], options: Sequence[str], find: Callable[[str, str], Problem]
) -> list[Problem]:
    """Returns the problems of a mixture, each with its options.

    In `options`, "b.documents=lines" applies to the problem b, and "vocab_size=4096" to all
    problems that have this option. `find` returns the problem of a name and options.

    Raises:
      ValueError: no problem has an option of this name, or a value is invalid.
    """
    own: dict[str, list[str]] = {each: [] for each in names}
    common: list[str] = []
    for piece in map(str.strip, options):
        owners = [each for each in names if piece.startswith(f"{each}.")]
        if owners:
            owner = max(owners, key=len)
            own[owner].append(piece.removeprefix(f"{owner}."))
        else:
            common.append(piece)
    parts = {each: find(each, ",".join(own[each])) for each in names}
    for piece in common:
        option = piece.partition("=")[0].strip()
        having = [each for each in names if option in parts[each].options]
        if not having:
            known = {each for part in parts.values() for each in part.options.values()}
            raise ValueError(
                f"options of {name}: no problem of it has the option {option!r}: "
                f"{nearest(option, known, 'options')}"
            )
        for each in having:
            own[each].append(piece)
            parts[each] = find(each, ",".join(own[each]))
    return list(parts.values())


def _shares(text: str, name: str) -> dict[str, Fraction]:
    shares: dict[str, Fraction] = {}
    for part in text.split(","):
        problem, equals, share = part.rpartition("=")
        try:
            value = Fraction(share.strip())
        except (ValueError, ZeroDivisionError):
            value = Fraction(-1)
        if not (equals and problem.strip()) or value < 0 or problem.strip() in shares:
            raise ValueError(
                f"{name}: {part!r} is no proportion; proportions are written as in "
                "mixture:a=0.7,b=0.3, each problem once"
            )
        shares[problem.strip()] = value
    return shares


def _whole(shares: Sequence[Fraction], name: str) -> tuple[int, ...]:
    """Returns the smallest integers in these proportions."""
    scale = math.lcm(*(share.denominator for share in shares))
    parts = [int(share * scale) for share in shares]
    divisor = math.gcd(*parts)
    if not divisor:
        raise ValueError(f"{name}: all proportions of a stage are 0")
    parts = [part // divisor for part in parts]
    if sum(parts) > _LARGEST_BLOCK:
        raise ValueError(
            f"{name}: these proportions are exact only over {sum(parts)} rows; round them, so that "
            f"{_LARGEST_BLOCK} rows are enough"
        )
    return tuple(parts)
