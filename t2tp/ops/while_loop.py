"""While loops whose variables are all loop variables."""

from __future__ import annotations

from collections.abc import Callable

from t2tp import upstream as mtf


def while_loop(
    cond_fn: Callable[..., mtf.Tensor],
    body_fn: Callable[..., list[mtf.Tensor]],
    inputs: list[mtf.Tensor],
    num_loop_vars: int | None = None,
    has_accumulators: bool = False,
    **kwargs: object,
) -> list[mtf.Tensor]:
    """Calls `body_fn` on the loop variables while `cond_fn` says so.

    Random operations inside draw other numbers in each iteration. There are no gradients through a
    loop; gradients may be taken inside one.

    Args:
      cond_fn: from the loop variables to a boolean scalar, or to booleans [rows...]: the loop goes
        on while one of them is true, and where one is false the body leaves the row as it is.
        Processors then leave the loop when their own rows are done, without waiting for those that
        have others (unless something in the body is reduced or sent between them); loop variables
        without the dimensions of the rows, such as a number of iterations, may end differently.
      body_fn: from the loop variables to their next values.
      inputs: their first values.
      num_loop_vars: return only so many of them. (mesh-tensorflow makes model variables of the
        others, which would be trained and saved.)
      has_accumulators: what `body_fn` returns beyond the loop variables is summed over the
        iterations, and reduced over the mesh once, after the loop.
      **kwargs: for `tf.while_loop`, such as `maximum_iterations`.

    Returns:
      the last values of the loop variables, then the sums.
    """
    loop = mtf.WhileLoopOperation(
        cond_fn, body_fn, inputs, tf_kwargs=kwargs, has_accumulators=has_accumulators
    )
    if num_loop_vars is None:
        return loop.outputs
    return loop.outputs[:num_loop_vars] + loop.outputs[len(inputs) :]
