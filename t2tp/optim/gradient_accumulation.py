"""Gradient accumulation: the gradients of a batch from several microbatches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import tensorflow as tf

from t2tp import mtf
from t2tp.lowering.lowering import Lowering, all_operations
from t2tp.lowering.microbatch import Microbatch, elements_per_row
from t2tp.lowering.operation import Operation
from t2tp.lowering.while_loop import lower_while_loop
from t2tp.ops.variables.sharded_variable import gradients_at_rest
from t2tp.program.program import Mesh

_BATCH = "batch"


class BatchLoss(Protocol):
    """A model's output for a batch, such as `t2tp.models.model.LossOutput`."""

    @property
    def loss(self) -> mtf.Tensor:
        """The training loss, a float32 scalar: a weighted average."""

    @property
    def weight(self) -> mtf.Tensor | None:
        """The sum of the weights of that average, a float32 scalar; None: unknown."""

    @property
    def metrics(self) -> Mapping[str, mtf.Tensor]:
        """float32 scalars, each a sum over the batch."""


LossFn = Callable[[Mapping[str, mtf.Tensor]], BatchLoss]


@dataclass(frozen=True)
class Accumulated:
    """The sums over a batch's microbatches.

    Attributes:
      loss: of the batch, a float32 scalar.
      metrics: sums over the batch.
      gradients: w.r.t. the trainable variables of the graph, float32, not yet divided by `divisor`;
        from ZeRO's stage 2 on in the shapes of the variables at rest.
      divisor: a float32 scalar.
    """

    loss: mtf.Tensor
    metrics: dict[str, mtf.Tensor]
    gradients: list[mtf.Tensor]
    divisor: mtf.Tensor


class _Sums(NamedTuple):
    """The addends of one microbatch.

    Attributes:
      weight: of its loss, near 1.
      loss: weighted.
      summaries: weighted scalar summaries, by name.
      metrics: by name.
      gradients: of the weighted loss, w.r.t. the trainable variables.
    """

    weight: mtf.Tensor
    loss: mtf.Tensor
    summaries: dict[str, mtf.Tensor]
    metrics: dict[str, mtf.Tensor]
    gradients: list[mtf.Tensor]


def accumulate(
    loss_fn: LossFn,
    features: Mapping[str, mtf.Tensor],
    microbatches: int,
    mesh: Mesh,
    scale: mtf.Tensor | None = None,
) -> Accumulated:
    """Computes a loss and its gradients by microbatches; stores the activations of one at a time.

    Microbatch i is the i-th slice of each processor's rows, so that no rows move between
    processors; the gradients are all-reduced once, after the last one. Microbatches are weighted
    (by numbers of tokens, say), so that the result is that of the full batch, and random operations
    sample for a row what they would in the full batch. What a model computes across rows, such as
    batch norm or the capacity of experts in groups of several rows, it computes across those of a
    microbatch. Scalar summaries are averaged.

    Args:
      loss_fn: builds the loss of features.
      features: by name; those with the dimension `batch` are split along it.
      microbatches: number of microbatches.
      mesh: the program's mesh.
      scale: a float32 scalar to multiply the gradients by; see `LossScale`.

    Raises:
      ValueError: no feature has the dimension `batch`, its size is not a multiple of
        `microbatches`, the loss has no weight, or a variable has no influence on it.
    """
    whole = _batch_dim(features, microbatches)
    part = mtf.Dimension(_BATCH, whole.size // microbatches)
    # Normalizes the weights, which seed the backward pass, to about 1 or above, so that gradients
    # do not underflow in float16 (too large a loss scale is soon halved); a power of two is exact.
    fewest = min(x.shape.size for x in features.values() if whole in x.shape.dims)
    usual_weight = 2.0 ** math.ceil(math.log2(fewest / microbatches))

    def sums_of(number: mtf.Tensor) -> _Sums:
        before = len(mesh.graph.operations)
        output = loss_fn(
            {name: take_microbatch(x, number, whole, part) for name, x in features.items()}
        )
        if output.weight is None:
            raise ValueError(
                f"microbatches={microbatches} needs the weight of the loss, and the model does not"
                " say it: give it in LossOutput(..., weight=...), or set microbatches=1"
            )
        weight = mtf.stop_gradient(output.weight) * (1.0 / usual_weight)
        seed = weight if scale is None else weight * scale
        grads = variable_gradients(output.loss, mesh, seed)
        if mesh.layout.storage.stage >= 2:
            grads = gradients_at_rest(grads, mesh.graph.trainable_variables)
        shown = _scalar_summaries(mesh.graph.operations[before:])
        return _Sums(
            weight,
            output.loss * weight,
            {name: x * weight for name, x in shown.items()},
            dict(output.metrics),
            grads,
        )

    total = MicrobatchLoop(sums_of, microbatches, part, mesh).total
    # If all weights are 0, so are the sums: avoids 0 / 0.
    weight = mtf.maximum(total.weight, 1e-30)
    for name, summary in total.summaries.items():
        mtf.scalar_summary(name, summary / weight)._name = name
    return Accumulated(
        total.loss / weight,
        total.metrics,
        total.gradients,
        weight if scale is None else weight * scale,
    )


def _scalar_summaries(operations: Sequence[mtf.Operation]) -> dict[str, mtf.Tensor]:
    """Returns the scalar summaries among operations, by name."""
    found = (op for op in operations if isinstance(op, mtf.ScalarSummaryOperation))
    return {op.name: op.outputs[0] for op in found}


def variable_gradients(
    loss: mtf.Tensor, mesh: Mesh, seed: mtf.Tensor | None = None
) -> list[mtf.Tensor]:
    """Computes float32 gradients of the loss w.r.t. the trainable variables, times `seed` if given.

    Raises:
      ValueError: a trainable variable has no influence on the loss.
    """
    variables = list(mesh.graph.trainable_variables)
    seeds = None if seed is None else [mtf.cast(seed, loss.dtype)]
    grads = mtf.gradients([loss], [v.value for v in variables], grad_ys=seeds)
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    # All-reduced, clipped and applied in float32, whatever dtype they were computed in.
    return [mtf.cast(grad, tf.float32) for grad in grads]


def take_microbatch(
    x: mtf.Tensor, number: mtf.Tensor, whole: mtf.Dimension, part: mtf.Dimension
) -> mtf.Tensor:
    """Returns microbatch `number` of each processor's rows; `x` itself if it has no rows."""
    return (
        TakeMicrobatchOperation(x, number, whole, part).outputs[0] if whole in x.shape.dims else x
    )


def _batch_dim(features: Mapping[str, mtf.Tensor], microbatches: int) -> mtf.Dimension:
    """Returns the dimension to split into microbatches."""
    dims = {dim for x in features.values() for dim in x.shape.dims if dim.name == _BATCH}
    if len(dims) != 1:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in features.items())
        raise ValueError(
            f"microbatches={microbatches} cuts the features along one dimension {_BATCH!r}, and"
            f" they have {len(dims)}: {shapes}"
        )
    (dim,) = dims
    if microbatches < 1 or dim.size % microbatches:
        divisors = [str(n) for n in range(1, dim.size + 1) if dim.size % n == 0]
        raise ValueError(
            f"microbatches={microbatches} does not divide a batch of {dim.size}; what does:"
            f" {', '.join(divisors)}"
        )
    return dim


class TakeMicrobatchOperation(Operation):
    """Takes a microbatch's slice of each processor's rows.

    Inputs: x and the index of a microbatch (int32).
    """

    def __init__(
        self, x: mtf.Tensor, number: mtf.Tensor, whole: mtf.Dimension, part: mtf.Dimension
    ) -> None:
        super().__init__([x, number], name="microbatch")
        self._axis = x.shape.dims.index(whole)
        dims = [part if dim == whole else dim for dim in x.shape.dims]
        self._outputs = [mtf.Tensor(self, mtf.Shape(dims), x.dtype)]

    def lower(self, lowering: Lowering) -> None:
        x, number = (lowering.slice(tensor) for tensor in self.inputs)
        size = lowering.mesh_impl(self).slice_shape(self.outputs[0].shape)
        begin: list[tf.Tensor | int] = [0] * len(size)
        begin[self._axis] = number * size[self._axis]
        lowering.set_slice(self.outputs[0], tf.slice(x, tf.stack(begin), size))


class MicrobatchLoop(Operation, mtf.WhileLoopOperation):
    """Calls a function for each microbatch and sums its results.

    Input: the index of the first microbatch. Outputs: the number of microbatches, and the sums.

    Attributes:
      total: the sums, structured as the function returns them.
    """

    accepts_deferred_sums = True

    def __init__(
        self,
        sums_of: Callable[[mtf.Tensor], _Sums],
        count: int,
        part: mtf.Dimension,
        mesh: Mesh,
    ) -> None:
        """Builds the loop.

        Args:
          sums_of: maps the index of a microbatch (int32) to its addends.
          count: number of microbatches.
          part: the batch dimension of a microbatch.
          mesh: the program's mesh.
        """
        self._count = count
        self._part = part
        added: list[_Sums] = []  # The constructor below calls the body once.

        def body(number: mtf.Tensor) -> list[mtf.Tensor]:
            added.append(sums_of(number))
            return [number + 1, *tf.nest.flatten(added[0])]

        super().__init__(
            lambda number: mtf.less(number, count),
            body,
            [mtf.constant(mesh, 0, dtype=tf.int32)],
            has_accumulators=True,
            name="microbatches",
        )
        self.total: _Sums = tf.nest.pack_sequence_as(added[0], self.outputs[1:])

    def lower(self, lowering: Lowering) -> None:
        (rows,) = lowering.mesh_impl(self).slice_shape(mtf.Shape([self._part]))
        per_row = elements_per_row(self._part, all_operations(self._body_ops))
        collectives = lowering.mesh_impl(self).collectives

        @contextlib.contextmanager
        def inside(iteration: tf.Tensor) -> Iterator[None]:
            microbatch = Microbatch(iteration, self._count, rows, per_row)
            with lowering.inside_microbatch(microbatch), collectives.repeated(self._count):
                yield

        lower_while_loop(self, lowering, inside)
