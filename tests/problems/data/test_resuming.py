"""The batch of a step is the same bytes after a restart, on any mesh and number of processes."""

import hashlib
import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf, problems
from tests.problems.streams import STEPS, STREAMS, open_stream, prepare_all

# Numbers of processors over which (rows, columns) are split.
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 4), (12, 1)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    prepare_all(directory)
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


@pytest.mark.parametrize("kind", ["windows", "mixture"])
def test_devices_of_any_mesh_are_fed_the_same(data_dir, kind):
    """Runs a program and gathers what its devices hold."""
    stream = open_stream(data_dir, kind)
    problem = problems.find(*STREAMS[kind])
    specs, (sizes,) = problem.features, stream.shapes()
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
            layout=t2tp.Layout(mesh_shape, layout),
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
