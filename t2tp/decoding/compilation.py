"""Decides whether compiling the decoding program with XLA saves more time than it costs.

XLA makes the loop of small decode steps up to twice as fast on one device. It does not compile
collectives. Compilation takes seconds for each batch shape, so it pays off only for many batches.
Large models spend their time in matmuls, and XLA's matmuls are slower than TensorFlow's.
"""

from t2tp.mesh.layout import Layout

_MIN_BATCHES = 8
_MAX_WEIGHTS = 50_000_000


def should_compile(layout: Layout, num_prompts: float, batch_size: int, num_weights: int) -> bool:
    """Whether to compile decoding if the user has not decided.

    `num_prompts` is `math.inf` if unknown; `num_weights` counts the trainable weights.
    """
    is_plain = layout.size == 1 and not layout.exact_sums
    return is_plain and num_prompts >= _MIN_BATCHES * batch_size and num_weights <= _MAX_WEIGHTS
