"""Whether compiling the decoding program with XLA saves more time than it costs.

Decoding is a loop of many small steps, which XLA makes up to twice as fast. Compiling takes seconds
for each batch shape and device, so it must be amortized. XLA gains nothing where the devices share
nothing but a batch, nor for large models, whose time goes into matmuls, which are slower in XLA
than in TensorFlow.
"""

from __future__ import annotations

from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import has_gpu

_MIN_BATCHES = 8  # per device
_MAX_WEIGHTS = 50_000_000


def should_compile(
    layout: Layout, num_prompts: float, batch_size: int, num_weights: int, num_processes: int = 1
) -> bool:
    """Decides whether to compile decoding if the user does not.

    Args:
      layout: of the model on its mesh.
      num_prompts: number of prompts to decode; `math.inf` if unknown.
      batch_size: prompts that are decoded together.
      num_weights: number of trainable weights.
      num_processes: number of processes that decode together.
    """
    if layout.size > 1 and (num_processes > 1 or has_gpu() or _splits_batch_only(layout)):
        return False
    is_enough = num_prompts >= _MIN_BATCHES * batch_size * layout.size
    return is_enough and num_weights <= _MAX_WEIGHTS


def _splits_batch_only(layout: Layout) -> bool:
    axis = layout.axis_of("batch")
    return axis is not None and axis.size == layout.size
