"""While loops on named tensors."""

from collections.abc import Callable

from t2tp import upstream


def while_loop(
    cond_fn: Callable[..., upstream.Tensor],
    body_fn: Callable[..., list[upstream.Tensor]],
    inputs: list[upstream.Tensor],
    num_loop_vars: int | None = None,
    has_accumulators: bool = False,
    **kwargs: object,
) -> list[upstream.Tensor]:
    """Calls `body_fn` on the loop variables while `cond_fn` is true.

    Random operations inside return different numbers in each iteration. A loop is not
    differentiable, but gradients may be computed inside it.

    Args:
      cond_fn: maps the loop variables to a boolean scalar, or to one boolean per row, [rows...].
        With one boolean per row, the loop continues while any of them is true, and the body must
        not change a row whose boolean is false. A processor exits the loop when its own rows are
        done, unless the body has collectives between processors with different rows. After the
        loop, variables without the dimensions of the rows, such as a number of iterations, may
        therefore differ between processors.
      body_fn: maps the loop variables to their next values.
      inputs: the initial values.
      num_loop_vars: number of loop variables to return; None: all. In mesh-tensorflow, the other
        loop variables become weights of the model. Here they do not.
      has_accumulators: whether `body_fn` returns further results after the loop variables. These
        are summed over the iterations, and all-reduced once, after the loop.
      **kwargs: arguments of `tf.while_loop`, such as `maximum_iterations`.

    Returns:
      the final values of the loop variables, then the sums.
    """
    loop = upstream.WhileLoopOperation(
        cond_fn, body_fn, inputs, tf_kwargs=kwargs, has_accumulators=has_accumulators
    )
    if num_loop_vars is None:
        return loop.outputs
    return loop.outputs[:num_loop_vars] + loop.outputs[len(inputs) :]
