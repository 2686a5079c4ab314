"""Local attention in blocks of a sequence or an image.

If the sequence or image is split, a processor receives the keys and values of neighbouring blocks
from other slices (the halo).
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import Signature
from t2tp.mesh.layout import Layout
from t2tp.ops.attention.mask import MASKED
from t2tp.ops.conv.sliding_window import Halo, Halos, check_window

# The distances from a block to the blocks that it attends to, in rows and columns of blocks, for a
# sequence and for an image, by the number of dimensions.
_NEIGHBOURS = {1: ((0, -1), (0, 0)), 2: ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 0))}


def local_attention(
    q: upstream.Tensor,
    k: upstream.Tensor,
    v: upstream.Tensor,
    space: Sequence[upstream.Dimension],
    block: Sequence[int],
) -> upstream.Tensor:
    """Computes causal attention of each block to itself and its previous neighbours.

    N. Parmar et al., "Image Transformer" (arXiv:1802.05751), section 3.2. A position of a sequence
    attends to the previous block, and to its own block up to itself. A position of an image attends
    to itself and to earlier positions (row by row) in its own block and in the blocks on the left,
    above, above left and above right. Any dimension but `d_kv` may be split.

    Args:
      q: [..., d_kv]; all dimensions of `space` are among `...`.
      k: like `q`.
      v: like `q`.
      space: [length], or [height, width].
      block: the size of a block along each dimension of `space`.

    Returns:
      a tensor like `q`.

    Raises:
      ValueError: shapes do not match, or blocks do not divide the space.
      LayoutError: (when the program is built) blocks do not divide the slices.
    """
    if not q.shape == k.shape == v.shape or any(dim not in q.shape.dims[:-1] for dim in space):
        raise ValueError(
            f"local_attention: q {q.shape}, k {k.shape} and v {v.shape} must have one shape, with"
            f" {list(space)} before its last dimension."
        )
    if len(space) not in (1, 2) or len(block) != len(space):
        raise ValueError(
            f"local_attention: a sequence has one dimension and one block size, an image two, not"
            f" {list(space)} and {list(block)}."
        )
    for dim, size in zip(space, block, strict=True):
        if size < 1 or dim.size % size:
            raise ValueError(f"local_attention: blocks of {size} do not divide {dim}.")
    return LocalAttentionOperation([q, k, v], tuple(space), tuple(block)).outputs[0]


def visible_positions(
    positions: tf.Tensor, places: tf.Tensor, block: Sequence[int], width: int
) -> tf.Tensor:
    """Returns whether each query attends to each key: booleans [..., keys].

    `positions` [...] are the positions of the queries, and `places` [keys] those of the keys: int32
    indices in a sequence or, row by row, in an image. `width` is the width of the image, or the
    length of the sequence.
    """
    here = positions[..., None]
    rows, columns = (1, *block)[-2:]
    down = here // width // rows - places // width // rows
    right = here % width // columns - places % width // columns
    is_near = [
        (down == -block_row) & (right == -block_column)
        for block_row, block_column in _NEIGHBOURS[len(block)]
    ]
    return (places <= here) & tf.reduce_any(tf.stack(is_near), axis=0)


class LocalAttentionOperation(Operation):
    """Inputs: q, k and v. Output: the weighted values, with the shape of q."""

    def __init__(
        self,
        inputs: Sequence[upstream.Tensor],
        space: tuple[upstream.Dimension, ...],
        block: tuple[int, ...],
    ) -> None:
        super().__init__(list(inputs), name="local_attention")
        self._space = space
        self._block = block
        self.signature = Signature(ordered=space, whole=inputs[0].shape.dims[-1:])
        self.set_outputs(inputs[0])

    @property
    def matmul_flops(self) -> int:
        """The FLOPs of scores and weighted values, including masked positions in visible blocks."""
        visible = len(_NEIGHBOURS[len(self._block)]) * math.prod(self._block)
        return 4 * self.inputs[0].shape.size * visible

    def check_layout(self, layout: Layout) -> None:
        """Checks that blocks divide the slices."""
        for dim, size in zip(self._space, self._block, strict=True):
            check_window(layout, f"Attention {self.name!r}", dim, size, 0, size)

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        inputs = [*self.inputs, *grad_ys]
        return LocalAttentionGradOperation(
            "local_attention_grad", self, inputs, *self.inputs
        ).outputs

    def lower(self, lowering: Lowering) -> None:
        part = _BlockSlice(lowering, self)
        q, k, v = (part.in_order(lowering.slice(x)) for x in self.inputs)
        y = part.attend(q, part.with_halo(k), part.with_halo(v))
        lowering.set_slice(self.outputs[0], part.as_given(y))


class LocalAttentionGradOperation(GradientOperation):
    """Inputs: q, k, v and the gradient w.r.t. the result. Outputs: the gradients w.r.t. q, k and v.

    The attention weights are recomputed instead of stored, because they would take most of the
    memory.
    """

    def lower(self, lowering: Lowering) -> None:
        part = _BlockSlice(lowering, self.forward)
        q, k, v, dy = (part.in_order(lowering.slice(x)) for x in self.inputs)
        given = [q, part.with_halo(k), part.with_halo(v)]
        dq, dk, dv = tf.gradients(part.attend(*given), given, dy, stop_gradients=given)
        grads = [dq, part.without_halo(dk), part.without_halo(dv)]
        for output, grad in zip(self.outputs, grads, strict=True):
            lowering.set_slice(output, part.as_given(grad))


class _BlockSlice(Halos):
    """Computes attention on a processor's slice [batch, height, width, d_kv].

    In a sequence, `height` is 1. `_grid` has the numbers of rows and columns of blocks, and
    `_block` the height and width of a block.
    """

    def __init__(self, lowering: Lowering, op: LocalAttentionOperation) -> None:
        mesh_impl, shape, space = lowering.mesh_impl(op), op.inputs[0].shape, op._space
        batch = [dim for dim in shape.dims[:-1] if dim not in space]
        self._order = [shape.dims.index(dim) for dim in (*batch, *space, shape.dims[-1])]
        self._sizes = mesh_impl.slice_shape(shape)
        self._space = [1, *mesh_impl.slice_shape(upstream.Shape(list(space)))][-2:]
        self._block = height, width = (1, *op._block)[-2:]
        self._grid = self._space[0] // height, self._space[1] // width
        self._neighbours = _NEIGHBOURS[len(space)]
        self._scale = shape.dims[-1].size ** -0.5
        self._begin = [0, *mesh_impl.slice_begin_tensors(upstream.Shape(list(space)))][-2:]
        self._width = space[-1].size
        self._edges = (len(space) == 2) * height, width, (len(space) == 2) * width
        above, left, right = self._edges
        halos = [Halo(mesh_impl, space[-1], 2, left, right)]
        if above:
            halos.append(Halo(mesh_impl, space[0], 1, above, 0))
        super().__init__(halos)

    def in_order(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes a slice to [batch, height, width, d_kv]."""
        return tf.reshape(tf.transpose(x, self._order), [-1, *self._space, x.shape[-1]])

    def as_given(self, x: tf.Tensor) -> tf.Tensor:
        """Reshapes back to a slice."""
        x = tf.reshape(x, [self._sizes[dim] for dim in self._order])
        return tf.transpose(x, np.argsort(self._order))

    def attend(self, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """Computes attention of q [batch, height, width, d_kv] to k and v with halo."""
        queries = self._blocks(q * tf.constant(self._scale, q.dtype))
        keys, values = self._memory(k), self._memory(v)
        scores = tf.cast(tf.matmul(queries, keys, transpose_b=True), tf.float32)
        weights = tf.nn.softmax(tf.where(self._is_seen(), scores, MASKED))
        y = tf.matmul(tf.cast(weights, v.dtype), values)
        y = tf.reshape(y, [-1, *self._grid, *self._block, y.shape[-1]])
        return tf.reshape(tf.transpose(y, [0, 1, 3, 2, 4, 5]), q.shape)

    def _memory(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the positions that each block of `x` (with halo) attends to, before masking.

        The result is [batch, rows, columns, positions, d_kv].
        """
        (above, left, _), (height, width) = self._edges, self._space
        parts = []
        for down, right in self._neighbours:
            top, side = above + down * self._block[0], left + right * self._block[1]
            parts.append(self._blocks(x[:, top : top + height, side : side + width]))
        return tf.concat(parts, axis=3)

    def _blocks(self, x: tf.Tensor) -> tf.Tensor:
        """Splits [batch, height, width, d] -> [batch, rows, columns, positions of a block, d]."""
        (rows, columns), (height, width) = self._grid, self._block
        x = tf.reshape(x, [-1, rows, height, columns, width, x.shape[-1]])
        x = tf.transpose(x, [0, 1, 3, 2, 4, 5])
        return tf.reshape(x, [-1, rows, columns, height * width, x.shape[-1]])

    def _is_seen(self) -> tf.Tensor:
        """Returns whether each block's queries attend to each position of `_memory`.

        The booleans are [1, rows, columns, queries, positions].
        """
        (above, left, right), (height, width) = self._edges, self._space
        # In int64: TensorFlow compares int32 in host memory.
        begin = [tf.cast(each, tf.int64) for each in self._begin]
        row = begin[0] + np.arange(-above, height)[:, None]
        column = begin[1] + np.arange(-left, width + right)
        is_inside = (row >= 0) & (column >= 0) & (column < self._width)
        # Positions in the order of the rows. No query attends to the halo outside of the image.
        places = tf.where(is_inside, row * self._width + column, np.iinfo(np.int64).max)
        places = places[None, :, :, None]
        here = self._blocks(places[:, above:, left : left + width])
        return tf.linalg.matrix_transpose(self._memory(places)) <= here
