"""Convolution: TensorFlow's values and gradients, however images and channels are split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import LayoutError
from t2tp.ops.conv.convolution import convolution
from tests.cases import in_turn
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:2", "batch:data"),
    ("rows:2", "height:rows"),
    ("rows:4", "height:rows"),
    ("columns:4", "width:columns"),
    ("rows:2;columns:2", "height:rows;width:columns"),
    ("rows:4;columns:2", "height:rows;width:columns"),
    ("model:2", "channels:model"),
    ("model:2", "filters:model"),
    ("a:2;b:2", "channels:a;filters:b"),
    ("data:2;rows:2;model:2", "batch:data;height:rows;filters:model"),
    ("a:2;b:2;c:2", "height:a;width:b;channels:c"),
]
# (height, width) of the kernel, strides
KERNELS = [
    ((3, 3), (1, 1)),
    ((3, 3), (2, 2)),
    ((1, 1), (2, 2)),
    ((5, 2), (1, 2)),
    ((4, 3), (2, 1)),
    ((2, 2), (2, 2)),
]


def make_inputs(kernel, height=16, width=16):
    random = np.random.default_rng(0)
    return {
        "x": (
            f"batch:2;height:{height};width:{width};channels:4",
            random.normal(size=(2, height, width, 4)),
        ),
        "filters": (
            f"kernel_height:{kernel[0]};kernel_width:{kernel[1]};channels:4;filters:6",
            random.normal(size=(*kernel, 4, 6)),
        ),
    }


def ours(stride):
    return lambda x, filters: convolution(x, filters, stride)


def tensorflows(stride):
    return lambda x, filters: tf.nn.conv2d(x, filters, stride, "SAME")


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "kernel", "stride"), in_turn(LAYOUTS, KERNELS, times=3)
)
def test_any_layout_gives_tensorflows_values_and_gradients(mesh_shape, layout, kernel, stride):
    inputs = make_inputs(kernel)
    values = with_gradients(ours(stride), inputs, mesh_shape, layout)
    assert_close(values, in_float64(tensorflows(stride), inputs), 2e-6)


@pytest.mark.parametrize(("height", "width"), [(7, 5), (1, 9), (6, 13)])
@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), (2, 2)), ((7, 7), (2, 3)), ((1, 1), (2, 2))]
)
def test_sizes_that_the_stride_does_not_divide(height, width, kernel, stride):
    inputs = make_inputs(kernel, height, width)
    values = with_gradients(ours(stride), inputs, "model:2", "filters:model")
    assert_close(values, in_float64(tensorflows(stride), inputs), 2e-6)


def test_three_slices_meet_too():
    inputs = make_inputs((3, 5), 12, 18)
    values = with_gradients(ours((1, 1)), inputs, "a:3;b:2", "width:a;height:b")
    assert_close(values, in_float64(tensorflows((1, 1)), inputs), 2e-6)


def test_a_window_may_see_the_whole_of_a_neighbours_slice():
    inputs = make_inputs((9, 9))
    values = with_gradients(ours((1, 1)), inputs, "a:4;b:2", "height:a;width:b")
    assert_close(values, in_float64(tensorflows((1, 1)), inputs), 2e-6)


def test_bfloat16():
    """For a few channels TensorFlow's kernel for CPUs adds up in bfloat16."""
    inputs = make_inputs((3, 3))
    values = with_gradients(ours(1), inputs, "rows:2", "height:rows", tf.bfloat16)
    assert_close(values, in_float64(tensorflows(1), inputs, tf.bfloat16), 8 * 2**-8)


def test_several_batch_dimensions():
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8, 4))
    inputs = make_inputs((3, 3)) | {"x": ("a:2;b:3;height:8;width:8;channels:4", x)}

    def of_each(x, filters):
        y = tf.nn.conv2d(tf.reshape(x, [6, 8, 8, 4]), filters, 1, "SAME")
        return tf.reshape(y, [2, 3, 8, 8, 6])

    values = with_gradients(ours(1), inputs, "rows:2;data:2", "height:rows;a:data")
    assert_close(values, in_float64(of_each, inputs), 2e-6)


def program(mesh_shape, layout, kernel, stride, height=16):
    inputs = make_inputs(kernel, height)
    features = {name: t2tp.Feature(shape) for name, (shape, _) in inputs.items()}

    def step(mesh, given):
        del mesh
        y = convolution(given["x"], given["filters"], stride)
        return {"d": mtf.gradients([y], [given["filters"]])[0]}

    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)


def test_neighbours_exchange_just_their_edges():
    """To each neighbour one row of 16 columns and 4 channels for 2 images, forward for the filters'
    gradient only: nobody asks for the result. The image's own gradient costs nothing either."""
    row = 2 * 16 * 4 * 4
    collectives = program("rows:4", "height:rows", (3, 3), 1).collectives()
    assert collectives[("permute", ("rows",))] == (2, 2 * row)
    one_way = program("rows:2", "height:rows", (3, 3), 1).collectives()
    assert one_way[("permute", ("rows",))] == (2, 2 * row)
    assert ("permute", ("rows",)) not in program("rows:4", "height:rows", (1, 1), 1).collectives()


def test_slices_shorter_than_the_window_needs_are_refused():
    message = (
        "Convolution 'convolution' along 'height' needs 3 from the neighbouring slices, and mesh"
        " axis 'rows' of size 8 splits its 16 into slices of 2. Sizes of the axis that would work:"
        " 1, 2, 4. Or drop the rule 'height:rows', or rename the dimension before this operation."
    )
    with pytest.raises(LayoutError) as error:
        program("rows:8", "height:rows", (7, 7), 1)
    assert str(error.value) == message


def test_a_stride_that_does_not_divide_the_slices_is_refused():
    with pytest.raises(LayoutError, match="goes by 3, and .* slices of 5.* that would work: 1. Or"):
        program("rows:2", "height:rows", (3, 3), 3, height=10)


def test_a_split_kernel_is_refused():
    with pytest.raises(
        LayoutError, match="cannot be computed with dimension 'kernel_height' split"
    ):
        program("model:2", "kernel_height:model", (2, 2), 1)


@pytest.mark.parametrize(
    ("filters", "stride", "message"),
    [
        ("kernel_height:3;kernel_width:3;other:4;filters:6", 1, "must be the last one of x"),
        ("kernel_height:3;kernel_width:3;channels:4", 1, r"filters .* \[kernel_height"),
        ("kernel_height:3;kernel_width:3;channels:4;filters:6", 0, "strides must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(filters, stride, message):
    def step(mesh, given):
        del mesh
        return {"y": convolution(given["x"], given["filters"], stride)}

    features = {
        "x": t2tp.Feature("batch:2;height:8;width:8;channels:4"),
        "filters": t2tp.Feature(filters),
    }
    with pytest.raises(ValueError, match=message):
        t2tp.Program(step, features)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("layout", ["filters:x", "channels:x", "filters:x;batch:y", "channels:y"])
def test_transposed_convolutions_with_split_channels(rank, layout):
    places = ";".join(f"{name}:4" for name in "dhw"[-rank:])
    windows = ";".join(f"window_{i}:3" for i in range(rank))
    random = np.random.default_rng(0)
    given = {
        "x": (f"batch:2;{places};channels:6", random.normal(size=(2, *[4] * rank, 6))),
        "w": (f"{windows};filters:8;channels:6", random.normal(size=(*[3] * rank, 8, 6))),
    }
    kind, theirs, strides = (
        (mtf.Conv2dTransposeOperation, tf.nn.conv2d_transpose, [1, 2, 2, 1])
        if rank == 2
        else (mtf.Conv3dTransposeOperation, tf.nn.conv3d_transpose, [1, 1, 2, 2, 1])
    )

    def op(x, w):
        return kind(x, w, strides, "SAME").outputs[0]

    def composed(x, w):
        sizes = [2, *(4 * stride for stride in strides[1:-1]), 8]
        return theirs(x, w, sizes, strides, "SAME")

    ours = with_gradients(op, given, "x:2;y:2", layout)
    assert_close(ours, in_float64(composed, given), 1e-5)
