"""Small steps for timing. Each consists of many operations of one kind, as models use them."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

import t2tp.hparams  # noqa: F401  (its sets are registered)
from t2tp import mtf, optim, registry
from t2tp.building.mesh import Mesh
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.ops.attention.api import attention
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.layer_norm import layer_norm
from t2tp.processes.cluster import has_gpu
from t2tp.step.work import ATTENTION, ATTENTION_GRAD, CONVOLUTION, PRODUCT

_D_KV = 64
_CHANNELS, _WIDE_CHANNELS = 64, 256
# Kernel size and output channels of each convolution of a block.
_BOTTLENECK = ((1, _CHANNELS), (3, _CHANNELS), (1, _WIDE_CHANNELS))
# Max length of attention's sequences. Larger samples have more sequences, not longer ones.
_LENGTH = 128


@dataclass(frozen=True)
class Sample:
    """Steps that measure one kind of work.

    They may also contain kinds of work that earlier samples measure.

    Attributes:
      kind: kind of work.
      size, gpu_size: sizes for `build`, on CPUs and on GPUs.
      build: function of mesh, size and count that builds a chain of `count` operations.
    """

    kind: str
    size: int
    gpu_size: int
    build: Callable[[Mesh, int, int], mtf.Tensor]


def _variable(mesh: Mesh, name: str, *dims: tuple[str, int]) -> mtf.Tensor:
    shape = mtf.Shape([mtf.Dimension(*dim) for dim in dims])
    initializer = tf.random_normal_initializer(stddev=0.05)
    x = mtf.get_variable(mesh, name, shape, initializer=initializer)
    # Models on GPUs compute in 16 bits.
    return mtf.cast(x, tf.bfloat16) if has_gpu() else x


def _matrix(mesh: Mesh, rows: int, columns: int = 256, name: str = "x") -> mtf.Tensor:
    return _variable(mesh, name, ("rows", rows), ("columns", columns))


def _images(mesh: Mesh, size: int, channels: int = _CHANNELS) -> mtf.Tensor:
    sizes = (("batch", 8), ("height", size), ("width", size), ("channels", channels))
    return _variable(mesh, "x", *sizes)


def _gradients(y: mtf.Tensor) -> mtf.Tensor:
    """Adds up all elements of all variables' gradients."""
    variables = [variable.outputs[0] for variable in y.mesh.graph.all_variables]
    return mtf.add_n([mtf.reduce_sum(each) for each in mtf.gradients([y], variables)])


def _chain(
    apply: Callable[[mtf.Tensor, int], mtf.Tensor],
    backward: bool = False,
    first: Callable[[Mesh, int], mtf.Tensor] = _matrix,
) -> Callable[[Mesh, int, int], mtf.Tensor]:
    """Returns a builder that applies a function repeatedly, and optionally differentiates."""

    def build(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
        x = y = first(mesh, size)
        for i in range(count):
            y = apply(y, i)
        return mtf.gradients([y], [x])[0] if backward else y

    return build


def _elementwise(y: mtf.Tensor, i: int) -> mtf.Tensor:
    w, u = (_variable(y.mesh, name, *y.shape.dims) for name in ("w", "u"))
    return mtf.relu(y + w) * u


def _reduce(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    x = _matrix(mesh, size)
    y = mtf.reduce_sum(x, output_shape=x.shape[1:])
    for _ in range(count - 1):
        y = mtf.reduce_sum(x + y, output_shape=x.shape[1:])
    return y


def _copy(y: mtf.Tensor, i: int) -> mtf.Tensor:
    return mtf.transpose(y, mtf.Shape(y.shape.dims[::-1])) * (1.0 + i)


def _norm(y: mtf.Tensor, i: int) -> mtf.Tensor:
    dim = y.shape.dims[1]
    scale, bias = (_variable(y.mesh, name, dim) for name in ("scale", "bias"))
    return layer_norm(y, scale, bias, dim)


def _batch_norm(y: mtf.Tensor, i: int) -> mtf.Tensor:
    scale, offset = (_variable(y.mesh, name, y.shape.dims[-1]) for name in ("scale", "offset"))
    return batch_norm(y, scale, offset, 1e-3)[0]


def _gather(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """Looks rows up again and again, and adds their gradients, as an embedding does."""
    x = y = _matrix(mesh, size)
    for i in range(count):
        ids = mtf.mtf_range(mesh, mtf.Dimension(f"ids_{i % 2}", size), tf.int32)
        y = mtf.gather(y, ids, y.shape.dims[0])
    return mtf.gradients([mtf.square(y)], [x])[0]


def _cross_entropy(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    x = logits = _matrix(mesh, size, 4096)
    rows, vocab = x.shape.dims
    targets = mtf.mtf_range(mesh, rows, tf.int32)
    for _ in range(count):
        losses = softmax_cross_entropy(logits, targets, vocab)
        logits = x + mtf.reduce_mean(losses)
    return mtf.gradients([losses], [x])[0]


def _update(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    variables = [_matrix(mesh, size, name=f"x{i}") for i in range(count)]
    total = mtf.add_n([mtf.reduce_sum(mtf.square(x)) for x in variables])
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse("clip_grad_norm=0.0,weight_decay=0.0")
    optim.apply_gradients(total, mesh, hparams, 1000)
    return total


def _product(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """Builds the matmuls of a transformer's layers, forward and backward, in all transpositions.

    Feed-forward layers alternate with projections to heads and back.
    """
    length = min(size, _LENGTH)
    rows = [mtf.Dimension("batch", size // length), mtf.Dimension("length", length)]
    inner, columns = mtf.Dimension("inner", min(size, 256)), mtf.Dimension("columns", size)
    d_kv = min(size, _D_KV)
    heads = [mtf.Dimension("heads", size // d_kv), mtf.Dimension("d_kv", d_kv)]
    kinds = (([columns], [*rows, columns]), (heads, [rows[0], heads[0], rows[1], heads[1]]))
    x = y = _variable(mesh, "x", *rows, inner)
    for i in range(count):
        wide, hidden = kinds[i % 2]
        w = _variable(mesh, f"w{i % 2}", inner, *wide)
        v = _variable(mesh, f"v{i % 2}", *wide, inner)
        y = mtf.einsum([mtf.einsum([y, w], output_shape=hidden), v], output_shape=x.shape)
    return _gradients(y)


def _queries(mesh: Mesh, size: int) -> mtf.Tensor:
    length = min(size, _LENGTH)
    sizes = (("batch", 2 * size // length), ("heads", 4), ("length", length), ("d_kv", _D_KV))
    return _variable(mesh, "q", *sizes)


def _attention(q: mtf.Tensor, i: int) -> mtf.Tensor:
    *outer, length, d_kv = q.shape.dims
    keys = [*outer, ("memory", length.size), d_kv]
    k, v = (_variable(q.mesh, name, *keys) for name in ("k", "v"))
    return attention(q, k, v, causal=True, method="dense")


def _convolution(mesh: Mesh, size: int, count: int) -> mtf.Tensor:
    """Builds the convolutions of residual blocks with a bottleneck, forward and backward."""
    y = _images(mesh, size, _WIDE_CHANNELS)
    for i in range(count):
        kernel_size, channels = _BOTTLENECK[i % len(_BOTTLENECK)]
        kernel = [mtf.Dimension(f"kernel_{of}", kernel_size) for of in ("height", "width")]
        out = mtf.Dimension(f"channels_{i}", channels)
        y = convolution(y, _variable(mesh, f"filters_{i}", *kernel, y.shape.dims[-1], out))
    return _gradients(y)


_ROWS = (4096, 1 << 16)
# A sample also contains operations of earlier kinds. Their seconds are known and are subtracted
# from the sample's time, so the order matters.
SAMPLES = (
    Sample("elementwise", *_ROWS, _chain(_elementwise, backward=True)),
    Sample("reduce", *_ROWS, _reduce),
    Sample("copy", *_ROWS, _chain(_copy)),
    Sample("random", *_ROWS, _chain(lambda y, i: mtf.dropout(y, is_training=True, rate=0.1))),
    Sample("norm", *_ROWS, _chain(_norm, backward=True)),
    Sample("batch_norm", 32, 64, _chain(_batch_norm, backward=True, first=_images)),
    Sample("softmax", *_ROWS, _chain(lambda y, i: mtf.softmax(y, y.shape.dims[1]), backward=True)),
    Sample("gather", *_ROWS, _gather),
    Sample("cross_entropy", 1024, 1 << 14, _cross_entropy),
    Sample("update", *_ROWS, _update),
    Sample(PRODUCT, 1024, 4096, _product),
    Sample(ATTENTION, 1024, 1 << 14, _chain(_attention, first=_queries)),
    Sample(ATTENTION_GRAD, 1024, 1 << 14, _chain(_attention, backward=True, first=_queries)),
    Sample(CONVOLUTION, 32, 64, _convolution),
)


def many_variables(count: int) -> Callable[[Mesh], mtf.Tensor]:
    """Returns a builder of a step that reads many small variables."""

    def build(mesh: Mesh) -> mtf.Tensor:
        return mtf.add_n([_matrix(mesh, 1, 8, f"x{i}") for i in range(count)])

    return build


# The mesh axis over which the measured collectives run.
GROUP = "group"
_BETWEEN = 384  # Size of the matmul before each collective; this matmul takes about 1 ms.


class CollectiveSample(Operation):
    """Runs all-reduces over the axis `group`, with a matmul before each of them.

    If `kind` is "", it runs only the matmuls.

    Without matmuls, all devices' threads would be awake and would reach each collective at the same
    time. Small collectives would then take only a third of the time that they take in a training
    step. The output has the shape of the input.
    """

    def __init__(self, x: mtf.Tensor, kind: str, count: int) -> None:
        super().__init__([x], name=kind or "matmuls")
        self._kind, self._count = kind, count
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering: Lowering) -> None:
        """Lowers the chain. The input of each collective has the size of the operation's input."""
        mesh_impl = lowering.mesh_impl(self)
        axis = mesh_impl.shape.dimension_names.index(GROUP)
        size = mesh_impl.shape.to_integer_list[axis]
        use = mesh_impl.collectives
        run = tf.identity if not self._kind else lambda x: use.allreduce(x, [axis], "Add") / size
        x = lowering.slice(self.inputs[0])
        for _ in range(self._count):
            matrix = tf.fill([_BETWEEN, _BETWEEN], x[0])
            x = run(x + 1e-9 * tf.matmul(matrix, matrix)[0, 0])
        lowering.set_slice(self.outputs[0], x)
