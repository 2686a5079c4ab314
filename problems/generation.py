"""Writes the shards of a problem's splits, several at a time, and only those that are missing.

The samples of a split have a fixed shuffled order, of which each shard has a contiguous part. So
the shards can be made in any order by any number of processes, and together they are always the
same. Neighbours in a source are often alike; shuffled, they make fair samples, and fair batches.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial, reduce
from multiprocessing.connection import wait as wait_for_any
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from t2tp.problems.manifest import FileState, SplitSizes
from t2tp.problems.permutation import permute
from t2tp.problems.progress import Progress
from t2tp.problems.shards import ShardWriter, finished, shard_name
from t2tp.problems.user_dir import import_user_dir, imported_user_dirs

if TYPE_CHECKING:
    from t2tp.problems.problem import Problem

Sample = Mapping[str, Any]

# A shard has at least about so many samples, and a split at most so many shards, unless asked for.
_SHARD_SAMPLES = 500
_MOST_SHARDS = 64

# Samples after which a worker says how far it is.
_REPORT_EVERY = 64


# Most workers unless more are asked for: each holds a problem's samples open.
_MOST_WORKERS = 32


def default_workers() -> int:
    """Returns how many processes make data unless it is said: one for each core, up to 32."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


class Samples(Protocol):
    """The samples of a split, any of them by its number: a list will do."""

    def __len__(self) -> int:
        """Returns how many there are."""

    def __getitem__(self, number: int, /) -> Sample:
        """Returns a sample; raises `SkippedSampleError` to leave it out."""


class SkippedSampleError(Exception):
    """A sample is left out, and counted; the message is the reason, the same for all alike."""


class ShuffledSamples:
    """The samples of a split, in an order that is always the same."""

    def __init__(self, samples: Samples):
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def part(self, begin: int, end: int) -> Iterator[Callable[[], Sample]]:
        """Gives what reads each sample, from the place `begin` to before `end`."""
        for number in permute(np.arange(begin, end), len(self), "documents").tolist():
            yield partial(self._samples.__getitem__, number)

    def __iter__(self) -> Iterator[Sample]:
        """Gives the samples without those that are left out."""
        for read in self.part(0, len(self)):
            with contextlib.suppress(SkippedSampleError):
                yield read()


class Stored(NamedTuple):
    """An example as it is stored.

    Attributes:
        columns: integers [any number] for each column.
        text_bytes: length of its text in UTF-8; 0 where there is no text.
    """

    columns: dict[str, np.ndarray]
    text_bytes: int = 0


@dataclass(frozen=True)
class _Job:
    """One shard."""

    split: str
    shard: int
    shards: int
    samples: int

    @property
    def name(self) -> str:
        return shard_name(self.split, self.shard, self.shards)

    @property
    def places(self) -> tuple[int, int]:
        begin, end = (self.samples * edge // self.shards for edge in (self.shard, self.shard + 1))
        return begin, end


def make_shards(
    problem: Problem,
    folder: Path,
    tmp_dir: Path,
    sample_counts: Mapping[str, int],
    num_shards: int | None,
    num_workers: int,
) -> tuple[dict[str, SplitSizes], dict[str, FileState]]:
    """Makes the shards that `folder` does not have yet.

    Args:
        problem: opens the samples and encodes them.
        folder: gets the files; the problem's vocabulary is there.
        tmp_dir: where the problem's downloads are.
        sample_counts: number of samples of each split.
        num_shards: of the train split, and the most of another; by default a shard for each 500
            samples, up to 64.
        num_workers: most processes; 1: this one. A new one is not worth less than 500 samples.

    Returns:
        The sizes of each split, and all files of the shards.

    Raises:
        ChildProcessError: a process died; the shards that were finished stay.
    """
    jobs = [
        _Job(split, shard, shards, count)
        for split, count in sample_counts.items()
        for shards in [_shards(split == problem.splits[0], count, num_shards)]
        for shard in range(shards)
    ]
    missing = [job for job in jobs if finished(folder, job.name) is None]
    maker = _Maker(problem, folder, tmp_dir)
    total = sum(end - begin for begin, end in (job.places for job in missing))
    num_workers = min(num_workers, len(missing), total // _SHARD_SAMPLES)
    with Progress(total, f"encoding {problem.name}") as progress:
        if num_workers > 1:
            _make_in_processes(maker, missing, num_workers, progress)
        else:
            _make_here(maker, missing, progress)
    sizes: dict[str, list[SplitSizes]] = {split: [] for split in sample_counts}
    files: dict[str, FileState] = {}
    for job in jobs:
        made = finished(folder, job.name)
        if made is None:
            raise OSError(f"{folder / job.name} was written and cannot be read back")
        sizes[job.split].append(made[0])
        files |= made[1]
    return {split: reduce(add, parts) for split, parts in sizes.items()}, files


def _shards(is_train: bool, samples: int, num_shards: int | None) -> int:
    by_samples = max(1, min(samples // _SHARD_SAMPLES, _MOST_SHARDS))
    if num_shards is None:
        return by_samples
    return min(num_shards, samples if is_train else by_samples)


class _Maker:
    """Makes shards. It can be sent to another process, which opens the samples for itself."""

    def __init__(self, problem: Problem, folder: Path, tmp_dir: Path):
        self._problem = problem
        self._folder = folder
        self._tmp_dir = tmp_dir
        self._samples: dict[str, ShuffledSamples] = {}
        self._encode: Callable[[Sample], Stored] | None = None

    def make(self, job: _Job, report: Callable[[int], None]) -> None:
        """Writes a shard and reports now and then how many more samples it has gone through."""
        encode, samples = self._open(job.split)
        dtypes = self._problem.columns(self._folder)
        unreported = 0
        with ShardWriter(self._folder, job.name, dtypes) as writer:
            for read in samples.part(*job.places):
                try:
                    writer.add(*encode(read()))
                except SkippedSampleError as reason:
                    writer.skip(str(reason))
                unreported += 1
                if unreported == _REPORT_EVERY:
                    report(unreported)
                    unreported = 0
        report(unreported)

    def _open(self, split: str) -> tuple[Callable[[Sample], Stored], ShuffledSamples]:
        if self._encode is None:
            self._encode = self._problem.encoder(self._folder)
        if split not in self._samples:
            samples = self._problem.samples(split, self._folder, self._tmp_dir)
            self._samples[split] = ShuffledSamples(samples)
        return self._encode, self._samples[split]


def _make_here(maker: _Maker, jobs: Sequence[_Job], progress: Progress) -> None:
    done = 0

    def report(number: int) -> None:
        nonlocal done
        done += number
        progress.show(done)

    for job in jobs:
        maker.make(job, report)


def _make_in_processes(
    maker: _Maker, jobs: Sequence[_Job], num_workers: int, progress: Progress
) -> None:
    # Not forked: TensorFlow's threads, where it is loaded, do not survive that.
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    # The problem's class may be in a user's directory, which a worker has to import first.
    arguments = (imported_user_dirs(), pickle.dumps(maker), done)
    with ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_begin_worker, initargs=arguments
    ) as pool:
        pending = {pool.submit(_make_in_worker, job) for job in jobs}
        try:
            while pending:
                ended, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                for job in ended:
                    job.result()
                progress.show(done.value)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process was killed, perhaps for lack of memory: run again to go on with "
                f"what was finished, perhaps with fewer than --num_workers={num_workers}"
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


# Of a worker process: set once at its start, as a shared number can only be handed on then.
_worker: tuple[_Maker, Any]


def _begin_worker(user_dirs: Sequence[Path], pickled_maker: bytes, done: Any) -> None:
    global _worker
    for directory in user_dirs:
        import_user_dir(directory)
    _worker = (pickle.loads(pickled_maker), done)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A killed maker must not leave workers that write into the folder of the next one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)


def _make_in_worker(job: _Job) -> None:
    maker, done = _worker

    def report(number: int) -> None:
        with done.get_lock():
            done.value += number

    maker.make(job, report)
