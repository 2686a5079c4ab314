"""No example of a TFDS dataset is in two splits, unless the user asks for it."""

import itertools
from types import SimpleNamespace

import hypothesis
import pytest
import tensorflow_datasets as tfds
from hypothesis import strategies

from t2tp.problems.sources.tfds_splits import default_splits

SPLITS = ("train", "validation", "test")


def described(**sizes):
    """Returns the description of a dataset that has splits of these sizes."""
    return {
        name: SimpleNamespace(name=name, num_examples=size, shard_lengths=[size])
        for name, size in sizes.items()
    }


def examples_of(spec, info):
    """Returns the (split, index) of each example that TFDS would read."""
    return [
        (each.splitname, number)
        for each in tfds.core.ReadInstruction.from_spec(spec).to_absolute(info)
        for number in range(each.from_ or 0, info[each.splitname].num_examples)[
            : None if each.to is None else each.to - (each.from_ or 0)
        ]
    ]


def chosen(given, info):
    return {**default_splits(SPLITS, given, info), **given}


CASES = [
    ({}, ["train[0:950]", "train[950:1000]", "test"]),
    ({"train": "train[:98%]"}, ["train[:98%]", "train[980:1000]", "test"]),
    ({"train": "train[:50%]"}, ["train[:50%]", "train[950:1000]", "test"]),
    ({"validation": "train[:5%]"}, ["train[50:1000]", "train[:5%]", "test"]),
    ({"validation": "test[:50%]"}, ["train", "test[:50%]", "test[150:300]"]),
    ({"test": "train[1:2]"}, ["train[0:1]+train[2:950]", "train[950:1000]", "train[1:2]"]),
]


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_what_is_not_named_is_what_is_left(given, expected):
    found = chosen(given, described(train=1000, test=300))
    assert [found[split] for split in SPLITS] == expected


def test_what_the_dataset_does_not_hold_out_is_the_end_of_train():
    wanted = {"train": "train[0:90]", "validation": "train[90:95]", "test": "train[95:100]"}
    assert default_splits(SPLITS, {}, described(train=100)) == wanted


NOTHING_LEFT = [
    ({"train": "train"}, "validation"),
    ({"train": "all"}, "test"),
    ({"validation": "train", "test": "test"}, "train"),
]


@pytest.mark.parametrize(("given", "nothing"), NOTHING_LEFT)
def test_a_split_for_which_nothing_is_left_is_said(given, nothing):
    with pytest.raises(ValueError, match=f": nothing is left for {nothing}, as .* {nothing} too"):
        default_splits(SPLITS, given, described(train=100, test=30))


SPECS = strategies.builds(
    lambda split, begin, size, unit: f"{split}[{begin}{unit}:{begin + size}{unit}]",
    strategies.sampled_from(["train", "train", "test"]),
    strategies.integers(0, 10),
    strategies.integers(1, 12),
    strategies.sampled_from(["", "%"]),
)


@hypothesis.given(
    strategies.dictionaries(strategies.sampled_from(SPLITS), SPECS, max_size=2),
    strategies.sets(strategies.sampled_from(["validation", "test"])).map(lambda s: s | {"test"}),
    strategies.integers(150, 400),
)
def test_only_examples_that_were_named_twice_are_in_two_splits(given, held_out, size):
    info = described(train=size, **dict.fromkeys(held_out, 60))
    found = chosen(given, info)
    numbers = {split: examples_of(spec, info) for split, spec in found.items()}
    assert all(numbers[split] for split in SPLITS if split not in given)
    for split, other in itertools.combinations(SPLITS, 2):
        if not {split, other} <= given.keys():
            assert not {*numbers[split]} & {*numbers[other]}, found
    assert all(len({*each}) == len(each) for each in numbers.values())
