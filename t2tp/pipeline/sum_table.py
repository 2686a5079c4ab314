"""Sums of several tensors in the state of a TensorFlow loop."""

from dataclasses import dataclass

import tensorflow as tf

from t2tp.lowering.while_loop import add_to_tree, tree_levels
from t2tp.pipeline.slot_table import SlotTable


@dataclass(frozen=True)
class SumTable(SlotTable):
    """Sums that begin as zeros. They are the tensors of one slot.

    A branch that adds to a few sums returns one list for each dtype, instead of all sums.
    """

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

    def _shape_if_unset(self, number: int) -> tf.Tensor:
        return tf.constant(list(self.shapes[number]), tf.int32)
