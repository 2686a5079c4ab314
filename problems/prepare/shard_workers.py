"""Local processes that generate shards. The shards of a killed process are generated again."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Protocol

from absl import logging

from t2tp.problems.data.manifest import SplitSizes
from t2tp.problems.data.progress import ProgressBar
from t2tp.problems.user_dir import import_user_dir, imported_user_dirs
from t2tp.quiet import quiet_import

# The generation fails after this many deaths of workers without a finished shard in between.
_DEATHS = 3


class SampleReport(Protocol):
    """Counts the samples of all shards."""

    def samples(self, count: int) -> None:
        """Adds to the number of samples processed."""

    def bad_sample(self) -> int:
        """Counts a bad sample, and returns the number of bad samples so far."""


class Builder(Protocol):
    """Makes one shard; it is pickled for the workers."""

    def carry_out(self, job: Any, report: SampleReport, directory: Path | None = None) -> None:
        """Makes a shard in `directory`, if given."""


class _SharedReport:
    """The common report of all workers, which a worker can receive only at its start."""

    def __init__(self, context: BaseContext, num_bad: int):
        self._done = context.Value("q", 0)
        self._bad = context.Value("q", num_bad)

    @property
    def done(self) -> int:
        return self._done.value

    def samples(self, count: int) -> None:
        with self._done.get_lock():
            self._done.value += count

    def bad_sample(self) -> int:
        with self._bad.get_lock():
            self._bad.value += 1
            return self._bad.value


def make_in_processes(
    builder: Builder,
    jobs: Sequence[Any],
    num_workers: int,
    progress: ProgressBar,
    finished: Callable[[], Mapping[Any, tuple[SplitSizes, Any]]],
) -> None:
    """Carries out jobs in worker processes; repeats the jobs of a killed process.

    `finished` returns the finished jobs, and the sizes and files of their shards.

    Raises:
      ChildProcessError: workers were killed three times without finishing a shard in between.
    """
    total, deaths = sum(job.size for job in jobs), 0
    while jobs:
        try:
            done_before = total - sum(job.size for job in jobs)
            num_bad = sum(sizes.bad for sizes, _ in finished().values())
            _make_until_death(builder, jobs, num_workers, progress, done_before, num_bad)
            return
        except BrokenProcessPool as error:
            made = finished()
            left = [job for job in jobs if job not in made]
            deaths = 1 if len(left) < len(jobs) else deaths + 1
            if deaths == _DEATHS:
                raise ChildProcessError(
                    f"worker processes were killed {deaths} times, perhaps for lack of memory: run"
                    " again to resume after the finished shards, perhaps with fewer than"
                    f" --num_workers={num_workers}"
                ) from error
            logging.warning("a worker process was killed: %d shards are made again", len(left))
            jobs = left


def _make_until_death(
    builder: Builder,
    jobs: Sequence[Any],
    num_workers: int,
    progress: ProgressBar,
    done_before: int,
    num_bad: int,
) -> None:
    # Not forked: if TensorFlow is loaded, its threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    report = _SharedReport(context, num_bad)
    # A worker imports users' directories first, because one may contain the problem's class.
    arguments = (pickle.dumps(builder), imported_user_dirs(), report)
    with ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_begin_worker, initargs=arguments
    ) as pool:
        pending: set[Future] = {pool.submit(_carry_out_in_worker, job) for job in jobs}
        try:
            while pending:
                ended, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                for job in ended:
                    job.result()
                progress.show(done_before + report.done)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


# State of a worker process, set at its start.
_worker: tuple[Builder, _SharedReport]


def unpickled(builder: bytes, user_dirs: Sequence[Path]) -> Builder:
    """Unpickles a builder in a worker, where users' directories have not been imported."""
    with quiet_import():  # a user's directory may import TensorFlow
        for directory in user_dirs:
            import_user_dir(directory)
        loaded: Builder = pickle.loads(builder)
    return loaded


def _begin_worker(builder: bytes, user_dirs: Sequence[Path], report: _SharedReport) -> None:
    global _worker
    _worker = (unpickled(builder, user_dirs), report)
    # A worker that outlives its parent could write into the next run's directory.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_any([parent.sentinel])
    os._exit(1)


def _carry_out_in_worker(job: Any) -> None:
    builder, report = _worker
    builder.carry_out(job, report)
