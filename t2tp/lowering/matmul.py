"""Lowers an einsum of slices to a matmul where possible.

TensorFlow's Einsum always uses batched matmuls. With few rows, as in decoding, their CPU kernel
takes up to four times as long as the kernel of a plain matmul.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from t2tp.lowering.slice_shapes import arranged

# TensorFlow has two matmul kernels for CPUs. The first computes a batch of products if each takes
# at most this many multiplications (`kMaxCostOuterParallelism`). The second computes larger
# products, and single products of any size.
SMALL_PRODUCT = 128 * 128


def einsum(
    equation: str, *slices: tf.Tensor, widen: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> tf.Tensor:
    """Computes `tf.einsum`, as a matmul if the operands only have to be reshaped for it.

    With 16-bit floats on CPUs, operands are also transposed for a matmul: for Einsum they would
    have to be converted to float32 (see `widen`).

    Args:
      equation: an equation such as `abc,cd->abd`, without repeated letters in a term.
      *slices: floats, of static shapes, in a graph.
      widen: converts 16-bit floats to float32. Necessary on CPUs, where Einsum, unlike MatMul,
        accumulates 16-bit floats in 16 bits. Default: no conversion.
    """
    dtype = slices[0].dtype
    if dtype not in (tf.bfloat16, tf.float16):
        widen = None
    terms = _matrix_terms(equation)
    if terms is not None:
        x, y, product, out = terms
        if widen is not None or equation == f"{x},{y}->{product}":
            before = equation.partition("->")[0].split(",")
            first, second = map(arranged, slices, before, (x, y))
            return arranged(_product(first, second, x, y, product), product, out)
    if widen is not None:
        return tf.cast(tf.einsum(equation, *map(widen, slices)), dtype)
    return tf.einsum(equation, *slices)


def einsum_of_any_slice(equation: str, *slices: tf.Tensor) -> tf.Tensor:
    """Computes a float32 `einsum` with the same kernel for slices of any size.

    TensorFlow has a separate kernel for batches of small products. To avoid this kernel, small
    products are computed one at a time.
    """
    terms, _, out = equation.partition("->")
    x, _, y = terms.partition(",")
    sizes = dict(zip(x + y, [n for each in slices for n in each.shape], strict=True))
    batch = [letter for letter in out if letter in x and letter in y]
    kinds = {*x} - {*y}, {*y} - {*x}, {*x} & {*y} - {*out}
    rows, columns, summed = (math.prod(sizes[letter] for letter in kind) for kind in kinds)
    if not batch or min(rows, columns, summed) == 1 or rows * columns * summed > SMALL_PRODUCT:
        return einsum(equation, *slices)
    parts = [
        tf.unstack(operand, axis=term.index(batch[0]))
        for term, operand in zip((x, y), slices, strict=True)
    ]
    rest = equation.replace(batch[0], "")
    results = [einsum_of_any_slice(rest, *pair) for pair in zip(*parts, strict=True)]
    return tf.stack(results, out.index(batch[0]))


def _matrix_terms(equation: str) -> tuple[str, str, str, str] | None:
    """Returns the letters of the two matrices, of their product, and of the output.

    The output may be a transposition of the product. Returns None if the equation is no matmul.
    """
    terms, _, out = equation.partition("->")
    if terms.count(",") != 1:
        return None
    x, y = terms.split(",")
    summed = "".join(letter for letter in x if letter in y and letter not in out)
    if not summed or {*x} & {*y} & {*out}:
        return None
    free_x, free_y = ("".join(letter for letter in term if letter not in summed) for term in (x, y))
    if not free_x or not free_y or {*free_x, *free_y} != {*out}:
        return None
    x = x if x in (free_x + summed, summed + free_x) else free_x + summed
    y = y if y in (free_y + summed, summed + free_y) else summed + free_y
    return x, y, out if out == free_y + free_x else free_x + free_y, out


def _product(x: tf.Tensor, y: tf.Tensor, of_x: str, of_y: str, product: str) -> tf.Tensor:
    """Multiplies two tensors as matrices.

    The summed letters are the first or the last letters of `of_x` and of `of_y`. `product` has the
    letters that are not summed, first of one operand and then of the other.
    """
    summed = "".join(letter for letter in of_x if letter in of_y)
    transpose_x, transpose_y = of_x.startswith(summed), of_y.endswith(summed)
    if not product.startswith(of_x.replace(summed, "")):
        return _product(y, x, of_y, of_x, product)
    free_x, x = _matrix(x, len(summed), sums_first=transpose_x)
    free_y, y = _matrix(y, len(summed), sums_first=not transpose_y)
    result = tf.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)
    shape = [*free_x, *free_y]
    return result if len(shape) == 2 else tf.reshape(result, shape)


def _matrix(x: tf.Tensor, num_summed: int, sums_first: bool) -> tuple[list[int], tf.Tensor]:
    """Returns the sizes of the dimensions that are not summed over, and the operand as a matrix."""
    sizes = x.shape.as_list()
    boundary = num_summed if sums_first else len(sizes) - num_summed
    first, last = sizes[:boundary], sizes[boundary:]
    free = last if sums_first else first
    if len(sizes) == 2:
        return free, x
    # A weight is reshaped in its own graph, outside the loop that uses it. Inside the loop, XLA
    # would fuse the reshape with a matrix-vector product into slow scalar code.
    with x.graph.as_default():
        return free, tf.reshape(x, [math.prod(first), math.prod(last)])
