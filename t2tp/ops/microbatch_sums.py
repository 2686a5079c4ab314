"""Loops that sum the results of a function over microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.operation import Operation


class MicrobatchSums(Operation, upstream.WhileLoopOperation):
    """Calls a function for each microbatch and sums its results; subclasses define `lower`.

    Input: the index of the first microbatch. Outputs: the number of microbatches, and the sums.

    Attributes:
      repeats: whether a later loop has the same operations; see `following`.
      count: number of microbatches.
      microbatch_dim: the batch dimension of a microbatch.
      microbatch_operations: the graph of a microbatch.
      addends: the function's result for one microbatch, as tensors of `microbatch_operations`.
      total: the sums, structured as the function returns them.
    """

    repeats = False
    microbatch_operations: list[upstream.Operation]
    _body_inputs: list[upstream.Tensor]

    def __init__(
        self,
        sums_of: Callable[[upstream.Tensor], Any],
        count: int,
        microbatch_dim: upstream.Dimension,
        mesh: upstream.Mesh,
        name: str,
        following: MicrobatchSums | None = None,
    ) -> None:
        """Builds the graph of a microbatch.

        `sums_of` maps the index of a microbatch (int32) to its addends. `following` is the loop
        that this loop follows, over the same microbatches. This loop repeats the operations of the
        other loop, so `sums_of` may read their tensors.
        """
        self.count = count
        self.microbatch_dim = microbatch_dim
        added: list[Any] = []  # The constructor below calls the body once.

        def body(number: upstream.Tensor) -> list[upstream.Tensor]:
            if following is not None:
                (number,) = following._body_inputs
                mesh.graph.operations.extend(following.microbatch_operations)
            added.append(sums_of(number))
            return [number + 1, *tf.nest.flatten(added[0])]

        super().__init__(
            lambda number: upstream.less(number, count),
            body,
            [upstream.constant(mesh, 0, dtype=tf.int32)],
            has_accumulators=True,
            name=name,
        )
        if following is not None:
            self._body_inputs = following._body_inputs
        self.microbatch_operations = self._body_ops
        self.addends = added[0]
        self.total = tf.nest.pack_sequence_as(self.addends, self.outputs[1:])
