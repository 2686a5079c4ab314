"""Only one trainer at a time uses a directory, however the previous trainer has ended."""

import contextlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from t2tp.processes.cluster import Cluster
from t2tp.trainer.processes.multiprocess import ProcessMismatchError
from t2tp.trainer.run_dir.run_lock import LOCK_FILE, RunLock, RunLockedError, RunMovedError
from tests.patience import PATIENCE, wait_until
from tests.trainer import toy
from tests.trainer.toy_estimator import At, Note, estimator
from tests.two_in_threads import run_two
from tests.warm_processes import start

ALONE = Cluster(("CPU:0",))


def hold(directory: Path) -> None:
    """Holds the lock of a directory until the process is killed."""
    with RunLock(str(directory), ALONE):
        time.sleep(PATIENCE)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[BaseProcess]:
    """Runs another process that holds the lock."""
    process, file = start(hold, directory), directory / LOCK_FILE
    wait_until(lambda: file.exists() and file.read_text() != "")
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_who_holds_the_lock_is_named_and_nothing_is_touched(tmp_path):
    with held(tmp_path) as process:
        said = f"{tmp_path} is in use by process {process.pid} on {socket.gethostname()}"
        for _ in range(2):
            with pytest.raises(RunLockedError, match=f"{re.escape(said)}, since .*: wait"):
                RunLock(str(tmp_path), ALONE).__enter__()
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == process.pid
        process.kill()
        process.join()
    with RunLock(str(tmp_path), ALONE):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_a_second_trainer_is_refused_but_evaluating_is_not(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 4)
    with held(tmp_path):
        with pytest.raises(RunLockedError, match="is in use by process"):
            estimator(tmp_path).train(toy.inputs(), 8)
        assert estimator(tmp_path).evaluate(toy.inputs(), 1)["error"] > 0
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004"]
    estimator(tmp_path).train(toy.inputs(), 8)


def test_it_may_be_entered_again_and_is_free_when_it_was_left_as_often(tmp_path):
    lock, other = RunLock(str(tmp_path), ALONE), RunLock(str(tmp_path), ALONE)
    with lock:
        with lock:
            pass
        with pytest.raises(RunLockedError, match=f"process {os.getpid()} on"):
            other.__enter__()
    assert (tmp_path / LOCK_FILE).read_text() == ""
    with other:
        pass


def test_of_several_processes_the_first_locks_for_all(tmp_path):
    leader, other = (Cluster(("CPU:0",) * 2, process_id, 2) for process_id in (0, 1))
    with RunLock(str(tmp_path), other):
        assert not (tmp_path / LOCK_FILE).exists()
        with RunLock(str(tmp_path), leader):
            assert (tmp_path / LOCK_FILE).read_text()


def test_a_directory_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLockedError, match=r"output_dir cannot be written: .*file/run"):
        RunLock(str(tmp_path / "file/run"), ALONE).__enter__()


def test_processes_that_share_a_directory_lock_it_together(tmp_path):
    def enter(cluster: Cluster) -> int:
        for _ in range(2):
            with RunLock(str(tmp_path), cluster, seen_seconds=0.5):
                cluster.barrier("inside")
        return cluster.process_id

    assert run_two(enter) == [0, 1]


@pytest.mark.parametrize("other", ["missing", "empty", "of a run", "locked by others"])
def test_processes_with_different_directories_are_refused_by_all(tmp_path, other):
    directories = [tmp_path / "run", tmp_path / "other"]
    if other != "missing":
        directories[1].mkdir()
    if other == "of a run":
        (directories[1] / "run.yaml").write_text("{}")
        (directories[1] / LOCK_FILE).write_text("")
    if other == "locked by others":
        holder = {"pid": 1, "host": "h", "since": "s", "word": "w"}
        (directories[1] / LOCK_FILE).write_text(json.dumps(holder))

    def enter(cluster: Cluster) -> None:
        with RunLock(str(directories[cluster.process_id]), cluster, seen_seconds=0.5):
            pass

    for error in run_two(enter):
        assert isinstance(error, ProcessMismatchError)
        assert f"{directories[1]} of process 1 is not {directories[0]} of process 0" in str(error)
    with RunLock(str(directories[0]), ALONE):
        pass


def _replace(run: Path) -> None:
    run.rename(run.with_name("moved"))
    estimator(run).train(toy.inputs(), 1)  # another run, in a directory of that name


CHANGES = {
    "deleted": shutil.rmtree,
    "moved": lambda run: run.rename(run.with_name("moved")),
    "replaced": _replace,
    "unlocked": lambda run: (run / LOCK_FILE).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", [5, 6])
def test_a_run_whose_directory_is_another_one_stops_and_writes_nothing(tmp_path, change, step):
    run, later = tmp_path / "run", []

    def disturb() -> None:
        CHANGES[change](run)
        later.append(entries(tmp_path))

    disturbance, reached = At(step, disturb), Note()
    with pytest.raises(RunMovedError, match=re.escape(str(run))):
        estimator(run, save_checkpoints_steps=6).train(toy.inputs(), 12, [disturbance, reached])
    assert max(last for _, last in reached.calls) == step
    assert [entries(tmp_path)] == later


def entries(directory: Path) -> set[str]:
    names = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    return {name for name in names if "tmp-" not in name}


FOREIGN = ["run.lock", "heartbeat.json", "run.yaml", "eval/eval.jsonl", "eval"]


@pytest.mark.parametrize("name", FOREIGN)
def test_no_training_writes_through_a_link_of_a_sent_run(tmp_path, name):
    other, run = tmp_path / "other", tmp_path / "run"
    run.mkdir()
    if name == "eval":
        other.mkdir()
    else:
        other.write_text("precious")
        (run / "eval").mkdir()
    (run / name).symlink_to(other)
    with pytest.raises(RunLockedError, match="is not a regular file"):
        estimator(run).train(toy.inputs(), 2)
    assert list(other.iterdir()) == [] if name == "eval" else other.read_text() == "precious"
