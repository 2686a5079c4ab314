"""Slots for groups of tensors, inside a loop of TensorFlow's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class SlotTable:
    """Slots, each of which has a group of tensors, or nothing.

    The tensors of one dtype are elements of one TensorFlow list, slot after slot: a list changes
    hands without being copied, and a loop has one variable for each dtype instead of one for each
    tensor. An element without numbers stands for nothing, so that what a slot had is freed.

    Attributes:
      num_slots: how many.
      shapes: of the tensors of a group.
      dtypes: of the tensors of a group.
    """

    num_slots: int
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[tf.DType]

    def empty(self) -> list[tf.Tensor]:
        """Returns the handles of slots with nothing in them: one for each dtype."""
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
        self, handles: list[tf.Tensor], slot: tf.Tensor, values: dict[int, tf.Tensor]
    ) -> None:
        """Writes tensors into a slot; replaces the handles.

        Args:
          handles: of the slots.
          slot: its index.
          values: by their number in the group.
        """
        for i, (_, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            elements = self._elements(slot, len(numbers))
            for number, element in zip(numbers, elements, strict=True):
                if number in values:
                    handles[i] = tf.raw_ops.TensorListSetItem(
                        input_handle=handles[i], index=element, item=values[number]
                    )

    def read(
        self, handles: Sequence[tf.Tensor], slot: tf.Tensor, numbers: Sequence[int]
    ) -> list[tf.Tensor]:
        """Returns tensors of a slot, by their numbers in the group."""
        found = {}
        for handle, (dtype, same) in zip(
            handles, numbers_by_dtype(self.dtypes).items(), strict=True
        ):
            elements = self._elements(slot, len(same))
            for number, element in zip(same, elements, strict=True):
                if number in numbers:
                    value = tf.raw_ops.TensorListGetItem(
                        input_handle=handle,
                        index=element,
                        element_shape=tf.constant(-1),
                        element_dtype=dtype,
                    )
                    value.set_shape(self.shapes[number])
                    found[number] = value
        return [found[number] for number in numbers]

    def read_all(self, handles: Sequence[tf.Tensor], slot: tf.Tensor) -> list[tf.Tensor]:
        """Returns the tensors of a slot."""
        return self.read(handles, slot, range(len(self.shapes)))

    def clear(self, handles: list[tf.Tensor], slot: tf.Tensor) -> None:
        """Frees what is in a slot; replaces the handles."""
        for i, (dtype, numbers) in enumerate(numbers_by_dtype(self.dtypes).items()):
            count = len(numbers)
            handles[i] = tf.raw_ops.TensorListScatterIntoExistingList(
                input_handle=handles[i],
                tensor=tf.zeros([count, 0], dtype),
                indices=slot * count + tf.range(count),
            )

    @staticmethod
    def _elements(slot: tf.Tensor, count: int) -> list[tf.Tensor]:
        """Returns where a slot's tensors are in the list of a dtype."""
        return [slot] if count == 1 else tf.unstack(slot * count + tf.range(count))


def numbers_by_dtype(dtypes: Sequence[tf.DType]) -> dict[tf.DType, list[int]]:
    """Returns the numbers of the tensors of each dtype."""
    found: dict[tf.DType, list[int]] = {}
    for number, dtype in enumerate(dtypes):
        found.setdefault(dtype, []).append(number)
    return found
