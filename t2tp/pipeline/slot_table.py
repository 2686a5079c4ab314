"""Slots for groups of tensors, and sums of tensors, in the state of a TensorFlow loop."""

from collections.abc import Iterator, Sequence
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
        for i, number, element in self._elements(slot):
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
        for i, number, element in self._elements(slot):
            if number in numbers:
                shape = list(self.shapes[number]) if self.begins_as_zeros else -1
                values[number] = tf.raw_ops.TensorListGetItem(
                    input_handle=handles[i],
                    index=element,
                    element_shape=tf.constant(shape, tf.int32),
                    element_dtype=self.dtypes[number],
                )
                values[number].set_shape(self.shapes[number])
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

    def _elements(self, slot: tf.Tensor | int) -> Iterator[tuple[int, int, tf.Tensor | int]]:
        """Yields the index of the list, the number, and the index in the list of each tensor."""
        for i, numbers in enumerate(numbers_by_dtype(self.dtypes).values()):
            count = len(numbers)
            if isinstance(slot, int):
                elements: Sequence[tf.Tensor | int] = range(slot * count, (slot + 1) * count)
            else:
                elements = [slot] if count == 1 else tf.unstack(slot * count + tf.range(count))
            for number, element in zip(numbers, elements, strict=True):
                yield i, number, element


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
