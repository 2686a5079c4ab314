"""The batch of a step is the same bytes after a restart, on any mesh and number of processes."""

import hashlib
import itertools
import random
from unittest import mock

import numpy as np
import pytest

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


@pytest.mark.parametrize("kind", STREAMS)
def test_only_the_rows_that_are_asked_for_are_read(data_dir, kind):
    batch = open_stream(data_dir, kind)[10**6]
    source = type(batch.source)
    with mock.patch.object(source, "read", autospec=True, side_effect=source.read) as read:
        batch["targets"][3:5]
    ((_, _, examples, _),) = (call.args for call in read.call_args_list)
    assert len(examples) == 2
