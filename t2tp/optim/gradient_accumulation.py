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
from t2tp.lowering.while_loop import lower_while_loop
from t2tp.mesh.pipeline import is_of_stage
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.ops.take_microbatch import take_microbatch
from t2tp.ops.variables.sharded_variable import gradients_at_rest
from t2tp.pipeline.boundary import EnterStage
from t2tp.pipeline.loop import PipelineLoop
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
      idle_share: of each stage of a pipeline, as measured; see `PipelineLoop`. None: no stages.
    """

    loss: mtf.Tensor
    metrics: dict[str, mtf.Tensor]
    gradients: list[mtf.Tensor]
    divisor: mtf.Tensor
    idle_share: mtf.Tensor | None = None


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
        output = _in_schedule(
            loss_fn,
            {name: take_microbatch(x, number, whole, part) for name, x in features.items()},
            mesh,
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

    total: _Sums
    idle_share = None
    if mesh.layout.num_stages > 1:

        def is_per_stage(sums: _Sums) -> _Sums:
            shared = tf.nest.map_structure(lambda _: False, sums)
            return shared._replace(gradients=[is_of_stage(v) for v in variables_of(mesh)])

        loop = PipelineLoop(sums_of, microbatches, part, mesh, is_per_stage)
        total, idle_share = loop.total, loop.idle_share
    else:
        total = MicrobatchLoop(sums_of, microbatches, part, mesh, "microbatches").total
    # If all weights are 0, so are the sums: avoids 0 / 0.
    weight = mtf.maximum(total.weight, 1e-30)
    for name, summary in total.summaries.items():
        mtf.scalar_summary(name, summary / weight)._name = name
    return Accumulated(
        total.loss / weight,
        total.metrics,
        total.gradients,
        weight if scale is None else weight * scale,
        idle_share,
    )


def _in_schedule(loss_fn: LossFn, features: Mapping[str, mtf.Tensor], mesh: Mesh) -> BatchLoss:
    """Builds the loss of a microbatch; stages of layers, if there are any, follow a schedule."""
    mesh.runs_schedule = True
    try:
        return loss_fn(features)
    finally:
        mesh.runs_schedule = False


def sum_metrics(
    loss_fn: LossFn, features: Mapping[str, mtf.Tensor], microbatches: int, mesh: Mesh
) -> dict[str, mtf.Tensor]:
    """Returns the metrics of a batch, of which the stages of a pipeline evaluate microbatches.

    Args:
      loss_fn: builds the loss of features, without dropout.
      features: as for `accumulate`.
      microbatches: at most this many.
      mesh: the program's mesh, with stages.

    Returns:
      sums over the batch, float32 scalars.
    """
    count = microbatches
    (dim,) = {dim for x in features.values() for dim in x.shape.dims if dim.name == _BATCH}
    rows = dim.size // mesh.layout.batch_shards
    while rows % count:
        count -= 1
    whole = _batch_dim(features, count)
    part = mtf.Dimension(_BATCH, whole.size // count)

    def sums_of(number: mtf.Tensor) -> dict[str, mtf.Tensor]:
        parts = {name: take_microbatch(x, number, whole, part) for name, x in features.items()}
        return dict(_in_schedule(loss_fn, parts, mesh).metrics)

    def is_per_stage(sums: dict[str, mtf.Tensor]) -> dict[str, bool]:
        return dict.fromkeys(sums, False)

    return PipelineLoop(sums_of, count, part, mesh, is_per_stage).total


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
    variables = variables_of(mesh)
    seeds = None if seed is None else [mtf.cast(seed, loss.dtype)]
    # Earlier stages of a pipeline need gradients even where nothing before it is trained.
    entered = [x for op in mesh.graph.operations if isinstance(op, EnterStage) for x in op.inputs]
    grads = mtf.gradients([loss], [*(v.value for v in variables), *entered], grad_ys=seeds)
    grads = grads[: len(variables)]
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    # All-reduced, clipped and applied in float32, whatever dtype they were computed in.
    return [mtf.cast(grad, tf.float32) for grad in grads]


def variables_of(mesh: Mesh) -> list[mtf.Variable]:
    """Returns the trainable variables of the mesh's graph."""
    return list(mesh.graph.trainable_variables)


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


class MicrobatchLoop(MicrobatchSums):
    """Sums the results of a function over microbatches, one after the other."""

    def lower(self, lowering: Lowering) -> None:
        (rows,) = lowering.mesh_impl(self).slice_shape(mtf.Shape([self.part]))
        per_row = elements_per_row(self.part, all_operations(self._body_ops))
        collectives = lowering.mesh_impl(self).collectives

        @contextlib.contextmanager
        def inside(iteration: tf.Tensor) -> Iterator[None]:
            microbatch = Microbatch(iteration, self.count, rows, per_row)
            with lowering.inside_microbatch(microbatch), collectives.repeated(self.count):
                yield

        lower_while_loop(self, lowering, inside)
