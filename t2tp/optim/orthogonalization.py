"""Orthogonalization of matrices whose slices are spread over the mesh.

A Newton-Schulz iteration needs the whole matrix, and is too expensive to repeat on every processor.
Each matrix is therefore assembled and orthogonalized on one processor, its *owner*. (J. Liu et al.,
arXiv:2502.16982, section 3.3, gather a matrix on the first processor that has a slice of it.)

Take 8 matrices [d_model=6/model, d_ff=4] on `data:2;model:2`. Each processor has a slice [3, 4] of
every matrix, and processors along `data` have the same slices. Each of the 4 processors owns 2
matrices:

    select     4 x [3, 4]   the half of the matrices for this processor's coordinate on `data`
    exchange   4 x [3, 4]   all-to-all over `model`: both slices of the 2 matrices that it owns
    assemble   2 x [6, 4]   the slices of the 2 matrices, then orthogonalize the matrices
    exchange   4 x [3, 4]   all-to-all over `model`: its own slice of the 4 selected matrices
    gather     8 x [3, 4]   all-gather over `data`: its own slice of all 8 matrices

Matrices with the same shape and split are distributed together, padded with zero matrices to a
multiple of the number of owners. Processors with the same slices (along `data` above) share the
matrices if this reduces the number of matrices per owner, including padding. Otherwise each of them
does the same work. Each expert's matrix is a separate matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import declared, is_of_stage
from t2tp.building.role import MATRIX, Role
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.slice_shapes import reshaped, transposed
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_text import describe
from t2tp.mesh.storage import name_in_use

# Coefficients of the iteration, and the smallest norm to divide by (K. Jordan, "Muon", 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5  # More iterations cost more and train no better (K. Jordan et al.).
_LEAST_NORM = 1e-7

# TensorFlow's CPU kernel parallelizes a single matmul, but computes each small matmul of a batch
# with one thread. A matmul is small if it has at most 128 * 128 multiplications
# (`kMaxCostOuterParallelism`), so a matrix with more than `_SMALL` rows has no small matmuls. With
# `exact_sums`, a single matrix with up to `_SMALL` rows is computed together with a copy of itself.
# Its small matmuls are then in a batch, so they are rounded as on a mesh whose owners have several
# matrices each.
_SMALL = 128


def newton_schulz(x: tf.Tensor) -> tf.Tensor:
    """Moves the singular values of [..., rows, columns] to between 0.7 and 1.2.

    The iteration is faster if there are fewer rows than columns.
    """
    a, b, c = (tf.constant(value, x.dtype) for value in _COEFFICIENTS)
    wide = tf.cast(x, tf.float32) if x.dtype.size < 4 else x
    norm = tf.sqrt(tf.reduce_sum(tf.square(wide), axis=[-2, -1], keepdims=True))
    x = tf.cast(wide / tf.maximum(norm, tf.constant(_LEAST_NORM, wide.dtype)), x.dtype)
    scaled_identity = a * tf.eye(x.shape[-2], dtype=x.dtype)
    for _ in range(_STEPS):
        gram = tf.matmul(x, x, transpose_b=True)
        x = tf.matmul(scaled_identity + b * gram + c * tf.matmul(gram, gram), x)
    return x


class MatrixDimension(NamedTuple):
    """A dimension of a matrix: the size of its slices, and the mesh axes that split it."""

    size: int
    axes: tuple[int, ...]


class Placement(NamedTuple):
    """How a matrix is divided into slices, and which processors have copies of a slice.

    Attributes:
      rows, columns: the dimensions that form rows and columns. There are at least as many columns
        as rows.
      copies: the mesh axes along which processors have the same slices.
    """

    rows: tuple[MatrixDimension, ...]
    columns: tuple[MatrixDimension, ...]
    copies: tuple[int, ...]
    dtype: tf.DType

    @property
    def split(self) -> list[int]:
        """The mesh axes that split the matrix, in the order of its dimensions."""
        return [axis for part in (*self.rows, *self.columns) for axis in part.axes]

    def assembly(self, layout: Layout) -> tuple[list[int], list[int]]:
        """Returns a permutation and a shape that assemble matrices from their slices.

        The slices are a tensor [coordinates on the axes of `split`..., matrices, dimensions of a
        slice...]. If axes split a dimension, the permutation puts the coordinates on these axes
        directly before the dimension. The shape has the numbers of rows and columns, with padding.
        """
        order, shape, axis = [len(self.split)], [], 0
        slices = itertools.count(len(self.split) + 1)
        for parts in (self.rows, self.columns):
            size = 1
            for part in parts:
                order += range(axis, axis + len(part.axes))
                order.append(next(slices))
                axis += len(part.axes)
                size *= part.size * math.prod(map(layout.axes.size, part.axes))
            shape.append(size)
        return order, shape

    def owners(self, layout: Layout, count: int) -> tuple[list[int], int]:
        """Returns the axes of `copies` along which owners differ, and the matrices per owner."""
        axes: list[int] = []
        workers = math.prod(map(layout.axes.size, self.split))
        for axis in self.copies:
            more = workers * layout.axes.size(axis)
            if -(-count // more) < -(-count // workers):
                axes.append(axis)
                workers = more
        return axes, -(-count // workers)


@dataclass(frozen=True)
class Matrices:
    """A variable as matrices [experts, rows, columns].

    Attributes:
      order: the permutation of the variable's dimensions to experts, rows, columns.
      count: number of matrices in a slice.
      size: numbers of inputs and outputs of the whole matrix.
    """

    var: mtf.Variable
    order: list[int]
    count: int
    placement: Placement
    size: tuple[int, int]

    @classmethod
    def of(cls, var: mtf.Variable, layout: Layout, dtype: tf.DType) -> Matrices:
        """Derives the matrices from a variable's role and the layout of its shape at rest.

        Raises:
          ValueError: role and shape have different dimensions.
        """
        names = [name_in_use(dim.name) for dim in var.shape.dims]
        role = declared(var).role or Role(MATRIX)
        if sorted(names) != sorted(dim.name for dim in role.dims):
            raise ValueError(
                f"Variable {var.name!r} has the dimensions {', '.join(names)}, and its role"
                f" declares {', '.join(dim.name for dim in role.dims)}."
            )
        experts, inputs, outputs = (
            [names.index(dim.name) for dim in dims]
            for dims in (role.experts, role.inputs, role.outputs)
        )
        sizes = layout.slice_size(var.shape)
        parts = []
        for size, dim in zip(sizes, var.shape.dims, strict=True):
            axis = layout.axis_index(dim.name)
            parts.append(MatrixDimension(size, () if axis is None else layout.axes.parts(axis)))
        own = {axis for part in parts for axis in part.axes}
        if is_of_stage(var) and layout.stage_axis is not None:
            own.update(layout.axes.parts(layout.stage_axis))
        copies = [i for i, axis in enumerate(layout.mesh_shape.dims) if axis.size > 1]
        num_inputs, num_outputs = mtf.Shape(role.inputs).size, mtf.Shape(role.outputs).size
        rows, columns = (outputs, inputs) if num_inputs > num_outputs else (inputs, outputs)
        placement = Placement(
            tuple(parts[i] for i in rows),
            tuple(parts[i] for i in columns),
            tuple(axis for axis in copies if axis not in own),
            dtype,
        )
        count = math.prod(sizes[i] for i in experts)
        return cls(var, [*experts, *rows, *columns], count, placement, (num_inputs, num_outputs))

    def stacked(self, x: tf.Tensor) -> tf.Tensor:
        """Converts a slice of the variable to [matrices, slices of rows and columns...]."""
        parts = (*self.placement.rows, *self.placement.columns)
        return reshaped(transposed(x, self.order), [self.count, *(p.size for p in parts)])

    def unstacked(self, x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        """Converts matrices back to a slice of the variable, of this shape."""
        x = reshaped(x, [shape[i] for i in self.order])
        return transposed(x, sorted(range(len(shape)), key=self.order.__getitem__))

    @property
    def slice_bytes(self) -> int:
        """Bytes of the slice, in the dtype of the iteration."""
        sizes = (part.size for part in (*self.placement.rows, *self.placement.columns))
        return self.count * math.prod(sizes) * self.placement.dtype.size


class OrthogonalizeOperation(Operation):
    """Orthogonalizes the Nesterov momentum of variables that have the same placement.

    Inputs: gradients, float32. Outputs: the update directions, in the shapes of the gradients and
    the dtype of the iteration.
    """

    signature = Signature(ordered=ALL, pads=True, cost="product")

    def __init__(
        self,
        grads: Sequence[mtf.Tensor],
        variables: Sequence[Matrices],
        moments: Sequence[mtf.Variable],
        momentum: float,
    ) -> None:
        """Sets the variables, which all have the same placement.

        `moments`, which the operation only reads, are averages of the gradients with decay
        `momentum`.
        """
        super().__init__([*grads, *(m.value for m in moments)], name="orthogonalize")
        self._grads = list(grads)
        self._variables = list(variables)
        self._moments = list(moments)
        self._momentum = momentum
        self._placement = variables[0].placement
        self._count = sum(each.count for each in variables)
        self.set_outputs(*((grad.shape, self._placement.dtype) for grad in grads))

    def product_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        _, share = self._placement.owners(layout, self._count)
        _, (rows, columns) = self._placement.assembly(layout)
        return share * _STEPS, rows, rows, 2 * columns + rows

    def unpadded_share(self, layout: Layout) -> float:
        _, share = self._placement.owners(layout, self._count)
        axes = (*self._placement.copies, *self._placement.split)
        return self._count / (share * math.prod(map(layout.axes.size, axes)))

    def check_layout(self, layout: Layout) -> None:
        """Rejects padding with `exact_sums`, because padding changes the size of the matmuls."""
        for each in self._variables if layout.exact_sums else ():
            if any(map(layout.is_padded, each.var.shape.dims)):
                raise layout.inexact(
                    "optimizer=muon",
                    f"needs axes that divide the dimensions of {each.var.name!r}"
                    f" {describe(each.var.shape)} at rest: choose other zero_axes",
                )

    def is_local(self, layout: Layout) -> bool:
        return not (self._placement.split or self._placement.owners(layout, self._count)[0])

    def lower(self, lowering: Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        grads = [lowering.slice(grad) for grad in self._grads]
        stacked = []
        for each, grad, slot in zip(self._variables, grads, self._moments, strict=True):
            # Nesterov's momentum: the average of the gradient and the new moment. (As a multiple of
            # the gradient plus the rest, it would lose a digit where the moment is small.)
            moment = lowering.slice(slot.value)
            direction = moment + (1.0 - self._momentum**2) * (grad - moment)
            direction = mesh_impl.masked(direction, each.var.shape)
            stacked.append(each.stacked(tf.cast(direction, self._placement.dtype)))
        whole = self._dealt_out(mesh_impl, tf.concat(stacked, 0))
        parts = tf.split(whole, [each.count for each in self._variables], 0)
        for each, part, output in zip(self._variables, parts, self.outputs, strict=True):
            lowering.set_slice(output, each.unstacked(part, mesh_impl.slice_shape(each.var.shape)))

    def _dealt_out(self, mesh_impl: SpmdMeshImpl, x: tf.Tensor) -> tf.Tensor:
        """Orthogonalizes [matrices, slices of dimensions...]; see the module's docstring."""
        layout, collectives = mesh_impl.layout, mesh_impl.collectives
        split = self._placement.split
        copies, share = self._placement.owners(layout, self._count)
        split_sizes, copies_sizes = (list(map(layout.axes.size, axes)) for axes in (split, copies))
        dims = x.shape.as_list()[1:]
        group = math.prod(split_sizes) * share
        padding = group * math.prod(copies_sizes) - self._count
        if padding:
            x = tf.pad(x, [[0, padding], *([0, 0] for _ in dims)])
        if copies:
            place = 0
            for axis, size in zip(copies, copies_sizes, strict=True):
                place = place * size + collectives.coordinate(axis)
            x = tf.slice(x, [place * group, *(0 for _ in dims)], [group, *dims])
        x = tf.reshape(x, [*split_sizes, share, *dims])
        if split:
            x = collectives.exchange(x, split)
        order, shape = self._placement.assembly(layout)
        shape = [share, *shape]
        x = tf.transpose(x, order)
        spread = x.shape
        x = tf.reshape(self._orthogonalized(mesh_impl, tf.reshape(x, shape)), spread)
        x = tf.transpose(x, sorted(range(len(order)), key=order.__getitem__))
        if split:
            x = collectives.exchange(x, split)
        if copies:
            x = collectives.gather(x, copies)
        return tf.reshape(x, [-1, *dims])[: self._count]

    def _orthogonalized(self, mesh_impl: SpmdMeshImpl, x: tf.Tensor) -> tf.Tensor:
        if not mesh_impl.computes:
            return x
        if mesh_impl.layout.exact_sums and x.shape[0] == 1 and x.shape[1] <= _SMALL:
            return self._orthogonalized(mesh_impl, tf.tile(x, [2, 1, 1]))[:1]
        # On CPUs TensorFlow's batched matmuls accumulate in 16 bits.
        widens = mesh_impl.target.on_cpu and x.dtype.size < 4
        return tf.cast(newton_schulz(tf.cast(x, tf.float32) if widens else x), x.dtype)
