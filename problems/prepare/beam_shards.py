"""Makes shards with Apache Beam, on any of its runners. A shard is an element of the pipeline.

The runners of clusters process an element again when its worker dies, and may process it twice at
the same time. The result is the same, because a shard depends only on its index. Each attempt
writes into a separate directory, and then renames the complete files. The shard's record (.json),
which marks the shard as complete, is renamed last.

Beam's runner on this host would wait forever for a worker process that died. So it runs in a
separate process group, which is ended when a worker dies. The pipeline then
starts again with the missing shards.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from t2tp.problems.prepare.settings import BeamSettings
from t2tp.problems.prepare.shard_workers import (
    Builder,
    WorkerDeathError,
    repeat_after_deaths,
    when_parent_ends,
)
from t2tp.problems.user_dir import import_user_dir, imported_user_dirs
from t2tp.quiet import quiet_import

# The directory of one attempt at a shard.
_ATTEMPT = ".attempt-"


def make_with_beam(
    builder: Builder,
    jobs: Sequence[Any],
    directory: Path,
    settings: BeamSettings,
    is_made: Callable[[Any], bool],
) -> None:
    """Carries out jobs as a pipeline, and waits for its end.

    `is_made` returns whether the shard of a job is complete. All workers share the directory.

    Raises:
      ChildProcessError: workers of this host were killed several times without finishing a shard
        in between, or the pipeline failed.
    """
    make = _MakeShard(pickle.dumps(builder), directory.absolute(), imported_user_dirs())
    direct = PipelineOptions(settings.options).view_as(DirectOptions)
    if settings.runner == "DirectRunner" and direct.direct_running_mode == "multi_processing":

        def run(left: Sequence[Any]) -> None:
            pickled = [pickle.dumps(job) for job in left]
            # DirectRunner would choose Prism, and Prism does not run worker processes.
            run_apart(_run, make, pickled, ["--runner=FnApiRunner", *settings.options])

        repeat_after_deaths(run, jobs, is_made, f"--direct_num_workers={direct.direct_num_workers}")
    else:
        pickled = [pickle.dumps(job) for job in jobs]
        _run(make, pickled, [f"--runner={settings.runner}", *settings.options])
    for left in directory.glob(f"{_ATTEMPT}*"):  # Left by workers that died.
        shutil.rmtree(left, ignore_errors=True)


def _run(make: _MakeShard, jobs: Sequence[bytes], options: Sequence[str]) -> None:
    """Runs the pipeline."""
    try:
        with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
            _ = (
                pipeline
                | "shards" >> beam.Create(jobs)
                # Otherwise a runner may give all shards to the worker that created the elements.
                | "spread" >> beam.Reshuffle()
                | "make" >> beam.ParDo(make)
            )
    except RuntimeError as error:  # The message is the traceback of a worker.
        reason = str(error).strip().splitlines()[-1]
        raise ChildProcessError(f"the pipeline failed: {reason}") from error


class _MakeShard(beam.DoFn):
    """Makes the shard of an element."""

    def __init__(self, builder: bytes, directory: Path, user_dirs: Sequence[Path]):
        self._pickled = builder
        self._directory = directory
        self._user_dirs = user_dirs
        self._builder: Builder

    def setup(self) -> None:
        """Opens the samples and the encoder for all shards of the worker."""
        with quiet_import():  # a user's directory may import TensorFlow
            for directory in self._user_dirs:
                import_user_dir(directory)
            self._builder = pickle.loads(self._pickled)

    def process(self, element: bytes) -> Iterator[None]:
        """Makes a shard."""
        with tempfile.TemporaryDirectory(prefix=_ATTEMPT, dir=self._directory) as attempt:
            self._builder.carry_out(pickle.loads(element), _BeamReport(), Path(attempt))
            files = list(Path(attempt).iterdir())
            for file in sorted(files, key=lambda file: file.suffix == ".json"):
                file.replace(self._directory / file.name)
        yield


class _BeamReport:
    """The report of one shard, because workers share no counter while the pipeline runs."""

    def __init__(self) -> None:
        self._num_bad = 0
        self._samples = Metrics.counter("t2tp", "samples")

    def samples(self, count: int) -> None:
        self._samples.inc(count)

    def bad_sample(self) -> int:
        self._num_bad += 1
        return self._num_bad


def run_apart(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end; the function may start processes.

    When this call returns or raises, or the calling process dies, the new process and all processes
    that it started end.

    Raises:
      WorkerDeathError: a thread of the function failed, for instance because a process died; or
        the function's process was killed.
      Exception: the error that the function raised.
    """
    # Not forked: if TensorFlow is loaded, its threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments))
    process.start()
    sender.close()
    assert process.pid is not None
    try:
        error = receiver.recv()
    except EOFError as lost:
        raise WorkerDeathError("a worker process was killed") from lost
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # In case it has not made its group yet.
        process.join()
    if error is not None:
        raise error


def _call(sender: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    # Code that waits for a failed thread may wait forever, so the whole group ends.
    threading.excepthook = lambda _: _end_group()
    when_parent_ends(_end_group)
    error = None
    try:
        function(*arguments)
    except Exception as raised:
        error = raised
    try:
        sender.send(error)
    except (pickle.PicklingError, TypeError, AttributeError):
        sender.send(RuntimeError(str(error)))


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)
