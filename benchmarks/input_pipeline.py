"""How fast batches are read, beside plain tf.data on the same tokens.

python benchmarks/input_pipeline.py DATA_DIR

Each is asked for the same batches of the standard library's tokens, in turns; medians of five. The
peer is what one would write without t2tp: the tokens as fixed windows in a TFRecord file, shuffled
in a buffer, parsed, batched, prefetched, on all cores.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from t2tp import problems
from t2tp.problems.stream import Stream

BATCH, LENGTH, BATCHES, TURNS = 64, 256, 100, 5


def ours(stream: Stream) -> Iterator[dict[str, np.ndarray]]:
    """Every feature of each batch, whole, in this thread."""
    for step in range(BATCHES):
        yield {name: np.asarray(feature) for name, feature in stream[step].items()}


def write_records(stream: Stream, path: str) -> None:
    """The windows of an epoch, an example each."""
    with tf.io.TFRecordWriter(path) as writer:
        for step in range(stream.examples_per_epoch // BATCH):
            batch = {name: np.asarray(feature) for name, feature in stream[step].items()}
            for row in range(BATCH):
                values = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=array[row]))
                    for name, array in batch.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=values))
                writer.write(example.SerializeToString())


def plain(path: str, names: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """The same features by tf.data."""
    spec = {name: tf.io.FixedLenFeature([LENGTH], tf.int64) for name in names}
    dataset = tf.data.TFRecordDataset(path).repeat().shuffle(10_000, seed=0).batch(BATCH)
    dataset = dataset.map(
        lambda records: {
            name: tf.cast(value, tf.int32)
            for name, value in tf.io.parse_example(records, spec).items()
        },
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return dataset.prefetch(tf.data.AUTOTUNE).take(BATCHES).as_numpy_iterator()


def rate(batches: Callable[[], Iterator[dict[str, np.ndarray]]]) -> float:
    """Examples a second."""
    began = time.perf_counter()
    seen = sum(len(batch["targets"]) for batch in batches())
    return seen / (time.perf_counter() - began)


def main(data_dir: str) -> None:
    """Prints the table."""
    stream = problems.find("languagemodel_python_stdlib").stream(data_dir, "train", BATCH, LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.tfrecord")
        write_records(stream, path)
        makers = {
            "t2tp, one thread, shuffled over all": lambda: ours(stream),
            "tf.data, shuffled in a buffer of 10,000": lambda: plain(path, list(stream[0])),
        }
        rates: dict[str, list[float]] = {name: [] for name in makers}
        for _ in range(TURNS):
            for name, maker in makers.items():
                rates[name].append(rate(maker))
    print(f"{BATCHES} batches of {BATCH} x {LENGTH} tokens, three features, {os.cpu_count()} cores")
    for name, measured in rates.items():
        middle = statistics.median(measured)
        spread = (max(measured) - min(measured)) / middle
        print(
            f"  {name:42} {middle:>9,.0f} examples/s  {1e3 * BATCH / middle:6.2f} ms a batch"
            f"  (spread {spread:.0%})"
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
