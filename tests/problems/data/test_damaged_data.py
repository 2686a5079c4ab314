"""Damaged data are detected before they are trained on, however large their files are."""

import functools
import json
import shutil

import numpy as np
import pytest

from t2tp import problems
from t2tp.problems.data import manifest, shards
from t2tp.problems.data.columns import Column
from t2tp.problems.data.manifest import DamagedDataError, FileState, Manifest, SplitSizes
from t2tp.problems.prepare import shard_generation
from tests.problems.streams import BATCH, LENGTH, STREAMS, open_stream, prepare_all


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as small:
        writer = functools.partial(shards.ShardWriter, block_bytes=64)
        small.setattr(shard_generation, "ShardWriter", writer)
        prepare_all(directory)
    return directory


@pytest.fixture
def data(made, tmp_path):
    return shutil.copytree(made, tmp_path / "data")


def spoil(path, how, seed=0):
    contents = bytearray(path.read_bytes())
    if how == "zeros":
        contents = bytearray(len(contents))
    elif how == "noise":
        contents = bytearray(np.random.default_rng(seed).bytes(len(contents)))
    else:
        contents[len(contents) // 3] ^= 4
    path.write_bytes(contents)


def read_all(stream, steps=40):
    for step in range(steps):
        for feature in stream[step].values():
            np.asarray(feature)


@pytest.mark.parametrize("how", ["zeros", "noise", "one bit"])
@pytest.mark.parametrize("kind", STREAMS)
def test_no_batch_has_what_was_not_written(data, kind, how):
    problem = problems.find(STREAMS[kind][0])
    part = getattr(problem, "parts", [problem])[0]
    columns = sorted(part.directory(data).glob("train-*.inputs")) or sorted(
        part.directory(data).glob("train-*.targets")
    )
    stream = open_stream(data, kind)  # Before the damage, as opening hashes small files.
    for path in columns:
        spoil(path, how)
    with pytest.raises(DamagedDataError, match=r"train-.* is damaged: its bytes [\d,]+ to [\d,]+ "):
        read_all(stream)


@pytest.mark.parametrize("how", ["zeros", "noise", "one bit"])
def test_where_examples_begin_is_checked(data, how):
    stream = open_stream(data, "windows")
    for path in problems.find("some_sources").directory(data).glob("train-*.begins"):
        spoil(path, how)
    with pytest.raises(DamagedDataError, match="begins is damaged"):
        read_all(stream)


@pytest.mark.parametrize("value", [0, 1 << 40])
def test_a_span_is_found_among_offsets_that_are_not_all_read(tmp_path, value):
    rng = np.random.default_rng(0)
    # Eight offsets per block.
    with shards.ShardWriter(tmp_path, "a", {"x": np.dtype("<u2")}, block_bytes=64) as writer:
        for size in rng.integers(0, 5, 400):
            writer.add({"x": np.arange(size)})
    whole = Column([tmp_path / "a.x"], np.dtype("<u2"))
    spans = np.sort(rng.integers(0, whole.size, [50, 2, 1]), axis=1)
    spans[:, 1] += 1
    expected = [np.stack(whole.parts(*span)[1:]).tolist() for span in spans]
    path = tmp_path / "a.x.begins"
    offsets = np.fromfile(path, "<i8")
    outcomes = []
    for block in range(0, 400, 40):
        damaged = offsets.copy()
        damaged[block : block + 8] = value
        path.write_bytes(damaged.tobytes())
        for span, parts in zip(spans, expected, strict=True):
            column = Column([tmp_path / "a.x"], np.dtype("<u2"))
            try:
                assert np.stack(column.parts(*span)[1:]).tolist() == parts
                outcomes.append("right")
            except DamagedDataError:
                outcomes.append("refused")
    assert outcomes.count("right") > 100 and outcomes.count("refused") > 100


def test_only_what_is_read_is_checked(data):
    problem = problems.find("some_sources")
    path = sorted(problem.directory(data).glob("validation-*.targets"))[0]
    train = open_stream(data, "windows")
    validation = problem.stream(data, "validation", BATCH, LENGTH)
    spoil(path, "noise")
    read_all(train)
    with pytest.raises(DamagedDataError, match=r"validation-.* is damaged"):
        np.asarray(validation[0]["targets"])


def test_every_byte_is_checked_on_demand(data):
    problem = problems.find("some_sources")
    large = problem.directory(data) / "large"  # Too large to be hashed at each start.
    large.write_bytes(bytes(5 << 20))
    stored = manifest.Manifest.read(large.parent)
    stored.files[large.name] = FileState.from_file(large)
    stored.write(large.parent)
    problem.check_contents(data, num_workers=2)
    spoil(large, "one bit")
    problem.check_prepared(data)
    said = r"data of some_sources are damaged: .*large is not the file(.|\n)*--overwrite"
    with pytest.raises(DamagedDataError, match=said):
        problem.check_contents(data, num_workers=2)


def test_the_digest_is_that_of_the_data_and_not_of_their_checks(data):
    problem = problems.find("some_sources")
    directory = problem.directory(data)
    before = problem.digest(data)
    made = manifest.Manifest.read(directory)
    for name in [*made.files]:
        if name.endswith(".checks"):
            del made.files[name]
    made.write(directory)
    assert problem.digest(data) == before


CHANGES = {
    "splits": lambda fields: fields["splits"]["train"].update(examples=7),
    "columns": lambda fields: fields["columns"].update(targets="<i2"),
    "options": lambda fields: fields["options"].update(vocab_size=7),
    "files": lambda fields: fields["files"].popitem(),
    "vocabulary": lambda fields: fields.update(vocabulary=""),
    "another entry": lambda fields: fields.update(another=1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_manifest_that_was_edited_is_refused(data, change):
    path = problems.find("some_sources").directory(data) / "manifest.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(DamagedDataError, match=r"manifest\.json has been changed since it was wr"):
        problems.find("some_sources").check_prepared(data)


def test_a_manifest_that_is_written_is_read(tmp_path):
    (tmp_path / "small").write_bytes(b"abc")
    files = {"small": FileState.from_file(tmp_path / "small")}
    assert files["small"].sha256.startswith("ba7816bf")  # SHA-256 of "abc", from FIPS 180
    splits = {"train": SplitSizes(1, {"targets": 2}, 3)}
    columns, versions = {"targets": "<u2"}, {"t2tp": "0"}
    made = Manifest("p", {"o": 1}, {"from": "x"}, versions, columns, splits, "", files)
    made.write(tmp_path)
    read = Manifest.read(tmp_path)
    read.check(tmp_path)
    assert read == made


NO_MANIFESTS = {
    **dict.fromkeys(["", "[]", "{}", '{"format": 2}', '{"format": 2, "splits": 3}'], ""),
    '{"format": 1}': " has format 1, this version of t2tp reads 2",
}


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_what_is_no_manifest_is_said(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DamagedDataError, match=rf"manifest\.json{NO_MANIFESTS[text]}"):
        Manifest.read(tmp_path)
