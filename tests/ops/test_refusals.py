"""Operations refuse wrong arguments and layouts with messages that name the error."""

import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.conv.pooling import max_pool
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.gather import gather
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from t2tp.ops.norms.layer_norm import layer_norm, rms_norm
from t2tp.ops.rotary import RotaryScaling, rotary
from t2tp.ops.scatter_update import scatter_update
from tests.ops.on_mesh import normal, with_gradients

X = {"x": "a:4;b:3"}
PRODUCT = {"x": "batch:2;d_model:4", "w": "d_model:5;d_ff:3"}
FITS = {"x": "batch:2;d_model:4", "w": "d_model:4;d_ff:3"}
SIZES = (
    r"dimension 'd_model' has size 4 in 'x' \[batch=2, d_model=4\] and size 5 in 'w'"
    r" \[d_model=5, d_ff=3\]"
)
OUTPUT = mtf.convert_to_shape("batch:2;d_ff:3")
TABLE = {"x": "vocab:16;d_model:8", "ids": "batch:8;length:4"}
LOGITS = {"x": "batch:4;length:4;vocab:4", "ids": "batch:4;length:4"}
CACHE = {
    "x": "batch:4;heads:2;length:8;d_kv:4",
    "update": "batch:4;heads:2;d_kv:4",
    "ids": "batch:4",
}
IMAGES = {"x": "batch:2;height:16;width:8;channels:4"}
KERNEL = IMAGES | {"w": "rows:3;columns:3;channels:4;filters:6"}
NORM = {"x": "batch:2;height:4;width:4;channels:8", "s": "channels:8"}
NOWHERE = mtf.Dimension("z", 2)


def look_up(x, ids):
    return gather(x, ids, x.shape.dims[0])


def loss(x, ids, **options):
    return softmax_cross_entropy(x, ids, x.shape.dims[-1], **options)


def write(x, update, ids):
    return scatter_update(x, update, ids, x.shape.get_dim_by_name("length"))


def scaled_rotary(x, ids):
    return rotary(x, ids, scaling=RotaryScaling(8.0, low_freq_factor=4, high_freq_factor=4))


# Operation, shapes ("ids" are integers), part of the message, and optionally a mesh and a layout.
REFUSED = {
    "cumsum": (lambda x: mtf.cumsum(x, NOWHERE), X, "has no dimension"),
    "unstack": (lambda x: mtf.unstack(x, NOWHERE)[0], X, "has no dimension"),
    "softmax": (lambda x: mtf.softmax(x, NOWHERE), X, "no dimension of"),
    "slice": (lambda x: mtf.slice(x, 0, 1, "c"), X, "has no dimension 'c'"),
    **{
        f"slice {begin}, {size}": (
            lambda x, begin=begin, size=size: mtf.slice(x, begin, size, "a"), X,
            "'a', which has 4 in 'x:0': .* within 0 to 4",
        )
        for begin, size in [(2, 5), (-1, 2), (4, 1), (1, -1)]
    },
    **{
        f"dropout {rates}": (lambda x, rates=rates: mtf.dropout(x, True, **rates), X, "dropout")
        for rates in ({}, {"rate": 0.1, "keep_prob": 0.9}, {"rate": 1.5})
    },
    "mean of integers": (lambda ids: mtf.reduce_mean(ids), {"ids": "a:4"}, "is int32.* mtf.cast"),
    "mean of nothing": (mtf.reduce_mean, {"x": "a:0;b:3"}, "is empty, and has no mean"),
    # Dimensions of one name with different sizes: the message names both tensors.
    "einsum": (lambda x, w: mtf.einsum([x, w]), PRODUCT, f"einsum: {SIZES}"),
    "einsum, output": (lambda x, w: mtf.einsum([x, w], OUTPUT), PRODUCT, f"einsum: {SIZES}"),
    "einsum, reduced": (
        lambda x, w: mtf.einsum([x, w], reduced_dims=[x.shape.dims[1]]), PRODUCT,
        f"einsum: {SIZES}",
    ),
    "matmul": (lambda x, w: mtf.matmul(x, w, output_shape=OUTPUT), PRODUCT, f"einsum: {SIZES}"),
    "add": (mtf.add, PRODUCT, f"add: {SIZES}"),
    "multiply": (mtf.multiply, PRODUCT, f"einsum: {SIZES}"),
    "where, sizes": (
        lambda x, w: mtf.where(mtf.greater(x, 0.0), x, w), {"x": "d:4", "w": "d:6"},
        "where: dimension 'd' has size 4 in",
    ),
    "einsum, output's size": (
        lambda x, w: mtf.einsum([x, w], mtf.convert_to_shape("batch:2;d_ff:4")), FITS,
        "'d_ff' has size 4 in output_shape, and size 3 in 'w'",
    ),
    "einsum, reduced size": (
        lambda x, w: mtf.einsum([x, w], reduced_dims=[mtf.Dimension("d_model", 5)]), FITS,
        "'d_model' has size 5 in reduced_dims, and size 4 in 'x'",
    ),
    "dense of mesh-tensorflow": (
        lambda x: mtf.layers.dense(
            x, reduced_dims=[mtf.Dimension("d_model", 5)], new_dims=[mtf.Dimension("d_ff", 3)]
        ),
        {"x": FITS["x"]}, "einsum: dimension 'd_model' has size",
    ),
    "where of numbers": (lambda x: mtf.where(x, x, x), X, "takes booleans"),
    "where of two dtypes": (
        lambda x: mtf.where(mtf.equal(x, 1.0), x, mtf.cast(x, tf.int32)), X, "float32 and int32"
    ),
    "where, lacking": (
        lambda x: mtf.where(mtf.equal(x, 1.0), x, x, output_shape=mtf.Shape(x.shape.dims[1:])), X,
        "lacks",
    ),
    "gather along nothing": (lambda x, ids: gather(x, ids, NOWHERE), TABLE, "has no dimension"),
    "gather by floats": (
        lambda x, ids: look_up(x, mtf.to_float(ids)), TABLE, "must be integers"
    ),
    **{
        f"gather, {layout}": (
            look_up, TABLE, f"both its dimensions '{dim}' and 'vocab'", "a:2", layout
        )
        for dim, layout in [("batch", "batch:a;vocab:a"), ("length", "vocab:a;length:a")]
    },
    "loss of other targets": (loss, LOGITS | {"ids": "batch:4"}, "do not have the dimensions of"),
    **{
        f"loss, {options}": (
            lambda x, ids, options=options: loss(x, ids, **options),
            {"x": f"batch:4;vocab:{vocab}", "ids": "batch:4"}, message,
        )
        for options, vocab, message in [
            ({"z_loss": -1e-4}, 4, "z_loss is -0.0001, and must be at least 0"),
            ({"label_smoothing": 1.0}, 4, "label_smoothing is 1.0, and must be .* below 1"),
            ({"label_smoothing": 0.1}, 1, "at least two classes"),
        ]
    },
    "update of another order": (
        write, CACHE | {"update": "batch:4;d_kv:4;heads:2"}, "the dimensions of x"
    ),
    "update of another dtype": (
        lambda x, update, ids: write(x, mtf.cast(update, tf.float16), ids), CACHE,
        "must be float32",
    ),
    "update behind the length": (
        write, {"x": "length:8;batch:4", "update": "batch:4", "ids": "batch:4"},
        "which come before it",
    ),
    "rotary of an odd size": (rotary, {"x": "batch:4;d_kv:7", "ids": "batch:4"}, "must be even"),
    "rotary of other rows": (rotary, {"x": "batch:4;d_kv:8", "ids": "row:4"}, "are among"),
    "rotary scaling": (
        scaled_rotary, {"x": "batch:4;d_kv:8", "ids": "batch:4"},
        "rotary_low_freq_factor is 4, and must be below",
    ),
    "rotary, pairs split": (
        rotary, {"x": "batch:4;d_kv:8", "ids": "batch:4"}, "d_kv", "a:2", "d_kv:a"
    ),
    "convolution of other channels": (
        convolution, KERNEL | {"w": "rows:3;columns:3;other:4;filters:6"},
        "must be the last one of x",
    ),
    "convolution by three dimensions": (
        convolution, KERNEL | {"w": "rows:3;columns:3;channels:4"}, r"filters .*\[rows"
    ),
    "convolution by 0": (lambda x, w: convolution(x, w, 0), KERNEL, "must be at least 1"),
    "convolution, a split kernel": (
        convolution, KERNEL | {"w": "rows:2;columns:2;channels:4;filters:6"},
        "cannot be computed with dimension 'rows' split", "model:2", "rows:model",
    ),
    "convolution, short slices": (
        convolution, KERNEL | {"w": "rows:7;columns:7;channels:4;filters:6"},
        "'convolution' along 'height' needs 3 .* axis 'a' of size 8 splits its 16 into slices of 2."
        " .*: 1, 2, 4. Or drop the rule 'height:a'", "a:8", "height:a",
    ),
    "convolution, uneven slices": (
        lambda x, w: convolution(x, w, 3), KERNEL | {"x": "batch:2;height:10;width:8;channels:4"},
        "goes by 3, and .* slices of 5.* that would work: 1. Or", "a:2", "height:a",
    ),
    "pooling, uneven slices": (
        lambda x: max_pool(x, 3, 3), {"x": "batch:2;height:10;width:8;channels:4"},
        "Pooling 'max_pool' along 'height' goes by 3", "a:2", "height:a",
    ),
    "pooling of 0": (lambda x: max_pool(x, 0, 1), IMAGES, "must be at least 1"),
    "batch norm of other channels": (
        lambda x, s: batch_norm(x, s, s, 0.1)[0], NORM | {"s": "other:8"},
        "must be its last dimension",
    ),
    "group norm of other channels": (
        lambda x, s: group_norm(x, s, s, 4, 0.1), NORM | {"s": "other:8"},
        "scale .* must|group_norm",
    ),
    "group norm of 3 groups": (
        lambda x, s: group_norm(x, s, s, 3, 0.1), NORM,
        "3 groups do not divide .*channels.*: 2, 4, 1 would",
    ),
    "group norm, split groups": (
        lambda x, s: group_norm(x, s, s, 4, 0.1), NORM,
        "size 8 does not divide them: choose a multiple of 8", "a:8", "channels:a",
    ),
    "rms norm in another order": (
        lambda x, s: rms_norm(x, s, x.shape.dims[::-1], 0.1), {"x": "a:4;b:4", "s": "b:4;a:4"},
        "must have them in this order",
    ),
    "layer norm of the first": (
        lambda x, s: layer_norm(x, s, s, x.shape.dims[0]), {"x": "a:4;b:4", "s": "a:4"},
        "must end in it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("operation", REFUSED)
def test_what_does_not_fit_is_refused(operation):
    op, shapes, message, *mesh = REFUSED[operation]
    inputs = {
        name: (shape, normal(shape)[1].astype(int) if name == "ids" else normal(shape)[1])
        for name, shape in shapes.items()
    }
    with pytest.raises(t2tp.LayoutError if mesh else ValueError, match=message):
        with_gradients(lambda **tensors: op(*tensors.values()), inputs, *mesh)
