from collections import Counter

import numpy as np
import pytest

from t2tp import problems, registry
from t2tp.problems.algorithmic import AlgorithmicReverseBinary40

KINDS = ("identity", "reverse", "shift", "addition", "multiplication")
NAMES = [f"algorithmic_{kind}_{base}40" for kind in KINDS for base in ("binary", "decimal")]


def value(digits, base):
    return int("".join(map(str, reversed(digits))), base)


def is_right(kind, base, inputs, targets):
    if kind == "identity":
        return targets == inputs
    if kind == "reverse":
        return targets == inputs[::-1]
    if kind == "shift":
        return targets == [digit + base for digit in inputs]
    middle = inputs.index(base)
    one, other = (value(digits, base) for digits in (inputs[:middle], inputs[middle + 1 :]))
    wanted = one + other if kind == "addition" else one * other
    return value(targets, base) == wanted and (len(targets) == 1 or targets[-1] != 0)


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_what_the_name_says(name, tmp_path):
    problem = problems.find(name)
    base = 2 if "binary" in name else 10
    samples = problem.samples("train", tmp_path, tmp_path)
    symbols = set()
    for number in range(300):
        inputs, targets = samples[number]["inputs"], samples[number]["targets"]
        assert 0 < len(inputs) <= 40 and 0 < len(targets) <= 41
        assert is_right(name.split("_")[1], base, inputs, targets)
        symbols |= {*inputs, *targets}
    assert symbols == set(range(problem.num_symbols))
    assert problem.vocab_sizes(tmp_path)["targets"] == problem.num_symbols + 2


def test_samples_are_functions_of_their_number_and_differ_between_splits(tmp_path):
    problem = problems.find("algorithmic_identity_decimal40")
    train, again, test = (
        problem.samples(s, tmp_path, tmp_path) for s in ("train", "train", "test")
    )
    assert train[7] == again[7]
    assert train[7] != train[8] and train[7] != test[7]
    lengths = Counter(len(train[number]["inputs"]) for number in range(2000))
    assert set(lengths) == set(range(1, 41))


@registry.register_problem
class TinyReverse(AlgorithmicReverseBinary40):
    """A small problem."""

    sample_counts = {"train": 700, "validation": 21, "test": 5}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    TinyReverse().prepare(directory, num_shards=3)
    return directory


@pytest.mark.parametrize("suffix", ["", "_rev", "_copy", "_rev_copy"])
def test_suffixes_reverse_and_copy(data_dir, suffix):
    problem = problems.find(f"tiny_reverse{suffix}")
    assert problem.name == f"tiny_reverse{suffix}"
    batch = problem.stream(data_dir, "validation", 21, 41)[0]
    inputs, targets = (np.asarray(batch[name]) for name in ("inputs", "targets"))
    plain = TinyReverse().stream(data_dir, "validation", 21, 41)[0]
    first, second = ("targets", "inputs") if "_rev" in suffix else ("inputs", "targets")
    np.testing.assert_array_equal(inputs, plain[first])
    np.testing.assert_array_equal(targets, inputs if "_copy" in suffix else plain[second])
    if not suffix:
        assert (inputs != targets).any()


def test_a_problem_without_inputs_has_no_suffixes():
    with pytest.raises(ValueError, match="does not go from tokens to tokens"):
        problems.find("languagemodel_python_stdlib_rev")
    with pytest.raises(KeyError, match="did you mean tiny_reverse"):
        problems.find("tiny_revers_rev")


ARRANGEMENTS = ("padded", "packed", "bucketed")


def pairs_of(batch):
    """Returns the pairs of a batch, separated by its segments."""
    found = []
    arrays = {name: np.asarray(batch[name]) for name in batch}
    for row in range(len(arrays["targets"])):
        for segment in range(1, arrays["targets_segmentation"][row].max() + 1):
            pair = []
            for name in ("inputs", "targets"):
                here = arrays[f"{name}_segmentation"][row] == segment
                pair.append(tuple(arrays[name][row][here].tolist()))
                places = arrays[f"{name}_position"][row][here].tolist()
                assert places == list(range(len(places)))
            found.append(tuple(pair))
    return found


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("length", [41, 64, 256])
def test_every_pair_is_there_once_an_epoch_in_every_arrangement(data_dir, arrangement, length):
    problem = problems.find("tiny_reverse", f"arrangement={arrangement}")
    stream = problem.stream(data_dir, "train", 1, length)
    count = getattr(stream, "batches_per_epoch", None) or stream.examples_per_epoch
    seen = [pair for step in range(count) for pair in pairs_of(stream[step])]
    columns = problem.stored(data_dir, "train")
    stored = [
        tuple(tuple(columns[name].example(i).tolist()) for name in ("inputs", "targets"))
        for i in range(700)
    ]
    assert Counter(seen) == Counter(stored)
    again = [pair for step in range(count, 2 * count) for pair in pairs_of(stream[step])]
    assert Counter(again) == Counter(stored) and again != seen


def test_buckets_have_the_same_tokens_in_every_batch(data_dir):
    problem = problems.find("tiny_reverse", "arrangement=bucketed")
    stream = problem.stream(data_dir, "train", 4, 64)
    shapes = [shape["targets"] for shape in stream.shapes()]
    assert shapes == [(4, 64), (8, 32), (16, 16)]
    seen = {stream[step]["targets"].shape for step in range(stream.batches_per_epoch)}
    assert seen == set(shapes)


def test_a_length_that_is_too_short_is_reported(data_dir, caplog):
    problem = TinyReverse()
    stream = problem.stream(data_dir, "train", 4, 30)
    fitting = (problem.stored(data_dir, "train")["inputs"].lengths <= 30).sum()
    assert stream.examples_per_epoch == fitting
    assert f"{700 - fitting} of 700 examples are left out" in caplog.text
    with pytest.raises(ValueError, match="none of the 700 examples .* fits in length 1: the short"):
        problem.stream(data_dir, "train", 4, 1)


def test_an_unknown_arrangement_is_refused():
    with pytest.raises(ValueError, match="did you mean bucketed"):
        problems.find("tiny_reverse", "arrangement=bucket")


def test_the_shards_do_not_change_the_batches(data_dir, tmp_path):
    TinyReverse().prepare(tmp_path, num_shards=7)
    streams = (TinyReverse().stream(each, "train", 21, 41) for each in (data_dir, tmp_path))
    for one, other in zip(*(stream[0].values() for stream in streams), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_symbols_are_written_with_spaces_and_scored_by_exact_match(tmp_path):
    problem = problems.find("algorithmic_addition_decimal40")
    codec = problem.codec(tmp_path)
    tokens = codec.encode("1 2 10 3")
    assert tokens == [3, 4, 12, 5]
    assert codec.decode([*tokens, 1, 0, 0]) == "1 2 10 3"
    with pytest.raises(ValueError, match="'1 11': .* takes numbers from 0 to 10 with spaces"):
        codec.encode("1 11")
    scores = problem.decode_metrics(["1 2", "3"], ["1 2", "4"])
    assert scores == {"exact_match": 50.0}
