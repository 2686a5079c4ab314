"""The loop over positions: what it carries is a NamedTuple of tensors and the model's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import tensorflow as tf

from t2tp import mtf
from t2tp.models.autoregressive import DecodeState
from t2tp.program.program import Mesh

# A NamedTuple of tensors: what a way of decoding remembers of its sequences.
S = TypeVar("S", bound=NamedTuple)


def token_loop(
    mesh: Mesh,
    start: S,
    state: DecodeState,
    goes_on: Callable[[S], mtf.Tensor],
    body: Callable[[mtf.Tensor, S, DecodeState], tuple[S, DecodeState]],
) -> tuple[mtf.Tensor, S]:
    """Makes sequences longer, one token in each iteration.

    Args:
      mesh: the program's mesh.
      start: the sequences before the first iteration.
      state: of the model, before the first iteration.
      goes_on: whether a row of the sequences is not done yet, booleans [batch]; the loop ends when
        all are done, on each processor with those that it has.
      body: from the number of the iteration (an int32 scalar), the sequences and the model's state
        to the next sequences and state. It leaves rows that are done as they are.

    Returns:
      how many iterations there were, and the sequences after the last one.
    """
    names = list(state)

    def unpacked(values: Sequence[mtf.Tensor]) -> tuple[S, DecodeState]:
        sequences = type(start)(*values[: len(start)])
        return sequences, dict(zip(names, values[len(start) :], strict=True))

    def flat_body(step: mtf.Tensor, *values: mtf.Tensor) -> list[mtf.Tensor]:
        sequences, after = body(step, *unpacked(values))
        return [step + 1, *sequences, *(after[name] for name in names)]

    zero = mtf.zeros(mesh, mtf.Shape([]), tf.int32)
    steps, *values = mtf.while_loop(
        lambda step, *values: goes_on(unpacked(values)[0]),
        flat_body,
        [zero, *start, *state.values()],
    )
    return steps, unpacked(values)[0]
