"""Reads batches of the standard library's tokens, by t2tp or by plain tf.data.

t2tp reads in one thread and shuffles all examples. The program with tf.data is what one would write
without t2tp: it reads the same windows from a TFRecord file, shuffles them in a buffer, and parses,
batches and prefetches them on all cores.
"""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--what", choices=("t2tp", "tf_data"), required=True)
turn.PARSER.add_argument("--data_dir", required=True)
turn.PARSER.add_argument("--batches", type=int, default=100, help="that a step reads")
args = turn.arguments()

import itertools
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from t2tp import problems

BATCH, LENGTH, BUFFER = 64, 256, 10_000
problem = problems.find("languagemodel_python_stdlib")
stream = problem.stream(args.data_dir, "train", BATCH, LENGTH)


def ours() -> Iterator[dict[str, np.ndarray]]:
    """Yields each batch; all of its features are read in this thread."""
    for step in itertools.count():
        yield {name: np.asarray(feature) for name, feature in stream[step].items()}


def write_records(path: str) -> None:
    """Writes the windows of an epoch to a TFRecord file, one in each record."""
    with tf.io.TFRecordWriter(path) as writer:
        for step in range(stream.examples_per_epoch // BATCH):
            batch = {name: np.asarray(feature) for name, feature in stream[step].items()}
            for row in range(BATCH):
                values = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=array[row].ravel()))
                    for name, array in batch.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=values))
                writer.write(example.SerializeToString())


def plain(path: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches with the same features, read by tf.data."""
    spec = {
        name: tf.io.FixedLenFeature(feature.shape[1:], tf.int64)
        for name, feature in stream[0].items()
    }
    dataset = tf.data.TFRecordDataset(path).repeat().shuffle(BUFFER, seed=0).batch(BATCH)
    dataset = dataset.map(
        lambda records: {
            name: tf.cast(value, tf.int32)
            for name, value in tf.io.parse_example(records, spec).items()
        },
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    # AUTOTUNE is as fast in a long run, but reads a whole turn ahead while t2tp takes its own.
    return dataset.prefetch(16).as_numpy_iterator()


with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "train.tfrecord")
    if args.what == "tf_data":
        write_records(path)
    batches = ours() if args.what == "t2tp" else plain(path)

    def step() -> float:
        for _ in range(args.batches):
            assert len(next(batches)["targets"]) == BATCH
        return 0.0

    work = args.batches * BATCH
    turn.take_turns(step, version=f"tensorflow {tf.__version__}", work=work)
