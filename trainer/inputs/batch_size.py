"""The batch size in sequences, converted from the unit that the hparam `batch_size_unit` names."""

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout

# TensorFlow indexes the elements of a tensor with int32.
_MAX_TOKENS = 2**31 - 1


def sequences_per_batch(hparams: HParams, layout: Layout) -> int:
    """Returns the number of sequences in the global batch of a step.

    For a unit per replica, `batch_size` is multiplied by the number of replicas: the product of the
    sizes of the mesh axes that split the dimension `batch`, or 1 if no axis splits it. A sequence
    counts as `max_length` tokens, including padding.

    Raises:
      ValueError: the number of tokens is not a multiple of `max_length`, or is too large.
    """
    size, unit, length = hparams.batch_size, hparams.batch_size_unit, hparams.max_length
    if unit.startswith("tokens"):
        if length < 1 or size % length:
            raise ValueError(
                f"batch_size={size} with batch_size_unit={unit} is not a number of whole sequences"
                f" of max_length={length} tokens{_nearest_sizes(size, length)}"
            )
        size //= length
    if unit.endswith("replica"):
        size *= layout.batch_slices
    if size * length > _MAX_TOKENS:
        raise ValueError(
            f"batch_size={hparams.batch_size} with batch_size_unit={unit} and max_length={length}"
            f" is a batch of {size * length:,} tokens, and at most {_MAX_TOKENS:,} can be indexed"
        )
    return size


def _nearest_sizes(size: int, length: int) -> str:
    """Suggests the nearest valid batch sizes."""
    if length < 1:
        return ""
    below = size // length * length
    sizes = [n for n in (below, below + length) if n > 0]
    return f": use {' or '.join(map(str, sizes))}"
