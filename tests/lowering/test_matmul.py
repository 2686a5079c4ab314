"""Einsums that are products of two matrices become matmuls; all match `tf.einsum`."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp.lowering import matmul

SIZES = dict(zip("abcdefg", (2, 3, 4, 5, 6, 7, 8), strict=True))

MATRICES = [
    "ab,bc->ac",
    "ab,cb->ac",  # second factor transposed
    "ba,bc->ac",  # first factor transposed
    "ba,cb->ac",  # both transposed
    "bc,ab->ac",  # factors in reverse order
    "abc,cde->abde",  # more dimensions
    "abc,bcd->ad",  # a sum over two dimensions
    "bcd,abc->ad",
    "abd,abc->dc",  # the gradient of a weight
]
TRANSPOSED = [
    "abc,cbd->ad",  # summed dimensions in different orders
    "bac,cd->bda",  # another order in the result
    "abc,bd->acd",  # the summed dimension between others
    "abc,cde->adbe",  # heads before the length
    "adbe,cde->abc",
    "abc,adbe->cde",
]
OTHERS = [
    *TRANSPOSED,
    "ab,b->a",
    "abc,abd->acd",  # a batch dimension
    "a,b->ab",
    "ab,bc,cd->ad",
]


def operands(equation: str) -> list[tf.Tensor]:
    random = np.random.default_rng(0)
    terms = equation.partition("->")[0].split(",")
    return [tf.constant(random.standard_normal([SIZES[d] for d in term])) for term in terms]


@pytest.mark.parametrize("equation", MATRICES + OTHERS)
def test_products_of_two_matrices_are_matmuls_and_all_are_einsums(equation):
    xs = operands(equation)
    multiply = tf.function(lambda *xs: matmul.einsum(equation, *xs)).get_concrete_function(*xs)
    np.testing.assert_allclose(multiply(*xs), tf.einsum(equation, *xs), rtol=1e-12, atol=1e-12)
    kinds = {op.type for op in multiply.graph.get_operations()}
    if equation in MATRICES:
        assert "MatMul" in kinds and not kinds & {"Einsum", "Transpose", "BatchMatMulV2"}
    else:
        assert "Einsum" in kinds


@pytest.mark.parametrize("equation", MATRICES + OTHERS)
def test_short_floats_are_multiplied_as_such_where_a_matmul_can(equation):
    xs = [tf.cast(x, tf.bfloat16) for x in operands(equation)]
    wide = [tf.cast(x, tf.float32) for x in xs]

    def einsum(*slices):
        return matmul.einsum(equation, *slices, widen=lambda x: tf.cast(x, tf.float32))

    traced = tf.function(einsum).get_concrete_function(*xs)
    is_matrix = equation in MATRICES + TRANSPOSED
    assert ("Cast" in {op.type for op in traced.graph.get_operations()}) != is_matrix
    rounded = tf.cast(traced(*xs), tf.float32)
    # Without oneDNN, the kernel also rounds partial sums.
    np.testing.assert_allclose(rounded, tf.einsum(equation, *wide), rtol=2**-6, atol=1e-2)


def test_weights_are_reshaped_before_the_loop_that_multiplies_by_them():
    """Inside the loop, XLA would fuse the reshape with the matmul into a slow loop."""

    @tf.function(autograph=False)
    def powers(x, w):
        def step(i, x):
            return i + 1, matmul.einsum("ab,bcd->acd", x, w)[:, 0]

        return tf.while_loop(lambda i, x: i < 3, step, [0, x])

    graph = powers.get_concrete_function(tf.ones([2, 6]), tf.ones([6, 5, 6])).graph
    (loop,) = (op for op in graph.get_operations() if "While" in op.type)
    shapes = [x.shape.as_list() for x in loop.inputs]
    assert [6, 30] in shapes
    assert [6, 5, 6] not in shapes
