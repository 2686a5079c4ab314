"""The decoding loop over positions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.prompt_batch import PromptBatch
from t2tp.models.autoregressive import DecodeState

# A NamedTuple of tensors: the sequences of a decoding method.
S = TypeVar("S", bound=NamedTuple)


def token_loop(
    rows: PromptBatch,
    start: S,
    state: DecodeState,
    goes_on: Callable[[S], mtf.Tensor],
    body: Callable[[mtf.Tensor, S, DecodeState], tuple[S, DecodeState]],
) -> tuple[mtf.Tensor, S]:
    """Extends sequences by one token per iteration.

    Args:
      rows: the batch.
      start: the sequences before the first iteration.
      state: the model's state before the first iteration.
      goes_on: maps the sequences to booleans [batch]: whether each row is unfinished. The loop ends
        on each processor when all of its rows are done.
      body: maps the index of the iteration (an int32 scalar), the sequences and the model's state
        to the next sequences and state. It must not change rows that are done.

    Returns:
      the number of iterations (an int32 scalar, the max over all processors), and the last
      sequences.
    """
    names = list(state)

    def unpacked(values: Sequence[mtf.Tensor]) -> tuple[S, DecodeState]:
        sequences = type(start)(*values[: len(start)])
        return sequences, dict(zip(names, values[len(start) :], strict=True))

    def flat_body(step: mtf.Tensor, *values: mtf.Tensor) -> list[mtf.Tensor]:
        sequences, after = body(step, *unpacked(values))
        return [step + 1, *sequences, *(after[name] for name in names)]

    scalar = mtf.Shape([])
    zero = mtf.zeros(rows.mesh, scalar, tf.int32)
    steps, *values = mtf.while_loop(
        lambda step, *values: goes_on(unpacked(values)[0]),
        flat_body,
        [zero, *start, *state.values()],
    )
    max_steps = mtf.reduce_max(mtf.broadcast(steps, [rows.batch]), output_shape=scalar)
    return max_steps, unpacked(values)[0]
