"""A batch in several parts, one after the other, with the whole batch's loss and gradients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from t2tp import mtf
from t2tp.mesh.loops import lower_while_loop
from t2tp.mesh.lowering import Lowering, all_operations
from t2tp.mesh.microbatch import Microbatch, elements_per_row
from t2tp.mesh.program import Mesh

_BATCH = "batch"


class BatchLoss(Protocol):
    """What a model makes of a batch, such as `t2tp.models.model.LossOutput`."""

    @property
    def loss(self) -> mtf.Tensor:
        """What training minimizes, a float32 scalar: an average."""

    @property
    def weight(self) -> mtf.Tensor | None:
        """The sum of the weights in that average, a float32 scalar; None: not known."""

    @property
    def metrics(self) -> Mapping[str, mtf.Tensor]:
        """float32 scalars, each a sum over the batch."""


LossFn = Callable[[Mapping[str, mtf.Tensor]], BatchLoss]


@dataclass(frozen=True)
class Accumulated:
    """What the parts of a batch gave together.

    Attributes:
      loss: the batch's, a float32 scalar.
      metrics: the batch's sums.
      gradients: by the trainable variables of the graph, float32, too large by `divisor`.
      divisor: a float32 scalar.
    """

    loss: mtf.Tensor
    metrics: dict[str, mtf.Tensor]
    gradients: list[mtf.Tensor]
    divisor: mtf.Tensor


def accumulate(
    loss_fn: LossFn,
    features: Mapping[str, mtf.Tensor],
    microbatches: int,
    mesh: Mesh,
    scale: mtf.Tensor | None = None,
) -> Accumulated:
    """Computes a loss and its gradients part by part, and so with the activations of one part.

    Part i has the i-th part of the rows that each processor has, so that nothing moves between
    processors; the gradients are summed up over the mesh once, after the last part. Parts count by
    their weights (numbers of tokens, say), which makes the result the whole batch's, and random
    operations draw for a row what they would draw for it in the whole batch. What a model computes
    across the rows of a batch, such as batch normalization or the capacity of experts in groups of
    several rows, it computes across those of a part. Of scalar summaries the average is shown.

    Args:
      loss_fn: builds the loss of features.
      features: by name; those with the dimension `batch` are cut along it.
      microbatches: into how many parts.
      mesh: the program's mesh.
      scale: a float32 scalar that the gradients are to be multiplied by.

    Raises:
      ValueError: no feature has the dimension `batch`, its size is no multiple of `microbatches`,
        the loss does not say its weight, or a variable has no influence on it.
    """
    whole = _batch_dim(features, microbatches)
    part = mtf.Dimension(_BATCH, whole.size // microbatches)
    # The seed is then near 1 or above, so that float16 has room (too large a scale is soon halved);
    # a power of two changes no bits.
    fewest = min(x.shape.size for x in features.values() if whole in x.shape.dims)
    usual_weight = 2.0 ** math.ceil(math.log2(fewest / microbatches))
    names: list[str] = []
    summaries: list[str] = []

    def body(number: mtf.Tensor) -> list[mtf.Tensor]:
        before = len(mesh.graph.operations)
        output = loss_fn({name: take_part(x, number, whole, part) for name, x in features.items()})
        if output.weight is None:
            raise ValueError(
                f"microbatches={microbatches} needs the weight of the loss, and the model does not"
                " say it: give it in LossOutput(..., weight=...), or set microbatches=1"
            )
        weight = mtf.stop_gradient(output.weight) * (1.0 / usual_weight)
        seed = weight if scale is None else weight * scale
        grads = gradients_by_variables(output.loss, mesh, seed)
        shown = _scalar_summaries(mesh.graph.operations[before:])
        names[:], summaries[:] = output.metrics, shown
        averaged = [x * weight for x in (output.loss, *shown.values())]
        return [number + 1, weight, *averaged, *output.metrics.values(), *grads]

    loop = MicrobatchLoop(body, microbatches, part, mesh)
    _, weight, loss, *sums = loop.outputs
    # Where nothing counts at all the sums are 0, and so is what they are divided into.
    weight = mtf.maximum(weight, 1e-30)
    for name in summaries:
        mtf.scalar_summary(name, sums.pop(0) / weight)._name = name
    return Accumulated(
        loss / weight,
        dict(zip(names, sums, strict=False)),
        sums[len(names) :],
        weight if scale is None else weight * scale,
    )


def _scalar_summaries(operations: Sequence[mtf.Operation]) -> dict[str, mtf.Tensor]:
    """What is to be shown, by name."""
    found = (op for op in operations if isinstance(op, mtf.ScalarSummaryOperation))
    return {op.name: op.outputs[0] for op in found}


def gradients_by_variables(
    loss: mtf.Tensor, mesh: Mesh, seed: mtf.Tensor | None = None
) -> list[mtf.Tensor]:
    """Gradients by the graph's trainable variables, float32: of the loss, times `seed` if given.

    Raises:
      ValueError: a trainable variable has no influence on the loss.
    """
    variables = list(mesh.graph.trainable_variables)
    seeds = None if seed is None else [mtf.cast(seed, loss.dtype)]
    grads = mtf.gradients([loss], [v.value for v in variables], grad_ys=seeds)
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    # Summed over the mesh, clipped and applied in float32, whatever they were computed in.
    return [mtf.cast(grad, tf.float32) for grad in grads]


def take_part(
    x: mtf.Tensor, number: mtf.Tensor, whole: mtf.Dimension, part: mtf.Dimension
) -> mtf.Tensor:
    """Part `number` of the rows that each processor has; `x` itself if it has no rows."""
    return TakePartOperation(x, number, whole, part).outputs[0] if whole in x.shape.dims else x


def _batch_dim(features: Mapping[str, mtf.Tensor], microbatches: int) -> mtf.Dimension:
    """The dimension to cut."""
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


class TakePartOperation(mtf.Operation):
    """Inputs x, and the number of a part (int32); output that part of each processor's rows."""

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


class MicrobatchLoop(mtf.WhileLoopOperation):
    """Calls a function for each part of a batch, and adds up what it returns.

    Input: the number of the first part. Outputs: the number of parts, and the sums.
    """

    def __init__(
        self,
        body: Callable[[mtf.Tensor], list[mtf.Tensor]],
        count: int,
        part: mtf.Dimension,
        mesh: Mesh,
    ) -> None:
        """Makes the loop.

        Args:
          body: from the number of a part (int32) to the next number and what is to be added up.
          count: how many parts there are.
          part: the batch dimension of one.
          mesh: the program's mesh.
        """
        self._count = count
        self._part = part
        super().__init__(
            lambda number: mtf.less(number, count),
            body,
            [mtf.constant(mesh, 0, dtype=tf.int32)],
            has_accumulators=True,
            name="microbatches",
        )

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
