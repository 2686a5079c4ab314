"""Slots for groups of tensors, and sums of tensors, in the state of a TensorFlow loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from t2tp.lowering.while_loop import add_to_tree, tree_levels


@dataclass(frozen=True)
class SlotTable:
    """Slots; each holds a group of tensors, or is empty.

    The tensors of one dtype are elements of one TensorFlow list, slot after slot. TensorFlow passes
    a list on without copying it, and the loop has one variable for each dtype instead of one for
    each tensor.

    Attributes:
      begins_as_zeros: whether a tensor that was not set is read as zeros. Otherwise reading it is
        an error, because its shape is read as unknown.
    """

    num_slots: int
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[tf.DType]
    begins_as_zeros: ClassVar[bool] = False

    def empty(self) -> list[tf.Tensor]:
        """Returns one list handle for each dtype; all slots are empty. Without slots: []."""
        if not self.num_slots:
            return []
        return [
            tf.raw_ops.TensorListReserve(
                element_shape=tf.constant(-1),
                num_elements=self.num_slots * len(numbers),
                element_dtype=dtype,
            )
            for dtype, numbers in numbers_by_dtype(self.dtypes).items()
        ]

    def write(
        self, handles: list[tf.Tensor], slot: tf.Tensor | int, values: dict[int, tf.Tensor]
    ) -> None:
        """Writes tensors, by their number in the group, into a slot; replaces the handles."""
        for i, (_, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            elements = self._elements(slot, len(numbers))
            for number, element in zip(numbers, elements, strict=True):
                if number in values:
                    handles[i] = tf.raw_ops.TensorListSetItem(
                        input_handle=handles[i], index=element, item=values[number]
                    )

    def read(
        self,
        handles: Sequence[tf.Tensor],
        slot: tf.Tensor | int,
        numbers: Sequence[int] | None = None,
    ) -> list[tf.Tensor]:
        """Returns tensors of a slot, by their numbers in the group; by default all."""
        numbers = range(len(self.shapes)) if numbers is None else numbers
        values = {}
        for handle, (dtype, same) in zip(
            handles, numbers_by_dtype(self.dtypes).items(), strict=True
        ):
            elements = self._elements(slot, len(same))
            for number, element in zip(same, elements, strict=True):
                if number in numbers:
                    shape = list(self.shapes[number]) if self.begins_as_zeros else -1
                    value = tf.raw_ops.TensorListGetItem(
                        input_handle=handle,
                        index=element,
                        element_shape=tf.constant(shape, tf.int32),
                        element_dtype=dtype,
                    )
                    value.set_shape(self.shapes[number])
                    values[number] = value
        return [values[number] for number in numbers]

    def clear(self, handles: list[tf.Tensor], slot: tf.Tensor) -> None:
        """Frees the tensors of a slot, by writing empty tensors; replaces the handles."""
        for i, (dtype, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            count = len(numbers)
            handles[i] = tf.raw_ops.TensorListScatterIntoExistingList(
                input_handle=handles[i],
                tensor=tf.zeros([count, 0], dtype),
                indices=slot * count + tf.range(count),
            )

    @staticmethod
    def _elements(slot: tf.Tensor | int, count: int) -> Sequence[tf.Tensor | int]:
        """Returns the indices of a slot's tensors in the list of a dtype."""
        if isinstance(slot, int):
            return range(slot * count, (slot + 1) * count)
        return [slot] if count == 1 else tf.unstack(slot * count + tf.range(count))


def numbers_by_dtype(dtypes: Sequence[tf.DType]) -> dict[tf.DType, list[int]]:
    """Returns a list for each dtype: the indices of the tensors of this dtype."""
    numbers: dict[tf.DType, list[int]] = {}
    for number, dtype in enumerate(dtypes):
        numbers.setdefault(dtype, []).append(number)
    return numbers


@dataclass(frozen=True)
class SumTable(SlotTable):
    """Sums that begin as zeros. They are the tensors of one slot.

    A branch that adds to a few sums returns one list for each dtype, instead of all sums.
    """

    begins_as_zeros = True

    def add(self, handles: list[tf.Tensor], number: int, addend: tf.Tensor) -> None:
        """Adds to a sum; replaces its handle.

        Additions to one list wait for each other, so add values in the order of their computation.
        """
        (total,) = self.read(handles, 0, [number])
        # The result reuses the addend's memory; the memory of the previous sum is freed.
        self.write(handles, 0, {number: total + addend})

    def add_leaf(
        self, handles: list[tf.Tensor], addends: dict[int, tf.Tensor], leaf: tf.Tensor, size: int
    ) -> None:
        """Adds the next leaf, number `leaf`, to trees of `size` leaves; see `add_to_tree`.

        `addends` has the value of this leaf for each tree to which it is added, by the number of
        the tree. The tensors of the table are the levels of the trees: the first level of all
        trees, then the second level of all trees, and so on.
        """
        depth = tree_levels(size)
        places = [
            level * (len(self.dtypes) // depth) + tree for level in range(depth) for tree in addends
        ]
        sums = add_to_tree(leaf, self.read(handles, 0, places), [*addends.values()], size)
        self.write(handles, 0, dict(zip(places, sums, strict=True)))
