"""The batch of a step is the same bytes after a restart, on any mesh and number of processes."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t2tp import problems, registry
from t2tp.problems.algorithmic import AlgorithmicReverseBinary40, AlgorithmicShiftBinary40
from t2tp.problems.python_stdlib import LanguagemodelPythonStdlibBytes

LENGTH, BATCH, STEPS = 64, 12, 40


@registry.register_problem
class SomeReverses(AlgorithmicReverseBinary40):
    """Fewer than the steps below read: an epoch ends."""

    sample_counts = {"train": 170, "validation": 20, "test": 4}


@registry.register_problem
class SomeShifts(AlgorithmicShiftBinary40):
    """With as many symbols as the reverses are given."""

    sample_counts = {"train": 90, "validation": 20, "test": 4}


@registry.register_problem
class SomeCopies(AlgorithmicReverseBinary40):
    """More of the same kind, to be mixed."""

    sample_counts = {"train": 45, "validation": 20, "test": 4}


@registry.register_problem
class SomeSources(LanguagemodelPythonStdlibBytes):
    """The beginnings of the sources of `email`."""

    def source_dir(self):
        return Path(os.__file__).parent / "email"

    def samples(self, split, folder, tmp_dir):
        paths = sorted(self.source_dir().glob("*.py"))
        return [{"text": path.read_text()[:600]} for path in paths]

    def download(self, folder, tmp_dir):
        pass

    def origin(self, folder, tmp_dir):
        return {}


STREAMS = {
    "windows": ("some_sources", ""),
    "padded": ("some_reverses", ""),
    "packed": ("some_shifts", "arrangement=packed"),
    "bucketed": ("some_reverses", "arrangement=bucketed"),
    "mixture": ("mixture:some_reverses=0.6,some_copies=0.4", ""),
    "schedule": ("mixture:some_reverses=1,some_copies=0;9:some_reverses=1,some_copies=2", ""),
    "pictures": ("image_digits", ""),
}

# (rows are split over, columns are split over) processors.
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 4), (12, 1)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("some_sources", "some_reverses", "some_shifts", "some_copies", "image_digits"):
        problems.find(name).prepare(folder)
    return folder


def digest(feature, mesh):
    """The bytes of a feature, put together from what each processor of a mesh asks for."""
    rows, columns = mesh
    whole = np.empty(feature.shape, feature.dtype)
    for row in range(rows):
        part = [slice(row * len(whole) // rows, (row + 1) * len(whole) // rows)]
        for column in range(columns if whole.ndim > 1 else 1):
            if whole.ndim > 1:
                size = whole.shape[1] // columns
                part[1:] = [slice(column * size, (column + 1) * size)]
            whole[tuple(part)] = feature[tuple(part)]
    return hashlib.sha256(whole.tobytes()).hexdigest()


def digests(stream, steps, mesh):
    return [
        {name: digest(feature, mesh) for name, feature in stream[step].items()} for step in steps
    ]


def open_stream(data_dir, kind):
    return problems.find(*STREAMS[kind]).stream(data_dir, "train", BATCH, LENGTH, seed=5)


@pytest.mark.parametrize("kind", STREAMS)
def test_interrupted_anywhere_and_resumed_on_another_mesh(data_dir, kind):
    undisturbed = digests(open_stream(data_dir, kind), range(STEPS), (1, 1))
    assert len({tuple(each.values()) for each in undisturbed}) == STEPS  # no batch twice
    draw = random.Random(kind)
    for _ in range(5):
        stops = [0, *sorted(draw.sample(range(1, STEPS), 4)), STEPS]
        resumed = []
        for begin, end in itertools.pairwise(stops):
            # A new process opens the stream and knows nothing but the step.
            stream = open_stream(data_dir, kind)
            resumed += digests(stream, range(begin, end), draw.choice(MESHES))
        assert resumed == undisturbed


OTHER_PROCESS = """
import sys
from tests.problems.test_resuming import STREAMS, digests, open_stream
kinds = sys.argv[2:]
print([digests(open_stream(sys.argv[1], kind), range(30, 35), (2, 4)) for kind in kinds])
"""


def test_another_process_reads_the_same(data_dir):
    kinds = list(STREAMS)
    here = [digests(open_stream(data_dir, kind), range(30, 35), (1, 1)) for kind in kinds]
    shown = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(data_dir), *kinds],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "7"},
    ).stdout
    assert shown.strip() == str(here)


class CountedSource:
    """Counts the rows that are read."""

    def __init__(self, source):
        self._source = source
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self._source, name)

    def __len__(self):
        return len(self._source)

    def read(self, feature, examples, parts):
        self.rows += len(examples)
        return self._source.read(feature, examples, parts)


@pytest.mark.parametrize("kind", STREAMS)
def test_only_the_rows_that_are_asked_for_are_read(data_dir, kind):
    batch = open_stream(data_dir, kind)[10**6]
    batch.source = source = CountedSource(batch.source)
    batch["targets"][3:5]
    assert source.rows == 2
