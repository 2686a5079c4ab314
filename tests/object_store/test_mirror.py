"""Mirrors, locks and ranges with a store on loopback that has faults."""

import contextlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from t2tp import object_store
from t2tp.checkpoint import Checkpoint, Retention, Slice, all_steps, apply_retention, save
from t2tp.checkpoint.frozen_base import open_base
from t2tp.checkpoint.reading import BASE
from t2tp.object_store import mirror, ranges, session, store, store_lock
from t2tp.object_store.store import Store, StoreError
from t2tp.object_store.store_lock import StoreLock
from t2tp.problems.data.checked_file import CheckedFile
from t2tp.problems.data.manifest import DamagedDataError
from t2tp.problems.data.shards import ShardWriter, read_checks
from t2tp.trainer.cli import programs
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.local_paths import check_local
from t2tp.trainer.replay import _logged
from tests.checkpoint import samples
from tests.patience import PATIENCE
from tests.store_server import SECRET, StoreServer

pytestmark = pytest.mark.slow  # all tests wait for an object store

RUN = "s3://bucket/run"
SHAPE, PART = (1024, 1024), (256, 512)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store._TIMEOUTS, "read_timeout", 0.5)
    monkeypatch.setattr(store, "WAITS", (0.01,) * 8)
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(store_lock, "ABANDONED_SECONDS", 4.0)


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Continues as if on another host, without this host's downloads."""
    monkeypatch.setenv("T2TP_CACHE", str(tmp_path / f"host-{random.random()}"))


def save_step(step: int, address: str = RUN) -> Path:
    directory = Path(object_store.local_path(address), "checkpoints")
    shutil.rmtree(directory / f"step-{step:08d}", ignore_errors=True)
    return save(directory, step, [samples.of_step(step)], {"seen": step * 10})


@contextlib.contextmanager
def locked(found: mirror.Mirror) -> Iterator[StoreLock]:
    """Holds the lock of a run, as a trainer does."""
    found.lock = lock("trainer")
    assert found.lock.acquire() is None
    yield found.lock
    found.lock.release()
    found.lock = None


def uploaded(server: StoreServer, name: str = "run") -> dict[str, bytes]:
    files = server.files()
    return {
        path.removeprefix(f"bucket/{name}/"): files.cat_file(path)
        for path in files.find(f"bucket/{name}")
        if path != f"bucket/{name}"  # listed if its first file arrives now
    }


def test_a_checkpoint_appears_last_and_disappears_first(server, tmp_path, monkeypatch):
    with session() as opened:
        for step in (1, 2):
            path = save_step(step)
        (found,) = opened.mirrors
        found.push()
        with locked(found):
            apply_retention(path.parent, Retention(1))
            found.push()
    names = [(method, Path(name)) for method, name in server.log]
    for step, method in ((1, "PUT"), (2, "PUT"), (1, "DELETE")):
        name = f"step-0000000{step}"
        of_step = [n.name for m, n in names if m == method and n.parent.name == name]
        assert sorted(of_step) == sorted(each.name for each in path.iterdir())
        assert of_step.index("FINISHED") == (0 if method == "DELETE" else len(of_step) - 1)

    server.files().pipe_file("bucket/run/checkpoints/step-00000003/metadata.json", b"{}")
    server.files().pipe_file("bucket/run/../outside", b"x")
    elsewhere(monkeypatch, tmp_path)
    with session():
        directory = Path(object_store.local_path(f"{RUN}/checkpoints/step-00000002")).parent
        assert all_steps(directory) == [2]
        samples.assert_is_step(Checkpoint(directory / "step-00000002"), 2)
    assert not [*mirror.cache_directory().rglob("outside")]


def test_a_process_downloads_the_slices_that_it_reads(server, tmp_path, monkeypatch):
    # On a loaded machine, a request that is repeated too soon is answered twice.
    monkeypatch.setitem(store._TIMEOUTS, "read_timeout", PATIENCE)
    table = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    slices = [
        Slice("table", SHAPE, (row, column), PART, tf.float32)
        for row in range(0, SHAPE[0], PART[0])
        for column in range(0, SHAPE[1], PART[1])
    ]

    def value(part: Slice) -> np.ndarray:
        (row, column), (rows, columns) = part.begin, part.size
        return table[row : row + rows, column : column + columns]

    with session():
        directory = Path(object_store.local_path(RUN), "checkpoints")
        save(directory, 7, [[(each, tf.constant(value(each))) for each in slices]], {})
    elsewhere(monkeypatch, tmp_path)
    server.sent.clear()
    with session():
        for _ in range(2):
            path = Path(object_store.local_path(RUN), "checkpoints/step-00000007")
            for each, read in zip(slices[2:4], Checkpoint(path).read(slices[2:4]), strict=True):
                np.testing.assert_array_equal(read, value(each))
    assert 0 < sum(server.sent.values()) <= 1.1 * 2 * 4 * np.prod(PART)


def test_a_file_with_the_inode_of_a_deleted_one_is_downloaded(server, tmp_path, monkeypatch):
    with session():
        (data,) = save_step(7).glob("*.data-*")
        wanted = data.read_bytes()
    elsewhere(monkeypatch, tmp_path)
    with session():
        path = Path(object_store.local_path(RUN), "checkpoints/step-00000007", data.name)
        monkeypatch.setitem(mirror._filled, path.stat().st_ino, {(0, len(wanted))})
        for _ in range(2):
            mirror.fill(path, [(0, len(wanted))])
    assert path.read_bytes() == wanted
    assert sum(n for name, n in server.sent.items() if name.endswith(data.name)) == len(wanted)


def busy(method: str, path: str) -> tuple[str, str]:
    return "503 Slow Down", "SlowDown"


CASES = [
    (busy, "SlowDown"),
    (lambda method, path: time.sleep(1.0), "imeout"),
    (lambda method, path: ("403 Forbidden", "SignatureDoesNotMatch"), "access is refused"),
    ("delete the bucket", "there is no such bucket"),
]


@pytest.mark.parametrize(("fault", "sentence"), CASES)
def test_what_a_store_does_not_take_stays_here(server, monkeypatch, fault, sentence):
    monkeypatch.setattr(store, "WAITS", (0.01,) * 2)
    with pytest.raises(StoreError, match=sentence) as failure, session():
        path = save_step(1)
        if callable(fault):
            server.fault = fault
        else:
            server.files().rm("bucket", recursive=True)
    assert f"the files are in {object_store.mirror.cache_directory()}" in str(failure.value)
    assert SECRET not in str(failure.value)
    samples.assert_is_step(Checkpoint(path), 1)
    server.fault = lambda method, path: None
    if not callable(fault):
        server.files().mkdir("bucket")
    with session():
        object_store.local_path(RUN)
    assert uploaded(server).keys() == {
        f"checkpoints/step-00000001/{each.name}" for each in path.iterdir()
    }


def test_a_busy_store_is_asked_again(server, tmp_path, monkeypatch):
    asked: Counter[tuple[str, str]] = Counter()

    def fault(method, path):
        asked[method, path] += 1
        return busy(method, path) if asked[method, path] == 1 else None

    server.fault = fault
    with session():
        save_step(1)
    elsewhere(monkeypatch, tmp_path)
    with session():
        path = Path(object_store.local_path(RUN), "checkpoints/step-00000001")
        samples.assert_is_step(Checkpoint(path), 1)


@pytest.mark.parametrize("what", ["step-00000001/", "step-00000001/variables.data", "the record"])
def test_a_hole_is_not_uploaded_when_its_object_is_gone(server, tmp_path, monkeypatch, what):
    with session():
        save_step(1)
        save_step(2)
    before = uploaded(server)
    elsewhere(monkeypatch, tmp_path)
    with session() as opened:
        object_store.local_path(RUN)
        (found,) = opened.mirrors
        with locked(found):
            if what == "the record":
                found._record.unlink()
            for name in before:
                if what in name:
                    server.files().rm(f"bucket/run/{name}")
            found.pull(again=True)
            save_step(3)
            found.push()
            assert uploaded(server).pop("run.lock")
    after = uploaded(server)
    assert "checkpoints/step-00000003/FINISHED" in after
    assert all(after[name] == before[name] for name in after.keys() & before.keys())


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_run_that_the_store_has_lost_is_kept_here(server, is_locked):
    with session():
        path = save_step(1)
    server.files().rm("bucket/run", recursive=True)
    if is_locked:
        server.files().pipe_file("bucket/run/run.lock", b"{}")
    with pytest.raises(StoreError, match="has lost its files. .* has copies"), session():
        object_store.local_path(RUN)
    samples.assert_is_step(Checkpoint(path), 1)


def test_a_checkpoint_is_deleted_here_if_it_is_as_uploaded_and_not_the_last(server):
    with session():
        for step in (1, 2, 3):
            path = save_step(step)
    shutil.rmtree(path.parent / "step-00000002")
    save(path.parent, 2, [samples.of_step(2)], {"again": True})  # not uploaded
    for name in uploaded(server):
        if name.endswith("FINISHED") and "3" not in name:
            server.files().rm(f"bucket/run/{name}")
    with session():
        assert [path.parent] == [Path(object_store.local_path(RUN), "checkpoints")]
        assert all_steps(path.parent) == [2, 3]
        server.files().rm(f"bucket/run/checkpoints/{path.name}/FINISHED")
    with session():
        object_store.local_path(RUN)
        assert all_steps(path.parent) == [2, 3]
        assert Checkpoint(path.parent / "step-00000002").metadata == {"again": True}
    assert "checkpoints/step-00000003/FINISHED" in uploaded(server)


def test_a_process_that_has_lost_the_run_uploads_nothing_more_nor_does_a_later_one(server):
    with pytest.raises(StoreError, match="has taken over"), session() as opened:
        path = save_step(1)
        (found,) = opened.mirrors
        found.push()
        found.lock = lock("lost")
        Store(RUN).write("run.lock", b"{}")
        before = uploaded(server)
        save_step(2)
    for _ in range(2):
        with session():
            object_store.local_path(RUN)
            assert all_steps(path.parent) == [1]
        assert uploaded(server) == before
    (aside,) = path.parent.glob("step-00000002.diverged-*")
    assert len([*aside.iterdir()]) == len([*path.iterdir()])


def test_a_record_that_a_crash_cut_keeps_its_other_lines(server):
    with session() as opened:
        save_step(1)
        (found,) = opened.mirrors
        found.push()
        whole = found._record.read_bytes()
        found._record.write_bytes(whole + b'\n["checkpoints/step-000')
        with found._locked() as entries:
            known = dict(entries)
            found._note(entries, "after the crash", [1, 2], "version")
            for _ in range(30):
                for name in known:
                    found._note(entries, name)
                    found._note(entries, name, *known[name])
        with found._locked() as entries:
            assert entries.pop("after the crash") == [[1, 2], "version"]
            assert entries == known and known.keys() == uploaded(server).keys()
            found._note(entries, "after the crash")
        assert len(found._record.read_bytes()) < 2 * len(whole)  # opening compacts the record


REFUSED = [
    (["--decode_from_file=s3://bucket/in.txt"], "give --decode_to_file"),
    (["--split=test", "--decode_to_file=s3://bucket/out"], "omit it or name a local path"),
]


@pytest.mark.parametrize(("flags", "advice"), REFUSED)
def test_decoded_files_in_a_store_are_refused(server, tmp_path, capfd, flags, advice):
    server.files().pipe_file("bucket/in.txt", b"1")
    assert programs.t2tp_decoder(["t2tp_decoder", f"--output_dir={tmp_path}", *flags]) == 2
    assert advice in capfd.readouterr().err


def test_one_process_of_several_uploads(server):
    with session() as opened:
        opened.uploads = False
        save_step(1)
    assert not uploaded(server)


@pytest.mark.parametrize("address", ["s3://b/../x", "gs://"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="expected SCHEME"):
        Store(address)


WITH_SECRETS = [
    *("s3://key:secret/x@bucket/run", "az://c/x?v=1&sig=secret", "a,s3://b/x:s3://k:secret@b"),
    *("s3:/key:secret@bucket/run", "S3://key:secret@bucket/run", "gs:k:secret@bucket"),
]


@pytest.mark.parametrize("address", WITH_SECRETS)
def test_credentials_are_refused_before_an_address_is_cut(server, address):
    with session() as opened:
        for take in (
            Store,
            object_store.local_path,
            lambda address: check_local("--x", f"s3://{address}"),
        ):
            with pytest.raises(ValueError) as failure:
                take(address)
            assert "secret" not in str(failure.value)
        assert not opened.mirrors


OPENED = [
    ("bucket/checkpoints", "bucket/checkpoints"),
    ("bucket/checkpoints/step-00000001", "bucket/checkpoints"),
    ("bucket/llama/checkpoints", "bucket/llama/checkpoints"),
    ("bucket/made/checkpoints", "bucket/made"),
    ("bucket/x/checkpoints/step-00000001/variables", "bucket/x"),
]


@pytest.mark.parametrize(("address", "run"), OPENED)
def test_the_run_of_an_address_is_opened(server, address, run):
    server.files().pipe_file("bucket/made/run.yaml", b"{}")
    with session() as opened:
        object_store.local_path(f"s3://{address}")
        assert [each.store.address for each in opened.mirrors] == [f"s3://{run}"]


def test_the_address_of_a_base_is_not_read_if_the_base_is_next_to_the_run(tmp_path):
    base = Checkpoint(save(tmp_path / "llama/checkpoints", 0, [samples.of_step(0)], {}))
    record = {"path": "s3://theirs/llama/checkpoints/step-00000000", "save_id": base.save_id}
    metadata = {BASE: {**record, "names": {}}}
    tuned = Checkpoint(save(tmp_path / "tuned/checkpoints", 1, [samples.of_step(1)], metadata))
    with session() as opened:
        assert open_base(tuned).path == base.path
        assert not opened.mirrors


def test_a_saved_model_appears_after_its_weights(server):
    names = ["saved_model.pb", "variables/variables.index", "variables/variables.data"]
    with session() as opened:
        directory = Path(object_store.local_path("s3://bucket/model"), "export/17")
        (directory / "variables").mkdir(parents=True)
        for name in names:
            (directory / name).write_text("1")
        opened.mirrors[0].push()
        (directory / names[2]).write_text("22")
    changes = [(method, name.partition("17/")[2]) for method, name in server.log]
    whole = [("PUT", names[2]), ("PUT", names[1]), ("PUT", names[0])]
    assert changes == [*whole, ("DELETE", names[0]), ("PUT", names[2]), ("PUT", names[0])]


def test_a_file_that_was_changed_here_is_not_replaced(server, monkeypatch):
    with session() as opened:
        directory = Path(object_store.local_path("s3://bucket/out"))
        directory.mkdir(parents=True)
        for name in ("a", "b"):
            (directory / name).write_text("1")
        (found,) = opened.mirrors
        put, records = found.store.put, []

        def watched(path: Path, name: str) -> str:
            records.append(found._record.read_text() if found._record.exists() else "")
            return put(path, name)

        monkeypatch.setattr(found.store, "put", watched)
        found.push()
        assert [json.loads(each or "[[]]")[0] for each in records] == [[], "a"]
        (directory / "b").write_text("newer")
        server.files().pipe_file("bucket/out/b", b"other")
        found.pull(again=True)
        assert (directory / "b").read_text() == "newer"


def test_a_mirror_that_fails_does_not_keep_the_others_from_uploading(server, monkeypatch):
    monkeypatch.setattr(mirror, "PERIOD_SECONDS", 0.05)
    with pytest.raises(StoreError, match="bucket/a"), session() as opened:
        for name in ("a", "b"):
            directory = Path(object_store.local_path(f"s3://bucket/{name}"))
            directory.mkdir(parents=True)
        monkeypatch.setattr(opened.mirrors[0].store, "put", lambda *_: 1 / 0)
        for name in ("a", "b"):
            (directory.parent / name / "x").write_text("1")
        deadline = time.monotonic() + 20
        while not uploaded(server, "b"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (directory / "y").write_text("1")

        def refuse(*_: object) -> None:
            raise StoreError("bucket/a")

        monkeypatch.setattr(opened.mirrors[0].store, "put", refuse)
    assert uploaded(server, "b").keys() == {"x", "y"}


@pytest.mark.parametrize("note", [b'{"place": "gone", "word": "gone"}', b"no JSON"])
def test_two_that_wait_do_not_both_take_an_abandoned_lock(server, monkeypatch, note):
    monkeypatch.setattr(store_lock, "ABANDONED_SECONDS", 0.5)
    Store(RUN).write("run.lock", note)
    first, second = lock("first"), lock("second")
    read, answers = second._read, []

    def slow() -> dict:
        note = read()
        if time.monotonic() > late and not answers:
            answers.append(first.acquire())  # between the second lock's reading and deleting
        return note

    late = time.monotonic() + 0.45
    monkeypatch.setattr(second, "_read", slow)
    assert second.acquire()["word"] == "first" and answers == [None]
    assert first.is_held()
    first.release()


def test_trainings_on_one_mirror_have_their_place_in_common(server, tmp_path, monkeypatch):
    assert mirror.Mirror(RUN).place() == (here := mirror.Mirror(RUN).place())
    elsewhere(monkeypatch, tmp_path)
    assert mirror.Mirror(RUN).place() != here


def lock(name: str) -> StoreLock:
    return StoreLock(Store(RUN), "run.lock", {"word": name, "host": name}, name)


def test_one_trainer_has_the_lock_while_it_is_alive(server):
    first, second = lock("first"), lock("second")
    assert first.acquire() is None
    assert second.acquire()["host"] == "first"
    first.release()
    assert second.acquire() is None
    second._ended.set()  # as if the process was killed
    again = lock("second")
    assert again.acquire() is None  # a process on the same host does not wait
    assert lock("third").acquire()["host"] == "second"
    again.release()


def test_an_abandoned_lock_is_taken_over_and_its_owner_learns_it(server, monkeypatch):
    asleep, other = lock("asleep"), lock("other")
    monkeypatch.setattr(store_lock, "ABANDONED_SECONDS", 1.0)
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 600.0)
    assert asleep.acquire() is None
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.05)
    assert other.acquire() is None
    assert not asleep.is_held() and asleep.is_lost
    asleep.release()
    assert not other.is_lost and other._read()["word"] == "other"
    other.release()


def write_shard(address: str) -> np.ndarray:
    """Uploads a shard of 8 MB; returns its values."""
    values = np.random.default_rng(1).integers(0, 60_000, 4_000_000).astype("<u2")
    with session():
        directory = Path(object_store.local_path(address))
        directory.mkdir(parents=True)
        with ShardWriter(directory, "train-00000-of-00001", {"targets": np.dtype("<u2")}) as writer:
            for begin in range(0, len(values), 100_000):
                writer.add({"targets": values[begin : begin + 100_000]})
        (directory / "manifest.json").write_text("{}")
    return values


@pytest.fixture
def shard(server, tmp_path, monkeypatch) -> np.ndarray:
    """Uploads a shard, then continues on another host; returns the shard's values."""
    values = write_shard("s3://bucket/data")
    elsewhere(monkeypatch, tmp_path)
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 1 << 17)
    return values


def test_a_large_vocabulary_is_downloaded(shard, server):
    content = random.Random(3).randbytes(5 << 20)
    server.files().pipe_file("bucket/data/vocab.subwords", content)
    with session():
        directory = Path(object_store.local_path("s3://bucket/data"))
        assert (directory / "vocab.subwords").read_bytes() == content
        assert mirror.hole_of(directory / "train-00000-of-00001.targets")


def test_a_replay_on_another_host_reads_the_reports_of_the_run(server, monkeypatch, tmp_path):
    with session():
        SummaryWriter(object_store.local_path(RUN)).write(5, {"loss": 2.5, "x": 1.0})
    elsewhere(monkeypatch, tmp_path)
    with session():
        directory = object_store.local_path(RUN)
        assert (_logged(directory, 5), _logged(directory, 6)) == ({"loss": 2.5}, {})


def open_shard(values: np.ndarray, address: str = "s3://bucket/data") -> CheckedFile:
    directory = Path(object_store.local_path(address))
    path = directory / "train-00000-of-00001.targets"
    checks = read_checks(directory, "train-00000-of-00001")
    return CheckedFile(path, values.dtype, checks.sums(path.name), checks.block_bytes)


def test_shards_are_read_by_ranges_with_a_bounded_cache(shard, server, monkeypatch):
    monkeypatch.setenv("T2TP_DATA_CACHE_GB", "abc")
    with session(), pytest.raises(ValueError, match="T2TP_DATA_CACHE_GB=abc: expect"):
        open_shard(shard)[:5]
    monkeypatch.setenv("T2TP_DATA_CACHE_GB", str(2 / 1024))
    server.sent.clear()
    with session():
        file, rng = open_shard(shard), np.random.default_rng(2)
        read = [file[5:900], file.read(3_999_000, 4_000_000)]
        assert sum(server.sent.values()) < 3 << 20
        for _ in range(40):
            begin = int(rng.integers(len(shard) - 5000))
            read.append(file[begin : begin + 5000])
            np.testing.assert_array_equal(read[-1], shard[begin : begin + 5000])
            index = rng.integers(0, len(shard), (3, 2))
            np.testing.assert_array_equal(file[index], shard[index])
            assert file._content.stat().st_blocks * 512 <= (2 << 20) + (1 << 21)
        np.testing.assert_array_equal(read[0], shard[5:900])  # its chunk has left the cache
        np.testing.assert_array_equal(read[1], shard[3_999_000:])


def test_a_changed_byte_of_a_shard_is_found(shard, server):
    name = "bucket/data/train-00000-of-00001.targets"
    content = bytearray(server.files().cat_file(name))
    content[5_000_000] ^= 1
    server.files().pipe_file(name, bytes(content))
    with session():
        file = open_shard(shard)
        np.testing.assert_array_equal(file[:2_000_000], shard[:2_000_000])
        with pytest.raises(DamagedDataError, match="targets is damaged"):
            file[2_500_000:2_500_001]


def test_parts_of_interrupted_uploads_below_the_run_are_deleted(server):
    fs, ids = Store(RUN)._fs, {}
    for key in ("run/checkpoints/data", "run2/data", "data"):
        ids[key] = fs.call_s3("create_multipart_upload", Bucket="bucket", Key=key)["UploadId"]
    Store(RUN).abort_uploads()
    left = fs.call_s3("list_multipart_uploads", Bucket="bucket")["Uploads"]
    assert {each["Key"] for each in left} == {"run2/data", "data"}


def test_objects_whose_names_no_files_can_have_are_left_out(server, caplog):
    bucket = Store(RUN)
    for name in ("run.yaml", "run.yaml/inside", "x" * 300, "a/b"):
        bucket.write(name, b"{}")
    with session():
        local = Path(object_store.local_path(RUN))
        assert {p.name for p in local.rglob("*") if p.is_file()} == {"run.yaml", "b"}
