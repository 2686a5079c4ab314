import numpy as np
import pytest

from t2tp.problems.data.columns import Column
from t2tp.problems.data.manifest import SplitSizes
from t2tp.problems.data.shards import ShardWriter, finished, token_dtype

DTYPES = {"inputs": np.dtype("<u2"), "label": np.dtype("<i4")}
EXAMPLES = [[5, 6, 7], [], [8], [9, 1], [2]]


def write(directory, name, examples):
    with ShardWriter(directory, name, DTYPES) as writer:
        for example in examples:
            writer.add({"inputs": np.array(example), "label": np.array([len(example)])}, 10)
        writer.skip("too long")


@pytest.fixture(params=[[5], [2, 3], [1, 1, 0, 3]], ids=str)
def column(tmp_path, request) -> Column:
    """Writes the inputs of the examples, in shards of these sizes."""
    left = list(EXAMPLES)
    for shard, size in enumerate(request.param):
        write(tmp_path, str(shard), [left.pop(0) for _ in range(size)])
    return Column([tmp_path / f"{i}.inputs" for i in range(len(request.param))], DTYPES["inputs"])


def test_a_token_takes_as_many_bytes_as_the_vocabulary_needs():
    assert [token_dtype(size).itemsize for size in (8192, 1 << 16, (1 << 16) + 1)] == [2, 2, 4]


def test_what_is_written_is_read_whatever_the_shards(column):
    assert len(column) == 5
    assert column.size == 7
    assert [column.example(i).tolist() for i in range(5)] == EXAMPLES
    assert column.lengths.tolist() == [3, 0, 1, 2, 1]
    assert column.values(np.array([[0, 6], [3, 2]])).tolist() == [[5, 2], [8, 7]]
    assert column.offsets(np.arange(6)).tolist() == [0, 3, 3, 4, 6, 7]
    for begin in range(8):
        for end in range(begin, 8):
            values = [value for example in EXAMPLES for value in example]
            assert column.span(begin, end).tolist() == values[begin:end]
    counts, begins, sizes = column.parts(np.array([1, 3, 1]), np.array([6, 4, 3]))
    assert (counts.tolist(), begins.tolist(), sizes.tolist()) == (
        [4, 1, 1],
        [1, 3, 3, 4, 3, 1],
        [2, 0, 1, 2, 1, 2],
    )
    for at_once in (2, 100):
        assert column.counts(10, at_once).tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 1, 1]


def test_a_finished_shard_says_what_it_holds(tmp_path):
    write(tmp_path, "a", EXAMPLES)
    sizes, files = finished(tmp_path, "a")
    assert sizes == SplitSizes(5, {"inputs": 7, "label": 5}, 50, {"too long": 1})
    assert set(files) == {path.name for path in tmp_path.iterdir()}
    assert sizes + sizes == SplitSizes(10, {"inputs": 14, "label": 10}, 100, {"too long": 2}, 2)


def test_an_interrupted_shard_is_not_finished_and_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path, "a", DTYPES) as writer:
        writer.add({"inputs": np.array([1]), "label": np.array([1])})
        raise KeyboardInterrupt
    assert finished(tmp_path, "a") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.inputs", "a.inputs.begins", "a.label", "a.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_a_damaged_shard_is_not_finished(tmp_path, name, damage):
    write(tmp_path, "a", EXAMPLES)
    path = tmp_path / name
    contents = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(contents[:-1])
    elif name != "a.json":
        path.write_bytes(contents[:-1] + b"\x55")
    else:
        path.write_bytes(contents.replace(b"sha256", b"sha255"))
    assert finished(tmp_path, "a") is None or (name, damage) == ("a.json", "truncated")


def test_a_number_that_does_not_fit_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match="cannot be stored as uint16"),
        ShardWriter(tmp_path, "a", DTYPES) as writer,
    ):
        writer.add({"inputs": np.array([1 << 16]), "label": np.array([1])})
