"""Examples are arranged in rows, and the arrangement is computed only once."""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import platform
import shutil
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from t2tp import problems
from t2tp.problems.data import atomic_directory, row_index, row_layout
from t2tp.problems.data.batch_stream import EMPTY
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import TokenField
from t2tp.problems.data.row_index import IndexDirectory
from t2tp.problems.data.row_layout import RowTexts, bucketed, one_per_row, padding_share, truncated
from t2tp.problems.data.row_layout import pack as packed

LENGTH = 64


def texts(home, count, seed=0, shards=3, data="digest", longest=LENGTH + 8):
    """Writes inputs and targets of similar lengths, most of them short; all tokens are 0."""
    draw = np.random.default_rng(seed)
    inputs = np.clip(draw.lognormal(2.5, 0.6, count), 2, longest).astype(np.int64)
    targets = np.clip(inputs * draw.lognormal(0, 0.2, count), 2, longest).astype(np.int64)
    home.mkdir(exist_ok=True)
    for name, lengths in (("inputs", inputs), ("targets", targets)):
        for number, part in enumerate(np.array_split(lengths, shards)):
            begins = np.concatenate([[0], part.cumsum()]).astype("<i8")
            begins.tofile(home / f"{number}.{name}.begins")
            np.zeros(begins[-1], "<u2").tofile(home / f"{number}.{name}")
    write_checks(home, shards)
    columns = {
        name: Column([home / f"{number}.{name}" for number in range(shards)], np.dtype("<u2"))
        for name in ("inputs", "targets")
    }
    directory = IndexDirectory(home / ".index", data) if data else None
    return RowTexts(columns, "train", "train of pairs", directory)


def write_checks(home, shards):
    """Writes the checksums of shards, each file in one block."""
    for number in range(shards):
        files = [path for path in home.glob(f"{number}.*") if path.suffix != ".checks"]
        crc32 = {path.name: zlib.crc32(path.read_bytes()).to_bytes(4, "little") for path in files}
        crc32 = {name: checksum.hex() for name, checksum in crc32.items()}
        fields = {"bad": [], "block_bytes": 1 << 26, "crc32": crc32}
        (home / f"{number}.checks").write_text(json.dumps(fields))


def rows_of(plan):
    counts, examples = plan.examples_of(np.arange(len(plan)))
    return [each.tolist() for each in np.split(examples, counts.cumsum()[:-1])]


def digest(plan):
    return hashlib.sha256(repr(rows_of(plan)).encode()).hexdigest()[:16]


def test_rows_of_runs_that_have_begun_stay(tmp_path):
    assert digest(packed(texts(tmp_path, 3000), LENGTH)) == "6987d92bb0a75517"


@pytest.mark.parametrize(("seed", "at_once"), [(0, 1), (1, 100), (2, 999)])
def test_packed_rows_have_each_example_once_and_room_for_all(tmp_path, seed, at_once):
    """Rows do not depend on how many examples are read at once."""
    found = texts(tmp_path, 5000, seed)
    whole = rows_of(packed(found, LENGTH))
    shutil.rmtree(tmp_path / ".index")
    in_pieces = dataclasses.replace(found, examples_at_once=at_once)
    assert rows_of(packed(in_pieces, LENGTH)) == whole
    lengths = np.stack([column.lengths for column in found.columns.values()])
    for row in whole:
        assert row == sorted(row) and row
        assert (lengths[:, row].sum(1) <= LENGTH).all()
    fitting = np.flatnonzero((lengths <= LENGTH).all(0))
    assert sorted(itertools.chain(*whole)) == fitting.tolist()


def test_little_of_packed_rows_is_padding(tmp_path):
    found = texts(tmp_path, 40_000)
    # Pairs need more padding than single texts, because the lengths of a pair differ.
    assert padding_share(found, packed(found, LENGTH), LENGTH) < 0.06
    inputs = RowTexts({"inputs": found.columns["inputs"]}, "train", "inputs", found.directory)
    assert padding_share(inputs, packed(inputs, LENGTH), LENGTH) < 0.03


@pytest.mark.parametrize("kind", ["tokens", "segmentation", "position"])
def test_rows_are_filled_with_their_examples(tmp_path, kind):
    """Rows that are read together have the examples that are read alone."""
    found = texts(tmp_path, 500)
    for file in tmp_path.glob("*.inputs"):
        values = np.random.default_rng(1).integers(1, 999, file.stat().st_size // 2)
        values.astype("<u2").tofile(file)
    write_checks(tmp_path, 3)
    column = Column(sorted(tmp_path.glob("*.inputs")), np.dtype("<u2"))
    plan = packed(found, LENGTH)
    wanted = np.array([3, EMPTY, 0, 3, len(plan) - 1, EMPTY])
    read = TokenField(column, plan, LENGTH, kind).read(wanted, (slice(None),))
    for values, row in zip(read, wanted.tolist(), strict=True):
        examples = [] if row == EMPTY else rows_of(plan)[row]
        alone = []
        for number, example in enumerate(examples):
            tokens = column.example(example).tolist()
            segments, positions = [number + 1] * len(tokens), list(range(len(tokens)))
            alone += {"tokens": tokens, "segmentation": segments, "position": positions}[kind]
        assert values.tolist() == alone + [0] * (LENGTH - len(alone))


def arrange(found):
    """Returns every arrangement of texts."""
    return [
        one_per_row(found, LENGTH),
        truncated(found, LENGTH),
        packed(found, LENGTH),
        *(plan for _, plan in bucketed(found, LENGTH)),
    ]


@pytest.mark.slow
def test_a_start_costs_the_same_for_any_number_of_examples(tmp_path, monkeypatch):
    """The first start computes the indexes; later ones read no examples."""
    peaks = []
    for count in (20_000, 400_000):
        found = texts(tmp_path / str(count), count)
        first = [digest(plan) for plan in arrange(found)] if count == 20_000 else arrange(found)
        with monkeypatch.context() as changed:
            changed.setattr(Column, "read_lengths", None)
            changed.setattr(Column, "lengths", None)
            again = texts(tmp_path / str(count), count)
            changed.setattr(np, "fromfile", None)
            tracemalloc.start()
            plans = arrange(again)
            for plan in plans:
                plan.examples_of(np.arange(0, len(plan), len(plan) // 8))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        if count == 20_000:
            assert [digest(plan) for plan in plans] == first
    assert peaks[1] < peaks[0] + 50_000, peaks  # 400,000 numbers would take 1.6 MB


@pytest.mark.slow
def test_making_an_index_takes_no_more_memory_for_more_examples(tmp_path):
    peaks = []
    for count in (2_000, 8_000):
        found = dataclasses.replace(texts(tmp_path / str(count), count), examples_at_once=1 << 8)
        tracemalloc.start()
        arrange(found)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_of_several_that_need_an_index_one_makes_it(tmp_path, monkeypatch):
    passes = []
    pack = row_layout.first_fit_decreasing

    def counted(*arguments):
        passes.append(arguments)
        return pack(*arguments)

    monkeypatch.setattr(row_layout, "first_fit_decreasing", counted)
    with ThreadPoolExecutor(4) as threads:
        opened = [texts(tmp_path, 9000) for _ in range(4)]
        plans = [*threads.map(lambda each: packed(each, LENGTH), opened)]
    assert len(passes) == 1
    assert len({digest(plan) for plan in plans}) == 1


def test_hosts_that_do_not_see_each_other_do_not_harm_each_other(tmp_path, monkeypatch):
    """The first complete index is kept, including its mapped files."""
    monkeypatch.setattr(atomic_directory, "exclusive_build", contextlib.nullcontext)
    index = tmp_path / ".index"
    index.mkdir()
    pack, plans, first = row_layout.first_fit_decreasing, [], {}

    def meanwhile(*arguments):
        with monkeypatch.context() as other:
            other.setattr(row_layout, "first_fit_decreasing", pack)
            other.setattr(platform, "node", lambda: "other")
            plans.append(packed(texts(tmp_path, 900), LENGTH))
            first.update({file: file.stat().st_ino for file in index.glob("[!.]*/*")})
        return pack(*arguments)

    monkeypatch.setattr(row_layout, "first_fit_decreasing", meanwhile)
    plans.append(packed(texts(tmp_path, 900), LENGTH))
    assert len({digest(plan) for plan in plans}) == 1
    assert len(first) == 3
    assert first == {file: file.stat().st_ino for file in index.rglob("*") if file.is_file()}


def test_an_index_is_that_of_its_data(tmp_path):
    """Data that are made again have a new index, and a damaged index is computed again."""
    old = digest(packed(texts(tmp_path, 900), LENGTH))
    new = texts(tmp_path, 900, seed=1, data="other")
    assert digest(packed(new, LENGTH)) != old
    for file in (tmp_path / ".index").glob("*/examples"):
        file.write_bytes(file.read_bytes()[:-4])
    wanted = digest(packed(texts(tmp_path, 900, seed=1, data=None), LENGTH))
    assert digest(packed(new, LENGTH)) == wanted


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOLCK])
def test_where_no_index_can_be_written_each_makes_its_own(tmp_path, monkeypatch, caplog, reason):
    found = texts(tmp_path, 900)

    def refuse(path):
        raise OSError(reason, "no", str(path))

    monkeypatch.setattr(atomic_directory, "exclusive_build", refuse)
    plan = packed(found, LENGTH)
    assert "every process makes it again at each start" in caplog.text
    assert not (tmp_path / ".index").exists()
    assert digest(plan) == digest(packed(texts(tmp_path, 900, data=None), LENGTH))


def test_a_full_disk_is_not_kept_full(tmp_path, monkeypatch, caplog):
    def refuse(path, text):
        if ".index" in str(path):
            raise OSError(errno.ENOSPC, "no", str(path))
        write_text(path, text)

    write_text = row_index.write_text
    monkeypatch.setattr(row_index, "write_text", refuse)
    packed(texts(tmp_path, 900), LENGTH)
    assert "every process makes it again at each start" in caplog.text
    left = [path for path in (tmp_path / ".index").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in left) < 100


@pytest.mark.parametrize("arrangement", problems.text_to_text.ARRANGEMENTS)
def test_problems_on_the_same_data_have_rows_of_their_own(tmp_path, arrangement):
    lines = [f"{n}\t{'more ' * (n % 30)}{n}\n" for n in range(300)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    options = f"files={tmp_path}/pairs.tsv,vocab_size=290,arrangement={arrangement}"
    problems.find("translate_tsv", options).prepare(tmp_path)

    def batches(name):
        stream = problems.find(name, options).stream(tmp_path, "train", 4, 32)
        return [stream[step][side][:] for step in range(20) for side in ("inputs", "targets")]

    names = ("translate_tsv_copy", "translate_tsv", "translate_tsv_rev_copy", "translate_tsv_rev")
    together = [batches(name) for name in names]
    for name, found in zip(names, together, strict=True):
        shutil.rmtree(tmp_path / "translate_tsv" / ".index")
        for one, other in zip(found, batches(name), strict=True):
            np.testing.assert_array_equal(one, other)
