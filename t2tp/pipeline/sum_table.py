"""Sums of several tensors in the state of a TensorFlow loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp.lowering.while_loop import add_to_tree, tree_levels
from t2tp.pipeline.slot_table import numbers_by_dtype


@dataclass(frozen=True)
class SumTable:
    """Sums; one TensorFlow list holds all sums of a dtype.

    The loop and its branches then have one variable for each dtype instead of one for each sum. A
    branch adds to a few sums and would pass all others on.

    Attributes:
      shapes: shapes of the sums.
      dtypes: element types of the sums.
    """

    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[tf.DType]

    def zeros(self) -> list[tf.Tensor]:
        """Returns the handles of zero sums: one for each dtype."""
        return [
            tf.raw_ops.TensorListReserve(
                element_shape=tf.constant(-1), num_elements=len(numbers), element_dtype=dtype
            )
            for dtype, numbers in numbers_by_dtype(self.dtypes).items()
        ]

    def add(self, handles: list[tf.Tensor], number: int, addend: tf.Tensor) -> None:
        """Adds to a sum; replaces its handle.

        Additions to one list wait for each other, so add the value that is computed first, first.
        """
        for i, (dtype, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            if dtype == self.dtypes[number]:
                # The result reuses the addend's memory; the memory of the previous sum is freed.
                handles[i] = tf.raw_ops.TensorListSetItem(
                    input_handle=handles[i],
                    index=numbers.index(number),
                    item=self._value(handles[i], number, numbers) + addend,
                )

    def add_leaf(
        self, handles: list[tf.Tensor], addends: dict[int, tf.Tensor], leaf: tf.Tensor, size: int
    ) -> None:
        """Adds a leaf to binary trees, each level of which is one of the sums; see `add_to_tree`.

        Args:
          handles: handles of the sums, of the first level of all trees, then of the second; they
            are replaced.
          addends: the leaf of some trees, by the number of the tree.
          leaf: number of the leaf.
          size: number of leaves.
        """
        depth = tree_levels(size)
        places = [
            level * (len(self.dtypes) // depth) + tree for level in range(depth) for tree in addends
        ]
        held = self.values(handles)
        sums = add_to_tree(leaf, [held[place] for place in places], [*addends.values()], size)
        for i, (dtype, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            for place, value in zip(places, sums, strict=True):
                if dtype == self.dtypes[place]:
                    handles[i] = tf.raw_ops.TensorListSetItem(
                        input_handle=handles[i], index=numbers.index(place), item=value
                    )

    def values(self, handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums."""
        values: dict[int, tf.Tensor] = {}
        for handle, numbers in zip(handles, numbers_by_dtype(self.dtypes).values(), strict=True):
            values |= {number: self._value(handle, number, numbers) for number in numbers}
        return [values[number] for number in range(len(self.dtypes))]

    def _value(self, handle: tf.Tensor, number: int, numbers: Sequence[int]) -> tf.Tensor:
        """Returns a sum from the list of its dtype; zeros if nothing was added."""
        shape = list(self.shapes[number])
        value = tf.raw_ops.TensorListGetItem(
            input_handle=handle,
            index=numbers.index(number),
            element_shape=tf.constant(shape, tf.int32),
            element_dtype=self.dtypes[number],
        )
        value.set_shape(shape)
        return value
