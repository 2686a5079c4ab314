"""Inputs from a `tf.data.Dataset`.

A stream with random access (see `BatchStream`) continues at once after a restart, with the same
data. A dataset can only be read from its beginning, so a resumed training spends time on skipping
the rows that it has trained on. The training gets the same data only if the dataset is
deterministic. For example, `shuffle` needs a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.program.program import Feature
from t2tp.trainer.inputs.inputs import Batch, Inputs, feature_of


def dataset_inputs(dataset: tf.data.Dataset, dimensions: Mapping[str, str]) -> Inputs:
    """Returns inputs from a dataset of dictionaries.

    ```python
    def input_fn():  # The Estimator calls this function after it has set up the devices.
        dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).repeat()
        dataset = dataset.batch(32, drop_remainder=True)
        return dataset_inputs(dataset, {"x": "batch d_in", "y": "batch d_out"})
    ```

    With several processes, each reads the whole dataset and uses its slice of each batch.

    Args:
      dataset: a dataset of global batches.
      dimensions: feature -> names of its dimensions, separated by spaces.

    Raises:
      ValueError: the features differ from the dataset's, the number of dimensions differs, or
        a size is not static.
    """
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or set(spec) != set(dimensions):
        names = ", ".join(spec) if isinstance(spec, Mapping) else f"no names, but {spec}"
        raise ValueError(
            f"dimensions are named for {', '.join(dimensions)}, and the dataset's elements have"
            f" {names}"
        )
    features = {name: _feature(name, spec[name], dimensions[name]) for name in dimensions}
    leading = {dims[0].size for f in features.values() if (dims := f.shape.dims)}
    # Features without a common leading size have no rows, so a batch counts as one row.
    batch_size = leading.pop() if len(leading) == 1 else 1
    return Inputs(features, _Sequence(dataset, BatchSizes.of(batch_size)))


class _Sequence:
    """A stream over a dataset. Reading steps out of order reopens the dataset."""

    def __init__(self, dataset: tf.data.Dataset, batch_sizes: BatchSizes) -> None:
        self.batch_sizes = batch_sizes
        self._dataset = dataset
        self._next = 0
        self._batches: Iterator[Batch] | None = None

    def with_batch_sizes(self, batch_sizes: BatchSizes) -> _Sequence:
        return _Sequence(self._dataset, batch_sizes)

    def __len__(self) -> int:
        if (length := int(self._dataset.cardinality())) < 0:
            raise TypeError("the number of batches is not known")
        return length

    def __getitem__(self, step: int) -> Batch:
        if self._batches is None or step != self._next:
            if step:
                logging.info("skipping the first %d batches of the data", step)
            self._batches, self._next = self._from(step), step
        try:
            batch = next(self._batches)
        except StopIteration:
            raise ValueError(
                f"the data ended before batch {step}: repeat them, or ask for fewer steps"
            ) from None
        self._next += 1
        return batch

    def _from(self, step: int) -> Iterator[Batch]:
        rows, batch_size = self.batch_sizes.rows_before(step), self.batch_sizes.last
        if rows % batch_size == 0:
            return self._dataset.skip(rows // batch_size).as_numpy_iterator()
        rest = self._dataset.unbatch().skip(rows)
        return rest.batch(batch_size, drop_remainder=True).as_numpy_iterator()


def _feature(name: str, spec: tf.TensorSpec, dimensions: str) -> Feature:
    names, sizes = dimensions.split(), spec.shape
    if len(names) != sizes.rank:
        raise ValueError(
            f"feature {name!r} has {sizes.rank} dimensions, and {len(names)} are named:"
            f" {dimensions!r}"
        )
    if not sizes.is_fully_defined():
        raise ValueError(
            f"the sizes of feature {name!r} are {sizes}, and all must be known: batch with"
            " drop_remainder=True, and pad what varies"
        )
    return feature_of(names, sizes.as_list(), spec.dtype)
