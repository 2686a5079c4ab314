"""Gradient accumulation: computes the gradients of a batch in several microbatches."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh, is_of_stage
from t2tp.lowering.context import Lowering
from t2tp.lowering.lowering import all_operations, live_operations
from t2tp.lowering.microbatch import Microbatch, elements_per_row, rows_of_microbatch
from t2tp.lowering.while_loop import lower_while_loop
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.ops.take_microbatch import take_microbatch
from t2tp.ops.variables.zero_weights import gradients_at_rest, separate_sums
from t2tp.optim.loss import LossOutput, LossTerm
from t2tp.pipeline.boundary import EnterStage
from t2tp.pipeline.loop import PipelineLoop

_BATCH = "batch"


LossFn = Callable[[Mapping[str, mtf.Tensor]], LossOutput]


@dataclass(frozen=True)
class Accumulated:
    """The sums over a batch's microbatches.

    Attributes:
      sums: `LossOutput.sums` of the batch.
      gradients: float32 gradients of the loss w.r.t. the graph's trainable variables. From ZeRO
        stage 2 on they have the variables' shapes at rest.
      idle_share: measured idle share of each pipeline stage, see `PipelineLoop`. None: no stages.
    """

    loss: mtf.Tensor
    sums: dict[str, mtf.Tensor]
    gradients: list[mtf.Tensor]
    idle_share: mtf.Tensor | None = None


class _StepSums(NamedTuple):
    """The addends of one microbatch."""

    summaries: dict[str, mtf.Tensor]
    sums: dict[str, mtf.Tensor]
    gradients: list[list[mtf.Tensor]]


def accumulate(
    loss_fn: LossFn,
    features: Mapping[str, mtf.Tensor],
    microbatches: int,
    mesh: Mesh,
    scale: mtf.Tensor | None = None,
) -> Accumulated:
    """Computes a loss and its gradients, one microbatch after the other.

    Only one microbatch's activations are saved at a time, except in a pipeline.

    Microbatch i is the i-th slice of each processor's rows, so that no rows move between processors
    (see `Layout.spreads_microbatches` for the exception). In ZeRO stages 0 and 1 the gradients are
    all-reduced once, after the last microbatch. In stages 2 and 3 each microbatch's gradients are
    reduce-scattered.

    The result equals the result of the full batch, with two exceptions. Computations across rows,
    such as batch norm or the capacity of experts in groups of several rows, see only the rows of a
    microbatch. Scalar summaries are averaged over the microbatches.

    A first loop adds up the weight of each term of the loss, such as the number of tokens. A second
    loop computes each microbatch's total of each term, and divides it by the summed weight. Random
    operations give each row the same numbers as in the full batch.

    `features` with the dimension `batch` are split along it. The gradients are multiplied by
    `scale`, a float32 scalar (see `LossScale`).

    Raises:
      ValueError: no feature has the dimension `batch`, its size is not a multiple of
        `microbatches`, or a variable has no influence on the loss.
    """
    part = mtf.Dimension(_BATCH, _batch_dim(features, microbatches).size // microbatches)
    outputs: list[LossOutput] = []

    def weights_of(number: mtf.Tensor) -> dict[str, mtf.Tensor]:
        outputs.append(_loss_of_microbatch(loss_fn, features, number, part, mesh))
        return {name: term.weight for name, term in outputs[0].terms.items()}

    weights_loop = WeightsLoop(weights_of, microbatches, part, mesh, "loss_weights")
    weights = weights_loop.total
    (output,) = outputs

    def sums_of(number: mtf.Tensor) -> _StepSums:
        del number
        operations = weights_loop.microbatch_operations
        shown = [op for op in operations if isinstance(op, mtf.ScalarSummaryOperation)]
        share = mtf.add_n([term.mean(weights[name]) for name, term in output.terms.items()])
        grads = variable_gradients(share, mesh, scale)
        if mesh.layout.storage.stage >= 2:
            grads = gradients_at_rest(grads, mesh.graph.trainable_variables)
        summaries = {op.name: op.outputs[0] * (1.0 / microbatches) for op in shown}
        return _StepSums(summaries, output.sums, [separate_sums(grad) for grad in grads])

    total: _StepSums
    idle_share = None
    if mesh.layout.num_stages > 1:

        def is_per_stage(sums: _StepSums) -> _StepSums:
            shared = tf.nest.map_structure(lambda _: False, sums)
            of_stage = zip(sums.gradients, mesh.graph.trainable_variables, strict=True)
            return shared._replace(gradients=[[is_of_stage(v)] * len(g) for g, v in of_stage])

        loop = PipelineLoop(sums_of, microbatches, part, mesh, is_per_stage, weights_loop)
        total, idle_share = loop.total, loop.idle_share
        total = total._replace(gradients=[loop.in_order(x) for x in total.gradients])
    else:
        loop = MicrobatchLoop(sums_of, microbatches, part, mesh, "microbatches", weights_loop)
        total = loop.total
    for name, summary in total.summaries.items():
        mtf.scalar_summary(name, summary)._name = name
    terms = {name: LossTerm(total.sums[f"loss/{name}"], weight) for name, weight in weights.items()}
    gradients = [functools.reduce(operator.add, addends) for addends in total.gradients]
    return Accumulated(LossOutput(terms).loss, total.sums, gradients, idle_share)


def _loss_of_microbatch(
    loss_fn: LossFn,
    features: Mapping[str, mtf.Tensor],
    number: mtf.Tensor,
    part: mtf.Dimension,
    mesh: Mesh,
) -> LossOutput:
    """Builds the loss of a microbatch; pipeline stages, if there are any, follow a schedule."""
    rows = rows_of_microbatch(part, mesh.layout)
    (whole,) = _batch_dims(features)
    taken = {name: take_microbatch(x, number, whole, part, rows) for name, x in features.items()}
    with mesh.building(runs_schedule=True):
        return loss_fn(taken)


def sum_metrics(
    loss_fn: LossFn, features: Mapping[str, mtf.Tensor], microbatches: int, mesh: Mesh
) -> dict[str, mtf.Tensor]:
    """Evaluates a batch in a pipeline; returns its `LossOutput.sums`.

    `loss_fn` builds the loss without dropout. If `microbatches` does not divide the rows of a
    processor, there are fewer microbatches.
    """
    count = microbatches
    (dim,) = _batch_dims(features)
    while dim.size // mesh.layout.batch_slices % count:
        count -= 1
    part = mtf.Dimension(_BATCH, dim.size // count)

    def sums_of(number: mtf.Tensor) -> dict[str, mtf.Tensor]:
        return _loss_of_microbatch(loss_fn, features, number, part, mesh).sums

    return PipelineLoop(sums_of, count, part, mesh, lambda x: dict.fromkeys(x, False)).total


def variable_gradients(
    loss: mtf.Tensor, mesh: Mesh, seed: mtf.Tensor | None = None
) -> list[mtf.Tensor]:
    """Computes float32 gradients of the loss w.r.t. the trainable variables, times `seed` if given.

    Raises:
      ValueError: a trainable variable has no influence on the loss.
    """
    variables = mesh.graph.trainable_variables
    seeds = None if seed is None else [mtf.cast(seed, loss.dtype)]
    # Earlier stages of the pipeline need the gradients w.r.t. a stage's inputs, even if no
    # trainable variable of this graph comes before the inputs.
    entered = [x for op in mesh.graph.operations if isinstance(op, EnterStage) for x in op.inputs]
    grads = mtf.gradients([loss], [*(v.value for v in variables), *entered], grad_ys=seeds)
    grads = grads[: len(variables)]
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    # In any activation dtype, gradients are all-reduced, clipped and applied in float32.
    return [mtf.cast(grad, tf.float32) for grad in grads]


def _batch_dims(features: Mapping[str, mtf.Tensor]) -> set[mtf.Dimension]:
    return {dim for x in features.values() for dim in x.shape.dims if dim.name == _BATCH}


def _batch_dim(features: Mapping[str, mtf.Tensor], microbatches: int) -> mtf.Dimension:
    """Returns the dimension to split into microbatches."""
    dims = _batch_dims(features)
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
        rows = rows_of_microbatch(self.microbatch_dim, lowering.mesh_impl(self).layout)
        per_row = elements_per_row(self.microbatch_dim, all_operations(self.microbatch_operations))
        collectives = lowering.mesh_impl(self).collectives

        @contextlib.contextmanager
        def inside(iteration: tf.Tensor) -> Iterator[None]:
            microbatch = Microbatch(iteration, self.count, rows, per_row)
            repeated = collectives.repeated(self.count)
            with lowering.isolated(), lowering.inside_microbatch(microbatch), repeated:
                yield

        tree_size = self.count if lowering.mesh_impl(self).layout.exact_sums else 0
        lower_while_loop(self, lowering, inside, tree_size)


class WeightsLoop(MicrobatchLoop):
    """Sums the weights of the loss's terms, before the loop that computes the loss.

    Both loops have the same operations, but this loop lowers only those that the weights need.
    Random numbers are keyed by an operation's name, so both loops have the same random numbers, for
    example for the choice of masked tokens.
    """

    repeats = True

    def __init__(self, *args: Any) -> None:
        """Builds the graph of a microbatch; arguments as for `MicrobatchSums`."""
        super().__init__(*args)
        self._body_ops = live_operations(
            self.microbatch_operations, self._body_outputs, with_effects=False
        )
