"""Small steps, each of many operations of one kind, as a program has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

import t2tp.hparams  # noqa: F401  (its sets are registered)
from t2tp import mtf, optim, registry
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.mesh.layout import Layout
from t2tp.ops.attention.api import attention
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.layer_norm import layer_norm
from t2tp.planner.work import ATTENTION, ATTENTION_GRAD, CONVOLUTION, PRODUCT
from t2tp.program.program import Mesh

_D_KV = 64
_CHANNELS, _WIDE_CHANNELS = 64, 256
# Kernel size and output channels of each convolution of a block.
_BOTTLENECK = ((1, _CHANNELS), (3, _CHANNELS), (1, _WIDE_CHANNELS))
# Max length of attention's sequences. A larger sample has more sequences.
_LENGTH = 128


@dataclass(frozen=True)
class Sample:
    """Steps that consist of one kind of work, and of kinds that come before it in `SAMPLES`.

    Attributes:
      kind: kind of work.
      sizes: sizes for `build`, smallest first.
      build: function of mesh, size and count that builds a chain of `count` operations.
    """

    kind: str
    sizes: Sequence[int]
    build: Callable[[Mesh, int, int], mtf.Tensor]


def _variable(mesh: Mesh, name: str, *sizes: int) -> mtf.Tensor:
    dims = [mtf.Dimension(f"{name}_{i}", size) for i, size in enumerate(sizes)]
    return _variable_of(mesh, name, dims)


def _variable_of(mesh: Mesh, name: str, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
    initializer = tf.random_normal_initializer(stddev=0.05)
    return mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initializer)


def _images(mesh: Mesh, size: int, channels: int) -> mtf.Tensor:
    names = (("batch", 8), ("height", size), ("width", size), ("channels", channels))
    return _variable_of(mesh, "x", [mtf.Dimension(*dim) for dim in names])


def _gradient(y: mtf.Tensor, x: mtf.Tensor) -> mtf.Tensor:
    (gradient,) = mtf.gradients([y], [x])
    return gradient


def _chain(
    apply: Callable[[mtf.Tensor, int], mtf.Tensor], backward: bool = False
) -> Callable[[Mesh, int, int], mtf.Tensor]:
    """Returns a builder that applies a function repeatedly, and optionally differentiates."""

    def build(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
        x = y = _variable(mesh, "x", size, 256)
        for i in range(count):
            y = apply(y, i)
        return _gradient(y, x) if backward else y

    return build


def _elementwise(y: mtf.Tensor, i: int) -> mtf.Tensor:
    w, u = (_variable_of(y.mesh, name, y.shape.dims) for name in ("w", "u"))
    return mtf.relu(y + w) * u


def _reduce(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    x = _variable(mesh, "x", size, 256)
    y = None
    for _ in range(count):
        y = mtf.reduce_sum(x if y is None else x + y, output_shape=x.shape[1:])
    return y


def _copy(y: mtf.Tensor, i: int) -> mtf.Tensor:
    return mtf.transpose(y, mtf.Shape(y.shape.dims[::-1])) * (1.0 + i)


def _random(y: mtf.Tensor, i: int) -> mtf.Tensor:
    return mtf.dropout(y, is_training=True, rate=0.1)


def _norm(y: mtf.Tensor, i: int) -> mtf.Tensor:
    dim = y.shape.dims[1]
    scale, bias = (_variable_of(y.mesh, name, [dim]) for name in ("scale", "bias"))
    return layer_norm(y, scale, bias, dim)


def _softmax(y: mtf.Tensor, i: int) -> mtf.Tensor:
    return mtf.softmax(y, y.shape.dims[1])


def _batch_norm(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    x = y = _images(mesh, size, _CHANNELS)
    dim = x.shape.dims[-1]
    scale, offset = (_variable_of(mesh, name, [dim]) for name in ("scale", "offset"))
    for _ in range(count):
        y, *_ = batch_norm(y, scale, offset, 1e-3)
    return _gradient(y, x)


def _gather(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """Looks rows up and adds their gradients, as an embedding does."""
    tables = [_variable(mesh, f"table{i}", 1024, 256) for i in range(count)]
    total = None
    for table in tables:
        ids = mtf.mtf_range(mesh, mtf.Dimension("ids", size), tf.int32)
        renamed = mtf.Shape([mtf.Dimension("ids", size), mtf.Dimension("width", 256)])
        rows = mtf.reshape(mtf.gather(table, ids, table.shape.dims[0]), renamed)
        total = rows if total is None else total + rows
    gradients = mtf.gradients([mtf.reduce_sum(total)], tables)
    return mtf.add_n([mtf.reduce_sum(each) for each in gradients])


def _cross_entropy(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    x = _variable(mesh, "x", size, 4096)
    rows, vocab = x.shape.dims
    targets = mtf.mtf_range(mesh, rows, tf.int32)
    total = None
    for _ in range(count):
        logits = x if total is None else x + mtf.reduce_mean(total)
        total = softmax_cross_entropy(logits, targets, vocab)
    return _gradient(total, x)


def _update(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    total = None
    for i in range(count):
        x = _variable(mesh, f"x{i}", size, 256)
        part = mtf.reduce_sum(mtf.square(x))
        total = part if total is None else total + part
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse("clip_grad_norm=0.0,weight_decay=0.0")
    optim.apply_gradients(total, mesh, hparams, 1000)
    return total


def _product(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """The matmuls of a transformer's layers, forward and backward, in all their transpositions.

    Feed-forward layers alternate with projections to heads and back.
    """
    length = min(size, _LENGTH)
    rows = [mtf.Dimension("batch", size // length), mtf.Dimension("length", length)]
    inner, columns = mtf.Dimension("inner", min(size, 256)), mtf.Dimension("columns", size)
    d_kv = min(size, _D_KV)
    heads = [mtf.Dimension("heads", size // d_kv), mtf.Dimension("d_kv", d_kv)]
    kinds = (([columns], [*rows, columns]), (heads, [rows[0], heads[0], rows[1], heads[1]]))
    weights = [
        [_variable_of(mesh, f"w{i}", [inner, *wide]), _variable_of(mesh, f"v{i}", [*wide, inner])]
        for i, (wide, _) in enumerate(kinds)
    ]
    x = y = _variable_of(mesh, "x", [*rows, inner])
    for i in range(count):
        (w, v), (_, hidden) = weights[i % 2], kinds[i % 2]
        y = mtf.einsum([mtf.einsum([y, w], output_shape=hidden), v], output_shape=x.shape)
    gradients = mtf.gradients([y], [x, *weights[0], *weights[1]])
    return mtf.add_n([mtf.reduce_sum(each) for each in gradients])


def _attention(mesh: Mesh, size: int, count: int, method: str = "dense") -> mtf.Tensor:
    length = min(size, _LENGTH)
    names = (("batch", 2 * size // length), ("heads", 4), ("length", length), ("d_kv", _D_KV))
    dims = [mtf.Dimension(*dim) for dim in names]
    memory = mtf.Dimension("memory", length)
    q = _variable_of(mesh, "q", dims)
    k, v = (_variable_of(mesh, name, [*dims[:2], memory, dims[3]]) for name in ("k", "v"))
    for _ in range(count):
        q = attention(q, k, v, causal=True, method=method)  # type: ignore[arg-type]
    return q


def _attention_grad(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    y = _attention(mesh, size, count)
    return _gradient(y, next(v for v in mesh.graph.all_variables if v.name == "q").outputs[0])


def _convolution(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """The convolutions of residual blocks with a bottleneck, forward and backward."""
    x = y = _images(mesh, size, _WIDE_CHANNELS)
    filters = []
    for i in range(count):
        kernel_size, channels = _BOTTLENECK[i % len(_BOTTLENECK)]
        kernel = [mtf.Dimension(f"kernel_{of}", kernel_size) for of in ("height", "width")]
        out = mtf.Dimension(f"channels_{i}", channels)
        filters.append(_variable_of(mesh, f"filters_{i}", [*kernel, y.shape.dims[-1], out]))
        y = convolution(y, filters[-1])
    gradients = mtf.gradients([y], [x, *filters])
    total = mtf.reduce_sum(gradients[0])
    for each in gradients[1:]:
        total += mtf.reduce_sum(each)
    return total


# Each is measured without the seconds of the kinds before it.
SAMPLES = (
    Sample("elementwise", (16, 256, 4096), _chain(_elementwise, backward=True)),
    Sample("reduce", (16, 256, 4096), _reduce),
    Sample("copy", (16, 256, 4096), _chain(_copy)),
    Sample("random", (16, 256, 4096), _chain(_random)),
    Sample("norm", (16, 256, 4096), _chain(_norm, backward=True)),
    Sample("batch_norm", (4, 16, 32), _batch_norm),
    Sample("softmax", (16, 256, 4096), _chain(_softmax, backward=True)),
    Sample("gather", (64, 1024), _gather),
    Sample("cross_entropy", (32, 1024), _cross_entropy),
    Sample("update", (4, 256, 4096), _update),
    Sample(PRODUCT, (32, 128, 1024, 2048), _product),
    Sample(ATTENTION, (16, 128, 1024), _attention),
    Sample(ATTENTION_GRAD, (16, 128, 1024), _attention_grad),
    Sample(CONVOLUTION, (4, 16, 32), _convolution),
)

# Number of float32 values that a member of a collective puts in.
COLLECTIVE_SIZES = (1 << 10, 1 << 16, 1 << 20)

# The mesh axis of a sample's groups.
GROUP = "group"


class CollectiveSample(Operation):
    """Runs collectives over the axis `group`, one after another; the output is like the input."""

    def __init__(self, x: mtf.Tensor, kind: str, count: int) -> None:
        super().__init__([x], name=kind)
        self._kind, self._count = kind, count
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering: Lowering) -> None:
        """Lowers the chain. Each collective gets a slice of the size of the input."""
        mesh_impl = lowering.mesh_impl(self)
        axis = mesh_impl.shape.dimension_names.index(GROUP)
        size = mesh_impl.shape.to_integer_list[axis]
        collectives = mesh_impl.collectives
        x = lowering.slice(self.inputs[0])
        for _ in range(self._count):
            if self._kind == "allreduce":
                x = collectives.allreduce(x, [axis], "Add") / size
            elif self._kind == "reducescatter":
                part = collectives.reducescatter(x, axis, 0)
                x = tf.tile(part, [size]) / size
            elif self._kind == "allgather":
                x = collectives.allgather(x, axis, 0)[: x.shape[0]]
            elif self._kind == "alltoall":
                x = collectives.alltoall(x, axis, 0, 0)
            else:
                x = collectives.permute(x, axis, [size - 1, *range(size - 1)])
        lowering.set_slice(self.outputs[0], x)


def collective_layout(devices: int, group: int) -> Layout:
    """Returns a layout whose groups are the nearest devices; no dimension is split."""
    axes = {"other": devices // group, GROUP: group}
    return Layout(";".join(f"{name}:{size}" for name, size in axes.items() if size > 1), "")
