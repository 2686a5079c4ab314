"""Default splits of a TFDS dataset, as ranges such as "train[0:950]" that do not overlap."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Percentage of train for each held-out split that the dataset lacks.
_PERCENT_HELD_OUT = 5


class Range(NamedTuple):
    """The examples `begin` (included) to `end` (excluded) of a dataset's split."""

    split: str
    begin: int
    end: int


def default_splits(
    splits: Sequence[str], given: Mapping[str, str], info: Mapping[str, Any]
) -> dict[str, str]:
    """Returns the dataset's ranges for the splits that the user has not named.

    A held-out split is the dataset's split with the same name, or else 5 % of the dataset's train.
    Examples that the user has named for another split, or that are held out, are excluded, so that
    no example is in two splits.

    Args:
      splits: splits of the problem; the first one is for training.
      given: split -> TFDS's name, for the splits that the user named.
      info: the dataset's own splits, by name: `tfds.core.SplitInfo`.

    Raises:
      ValueError: no examples are left for a split.
    """
    train, *held_out = splits
    missing = [split for split in held_out if split not in info and split not in given]
    taken = [each for spec in given.values() for each in _ranges(spec, info)]
    chosen = {
        split: without([_whole(split, info)], taken)
        for split in held_out
        if split in info and split not in given
    }
    if missing or train not in given:
        remaining = without([_whole(train, info)], taken)
        # Each missing split gets 5 % of train, but no more than is left for train.
        num_splits = len(missing) + (train not in given)
        fair = sum(each.end - each.begin for each in remaining) // num_splits
        size = min(fair, max(1, round(info[train].num_examples * _PERCENT_HELD_OUT / 100)))
        for split in reversed(missing):
            remaining, chosen[split] = _cut_off(remaining, size)
        if train not in given:
            chosen[train] = remaining
    for split, ranges in chosen.items():
        if not ranges:
            options = ", ".join(f"{name}={spec}" for name, spec in given.items())
            raise ValueError(
                f"{options or 'the dataset'}: nothing is left for {split}, as no example is in two "
                f"splits unless asked for: name some for {split} too, as in {split}=train[95%:]"
            )
    return {split: "+".join(_name(each, info) for each in chosen[split]) for split in chosen}


def without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """Returns the parts of ranges that are not in the taken ranges."""
    remaining = list(ranges)
    for split, begin, end in taken:
        # A range of the same split leaves the pieces before and after the taken range.
        remaining = [
            piece
            for each in remaining
            for piece in (
                (each._replace(end=min(each.end, begin)), each._replace(begin=max(each.begin, end)))
                if each.split == split
                else (each,)
            )
            if piece.begin < piece.end
        ]
    return remaining


def _ranges(spec: str, info: Mapping[str, Any]) -> list[Range]:
    import tensorflow_datasets as tfds

    instructions = tfds.core.ReadInstruction.from_spec(spec).to_absolute(info)
    return [
        Range(
            each.splitname,
            each.from_ or 0,
            info[each.splitname].num_examples if each.to is None else each.to,
        )
        for each in instructions
    ]


def _whole(split: str, info: Mapping[str, Any]) -> Range:
    return Range(split, 0, info[split].num_examples)


def _cut_off(ranges: Sequence[Range], size: int) -> tuple[list[Range], list[Range]]:
    """Splits ranges in two: all but the last `size` examples, and the last `size` examples."""
    remaining, cut = list(ranges), list[Range]()
    while size and remaining:
        split, begin, end = remaining.pop()
        middle = max(begin, end - size)
        cut.insert(0, Range(split, middle, end))
        size -= end - middle
        if begin < middle:
            remaining.append(Range(split, begin, middle))
    return remaining, cut


def _name(part: Range, info: Mapping[str, Any]) -> str:
    return (
        part.split if part == _whole(part.split, info) else f"{part.split}[{part.begin}:{part.end}]"
    )
