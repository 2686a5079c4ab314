"""Lowers an einsum of slices to a matmul where possible.

TensorFlow's Einsum always uses batched matmuls. With few rows, as in decoding, their CPU kernel
takes up to four times as long as the kernel of a plain matmul.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class _Matrices(NamedTuple):
    """An einsum expressed as a matmul.

    Attributes:
      is_swapped: whether the second operand comes first.
      transposes: whether the first and the second matrix are transposed.
      num_summed: number of dimensions that are summed over, of each operand.
    """

    is_swapped: bool
    transposes: tuple[bool, bool]
    num_summed: int


def einsum(
    equation: str, *slices: tf.Tensor, widen: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> tf.Tensor:
    """Computes `tf.einsum`, as a matmul if that only requires reshaping.

    Where Einsum would have to compute in float32, slices are also transposed for a matmul.

    Args:
      equation: an equation such as `abc,cd->abd`, without repeated letters in a term.
      *slices: floats, of static shapes, in a graph.
      widen: converts 16-bit floats to float32, for CPUs: there Einsum accumulates them in 16 bits,
        and MatMul does not. By default they are not converted.
    """
    matrices = _as_matrices(equation)
    if matrices is None:
        dtype = slices[0].dtype
        if widen is not None and dtype in (tf.bfloat16, tf.float16):
            if (terms := _transposed_terms(equation)) is not None:
                x, y, product, out = terms
                before = equation.partition("->")[0].split(",")
                operands = map(_transposed, slices, before, (x, y))
                return _transposed(einsum(f"{x},{y}->{product}", *operands), product, out)
            return tf.cast(tf.einsum(equation, *map(widen, slices)), dtype)
        return tf.einsum(equation, *slices)
    x, y = slices[::-1] if matrices.is_swapped else slices
    transpose_x, transpose_y = matrices.transposes
    free_x, x = _matrix(x, matrices.num_summed, sums_first=transpose_x)
    free_y, y = _matrix(y, matrices.num_summed, sums_first=not transpose_y)
    result = tf.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)
    shape = [*free_x, *free_y]
    return result if len(shape) == 2 else tf.reshape(result, shape)


def _transposed_terms(equation: str) -> tuple[str, str, str, str] | None:
    """Returns both terms as matrices, their product and the output; None if it is no matmul."""
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


def _transposed(x: tf.Tensor, letters: str, wanted: str) -> tf.Tensor:
    order = [letters.index(letter) for letter in wanted]
    return x if letters == wanted else tf.transpose(x, order)


def _as_matrices(equation: str) -> _Matrices | None:
    """Returns the matmul that an einsum is; None if it is not one."""
    terms = _transposed_terms(equation)
    if terms is None:
        return None
    x, y, product, out = terms
    if equation != f"{x},{y}->{product}" or out != product:
        return None
    summed = "".join(letter for letter in x if letter in y)
    free_x = "".join(letter for letter in x if letter not in summed)
    free_y = "".join(letter for letter in y if letter not in summed)
    is_swapped = out != free_x + free_y
    first, second = (y, x) if is_swapped else (x, y)
    return _Matrices(is_swapped, (first.startswith(summed), second.endswith(summed)), len(summed))


def _matrix(x: tf.Tensor, num_summed: int, sums_first: bool) -> tuple[list[int], tf.Tensor]:
    """Returns the sizes of the dimensions that are not summed over, and the operand as a matrix."""
    sizes = x.shape.as_list()
    boundary = num_summed if sums_first else len(sizes) - num_summed
    first, last = sizes[:boundary], sizes[boundary:]
    free = last if sums_first else first
    if len(sizes) == 2:
        return free, x
    # Weights that a loop multiplies by are reshaped before it: if the other operand is a vector,
    # XLA would fuse reshape and product into one naive loop.
    with x.graph.as_default():
        return free, tf.reshape(x, [math.prod(first), math.prod(last)])
