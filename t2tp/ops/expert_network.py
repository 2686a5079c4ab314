"""Mixture of experts without a capacity: each expert computes all rows that chose it.

Here a row is the vector [d_model] of one token. Rows are sorted by expert, and each expert
multiplies its own rows, however many they are (T. Gale et al., "MegaBlocks", arXiv:2211.15841,
section 4). No row is dropped, and none is padding:

    choices of 4 rows           2 0 2 1
    sorted by expert            row 1 | row 3 | rows 0 and 2
    products                    row 1 by matrix 0, row 3 by matrix 1, rows 0 and 2 by matrix 2

Along the axis that splits the experts, all processors have the same rows, and each has some of the
experts. For each row, a processor adds up the outputs of its own experts. The result is the sum of
these partial sums of all processors along the axis.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import Signature
from t2tp.mesh.layout import Layout
from t2tp.ops.activations import MLP_FUNCTIONS

_MATRICES = ("input", "gate", "output")
_BIASES = tuple(f"{name}_bias" for name in _MATRICES)


# A processor's forward pass: its floating-point inputs, and its partial sum of the output.
_Forward: TypeAlias = tuple[list[tf.Tensor], tf.Tensor]


class ExpertNetworkOperation(Operation):
    """Sums the outputs of each row's experts, weighted by their gates. The output is like x."""

    def __init__(
        self,
        x: upstream.Tensor,
        choices: upstream.Tensor,
        gates: upstream.Tensor,
        weights: Mapping[str, upstream.Tensor],
        mlp: str,
    ) -> None:
        """Adds the operation to the graph.

        Args:
          x: [..., d_model].
          choices: int32 [..., k], the experts of each row. A number out of range selects no expert.
          gates: float32 [..., k], the factors of the experts' outputs.
          weights: the matrices by name: `input` and `gate` [experts, d_model, d_ff], and `output`
            [experts, d_ff, d_model]. Each matrix may have a bias, such as `input_bias`, [experts,
            d_ff] or [experts, d_model]. `gate` and the biases are optional.
          mlp: the network's name, one of `t2tp.choices.MLPS`.
        """
        names = [name for name in (*_MATRICES, *_BIASES) if name in weights]
        super().__init__([x, choices, gates, *map(weights.get, names)], name="expert_network")
        self._names = names
        self._mlp = mlp
        self.set_outputs(x)
        self.rows = x.shape.dims[:-1]
        self._experts, self._d_model, self._d_ff = weights["input"].shape.dims
        self.summed = [self._experts, self._d_ff]
        # Not `summed`: `exact_sums` cannot sum in parts, because only one processor adds the
        # output's bias. The cost is counted by FLOPs.
        self.signature = Signature(
            combined=self.summed,
            ordered=self.summed,
            whole=[self._d_model, choices.shape.dims[-1]],
            cost="convolution",
        )

    @property
    def matmul_flops(self) -> int:
        """See `Hooks`."""
        matrices = sum(name in _MATRICES for name in self._names)
        return 2 * self.inputs[1].shape.size * matrices * self._d_model.size * self._d_ff.size

    def slice_flops(self, layout: Layout) -> float:
        """Returns a processor's share of the FLOPs, for a balanced load."""
        split = upstream.Shape([*self.rows, *self.summed])
        return self.matmul_flops * math.prod(layout.slice_size(split)) / split.size

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        x, _, *others = self.inputs
        grads = ExpertNetworkGradOperation(
            "expert_network_grad",
            self,
            [*self.inputs, grad_ys[0]],
            x,
            *others,
            combined=[*self.rows, *self.summed],
        ).outputs
        return [grads[0], None, *grads[1:]]

    def lower(self, lowering: Lowering) -> None:
        _, y = self.forward(lowering, self.inputs)
        lowering.set_partial_sum(self.outputs[0], y, self.summed)

    def forward(self, lowering: Lowering, inputs: Sequence[upstream.Tensor]) -> _Forward:
        """Returns the forward pass, which is built once per TensorFlow graph.

        The gradient reuses the intermediate results of the forward pass, unless the gradient is in
        another graph, the layer is recomputed, or ZeRO stage 3 gathers the weights again: then
        `inputs` has other tensors for the weights, and the first ones can be freed.
        """
        return lowering.shared(
            ("experts", id(self), *inputs), lambda: self._forward(lowering, inputs)
        )

    def _forward(self, lowering: Lowering, inputs: Sequence[upstream.Tensor]) -> _Forward:
        mesh_impl = lowering.mesh_impl(self)
        x, choices, *others = (lowering.slice(t) for t in inputs)
        differentiated = [tf.identity(t) for t in (x, *others)]
        x, gates, *weights = differentiated
        (first,) = mesh_impl.slice_begin_tensors(upstream.Shape([self._experts]))
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self._d_ff)
        # If d_ff is split, only one processor along its axis adds the output's bias, because the
        # processors' results are summed.
        is_first = 1.0 if axis is None else mesh_impl.collectives.coordinate(axis) == 0
        named = dict(zip(self._names, weights, strict=True))
        if "output_bias" in named:
            named["output_bias"] *= tf.cast(is_first, x.dtype)
        experts = [
            dict(zip(named, parts, strict=True))
            for parts in zip(*(tf.unstack(w) for w in named.values()), strict=True)
        ]
        flat = tf.reshape(x, [-1, x.shape[-1]])
        k = choices.shape[-1]
        local = tf.reshape(choices, [-1]) - first
        apply = functools.partial(_network, MLP_FUNCTIONS[self._mlp])
        if mesh_impl.target.compiles_step:
            # XLA requires static shapes, and an expert's number of rows depends on the choices. So
            # each expert computes all rows.
            y = tf.add_n(
                [
                    apply(flat, expert) * tf.cast(_gate(gates, local, e, k), x.dtype)
                    for e, expert in enumerate(experts)
                ]
            )
            return differentiated, tf.reshape(y, x.shape)
        count = len(experts)
        local = tf.where((local < 0) | (local >= count), count, local)
        # tf.math.bincount is not deterministic on GPUs.
        is_of = tf.equal(local[:, None], tf.range(count, dtype=local.dtype))
        sizes = tf.reduce_sum(tf.cast(is_of, tf.int64), 0)
        order = tf.argsort(local, stable=True)[: tf.reduce_sum(sizes)]
        rows = order // k
        parts = tf.split(tf.gather(flat, rows), sizes, num=count)
        y = tf.concat([apply(p, e) for p, e in zip(parts, experts, strict=True)], 0)
        gate = tf.gather(tf.reshape(gates, [-1, 1]), order)
        y = tf.cast(y, tf.float32) * gate
        y = tf.math.unsorted_segment_sum(y, rows, flat.shape[0])
        return differentiated, tf.reshape(tf.cast(y, x.dtype), x.shape)


class ExpertNetworkGradOperation(GradientOperation):
    """Differentiates the experts. Outputs: gradients w.r.t. x, gates and weights."""

    def slice_flops(self, layout: Layout) -> float:
        """See `ExpertNetworkOperation`."""
        return 2 * self.forward.slice_flops(layout)

    def lower(self, lowering: Lowering) -> None:
        inputs, y = self.forward.forward(lowering, self.inputs[:-1])
        dy = lowering.slice(self.inputs[-1])
        grads = tf.gradients(y, inputs, dy, stop_gradients=inputs, unconnected_gradients="zero")
        for output, grad in zip(self.outputs, grads, strict=True):
            summed = {*self.forward.rows, *self.forward.summed} - {*output.shape.dims}
            lowering.set_partial_sum(output, tf.convert_to_tensor(grad), summed)


def _network(
    mlp: Callable[..., tf.Tensor], rows: tf.Tensor, expert: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """Applies one expert to [rows, d_model]."""

    def times(x: tf.Tensor, name: str) -> tf.Tensor:
        y = tf.matmul(x, expert[name])
        return y + expert[f"{name}_bias"] if f"{name}_bias" in expert else y

    gate = [times(rows, "gate")] if "gate" in expert else []
    return times(mlp(*gate, times(rows, "input")), "output")


def _gate(gates: tf.Tensor, local: tf.Tensor, expert: int, k: int) -> tf.Tensor:
    """Returns [rows, 1], the gate of an expert in each row; 0 if the row did not choose it."""
    is_chosen = tf.reshape(tf.equal(local, expert), [-1, k])
    return tf.reduce_sum(tf.where(is_chosen, tf.reshape(gates, [-1, k]), 0.0), 1, keepdims=True)
