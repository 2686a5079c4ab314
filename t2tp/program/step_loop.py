"""A loop of training steps inside one compiled function.

TensorFlow prepares each launch of a function on the host, which takes some microseconds for each
variable. A model with a thousand variables then waits for the host in every step. If one launch
runs K steps, the host works once in K steps.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

RunStep = Callable[[tf.Tensor, list[tf.Tensor]], dict[str, tf.Tensor]]


def loop_of_steps(
    run: RunStep,
    span: tf.Tensor,
    count: int | None,
    batches: Sequence[Sequence[tf.Tensor]],
    outputs: Mapping[str, tuple[tf.DType, Sequence[int]]],
) -> dict[str, tf.Tensor]:
    """Runs a step for each batch, one after another.

    Args:
      run: (number of the step, its features) -> its outputs by name; traced once.
      span: int64 [2], the number of the first step and the first number after the last step.
      count: the number of steps. With a constant, XLA knows when the loop ends, and a GPU need not
        ask the host after each step. None: as `span` says, at most the number of batches.
      batches: the features of each step.
      outputs: dtype and shape of each output.

    Returns:
      the outputs, stacked: [number of batches, ...]. The rows after the last step are zero.
    """
    size = len(batches)
    stacked = [tf.stack(parts) for parts in zip(*batches, strict=True)]
    end = tf.cast(span[1] - span[0], tf.int32) if count is None else count

    def body(i: tf.Tensor, arrays: dict[str, tf.TensorArray]) -> tuple:
        values = run(span[0] + tf.cast(i, tf.int64), [x[i] for x in stacked])
        return i + 1, {name: arrays[name].write(i, value) for name, value in values.items()}

    arrays = {
        name: tf.TensorArray(dtype, size, element_shape=shape)
        for name, (dtype, shape) in outputs.items()
    }
    _, arrays = tf.while_loop(
        lambda i, _: i < end, body, (tf.constant(0), arrays), parallel_iterations=1
    )
    return {name: array.stack() for name, array in arrays.items()}
