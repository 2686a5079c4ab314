"""Google's and Azure's stores, tested with emulators on loopback where these are installed."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from t2tp import object_store
from t2tp.checkpoint import Checkpoint, all_steps
from t2tp.object_store import mirror, store_lock
from t2tp.object_store.store import Store, StoreError
from t2tp.object_store.store_lock import StoreLock
from tests.checkpoint import samples
from tests.object_store.test_mirror import elsewhere, open_shard, save_step, write_shard

_EMULATORS = {
    "gs": "fake-gcs-server -scheme=http -backend=memory -host=127.0.0.1 -port={port}"
    " -public-host=127.0.0.1:{port} -external-url=http://127.0.0.1:{port}",
    "az": "azurite-blob --inMemoryPersistence --silent --skipApiVersionCheck --disableTelemetry"
    " --blobPort={port}",
}
# The account that Azurite's manual gives.
_AZURE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlm"
    "EtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1"
)


@pytest.fixture(params=_EMULATORS)
def store(request, tmp_path, monkeypatch) -> Iterator[str]:
    """Creates an empty bucket; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pytest.importorskip({"gs": "gcsfs", "az": "adlfs"}[request.param])
    command = _EMULATORS[request.param].format(port=port).split()
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", _AZURE.format(port=port))
    monkeypatch.setenv("T2TP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.05)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        Store(f"{request.param}://bucket")._fs.mkdir("bucket")
        yield f"{request.param}://bucket"
        process.kill()


def test_runs_data_and_locks_work_in_other_stores(store, tmp_path, monkeypatch):
    run, uploads = f"{store}/run", []
    with object_store.session() as session:
        step = save_step(1, run)
        put = session.mirrors[0].store.put
        monkeypatch.setattr(
            session.mirrors[0].store, "put", lambda *file: uploads.append(file[1]) or put(*file)
        )
    assert len(uploads) == len([*step.iterdir()]) and uploads[-1].endswith("FINISHED")
    values = write_shard(f"{store}/data")
    Store(f"{store}/in.txt").write("", b"text")

    elsewhere(monkeypatch, tmp_path)
    with object_store.session():
        directory = Path(object_store.local_path(run), "checkpoints")
        assert all_steps(directory) == [1]
        assert any(map(mirror.hole_of, (directory / step.name).iterdir()))
        samples.assert_is_step(Checkpoint(directory / step.name), 1)
        file = open_shard(values, f"{store}/data")
        np.testing.assert_array_equal(file[3_000_000:3_000_100], values[3_000_000:3_000_100])
        assert Path(object_store.local_path(f"{store}/in.txt")).read_text() == "text"

    first, second = (
        StoreLock(Store(run), "run.lock", {"word": name}, name) for name in ("first", "second")
    )
    assert first.acquire() is None and second.acquire()["word"] == "first"
    first.release()
    assert second.acquire() is None
    second.release()


def test_other_stores_refuse_in_a_sentence(store, tmp_path, monkeypatch):
    missing, path = Store(f"{store[:2]}://missing/run"), tmp_path / "file"
    path.write_text("x")
    for ask in (missing.list, lambda: missing.write("x", b"x"), lambda: missing.put(path, "x")):
        with pytest.raises(StoreError, match="://missing/.*: there is no such bucket"):
            ask()
    with pytest.raises(FileNotFoundError):
        Store(store).put(tmp_path / "none", "x")
    if store.startswith("az"):
        wrong = missing._fs.connection_string.replace("AccountKey=E", "AccountKey=F")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
        with pytest.raises(StoreError, match="access is refused .*: check the credentials"):
            Store(store).list()
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        with pytest.raises(ValueError, match="az://bucket: .*check the credentials"):
            Store(store)
