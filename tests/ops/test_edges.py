"""Operations on NaN, infinities, indices out of range, and equal elements."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.scatter_update import scatter_update
from tests.ops.on_mesh import assert_close, normal, with_gradients


def run(op, mesh_shape="", layout="", xla=None, **tensors):
    """Returns the outputs of `op(**tensors)`. Each tensor is given as (shape as text, array)."""
    features = {
        name: t2tp.Feature(words, tf.float32 if x.dtype == np.float64 else x.dtype)
        for name, (words, x) in tensors.items()
    }
    program = t2tp.Program(
        lambda mesh, given: op(**given), features, mesh_shape=mesh_shape, layout=layout, xla=xla
    )
    return program({name: x for name, (_, x) in tensors.items()})


@pytest.mark.parametrize("layout", ["", "b:x"])
def test_infinite_logits(layout):
    """The result of a row of -inf is log(0), with gradient 0. With an inf, the result is inf."""

    def op(x):
        y = mtf.reduce_logsumexp(x, x.shape.dims[-1])
        return {"y": y, "dx": mtf.gradients([y], [x])[0]}

    x = np.array([[-np.inf] * 4, [0.0, -np.inf, 0.0, 0.0], [0.0, np.inf, 1.0, 2.0]])
    outputs = run(op, "x:2", layout, x=("a:3;b:4", x))
    np.testing.assert_allclose(outputs["y"], [-np.inf, np.log(3.0), np.inf], rtol=1e-6)
    third = 1 / 3
    np.testing.assert_allclose(outputs["dx"][:2], [[0] * 4, [third, 0, third, third]], rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"z_loss": 0.3, "label_smoothing": 0.2}])
@pytest.mark.parametrize("target", [-1, 16])
@pytest.mark.parametrize("mesh_shape", ["", "model:4"])
def test_a_target_that_is_no_class_never_gives_a_number(mesh_shape, target, options):
    def op(logits, targets):
        return softmax_cross_entropy(logits, targets, logits.shape.dims[-1], **options)

    targets = np.resize(np.arange(16), 32).reshape(8, 4)
    inputs = {
        "logits": normal("batch:8;length:4;vocab:16"),
        "targets": ("batch:8;length:4", targets),
    }
    wanted = with_gradients(op, inputs)
    inputs["targets"][1][3, 2] = target
    values = with_gradients(op, inputs, mesh_shape, "vocab:model")
    for name, value in values.items():
        assert np.isnan(value[3, 2]).all()
        rest = np.arange(8) != 3
        np.testing.assert_allclose(value[rest], wanted[name][rest], rtol=0, atol=2e-5)


@pytest.mark.parametrize("mesh_shape", ["", "x:2", "x:4", "x:7"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32])
def test_padding_is_never_among_the_largest(mesh_shape, dtype):
    """All elements are negative, and padding is 0."""

    def op(x):
        x = mtf.cast(x, dtype)
        vocab = x.shape.dims[1]
        return {"first": mtf.argmax(x, vocab), "places": mtf.top_k(x, vocab, ("k", 6))[1]}

    x = -np.random.default_rng(0).permuted(np.tile(np.arange(1, 10), (4, 1)), axis=1)
    values = run(op, mesh_shape, "vocab:x", x=("a:4;vocab:9", x.astype(np.int32)))
    np.testing.assert_array_equal(values["first"], x.argmax(1))
    np.testing.assert_array_equal(values["places"], (-x).argsort(1)[:, :6])


def test_what_where_does_not_choose_does_not_show():
    inputs = {"a": normal("a:4;b:8"), "b": normal("b:8"), "c": ("a:4", np.array([0, 1, 1, 0]))}
    inputs["a"][1][0] = np.nan
    inputs["b"][1][3] = np.inf
    values = with_gradients(lambda a, b, c: mtf.where(mtf.equal(c, 1), a, b), inputs, "x:2", "a:x")
    assert np.isfinite(values["y"][0]).sum() == 7  # b, which has one infinity in this row
    assert np.isfinite(values["y"][1:3]).all()
    assert np.isfinite(values["d_a"]).all() and np.isfinite(values["d_b"]).all()
    assert not values["d_a"][0].any()


def test_an_infinite_gradient_does_not_reach_the_branch_that_is_not_chosen():
    def op(x):
        y = mtf.where(mtf.greater(x, 0.0), x, 1.0)
        return {"dx": mtf.gradients([y], [x], [mtf.reciprocal(x * 0.0)])[0]}

    dx = run(op, x=("a:2", np.array([-1.0, 1.0])))["dx"]
    np.testing.assert_array_equal(dx, [0, np.inf])


def row(weights, number, xla=False, is_checked=True):
    """Looks up row `number` of `weights`."""
    return run(
        lambda w, i: {"y": mtf.gather(w, i, w.shape.dims[0], is_checked=is_checked)},
        xla=xla,
        w=("n:4;d:2", weights),
        i=(mtf.Shape([]), np.array(number)),
    )["y"]


@pytest.mark.parametrize("number", [-1, 4])
def test_an_index_out_of_range_is_refused_or_gives_what_is_in_no_table(number):
    """XLA cannot raise an error, so the row is NaN or the smallest integer."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be in \[0, 4\)"):
        row(np.ones((4, 2)), number)
    assert np.isnan(row(np.ones((4, 2)), number, xla=True)).all()
    smallest = np.iinfo(np.int32).min
    np.testing.assert_array_equal(row(np.ones((4, 2), np.int32), number, xla=True), smallest)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.bfloat16, tf.float32])
def test_mesh_tensorflows_gather_gives_zeros_out_of_range(dtype, xla):
    weights = np.ones((4, 2), dtype.as_numpy_dtype)
    for number in (-1, 4, -(2**63), 2**63 - 1):
        np.testing.assert_array_equal(row(weights, number, xla, is_checked=False), np.zeros(2))


def test_the_cost_of_gather_does_not_grow_with_the_table():
    """The largest tensor is as large as the table, so there is no one-hot matrix of the indices."""
    n, d = mtf.Dimension("n", 1000), mtf.Dimension("d", 2)

    def step(mesh, features):
        table = mtf.get_variable(mesh, "table", mtf.Shape([n, d]))
        rows = mtf.gather(table, features["ids"], n)
        return {"rows": rows, "d": mtf.gradients([rows], [table])[0]}

    program = t2tp.Program(step, {"ids": t2tp.Feature("m:50", tf.int32)})
    sizes = [
        tensor.shape.num_elements() or 0
        for op in program.trace().graph.get_operations()
        for tensor in op.outputs
        if tensor.shape.rank is not None
    ]
    assert max(sizes) == n.size * d.size


POSITIONS = np.array([0, 7, 3, 3], np.int32)
CACHE = {"x": normal("batch:4;heads:2;length:8;d_kv:4"), "update": normal("batch:4;heads:2;d_kv:4")}


def write(x, update, positions):
    return scatter_update(x, update, positions, mtf.Dimension("length", 8))


LAID_OUT = [("", ""), ("a:4", "length:a"), ("a:2;b:2", "batch:a;length:b")]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAID_OUT)
def test_what_is_written_into_stays_as_it_is_for_others(mesh_shape, layout):
    def op(x, update, positions):
        written = write(x, update, positions)
        return {
            "x": x * 1.0,
            "written": written * 1.0,
            "again": write(written, update * 2.0, positions),
            "other": write(x, update * 2.0, positions * 0),
        }

    def wanted(factor, positions):
        is_there = (np.arange(8)[None] == positions[:, None])[:, None, :, None]
        return np.where(is_there, factor * CACHE["update"][1][:, :, None], CACHE["x"][1])

    got = run(op, mesh_shape, layout, positions=("batch:4", POSITIONS), **CACHE)
    np.testing.assert_allclose(got["x"], CACHE["x"][1], rtol=1e-6)
    np.testing.assert_allclose(got["written"], wanted(1, POSITIONS), rtol=1e-6)
    np.testing.assert_allclose(got["again"], wanted(2, POSITIONS), rtol=1e-6)
    np.testing.assert_allclose(got["other"], wanted(2, POSITIONS * 0), rtol=1e-6)


@pytest.mark.cpu_only  # XLA leaves out assertions
@pytest.mark.parametrize("position", [-1, 8])
def test_writing_at_a_position_out_of_range_is_refused(position):
    positions = np.array([0, position, 1, 2], np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="along .*positions must be below"):
        dict(run(lambda **t: {"y": write(**t)}, **CACHE, positions=("batch:4", positions)))


def image_inputs(mean=0.7):
    words, x = normal("batch:8;height:4;width:6;channels:8", 2.0)
    vectors = np.random.default_rng(0).uniform(0.5, 1.5, size=(2, 8))
    return {
        "x": (words, mean + x),
        "scale": ("channels:8", vectors[0]),
        "bias": ("channels:8", vectors[1]),
    }


def test_batch_norm_written_out_for_xla_has_the_kernels_gradients():
    def op(**given):
        y = batch_norm(*given.values(), 0.1)[0]
        loss = mtf.reduce_sum(mtf.square(y) * given["x"])
        grads = mtf.gradients([loss], list(given.values()))
        return {"y": y} | dict(zip(given, grads, strict=True))

    kernels, *others = (dict(run(op, xla=xla, **image_inputs())) for xla in (None, True, False))
    for written_out in others:
        assert_close(written_out, kernels, 3e-6)


CASES = [
    ("", "", None),
    ("data:2;rows:2;model:2", "batch:data;height:rows;channels:model", None),
    ("", "", True),
    ("", "", False),
]


@pytest.mark.parametrize(("mesh_shape", "layout", "xla"), CASES)
@pytest.mark.parametrize("mean", [0.7, 4096.0])
def test_batch_statistics_far_from_zero_keep_their_digits(mesh_shape, layout, xla, mean):
    inputs = image_inputs(mean)

    def op(**given):
        return dict(zip(("mean", "variance"), batch_norm(*given.values(), 0.1)[1:], strict=True))

    values = run(op, mesh_shape, layout, xla, **inputs)
    x = inputs["x"][1].astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(values["mean"], x.mean((0, 1, 2)), rtol=1e-6)
    rtol = 1e-3 if mean > 1 else 1e-5
    np.testing.assert_allclose(values["variance"], x.var((0, 1, 2)), rtol=rtol)


def test_weights_may_have_a_dimension_twice_in_two_sizes():
    """Input and output of many layers have the same dimension, such as `channels`."""
    x, w = normal("batch:2;channels:4"), normal("channels:4;channels:3")
    output = mtf.convert_to_shape("batch:2;channels:3")
    y = run(lambda x, w: {"y": mtf.einsum([x, w], output_shape=output)}, x=x, w=w)["y"]
    np.testing.assert_allclose(y, x[1] @ w[1], rtol=1e-5)
