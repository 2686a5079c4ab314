"""Softmax cross-entropy fused with the output projection, in chunks of tokens.

With a vocabulary of 128,000 and 4,096 tokens on a device, the logits take 2 GiB in float32, and
their gradient takes 2 GiB more. Neither is needed as a whole, because the loss is a sum over
tokens. One chunk of tokens is in memory at a time:

    chunk of x [rows, d_model]  ->  logits [rows, vocab]  ->  loss  ->  d_logits [rows, vocab]
                                ->  d_x [rows, d_model], addend of d_table [vocab, d_model]

The forward pass also computes the gradients of the loss sum, while a chunk's logits are in memory.
The backward pass multiplies these gradients by the gradient w.r.t. the sum, a scalar. (P. Hsu et
al., "Liger Kernel", arXiv:2410.10989, section 3.2, have the same idea for one GPU.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.fast_graph import fast_graph
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import Signature
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.mesh.collectives import tree_sum
from t2tp.mesh.layout import Layout
from t2tp.ops.cross_entropy.sliced_softmax import LossOptions, SlicedSoftmax

# Chunks are used only for at least this many logits: 64 MiB in float32.
_MIN_CHUNK = 1 << 24
# Chunks are used only if the vocabulary is at least this many times d_model. Otherwise the logits
# are no larger than the activations of one or two layers.
_WORTH = 4


@dataclass(frozen=True)
class Teacher:
    """A model whose predictions the loss compares with: the operands of its logits.

    Attributes:
      x: [..., d_model], with the tokens of the student's `x`; d_model may have another size.
      table: [vocab, d_model], with the student's `vocab`.
      bias: [vocab]; None: no bias.
      soft_cap: the teacher's cap; see `projected_cross_entropy`.
      weight: the share w of the teacher in the loss.
      temperature: the divisor T of both models' logits.
      classes: number of tokens to compare; the other rows of the tables are padding.
    """

    x: upstream.Tensor
    table: upstream.Tensor
    bias: upstream.Tensor | None
    soft_cap: float
    weight: float
    temperature: float
    classes: int

    @property
    def inputs(self) -> list[upstream.Tensor]:
        """The tensors."""
        return [self.x, self.table, *([] if self.bias is None else [self.bias])]


def is_worth_chunks(x: upstream.Tensor, vocab: upstream.Dimension) -> bool:
    """Whether the logits of x [..., d_model] are large, also relative to other activations."""
    d_model = x.shape.dims[-1].size
    logits = x.shape.size // d_model * vocab.size
    return logits >= _MIN_CHUNK and vocab.size >= _WORTH * d_model


def projected_cross_entropy(
    x: upstream.Tensor,
    table: upstream.Tensor,
    targets: upstream.Tensor,
    weights: upstream.Tensor,
    bias: upstream.Tensor | None = None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    soft_cap: float = 0.0,
    chunk: int = 0,
    teacher: Teacher | None = None,
) -> tuple[upstream.Tensor, upstream.Tensor]:
    """Sums the tokens' weighted cross-entropies for the logits `x table + bias`.

    With a teacher, a token's loss is (1 - w) * cross-entropy + w * T^2 * KL(teacher || student),
    with both distributions at the temperature T (G. Hinton et al., arXiv:1503.02531, section 2).

    The vocabulary, d_model and the tokens may be split over the mesh. Each chunk needs the
    collectives of `softmax_cross_entropy` and, if d_model is split, an all-reduce of its logits.

    Args:
      x: [..., d_model], any float dtype.
      table: [vocab, d_model], in the dtype of `x`.
      targets: [...], integers in [0, vocab).
      weights: float32 [...], weights of the tokens' losses; not differentiable.
      bias: [vocab], in the dtype of `x`; None: no bias.
      z_loss: see `softmax_cross_entropy`.
      label_smoothing: see `softmax_cross_entropy`.
      soft_cap: logits `z` become `soft_cap * tanh(z / soft_cap)`; 0: no cap.
      chunk: max number of a device's tokens whose logits are computed at once. 0: chosen by size,
        see `ProjectedCrossEntropyOperation.chunk_rows`.
      teacher: not differentiable; None: no teacher.

    Returns:
      two float32 scalars: the sum, and the sum of the cross-entropies without z-loss and label
      smoothing. The second is
      not differentiable. Both are NaN if a target is not a class.

    Raises:
      ValueError: shapes do not agree, or an option is out of range, see `softmax_cross_entropy`.
    """
    vocab, d_model = table.shape.dims
    if targets.shape != x.shape - d_model or x.shape.dims[-1] != d_model:
        raise ValueError(
            f"x {x.shape} does not have the dimensions of targets {targets.shape}, and then the"
            f" last one of the table {table.shape}."
        )
    options = LossOptions(z_loss, label_smoothing)
    options.check(vocab)
    inputs = [x, table, targets, weights, *([] if bias is None else [bias])]
    op = ProjectedCrossEntropyOperation(inputs, options, soft_cap, chunk, teacher)
    loss, nll, *_ = op.outputs
    return loss, upstream.stop_gradient(nll)


class ProjectedCrossEntropyOperation(Operation):
    """Computes the sums of the loss and of the negative log-likelihood, and the loss's gradients.

    Inputs: x, table, targets, weights and optionally bias; see `projected_cross_entropy`. Outputs:
      the two sums, float32; the loss's gradients w.r.t. `x`, in its dtype, and w.r.t. table and
      bias, in float32. Gradients that nothing uses are not computed.
    """

    def __init__(
        self,
        inputs: Sequence[upstream.Tensor],
        options: LossOptions,
        soft_cap: float,
        chunk: int,
        teacher: Teacher | None = None,
    ) -> None:
        taught = [] if teacher is None else teacher.inputs
        super().__init__([*inputs, *taught], name="projected_cross_entropy")
        x, table, targets, _, *bias = inputs
        self._num_own = len(inputs)
        self.teacher = teacher
        self._options = options
        self._soft_cap = soft_cap
        self._chunk = chunk
        self._vocab, self._d_model = table.shape.dims
        scalar = upstream.Shape([])
        learned = [(x.shape, x.dtype), *((w.shape, tf.float32) for w in (table, *bias))]
        self.set_outputs(*[(scalar, tf.float32)] * 2, *learned)
        self.signature = Signature(
            summed=[*targets.shape.dims, *table.shape.dims],
            ordered=table.shape.dims,
            exact=[self._vocab],
            pads=True,
            cost="product",
        )

    @property
    def matmul_flops(self) -> int:
        """See `Hooks`."""
        taught = 0 if self.teacher is None else self.teacher.x.shape.size
        return 2 * (self.inputs[0].shape.size + taught) * self._vocab.size

    def product_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        """Returns the sizes of the logits' matmul, with the teacher's; see `Hooks`."""
        one, tokens, vocab, d_model = self.gradient_sizes(layout)
        if self.teacher is not None:
            # The two matmuls differ only in d_model.
            d_model += layout.slice_size(self.teacher.table.shape)[1]
        return one, tokens, vocab, d_model

    def gradient_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        """Returns the sizes of the matmul of a gradient; the teacher has none."""
        vocab, d_model = layout.slice_size(self.inputs[1].shape)
        return 1, math.prod(layout.slice_size(self.inputs[2].shape)), vocab, d_model

    def chunk_rows(self, layout: Layout) -> int:
        """Returns the number of tokens whose logits a processor computes at once.

        The tokens are divided equally into chunks of limited size. The default limit is the largest
        of three numbers of tokens: `_MIN_CHUNK / vocab`; `2 * d_model`; and `6 * d_model`, but at
        most a third of the tokens. Compared with the computation of such a chunk, reading the table
        and adding to its gradient take little time.
        """
        _, tokens, vocab, d_model = self.gradient_sizes(layout)
        if layout.exact_sums:
            vocab = self._vocab.size
        third = -(-tokens // 3)
        most = self._chunk or max(_MIN_CHUNK // vocab, 2 * d_model, min(third, 6 * d_model))
        return -(-tokens // -(-tokens // most)) if tokens else 1

    def temporaries(self, layout: Layout) -> list[tuple[upstream.Shape, tf.DType]]:
        """Returns a chunk's temporaries: logits, gradients, and a cap's and a teacher's tensors."""
        # The space in the name keeps layout rules from matching it.
        rows = upstream.Dimension("tokens at once", self.chunk_rows(layout))
        # With a teacher, also the teacher's logits and the gradient of the divergence.
        number = 2 + bool(self._soft_cap) + 2 * (self.teacher is not None)
        return [(upstream.Shape([rows, self._vocab]), self.inputs[0].dtype)] * number

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        d_sum = grad_ys[0]
        if d_sum is None:
            return [None] * len(self.inputs)
        x, table, _, _, *bias = self.inputs[: self._num_own]
        d_x, d_table, *d_bias = (
            ScaledGradientOperation(self, partial, d_sum, of.dtype).outputs[0]
            for partial, of in zip(self.outputs[2:], (x, table, *bias), strict=True)
        )
        not_differentiable = [None] * len(self.inputs[self._num_own :])
        return [d_x, d_table, None, None, *d_bias, *not_differentiable]

    def lower(self, lowering: Lowering) -> None:
        (x, _, targets, weights), mesh_impl = self.inputs[:4], lowering.mesh_impl(self)
        kernel = _ChunkKernel(self, lowering)
        tokens = [
            kernel.student.rows,
            tf.reshape(tf.cast(lowering.slice(targets), tf.int32), [-1]),
            tf.reshape(tf.cast(lowering.slice(weights), tf.float32), [-1]),
            *(projection.rows for projection in kernel.teachers),
        ]
        sums, d_x = kernel(tokens, self.chunk_rows(mesh_impl.layout))
        over = targets.shape.dims
        wanted = [*self.outputs[:2], *(y for y in self.outputs[3:] if lowering.users(y))]
        for output, value in zip(wanted, sums, strict=True):
            lowering.set_partial_sum(output, value, over)
        if d_x is not None:
            d_x = tf.reshape(d_x, mesh_impl.slice_shape(x.shape))
            if mesh_impl.layout.exact_sums:
                axes = mesh_impl.axes_of([self._vocab])
                d_x = mesh_impl.collectives.sum(d_x, axes)
                lowering.set_slice(self.outputs[2], d_x)
            else:
                lowering.set_partial_sum(self.outputs[2], d_x, [self._vocab])


class _Projection:
    """The slices of the operands of the student's or the teacher's logits.

    Attributes:
      rows: [tokens, d_model].
      table: [vocab, d_model].
    """

    def __init__(
        self, lowering: Lowering, operands: Sequence[upstream.Tensor], soft_cap: float
    ) -> None:
        """Reads `operands`: x [..., d_model], table [vocab, d_model] and optionally bias."""
        d_model = operands[1].shape.dims[1:]
        x, self.table = (lowering.masked_slice(operand, d_model) for operand in operands[:2])
        self.rows = tf.reshape(x, [-1, self.table.shape[1]])
        self._biases = [lowering.slice(bias) for bias in operands[2:]]
        mesh_impl = lowering.mesh_impl(operands[1])
        self._collectives, self._axes = mesh_impl.collectives, mesh_impl.axes_of(d_model)
        self._soft_cap = soft_cap

    def logits(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits of some of the rows, [tokens, vocab]."""
        logits = tf.matmul(rows, self.table, transpose_b=True)
        logits = self._collectives.allreduce(logits, self._axes, "Add")
        for bias in self._biases:
            logits += bias
        return tf.tanh(logits / self._soft_cap) * self._soft_cap if self._soft_cap else logits


class _ChunkKernel:
    """The computation of a processor, chunk by chunk.

    Attributes:
      student: the operands of the logits.
      teachers: the operands of the teacher's logits, if there is a teacher.
    """

    def __init__(self, op: ProjectedCrossEntropyOperation, lowering: Lowering) -> None:
        x, table, _, _, *bias = op.inputs[: op._num_own]
        self._teacher = op.teacher
        self.student = _Projection(lowering, [x, table, *bias], op._soft_cap)
        self.teachers: list[_Projection] = []
        if op.teacher is not None:
            taught = op.inputs[op._num_own :]
            self.teachers = [_Projection(lowering, taught, op.teacher.soft_cap)]
        mesh_impl, vocab = lowering.mesh_impl(op), op._vocab
        self._collectives = mesh_impl.collectives
        self._softmax = SlicedSoftmax(lowering, mesh_impl, vocab, op._options)
        self._soft_cap = op._soft_cap
        self._needs = [bool(lowering.users(y)) for y in op.outputs[2:]]
        _, self._vocab_parts = lowering.parts_of(vocab)

    def __call__(
        self, tokens: list[tf.Tensor], rows: int
    ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Returns sums over all tokens, and the gradient w.r.t. `x` [tokens, d_model]."""
        number = tokens[0].shape[0]
        count = max(1, -(-number // rows))
        if count == 1:
            return self._chunk(*tokens)
        added = count * rows - number  # Padding of weight 0.
        chunks = [
            tf.reshape(
                tf.pad(t, [[0, added]] + [[0, 0]] * (t.shape.rank - 1)), [count, rows, *t.shape[1:]]
            )
            for t in tokens
        ]
        width = tokens[0].shape[1]
        d_xs = tf.TensorArray(tokens[0].dtype, count, element_shape=[rows, width])

        def body(i: tf.Tensor, sums: list[tf.Tensor], d_xs: tf.TensorArray) -> tuple:
            with fast_graph(), self._collectives.repeated(count):
                addends, d_x = self._chunk(*(chunk[i] for chunk in chunks))
            written = d_xs if d_x is None else d_xs.write(i, d_x)
            return i + 1, [a + b for a, b in zip(sums, addends, strict=True)], written

        # One iteration at a time, because the collectives of all chunks share an instance key.
        _, sums, d_xs = tf.while_loop(
            lambda i, *_: i < count,
            body,
            (tf.constant(0), self._zeros(), d_xs),
            parallel_iterations=1,
        )
        if not self._needs[0]:
            return sums, None
        return sums, tf.reshape(d_xs.stack(), [-1, width])[:number]

    def _zeros(self) -> list[tf.Tensor]:
        vocab, width = self.student.table.shape
        learned = [tf.zeros(shape) for shape in ([vocab, width], [vocab])]
        needed = [zero for zero, needs in zip(learned, self._needs[1:], strict=False) if needs]
        return [tf.zeros([]), tf.zeros([]), *needed]

    def _chunk(
        self, x: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, *taught_xs: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        logits = self.student.logits(x)
        losses = self._softmax.losses(logits, targets)
        loss, label_weights, teacher = losses.loss, weights, self._teacher
        if teacher is not None:
            taught = self.teachers[0].logits(*taught_xs)
            kl, d_kl = self._softmax.divergence(
                logits, taught, teacher.temperature, teacher.classes
            )
            scale = teacher.weight * teacher.temperature**2
            loss = (1.0 - teacher.weight) * loss + scale * kl
            label_weights = (1.0 - teacher.weight) * weights
        sums = [reduce_sum(loss * weights), reduce_sum(losses.nll * weights)]
        if not any(self._needs):
            return sums, None
        d_logits = self._softmax.gradient(logits, targets, losses.log_z, label_weights)
        if teacher is not None:
            d_logits += tf.cast(d_kl * (scale * weights)[:, None], d_logits.dtype)
        if self._soft_cap:
            d_logits *= 1.0 - tf.square(logits / self._soft_cap)
        needs_x, *needs = self._needs
        gradients = (
            lambda: tf.cast(tf.matmul(d_logits, x, transpose_a=True), tf.float32),
            lambda: reduce_sum(tf.cast(d_logits, tf.float32), 0),
        )
        sums += [of() for of, needed in zip(gradients, needs, strict=False) if needed]
        if not needs_x:
            return sums, None
        factors = (
            tf.split(d_logits, self._vocab_parts, 1),
            tf.split(self.student.table, self._vocab_parts),
        )
        return sums, tree_sum([tf.matmul(*part) for part in zip(*factors, strict=True)])


class ScaledGradientOperation(Operation):
    """Multiplies a gradient of the loss sum by a scalar, the gradient w.r.t. the loss sum.

    A gradient that is a partial sum is not reduced.
    """

    # The cost is the matmul that computed the input.
    signature = Signature(linear=True, cost="product")

    def __init__(
        self,
        of: ProjectedCrossEntropyOperation,
        gradient: upstream.Tensor,
        scale: upstream.Tensor,
        dtype: tf.DType,
    ) -> None:
        super().__init__([gradient, scale], name="scaled_gradient")
        self._of = of
        self._outputs = [upstream.Tensor(self, gradient.shape, dtype)]

    def product_sizes(self, layout: Layout) -> tuple[int, int, int, int]:
        """See `ProjectedCrossEntropyOperation`."""
        return self._of.gradient_sizes(layout)

    def lower(self, lowering: Lowering) -> None:
        (x, scale_of), (y,) = self.inputs, self.outputs
        scale = tf.cast(lowering.slice(scale_of), tf.float32)

        def scaled(addend: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.cast(addend, tf.float32) * scale, y.dtype)

        lowering.map_sum(y, x, scaled)
