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
import tensorflow as tf

import t2tp
from t2tp import mtf, problems
from tests.problems.streams import BATCH, LENGTH, STEPS, STREAMS, open_stream

# Numbers of processors over which (rows, columns) are split.
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 4), (12, 1)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for name in ("some_sources", "some_reverses", "some_shifts", "some_copies", "image_digits"):
        problems.find(name).prepare(directory)
    return directory


def digest(feature, mesh):
    """Returns the digest of a feature, assembled from the slices that a mesh's processors read."""
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


@pytest.mark.parametrize("kind", STREAMS)
def test_interrupted_anywhere_and_resumed_on_another_mesh(data_dir, kind):
    undisturbed = digests(open_stream(data_dir, kind), range(STEPS), (1, 1))
    assert len({tuple(each.values()) for each in undisturbed}) == STEPS  # no batch twice
    draw = random.Random(kind)
    for _ in range(5):
        stops = [0, *sorted(draw.sample(range(1, STEPS), 4)), STEPS]
        resumed = []
        for begin, end in itertools.pairwise(stops):
            # A new process opens the stream and is given only the step.
            stream = open_stream(data_dir, kind)
            resumed += digests(stream, range(begin, end), draw.choice(MESHES))
        assert resumed == undisturbed


@pytest.mark.parametrize("kind", STREAMS)
def test_resumed_with_other_batch_sizes_each_row_comes_once_an_epoch(data_dir, kind):
    stream, read, step = open_stream(data_dir, kind), [], 0
    for steps, batch_size in ((7, 12), (5, 4), (9, 20), (11, 8)):
        sizes = stream.batch_sizes.changed(step, batch_size)
        stream = open_stream(data_dir, kind).with_batch_sizes(sizes)
        for number in range(step, step + steps):
            batch = stream[number]
            length = batch["targets"].shape[-1]  # each bucket has one
            read += [(length, n) for n in batch.examples.tolist() if n >= 0]
        step += steps
        # Another process that resumes here reads the same rows.
        same = open_stream(data_dir, kind).with_batch_sizes(sizes)
        assert same[step].examples.tolist() == stream[step].examples.tolist()
    if kind in ("mixture", "schedule"):  # of 170 and 45 rows, each with epochs of its own
        problems_rows = [
            [row for row in read if (row[1] < 170) == first] for first in (True, False)
        ]
    else:
        problems_rows = [read]
    for rows in problems_rows:
        epochs = max(map(rows.count, rows))
        assert all(rows.count(row) >= epochs - 1 for row in rows)


# One of several processes: reads its rows of the batches of some steps, of all kinds of streams.
ONE_PROCESS = """
import sys
import numpy as np
from tests.problems.streams import STREAMS, open_stream
data_dir, file, begin, end, process, processes = sys.argv[1:]
read = {}
for kind in STREAMS:
    stream = open_stream(data_dir, kind)
    for step in range(int(begin), int(end)):
        for name, feature in stream[step].items():
            rows = feature.shape[0]
            first, last = (rows * (int(process) + i) // int(processes) for i in (0, 1))
            read[f"{kind} {step} {name}"] = feature[first:last]
np.savez(file, **read)
"""


def read_in_processes(data_dir, directory, begin, end, processes):
    """Returns the arrays of steps, assembled from what each process has read."""
    files = [directory / f"{begin}_{process}.npz" for process in range(processes)]
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", ONE_PROCESS, str(data_dir), str(file)),
                *map(str, (begin, end, process, processes)),
            ],
            cwd=Path(__file__).parents[3],
            env=os.environ | {"PYTHONHASHSEED": str(process + 7)},
        )
        for process, file in enumerate(files)
    ]
    assert [process.wait() for process in running] == [0] * processes
    parts = [np.load(file) for file in files]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0].files}


@pytest.mark.slow
def test_interrupted_and_resumed_on_other_numbers_of_processes(data_dir, tmp_path):
    draw = random.Random()
    stops = [0, *sorted(draw.sample(range(1, STEPS), 2)), STEPS]
    for (begin, end), processes in zip(itertools.pairwise(stops), (2, 3, 1), strict=True):
        read = read_in_processes(data_dir, tmp_path, begin, end, processes)
        wanted = {
            f"{kind} {step} {name}": np.asarray(feature)
            for kind in STREAMS
            for step in range(begin, end)
            for name, feature in open_stream(data_dir, kind)[step].items()
        }
        assert read.keys() == wanted.keys()
        for name, values in read.items():
            assert values.dtype == wanted[name].dtype
            assert values.tobytes() == wanted[name].tobytes(), (name, stops)


@pytest.mark.parametrize("kind", ["windows", "mixture"])
def test_devices_of_any_mesh_are_fed_the_same(data_dir, kind):
    """Runs a program and gathers what its devices hold."""
    stream = open_stream(data_dir, kind)
    problem = problems.find(*STREAMS[kind])
    specs, (sizes,) = problem.features(BATCH, LENGTH), stream.shapes()
    dims = {name: zip(spec.dimensions, sizes[name], strict=True) for name, spec in specs.items()}
    features = {
        name: t2tp.Feature(
            mtf.Shape([mtf.Dimension(*dim) for dim in dims[name]]), tf.as_dtype(spec.dtype)
        )
        for name, spec in specs.items()
    }
    for mesh_shape, layout in (("a:4", "batch:a"), ("a:2;b:2", "batch:a;length:b")):
        program = t2tp.Program(
            lambda mesh, given: {name: mtf.identity(each) for name, each in given.items()},
            features,
            mesh_shape=mesh_shape,
            layout=layout,
        )
        # The epochs of the mixture's problems end in the batches 9 and 23.
        for step in (0, 9, 10, 23, 24, 1000):
            held = program(stream[step], step=step)
            for name in specs:
                wanted = np.asarray(stream[step][name])
                assert np.asarray(held[name]).tobytes() == wanted.tobytes(), (layout, step, name)


class CountedSource:
    """A source that counts the rows that are read."""

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
