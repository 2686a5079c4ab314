"""How many sequences a batch has, whatever it is counted in."""

from __future__ import annotations

from t2tp.hparam import HParams
from t2tp.hparams.base import BATCH_SIZE_UNITS
from t2tp.mesh.layout import Layout
from t2tp.nearest import nearest

# TensorFlow indexes a tensor of a batch with int32.
_MAX_TOKENS = 2**31 - 1


def sequences_per_batch(hparams: HParams) -> int:
    """The sequences of the whole batch of a step.

    A replica is what computes a part of the batch: a mesh has as many as the axis that splits
    `batch` is long, or one. A sequence counts as `max_length` tokens, however many of them are
    padding.

    Args:
      hparams: `batch_size`, `batch_size_unit`, `max_length`, `mesh_shape` and `layout`.

    Raises:
      ValueError: there is no such unit, the tokens are not those of whole sequences, or they are
        too many.
    """
    size, unit, length = hparams.batch_size, hparams.batch_size_unit, hparams.max_length
    if unit not in BATCH_SIZE_UNITS:
        known = nearest(unit, BATCH_SIZE_UNITS, "units")
        raise ValueError(f"batch_size_unit is {unit!r}: {known}")
    if unit.startswith("tokens"):
        if length < 1 or size % length:
            raise ValueError(
                f"batch_size={size} with batch_size_unit={unit} is not a number of whole sequences"
                f" of max_length={length} tokens{_nearest_sizes(size, length)}"
            )
        size //= length
    if unit.endswith("replica"):
        axis = Layout(hparams.mesh_shape, hparams.layout).axis_of("batch")
        size *= axis.size if axis else 1
    if size * length > _MAX_TOKENS:
        raise ValueError(
            f"batch_size={hparams.batch_size} with batch_size_unit={unit} and max_length={length}"
            f" is a batch of {size * length:,} tokens, and at most {_MAX_TOKENS:,} can be indexed"
        )
    return size


def _nearest_sizes(size: int, length: int) -> str:
    """The batch sizes that would do."""
    if length < 1:
        return ""
    below = size // length * length
    near = [n for n in (below, below + length) if n > 0]
    return f": take {' or '.join(map(str, near))}"
