"""Sums over the mesh are deferred past linear operations, and no sum is reduced twice."""

import numpy as np
import pytest

from t2tp import mtf
from tests.lowering import oracle

S, A, C, P = (mtf.Dimension(name, size) for name, size in [("s", 4), ("a", 8), ("c", 6), ("p", 8)])
X = np.random.default_rng(0).normal(size=(4, 8, 6)).astype(np.float32)
ALLREDUCE, SCATTER = ("allreduce", ("x",)), ("reducescatter", ("x",))


def run(compute):
    """Applies `compute` to two sums over a split dimension; returns its values and collectives."""

    def step(mesh, features):
        x, y = features["x"], mtf.square(features["x"])
        sums = [mtf.reduce_sum(z, output_shape=[A, C]) for z in (x, y)]
        return {f"y{i}": y for i, y in enumerate(compute(*sums))}

    features = {"x": (mtf.Shape([S, A, C]), X)}
    program, values = oracle.program_and_outputs(step, features, "x:4", "s:x;p:x")
    return [values[f"y{i}"] for i in range(len(values))], program.collectives()


A_SUM, B_SUM = X.sum(0), np.square(X).sum(0)


CASES = [
    (lambda a: a * 3.0, A_SUM * 3),
    (lambda a: -a, -A_SUM),
    (lambda a: a / 4.0, A_SUM / 4),
    (lambda a: mtf.transpose(mtf.transpose(a, [C, A]), [A, C]), A_SUM),
    (lambda a: -(a * 2.0) * 0.5, -A_SUM),
]


@pytest.mark.parametrize(
    ("change", "wanted"), CASES, ids=["scaled", "negated", "divided", "transposed", "all"]
)
def test_a_sum_that_is_changed_and_then_split_is_a_reducescatter(change, wanted):
    (y,), moved = run(lambda a, b: [mtf.reshape(change(a), [P, C])])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    # The all-gather is for the program's output.
    assert moved[SCATTER] == (1, 8 * 6 * 4) and ALLREDUCE not in moved


@pytest.mark.parametrize("dims", [[], [C], [A]], ids=str)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_sum_with_a_bias_that_is_then_split_is_a_reducescatter(dims, is_first):
    """Adds the bias only once, although each processor has a partial sum."""
    array = np.arange(1.0, 1.0 + mtf.Shape(dims).size).reshape(mtf.Shape(dims).to_integer_list)

    def changed(a, b):
        bias = mtf.import_tf_tensor(a.mesh, array.astype(np.float32), shape=mtf.Shape(dims))
        both = (a, bias) if is_first else (bias, a)
        return [mtf.reshape(mtf.add(*both, output_shape=a.shape), [P, C])]

    (y,), moved = run(changed)
    wanted = A_SUM + (array[:, None] if dims == [A] else array)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    assert moved[SCATTER] == (1, 8 * 6 * 4) and ALLREDUCE not in moved


@pytest.mark.parametrize("also", [mtf.tanh, lambda a: a * 3.0, lambda a: -a])
def test_what_others_use_too_is_reduced_once_before(also):
    (y, z), moved = run(lambda a, b: [mtf.reshape(a * 2.0, [P, C]), mtf.square(also(a))])
    np.testing.assert_allclose(y, 2 * A_SUM, rtol=1e-4, atol=1e-6)
    assert moved[ALLREDUCE] == (1, 8 * 6 * 4) and SCATTER not in moved
    assert np.isfinite(z).all()


def test_a_loop_that_uses_a_sum_counts_too():
    def compute(a, b):
        doubled, i = mtf.reshape(a * 2.0, [P, C]), mtf.zeros(a.mesh, mtf.Shape([]))
        _, y = mtf.while_loop(
            lambda i, y: mtf.less(i, 3.0), lambda i, y: [i + 1.0, y + a], [i, mtf.zeros_like(a)]
        )
        return [doubled, y]

    (_, y), moved = run(compute)
    np.testing.assert_allclose(y, 3 * A_SUM, rtol=1e-5, atol=1e-6)
    assert moved[ALLREDUCE] == (1, 8 * 6 * 4) and SCATTER not in moved


# Functions of two sums, their values, the number of sums that are reduced, and the max number of
# all-reduces.
REDUCED = {
    "a difference": (lambda a, b: [mtf.tanh(a - b)], [np.tanh(A_SUM - B_SUM)], 1, 1),
    "scaled sums, together": (
        lambda a, b: [mtf.tanh(a * 2.0), mtf.tanh(b * 0.1)],
        [np.tanh(2 * A_SUM), np.tanh(0.1 * B_SUM)],
        2,
        1,
    ),
    "a sum of sums that are reduced anyway": (
        lambda a, b: [mtf.sin(a), mtf.sin(b), mtf.sin(a + b)],
        [np.sin(A_SUM), np.sin(B_SUM), np.sin(A_SUM + B_SUM)],
        2,
        1,
    ),
    "a sum of sums of which one is reduced anyway": (
        lambda a, b: [mtf.sin(a), mtf.sin(a + b)],
        [np.sin(A_SUM), np.sin(A_SUM + B_SUM)],
        2,
        2,
    ),
}


@pytest.mark.parametrize("name", REDUCED)
def test_no_sum_is_reduced_twice(name):
    compute, wanted, count, max_collectives = REDUCED[name]
    ys, moved = run(compute)
    for y, value in zip(ys, wanted, strict=True):
        np.testing.assert_allclose(y, value, rtol=1e-4, atol=1e-5)
    collectives, num_bytes = moved[ALLREDUCE]
    assert num_bytes == count * 8 * 6 * 4
    assert collectives <= max_collectives
