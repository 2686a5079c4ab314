"""Values and gradients of operations match TensorFlow's in float64, in any layout.

tests/lowering/test_any_layout.py draws random layouts of whole graphs. The rows of the table here
also test special inputs: equal elements, indices out of range, 16-bit and extreme numbers.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.conv.pooling import max_pool
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.gather import gather
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from t2tp.ops.norms.layer_norm import layer_norm, rms_norm
from t2tp.ops.previous import previous
from t2tp.ops.rotary import RotaryScaling, rotary
from t2tp.ops.scatter_update import scatter_update
from tests.cases import in_turn
from tests.ops.on_mesh import Inputs, assert_close, in_float64, normal, with_gradients

Layouts = list[tuple[str, str]]
WHOLE: Layouts = [("", "")]
MATRIX: Layouts = [*WHOLE, ("x:2", "a:x"), ("x:4", "b:x"), ("x:2;y:2", "a:x;b:y")]
ROWS: Layouts = [*WHOLE, ("x:2", "a:x"), ("x:4", "b:x"), ("x:2;y:4", "a:x;b:y"), ("x:2", "b:x")]
CUBE: Layouts = [
    *WHOLE,
    ("x:2", "a:x"),
    ("x:4", "c:x"),
    ("x:2;y:4", "a:x;c:y"),
    ("x:2;y:2", "b:x;c:y"),
]
TOKENS: Layouts = [
    *WHOLE,
    ("data:4", "batch:data"),
    ("model:4", "vocab:model"),
    ("data:2;model:2", "batch:data;vocab:model"),
    ("model:4;data:2", "batch:data;vocab:model"),
    ("data:2;model:2", "length:data;vocab:model"),
]
NORMED: Layouts = [
    *WHOLE,
    ("data:4", "batch:data"),
    ("model:4", "d_model:model"),
    ("data:2;model:4", "batch:data;d_model:model"),
    ("data:2;model:2", "batch:data;length:model"),
]
IMAGES: Layouts = [
    *WHOLE,
    ("data:4", "batch:data"),
    ("model:4", "channels:model"),
    ("rows:2;columns:2", "height:rows;width:columns"),
    ("data:2;rows:2;model:2", "batch:data;height:rows;channels:model"),
]


@dataclass(frozen=True)
class Row:
    """An operation.

    Attributes:
      op: function of named tensors.
      reference: the same function of TensorFlow's tensors, in float64.
      inputs: name -> (shape in words, array).
      layouts: the layouts to test, each as (mesh shape, rules).
      tolerance: tolerance of the value, relative to its largest element.
      d_tolerance: tolerance of the gradients; 0 for `tolerance`.
      dtype: dtype of the floating-point inputs.
    """

    op: Callable
    reference: Callable
    inputs: Inputs
    layouts: Layouts
    tolerance: float = 2e-6
    d_tolerance: float = 0.0
    dtype: tf.DType = tf.float32


def last(x):
    return x.shape.dims[-1]


def slope(function):
    """Returns an operation that computes the gradient of the sum of `function`'s result."""
    return lambda x: mtf.gradients([mtf.reduce_sum(function(x))], [x])[0]


def tf_slope(function):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x)

    return gradient


def by_place(function):
    return lambda **tensors: function(*tensors.values())


TABLE: dict[str, Row] = {}
BF16 = {"tolerance": 2**-8, "d_tolerance": 3 * 2**-8, "dtype": tf.bfloat16}
FLOAT64 = {"tolerance": 1e-13, "dtype": tf.float64}

# Elementwise operations.
X = {"x": normal("a:4;b:8")}
AND_NEXT = X | {"z": ("b:8", np.random.default_rng(1).uniform(1, 3, size=8))}
TABLE |= {
    "relu": Row(mtf.relu, tf.nn.relu, X, MATRIX[::3], 2e-7),
    "relu, bfloat16": Row(mtf.relu, tf.nn.relu, X, MATRIX[::3], **BF16),
    "relu twice": Row(
        slope(lambda x: mtf.square(mtf.relu(x))), lambda x: 2 * tf.nn.relu(x), X, WHOLE
    ),
    "mod": Row(mtf.mod, lambda x, z: x - tf.floor(x / z) * z, AND_NEXT, MATRIX),
    "floordiv": Row(
        lambda x, z: mtf.floordiv(x, z) + x * z,
        lambda x, z: tf.stop_gradient(x // z) + x * z,
        AND_NEXT,
        MATRIX,
    ),
}

# Means of 16-bit numbers. In float16, their sums would be infinite.
HUNDREDS = {"x": ("a:8;b:1024", np.full([8, 1024], 100.0))}
TABLE |= {
    "mean, float16": Row(
        mtf.reduce_mean, tf.reduce_mean, HUNDREDS, MATRIX[:2], 2**-10, dtype=tf.float16
    ),
    "mean, bfloat16": Row(mtf.reduce_mean, tf.reduce_mean, HUNDREDS, MATRIX[:2], **BF16),
    "mesh-tensorflow's layer norm, float16": Row(
        lambda x: mtf.layers.layer_norm(x, last(x)),
        lambda x: (x - tf.reduce_mean(x, -1, True)) / tf.math.reduce_std(x, -1, True),
        {"x": normal("a:2;b:4096", 5.0)},
        WHOLE,
        2e-3,
        0.02,
        tf.float16,
    ),
}

# Equal elements share the gradient, as in TensorFlow's reductions.
TIES = np.array([[1, 3, 3, 0, 3, 3, 2, 1], [5, 1, 2, 3, 4, 0, 0, 0], [7] * 8, range(8)], float)
TIED = {"x": ("a:4;b:8", TIES), "z": ("b:8", np.array([1, 2, 3, 0, 3, 1, 2, 9.0]))}
ONES = {"x": ("a:1024", np.ones(1024))}
for kind in ("max", "min"):
    reduce, choose = getattr(mtf, f"reduce_{kind}"), getattr(mtf, f"{kind}imum")
    tf_reduce = getattr(tf, f"reduce_{kind}")
    TABLE |= {
        f"reduce_{kind}": Row(
            lambda x, reduce=reduce: reduce(x, reduced_dim=last(x)),
            lambda x, tf_reduce=tf_reduce: tf_reduce(x, axis=1),
            {"x": TIED["x"]},
            MATRIX,
        ),
        f"{kind}imum": Row(
            choose,
            lambda x, z, tf_reduce=tf_reduce: tf_reduce(tf.stack([x, x * 0 + z]), 0),
            TIED,
            MATRIX,
        ),
    }
TABLE["maximum of a number"] = Row(
    lambda x: mtf.maximum(3.0, x),
    lambda x: tf.reduce_max(tf.stack([x, tf.fill(x.shape, tf.constant(3.0, x.dtype))]), 0),
    {"x": TIED["x"]},
    WHOLE,
)
TABLE["reduce_max of ones, bfloat16"] = Row(
    mtf.reduce_max, tf.reduce_max, ONES, [("x:2", "a:x")], 0.0, dtype=tf.bfloat16
)


def max_of_windows(x, rank, order):
    """Max-pools windows of 2; the last dimensions of `order` are the positions in a window."""
    windows = tf.transpose(tf.reshape(x, [2, 2, 2, 2, 2, 2, 3]), order)
    return tf.reduce_max(tf.reshape(windows, [2, -1, 2, 2, 3, 2**rank]), -1)


BITS = np.random.default_rng(0).integers(0, 2, (2, 2, 4, 4, 3)) * 1.0
for pool, rank, order in (
    (mtf.layers.max_pool2d, 2, [0, 1, 2, 4, 6, 3, 5]),
    (mtf.layers.max_pool3d, 3, [0, 2, 4, 6, 1, 3, 5]),
):
    TABLE[pool.__name__] = Row(
        functools.partial(pool, ksize=[2] * rank),
        functools.partial(max_of_windows, rank=rank, order=order),
        {"x": ("n:2;d:2;h:4;w:4;c:3", BITS)},
        [*WHOLE, ("x:2", "n:x"), ("x:3", "c:x")],
    )

# Operations along a dimension.
DISTINCT = np.random.default_rng(0).permutation(96).reshape(4, 8, 3) * 1.0
DISTINCT[0, 0] = -1e12  # In a row with such elements, mesh-tensorflow returns some elements twice.
TABLE["cumsum of ones, bfloat16"] = Row(
    lambda x: mtf.cumsum(x, last(x)), tf.cumsum, ONES, [("x:2", "a:x")], dtype=tf.bfloat16,
    tolerance=2**-7,
)  # fmt: skip
TABLE["previous in its segment"] = Row(
    lambda x, segments: previous(x, x.shape.dims[1], segments),
    lambda x, segments: tf.where(
        (tf.roll(segments, 1, 1) == segments) & (tf.range(8) > 0), tf.roll(x, 1, 1), 0.0
    ),
    X | {"segments": ("a:4;b:8", np.sort(np.random.default_rng(0).integers(0, 4, size=(4, 8))))},
    MATRIX,
)
TABLE["one output of slicewise"] = Row(
    lambda x: mtf.slicewise(
        lambda x: (tf.sin(x), tf.square(x)),
        [x],
        [x.shape, x.shape],
        [x.dtype, x.dtype],
        splittable_dims=x.shape.dims,
    )[1],
    tf.square,
    X,
    [*WHOLE, ("x:2", "a:x")],
)
for k in (1, 3, 8):
    TABLE[f"top_{k}"] = Row(
        lambda x, k=k: mtf.top_k(x, x.shape.dims[1], mtf.Dimension("k", k))[0],
        lambda x, k=k: tf.math.top_k(tf.transpose(x, [0, 2, 1]), k)[0],
        {"x": ("a:4;b:8;c:3", DISTINCT)},
        ROWS,
    )

# Softmax and logsumexp.
LOGITS = {"x": normal("a:4;b:6;c:8", 3.0)}


def softmax_of(dim, **options):
    return lambda x: mtf.softmax(x, x.shape.get_dim_by_name(dim), **options)


def tf_logsumexp(x, extra=None):
    if extra is not None:
        x = tf.pad(x, [[0, 0], [0, 0], [0, 1]], constant_values=extra)
    return tf.reduce_logsumexp(x, -1)


for axis, dim in enumerate("abc"):
    TABLE[f"softmax along {dim}"] = Row(
        softmax_of(dim), functools.partial(tf.nn.softmax, axis=axis), LOGITS, CUBE
    )
for axis, dim in enumerate("abcdef"):  # TensorFlow's kernel does not support as many dimensions
    TABLE[f"softmax of six dimensions along {dim}"] = Row(
        softmax_of(dim),
        functools.partial(tf.nn.softmax, axis=axis),
        {"x": normal("a:2;b:2;c:1;d:3;e:2;f:4")},
        [("x:2", "a:x")],
    )
for extra in (None, 0.5):
    TABLE[f"logsumexp, extra_logit={extra}"] = Row(
        lambda x, extra=extra: mtf.reduce_logsumexp(x, last(x), extra),
        functools.partial(tf_logsumexp, extra=extra),
        LOGITS,
        CUBE,
    )
TABLE |= {
    "softmax twice": Row(
        slope(lambda x: mtf.square(softmax_of("c")(x))),
        tf_slope(lambda x: tf.square(tf.nn.softmax(x))),
        LOGITS,
        CUBE,
    ),
    "logsumexp twice": Row(
        slope(lambda x: mtf.reduce_logsumexp(x, last(x))), tf.nn.softmax, LOGITS, [("x:4", "c:x")]
    ),
    # The result is rounded only once, at the end, so the inner sum of small parts is accurate.
    "softmax, bfloat16": Row(softmax_of("c"), tf.nn.softmax, LOGITS, CUBE, **BF16),
    "softmax with another logit, bfloat16": Row(
        lambda x: softmax_of("c", extra_logit=mtf.constant(x.mesh, 0.5, dtype=x.dtype))(x),
        lambda x: tf.exp(x - tf_logsumexp(x, 0.5)[..., None]),
        LOGITS,
        CUBE,
        **BF16,
    ),
    "softmax, float64": Row(softmax_of("c"), tf.nn.softmax, LOGITS, CUBE[::2], **FLOAT64),
}

# Look-ups. The ids are the first and the last id of each slice, if 16 ids are split into 1, 2 or 4
# slices. Each id occurs several times.
BORDERS = np.array([0, 3, 4, 7, 8, 11, 12, 15])


def look_up(table, ids):
    return gather(table, ids, table.shape.get_dim_by_name("vocab"))


def table_of(ids=None, batch=8, length=4, vocab=16, d_model=8):
    if ids is None:
        ids = np.resize(BORDERS, batch * length).reshape(batch, length) % vocab
    words = ";".join(f"{name}:{n}" for name, n in zip(("batch", "length"), ids.shape, strict=True))
    return {"table": normal(f"vocab:{vocab};d_model:{d_model}"), "ids": (words, ids)}


def in_batches(table, ids):
    table = tf.transpose(table, [3, 1, 2, 0])  # [c, b, n, d]
    rows = tf.gather(table, tf.transpose(ids, [1, 2, 0]), batch_dims=2)
    return tf.transpose(rows, [2, 0, 1, 3])  # [m, c, b, d]


OUTSIDE = table_of()["ids"][1] - 1  # -1 to 14
OUTSIDE[:, 1] += 16
ODD = [("data:2;model:3", "batch:data;vocab:model")]
SPLIT = [("data:2;model:2", "batch:data;vocab:model")]
TABLE |= {
    "gather": Row(
        look_up,
        tf.gather,
        table_of(),
        [*TOKENS, ("data:2;model:4", "batch:data;d_model:model"), ("a:2;b:2", "vocab:a;d_model:b")],
    ),
    "gather of odd sizes": Row(look_up, tf.gather, table_of(None, 2, 3, 9, 5), ODD),
    "gather of one row": Row(look_up, tf.gather, table_of(np.full((8, 4), 5)), SPLIT),
    # Three roundings: the incoming gradient, each processor's sum, and the sum of two of these.
    "gather, bfloat16": Row(
        look_up, tf.gather, table_of(), SPLIT, 0.0, 3 * 2**-8, dtype=tf.bfloat16
    ),
    "gather from three dimensions": Row(
        look_up,
        lambda table, ids: tf.gather(tf.transpose(table, [1, 0, 2]), ids),
        table_of() | {"table": normal("heads:4;vocab:16;d_kv:3")},
        [("data:2;model:2", "heads:data;vocab:model")],
    ),
    "gather out of range": Row(
        look_up,
        lambda table, ids: tf.einsum("blv,vd->bld", tf.one_hot(ids, 16, dtype=table.dtype), table),
        table_of(OUTSIDE),
        TOKENS,
    ),
    "gather in batches": Row(
        lambda table, ids: gather(table, ids, table.shape.get_dim_by_name("n")),
        in_batches,
        {
            "table": normal("d:3;b:4;n:8;c:2"),
            "ids": ("m:6;c:2;b:4", np.random.default_rng(2).integers(0, 8, (6, 2, 4))),
        },
        [*WHOLE, ("x:2", "b:x"), ("x:4", "n:x"), ("x:2;y:2", "b:x;n:y"), ("x:2;y:2", "m:x;n:y")],
    ),
}
# In bfloat16, a sum of ones would stop at 256; in float16, at 2048.
for dtype in (tf.bfloat16, tf.float16):
    TABLE[f"gather of one row 4096 times, {dtype.name}"] = Row(
        look_up,
        tf.gather,
        table_of(np.full((64, 64), 5)),
        [("model:4", ""), ("model:4", "vocab:model")],
        0.0,
        2**-8,
        dtype,
    )


def written(x, update, positions):
    return scatter_update(x, update, positions, x.shape.get_dim_by_name("length"))


def tf_written(x, update, positions):
    is_there = tf.range(8)[None] == positions[:, None]
    shape = [4] + [1] * (len(x.shape) - 3) + [8, 1]
    return tf.where(tf.reshape(is_there, shape), tf.expand_dims(update, -2), x)


PLACES = {"positions": ("batch:4", np.array([0, 7, 3, 3]))}
for beam in ("", "beam:3;"):
    TABLE["scatter_update" + beam] = Row(
        written,
        tf_written,
        {
            "x": normal(f"batch:4;{beam}heads:2;length:8;d_kv:4"),
            "update": normal(f"batch:4;{beam}heads:2;d_kv:4", seed=1),
            **PLACES,
        },
        [
            *WHOLE,
            ("a:2;b:2", "batch:a;heads:b"),
            ("a:4", "length:a"),
            ("a:2;b:2", "batch:a;length:b"),
            ("a:2;b:2", "length:a;d_kv:b"),
        ],
    )

# Rotary positions: elements i and i + 4 form a complex number, multiplied by exp(i * angle).
BASE, SCALING = 100.0, RotaryScaling(8.0, original_length=100)


def turned(turns):
    def reference(x, positions):
        angle = tf.cast(positions, tf.float64)[:, None, ..., None] * tf.constant(turns)
        z = tf.complex(x[..., :4], x[..., 4:]) * tf.exp(tf.complex(tf.zeros_like(angle), angle))
        return tf.concat([tf.math.real(z), tf.math.imag(z)], -1)

    return reference


TURNS = BASE ** (-np.arange(4) / 4)
for name, scaling, length, layouts in (
    ("rotary", None, "length:6;", [("a:2;b:2", "batch:a;heads:b"), ("a:2", "length:a")]),
    ("rotary of a step", None, "", [("a:2;b:2", "batch:a;heads:b")]),
    ("rotary, scaled", SCALING, "length:6;", []),
):
    sizes = [4, 6] if length else [4]
    TABLE[name] = Row(
        functools.partial(rotary, base=BASE, scaling=scaling),
        turned(scaling(TURNS) if scaling else TURNS),
        {
            "x": normal(f"batch:4;heads:2;{length}d_kv:8"),
            "positions": (
                f"batch:4;{length}"[:-1],
                np.random.default_rng(0).integers(0, 50, sizes),
            ),
        },
        [*WHOLE, *layouts],
        5e-6 if scaling else 2e-6,
    )


# Cross-entropy; the reference has explicit soft targets.
def loss(**options):
    def op(logits, targets):
        vocab = logits.shape.get_dim_by_name("vocab")
        return softmax_cross_entropy(logits, targets, vocab, **options)

    return op


def tf_loss(z_loss=0.0, label_smoothing=0.0, vocab_axis=-1):
    def reference(logits, targets):
        logits = tf.experimental.numpy.moveaxis(logits, vocab_axis, -1)
        log_z = tf.reduce_logsumexp(logits, axis=-1)
        classes = logits.shape[-1]
        low = label_smoothing / max(classes - 1, 1)
        soft = tf.one_hot(targets, classes, 1 - label_smoothing, low, dtype=tf.float64)
        loss = -tf.reduce_sum(soft * (logits - log_z[..., None]), axis=-1)
        entropy = -tf.reduce_sum(tf.math.xlogy(soft, soft), axis=-1)
        return loss - entropy + z_loss * log_z**2

    return reference


def logits_of(batch=8, length=4, vocab=16, scale=3.0, mean=0.0):
    words, logits = normal(f"batch:{batch};length:{length};vocab:{vocab}", scale)
    targets = np.resize(BORDERS, batch * length).reshape(batch, length) % vocab
    return {
        "logits": (words, logits + mean),
        "targets": (f"batch:{batch};length:{length}", targets),
    }


for options in (
    {},
    {"z_loss": 0.3},
    {"label_smoothing": 0.2},
    {"z_loss": 0.3, "label_smoothing": 0.2},
):
    name = ", ".join(["cross entropy", *options])
    # The mean moves log(Z) away from 0.
    TABLE[name] = Row(loss(**options), tf_loss(**options), logits_of(mean=5.0), TOKENS)
TABLE |= {
    "cross entropy of odd sizes": Row(loss(), tf_loss(), logits_of(2, 3, 9), ODD),
    # The loss is float32; its gradient is a rounded product of two rounded numbers.
    "cross entropy, bfloat16": Row(
        loss(), tf_loss(), logits_of(), [*WHOLE, *SPLIT], 2e-6, 3 * 2**-8, tf.bfloat16
    ),
    "cross entropy of extreme logits": Row(
        loss(), tf_loss(), logits_of(scale=1e4), [*WHOLE, ("model:4", "vocab:model")], 1e-6
    ),
    "cross entropy, vocabulary in the middle": Row(
        loss(),
        tf_loss(vocab_axis=1),
        {"logits": normal("batch:8;vocab:16;length:4", 3.0), "targets": logits_of()["targets"]},
        SPLIT,
    ),
}

# Norms. Epsilon is large, so that a wrong epsilon is noticed.
EPSILON, GROUPS = 0.1, 4


def normalized(x, axes):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) / tf.sqrt(variance + EPSILON)


def in_groups(x):
    return tf.reshape(normalized(tf.reshape(x, [*x.shape[:3], GROUPS, -1]), [1, 2, 4]), x.shape)


def root_mean_square(x):
    return x / tf.sqrt(tf.reduce_mean(x**2, axis=-1, keepdims=True) + EPSILON)


def of_norm(words, layouts, bfloat16, scale=2.0, mean=0.0):
    """Returns the inputs of a norm, and the layouts to try."""
    words, x = normal(words, scale)
    dim, size = words.split(";")[-1], x.shape[-1]
    vectors = np.random.default_rng(0).uniform(0.5, 1.5, size=(2, size))
    inputs = {"x": (words, x + mean), "scale": (dim, vectors[0]), "bias": (dim, vectors[1])}
    return inputs, layouts, *((3 * 2**-8, 0.0, tf.bfloat16) if bfloat16 else (3e-6,))


IMAGE, SENTENCE = "batch:8;height:4;width:6;channels:8", "batch:8;length:4;d_model:16"
NORMS = {
    "batch norm": (
        lambda x, scale, bias: batch_norm(x, scale, bias, EPSILON)[0],
        lambda x, scale, bias: normalized(x, [0, 1, 2]) * scale + bias,
    ),
    "group norm": (
        lambda x, scale, bias: group_norm(x, scale, bias, GROUPS, EPSILON),
        lambda x, scale, bias: in_groups(x) * scale + bias,
    ),
    "layer norm": (
        lambda x, scale, bias: layer_norm(x, scale, bias, last(x), EPSILON),
        lambda x, scale, bias: normalized(x, [-1]) * scale + bias,
    ),
    "rms norm": (
        lambda x, scale, bias: rms_norm(x, scale, last(x), EPSILON) + bias,
        lambda x, scale, bias: root_mean_square(x) * scale + bias,
    ),
}
for name, both in NORMS.items():
    words, layouts = (IMAGE, IMAGES) if name in ("batch norm", "group norm") else (SENTENCE, NORMED)
    TABLE[name] = Row(*both, *of_norm(words, layouts, False, mean=0.7))
    TABLE[f"{name}, bfloat16"] = Row(*both, *of_norm(words, layouts[-2:-1], True, mean=0.7))
    if words is SENTENCE:
        SPLIT_NORM = [("model:2", "d_model:model")]
        TABLE[f"{name} of a vector"] = Row(*both, *of_norm("d_model:16", SPLIT_NORM, False))
        for scale in (0.0, 1e-4, 1e4):
            TABLE[f"{name} of {scale}"] = Row(*both, *of_norm(words, SPLIT_NORM, False, scale))


def norm_of_two(x, scale, bias):
    scale = mtf.broadcast(scale, mtf.Shape(x.shape.dims[1:]))
    return rms_norm(x, scale, x.shape.dims[1:], EPSILON) + bias


TABLE["rms norm of two dimensions"] = Row(
    norm_of_two,
    lambda x, scale, bias: (
        x / tf.sqrt(tf.reduce_mean(x**2, [1, 2], keepdims=True) + EPSILON) * scale + bias
    ),
    *of_norm(SENTENCE, [("a:2", "length:a"), ("a:2;b:2", "length:a;d_model:b")], False),
)

# Convolutions and pooling.
SPACE: Layouts = [
    *WHOLE,
    ("data:2", "batch:data"),
    ("rows:2", "height:rows"),
    ("rows:4", "height:rows"),
    ("columns:4", "width:columns"),
    ("rows:4;columns:2", "height:rows;width:columns"),
    ("model:2", "channels:model"),
    ("model:2", "filters:model"),
    ("a:2;b:2", "channels:a;filters:b"),
    ("data:2;rows:2;model:2", "batch:data;height:rows;filters:model"),
    ("a:2;b:2;c:2", "height:a;width:b;channels:c"),
]
# Height and width of the kernel, and strides.
KERNELS = [(3, 3, 1, 1), (3, 3, 2, 2), (1, 1, 2, 2), (5, 2, 1, 2), (4, 3, 2, 1), (2, 2, 2, 2)]
UNEVEN = [(7, 5), (1, 9), (6, 13)]


def convolved(rows, columns, strides, layouts, height=16, width=16, **exactness):
    return Row(
        functools.partial(convolution, stride=tuple(strides)),
        lambda x, filters: tf.nn.conv2d(x, filters, strides, "SAME"),
        {
            "x": normal(f"batch:2;height:{height};width:{width};channels:4"),
            "filters": normal(f"rows:{rows};columns:{columns};channels:4;filters:6", seed=1),
        },
        layouts,
        **exactness,
    )


for mesh_shape, layout, rows, columns, *strides in in_turn(SPACE, KERNELS):
    name = f"convolution {rows}x{columns} by {strides} {layout}"
    TABLE[name] = convolved(rows, columns, strides, [(mesh_shape, layout)])
for height, width, rows, columns, *strides in in_turn(UNEVEN, [(3, 3, 2, 2), (7, 7, 2, 3)]):
    name = f"convolution {rows}x{columns} by {strides} of {height}x{width}"
    TABLE[name] = convolved(rows, columns, strides, [("model:2", "filters:model")], height, width)
TABLE |= {
    "convolution over three slices": convolved(
        3, 5, [1, 1], [("a:3;b:2", "width:a;height:b")], 12, 18
    ),
    "convolution over all of a neighbour": convolved(
        9, 9, [1, 1], [("a:4;b:2", "height:a;width:b")]
    ),
    # With few channels, TensorFlow's CPU kernel sums in bfloat16.
    "convolution, bfloat16": convolved(
        3, 3, [1, 1], [("rows:2", "height:rows")], tolerance=8 * 2**-8, dtype=tf.bfloat16
    ),
    "convolution with two batch dimensions": Row(
        convolution,
        lambda x, filters: tf.reshape(
            tf.nn.conv2d(tf.reshape(x, [6, 8, 8, 4]), filters, 1, "SAME"), [2, 3, 8, 8, 6]
        ),
        {
            "x": normal("a:2;b:3;height:8;width:8;channels:4"),
            "filters": normal("rows:3;columns:3;channels:4;filters:6", seed=1),
        },
        [("rows:2;data:2", "height:rows;a:data")],
    ),
}
for rank, kind, reference, strides in (
    (2, mtf.Conv2dTransposeOperation, tf.nn.conv2d_transpose, [1, 2, 2, 1]),
    (3, mtf.Conv3dTransposeOperation, tf.nn.conv3d_transpose, [1, 1, 2, 2, 1]),
):
    sizes = [2, *(4 * stride for stride in strides[1:-1]), 8]
    places = ";".join(f"{name}:4" for name in "dhw"[-rank:])
    windows = ";".join(f"window_{i}:3" for i in range(rank))
    TABLE[f"transposed convolution of {rank} dimensions"] = Row(
        lambda x, w, kind=kind, strides=strides: kind(x, w, strides, "SAME").outputs[0],
        lambda x, w, reference=reference, strides=strides, sizes=sizes: reference(
            x, w, sizes, strides, "SAME"
        ),
        {
            "x": normal(f"batch:2;{places};channels:6"),
            "w": normal(f"{windows};filters:8;channels:6"),
        },
        [
            ("x:2;y:2", layout)
            for layout in ("filters:x", "channels:x", "filters:x;batch:y", "channels:y")
        ],
        1e-5,
    )


def pooled(size, stride, layouts, x=None, **exactness):
    if x is None:  # negative elements, so that padding by 0 is noticed
        words, x = normal("batch:2;height:16;width:16;channels:4")
        x = words, x - 3.0
    return Row(
        lambda x: max_pool(x, size, stride),
        lambda x: tf.nn.max_pool2d(x, size, stride, "SAME"),
        {"x": x},
        layouts,
        **exactness,
    )


POOLED: Layouts = [
    *WHOLE,
    ("data:2;model:2", "batch:data;channels:model"),
    ("rows:4", "height:rows"),
    ("columns:4;rows:2", "height:rows;width:columns"),
    ("data:2;columns:2", "batch:data;width:columns"),
]
for size, stride in ((2, 2), (3, 1)):
    TABLE[f"pooling {size} by {stride}"] = pooled(size, stride, POOLED)
    uneven = normal("batch:2;height:7;width:5;channels:4")
    TABLE[f"pooling {size} by {stride} of odd sizes"] = pooled(size, stride, WHOLE, uneven)
TABLE["pooling, float64"] = pooled(3, 2, POOLED[::2], **FLOAT64)
# The first of several equal elements gets the gradient, also if they are in two slices.
TABLE["pooling of equals"] = pooled(
    3, 2, [("rows:4", ""), ("rows:4", "height:rows")],
    ("batch:1;height:8;width:8;channels:1", np.ones([1, 8, 8, 1])),
)  # fmt: skip


LAID_OUT = [(name, *layout) for name, row in TABLE.items() for layout in row.layouts]


@pytest.mark.parametrize(("operation", "mesh_shape", "layout"), LAID_OUT)
def test_any_layout_gives_the_references_value_and_gradients(operation, mesh_shape, layout):
    row = TABLE[operation]
    ours = with_gradients(by_place(row.op), row.inputs, mesh_shape, layout, row.dtype)
    wanted = in_float64(by_place(row.reference), row.inputs, row.dtype)
    assert_close({"y": ours.pop("y")}, {"y": wanted.pop("y")}, row.tolerance)
    assert_close(ours, wanted, row.d_tolerance or row.tolerance)


@pytest.mark.parametrize("operation", [name for name in TABLE if name.startswith("pooling")])
def test_poolings_gradient_in_xla(operation):
    row = TABLE[operation]
    ours = with_gradients(by_place(row.op), row.inputs, "", "", row.dtype, xla=True)
    assert_close(ours, in_float64(by_place(row.reference), row.inputs, row.dtype), row.tolerance)
