"""Makes shards with Apache Beam, on any of its runners. A shard is an element of the pipeline.

The runners of clusters process an element again when its worker dies, and may process it twice at
the same time. The result is the same, because a shard depends only on its index. Each attempt
writes into a separate directory, and then renames the complete files. The shard's record (.json),
which marks the shard as complete, is renamed last.

Beam's runner on this host would wait forever for a worker process that died. So it runs in this
process only; `shard_workers.py` has the processes of this host.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from t2tp.problems.prepare.settings import BeamSettings
from t2tp.problems.prepare.shard_workers import Builder, unpickled
from t2tp.problems.user_dir import imported_user_dirs

# The directory of one attempt at a shard.
_ATTEMPT = ".attempt-"


def make_with_beam(
    builder: Builder, jobs: Sequence[Any], directory: Path, settings: BeamSettings
) -> None:
    """Carries out jobs as a pipeline, and waits for its end. All workers share the directory.

    Raises:
      ChildProcessError: the pipeline failed.
    """
    options = PipelineOptions([f"--runner={settings.runner}", *settings.options])
    make = _MakeShard(pickle.dumps(builder), directory.absolute(), imported_user_dirs())
    try:
        with beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | "shards" >> beam.Create([pickle.dumps(job) for job in jobs])
                # Otherwise a runner may give all shards to the worker that created the elements.
                | "spread" >> beam.Reshuffle()
                | "make" >> beam.ParDo(make)
            )
    except RuntimeError as error:  # The message is the traceback of a worker.
        reason = str(error).strip().splitlines()[-1]
        raise ChildProcessError(f"the pipeline failed: {reason}") from error
    for left in directory.glob(f"{_ATTEMPT}*"):  # Left by workers that died.
        shutil.rmtree(left, ignore_errors=True)


class _MakeShard(beam.DoFn):
    """Makes the shard of an element."""

    def __init__(self, builder: bytes, directory: Path, user_dirs: Sequence[Path]):
        self._pickled = builder
        self._directory = directory
        self._user_dirs = user_dirs
        self._builder: Builder

    def setup(self) -> None:
        """Opens the samples and the encoder for all shards of the worker."""
        self._builder = unpickled(self._pickled, self._user_dirs)

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
