"""Sums over mesh axes that are put off until somebody needs them, and then made together.

A product whose summed dimension is split leaves each processor with a part of the result. Two such
parts that are added first are reduced once; and when one sum is needed, small ones over the same
axes that will be needed too (the gradients of all the norms, say) go with it in one collective,
because a small collective costs its latency and not its bytes.
"""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.linear import Users, puts_off
from t2tp.mesh.spmd import LaidOutTensor, SpmdMeshImpl

# What is larger gains nothing from company: copying it costs what a second collective would.
_SMALL = 1 << 20
_LARGEST_TOGETHER = 1 << 24

# Operations that can take a sum that is still to be made, and pass it on; ours say so with an
# attribute `passes_on_sums`.
_PASSING_ON = (
    mtf.AddOperation,
    mtf.Depend,
    mtf.ReshapeOperation,
    mtf.StopGradient,
    mtf.CustomGradientOperation,
    mtf.WhileLoopOperation,
)


def surely_needed(operations: list[mtf.Operation], users: Users) -> set[mtf.Tensor]:
    """Tensors of which an operation needs the value, so that a sum put off will be made."""
    return {tensor for op in operations if not _passes_on(op, users) for tensor in op.inputs}


def _passes_on(op: mtf.Operation, users: Users) -> bool:
    passes_on = isinstance(op, _PASSING_ON) or getattr(op, "passes_on_sums", False)
    return passes_on or puts_off(op, users)


class PendingSum(mtf.LazyAllreduceSum):
    """This processor's part of a sum over mesh axes, reduced when its value is asked for."""

    def __init__(
        self, reductions: Reductions, name: str, part: LaidOutTensor, mesh_axes: list[int]
    ) -> None:
        """Made by `Reductions`."""
        super().__init__(reductions.mesh_impl, part, mesh_axes)
        self._reductions = reductions
        self.name = name
        self.graph = part.slice.graph

    @property
    def part(self) -> tf.Tensor:
        """What this processor adds."""
        return self.laid_out_input.slice

    @property
    def is_reduced(self) -> bool:
        """Whether the sum is made."""
        return self._reduced is not None

    @property
    def num_bytes(self) -> int:
        """Size of the slice."""
        return math.prod(self.part.shape.as_list()) * self.part.dtype.size

    def set_reduced(self, value: tf.Tensor) -> None:
        """Says what the sum is."""
        self._reduced = LaidOutTensor([value])

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Makes the sum, if that was not done."""
        if not self.is_reduced:
            self._reductions.reduce(self)
        return self._reduced


class Reductions:
    """The sums of one lowering that are still to be made."""

    def __init__(self, mesh_impl: SpmdMeshImpl) -> None:
        """Starts without any."""
        self.mesh_impl = mesh_impl
        self._waiting: list[PendingSum] = []

    def put_off(self, lazy: mtf.LazyAllreduceSum, name: str, is_needed: bool) -> PendingSum:
        """Puts a sum off.

        Args:
          lazy: the part of the sum, and its axes.
          name: of the tensor that is the sum.
          is_needed: whether it will surely be asked for: then it may be made before that.
        """
        pending = PendingSum(self, name, lazy.laid_out_input, lazy.mesh_axes)
        if is_needed and pending.num_bytes <= _SMALL:
            self._waiting.append(pending)
        return pending

    def reduce(self, asked: PendingSum) -> None:
        """Makes a sum, and with it those that can go along."""
        together = self._company(asked)
        self._waiting = [p for p in self._waiting if p not in together]
        names = [p.name for p in together]
        if len(together) == 1:
            asked.set_reduced(self._allreduce(asked.part, asked, names))
            return
        sizes = [math.prod(p.part.shape.as_list()) for p in together]
        flat = tf.concat([tf.reshape(p.part, [-1]) for p in together], axis=0)
        sums = tf.split(self._allreduce(flat, asked, names), sizes)
        for pending, value in zip(together, sums, strict=True):
            pending.set_reduced(tf.reshape(value, pending.part.shape))

    def _allreduce(self, part: tf.Tensor, asked: PendingSum, names: list[str]) -> tf.Tensor:
        """The sum over the axes of `asked`; in float32 at least, where that costs nothing."""
        dtype = part.dtype
        is_narrow = dtype in (tf.bfloat16, tf.float16)
        if is_narrow and asked.num_bytes <= _SMALL:
            part = tf.cast(part, tf.float32)
        allreduce = self.mesh_impl.collectives.allreduce
        return tf.cast(allreduce(part, asked.mesh_axes, "Add", names), dtype)

    def _company(self, asked: PendingSum) -> list[PendingSum]:
        """The sum and those that are waiting for the same axes, up to a size."""
        together, total = [asked], asked.num_bytes
        if total > _SMALL:
            return together
        for other in self._waiting:
            fits = total + other.num_bytes <= _LARGEST_TOGETHER
            if other is not asked and fits and self._is_alike(other, asked):
                together.append(other)
                total += other.num_bytes
        return together

    @staticmethod
    def _is_alike(other: PendingSum, asked: PendingSum) -> bool:
        # A tensor of a loop's body is of no use outside of it, nor the other way round.
        return (
            not other.is_reduced
            and other.mesh_axes == asked.mesh_axes
            and other.part.dtype == asked.part.dtype
            and other.graph is asked.graph
            and other.graph is tf.compat.v1.get_default_graph()
        )
